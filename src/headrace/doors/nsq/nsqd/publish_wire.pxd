cdef Py_ssize_t number_bytes(long long value) noexcept
cdef Py_ssize_t put_number(unsigned char* out, Py_ssize_t position, long long value) noexcept
