cdef class Heap:
    cdef long long[::1] keys
    cdef long long[::1] values
    cdef Py_ssize_t count, capacity, unordered

    cpdef void add(self, long long key, long long value) except *
    cdef void grow(self) except *
    cdef void drop(self) noexcept
    cdef void up(self, Py_ssize_t at) noexcept
    cdef void down(self, Py_ssize_t at) noexcept
