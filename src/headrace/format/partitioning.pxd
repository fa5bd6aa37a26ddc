cdef unsigned int hash_at(const unsigned char* key, Py_ssize_t start, Py_ssize_t length) noexcept
