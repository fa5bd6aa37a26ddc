from headrace.format.records cimport Writer


cdef class WireSend:
    cdef readonly int code
    cdef readonly bytes topic
    cdef readonly long long queue_id
    cdef readonly long long opaque
    cdef readonly bint is_one_way
    cdef readonly bytes unique_key
    cdef readonly Py_ssize_t body_bytes
    cdef readonly list tails
    cdef readonly Py_ssize_t size
    cdef public object connection
    cdef public object admission
    cdef public object host


cdef class Properties:
    cdef Py_ssize_t count, key, unique
    cdef Py_ssize_t[48] starts
    cdef Py_ssize_t[48] middles
    cdef Py_ssize_t[48] stops

    cdef bint split(self, const unsigned char* at, Py_ssize_t start, Py_ssize_t end) except? -1
    cdef bytearray tail(self, const unsigned char* at, const unsigned char* body, Py_ssize_t body_at, Py_ssize_t body_end, bytes own, Py_ssize_t own_count)
