from headrace.format.records cimport Reader, Writer


cdef class Walk:
    cdef bytes data
    cdef Py_ssize_t size, at
    cdef long long after
    cdef Reader reader

    cdef bint next(self) except -1
    cdef int check(self) except? -1


cdef class BucketBatch:
    cdef Writer writer
    cdef Py_ssize_t count
    cdef long long base, highest
    cdef object times

    cdef int stamp(self, long long due) except? -1
    cdef int add(self, Reader reader, long long due, long long number, bytes route) except? -1
    cdef int carry(self, Reader reader) except? -1


cpdef int place(long long due, long long now) except -2
cdef long long number_at(bytes data, Py_ssize_t at) noexcept
cdef long long int_at(bytes data, Py_ssize_t at) noexcept
cdef bint is_entry(Reader reader) except -1
cdef Py_ssize_t route_at(Reader reader) except -1
cdef bytearray sealed(Writer writer, Py_ssize_t count, long long base, long long highest)
