cdef class CachedRequest:
    cdef readonly long long version
    cdef readonly bytes prefix
    cdef bytes model
    cdef long long codec_max, size_max
    cdef Py_ssize_t offset_at
    cdef bint with_start
