from headrace.format.records cimport Reader


cdef class Origin:
    cdef bytes topic
    cdef long long queue_id, physical_shift
    cdef bytes store_host
    cdef object read_host, hash_tag, encode_slowly


cdef class Encoder:
    cdef Origin origin
    cdef Reader reader
    cdef bytearray out
    cdef unsigned char* into
    cdef Py_ssize_t size, count, tag, properties_bytes
    cdef long long born_ms, flag, sys_flag, reconsume_times
    cdef bytes born_host
    cdef Py_ssize_t[64] name_at
    cdef Py_ssize_t[64] name_bytes
    cdef Py_ssize_t[64] value_at
    cdef Py_ssize_t[64] value_bytes

    cdef bint read_headers(self) except? -1
    cdef int read_own(self, Py_ssize_t name, Py_ssize_t length, Py_ssize_t value, Py_ssize_t size) except? -2
    cdef bint has_tag(self, object tags) except? -1
    cdef int write(self) except? -1
    cdef bint write_slowly(self, object accepts) except? -1
    cdef int reserve(self, Py_ssize_t count) except? -1
    cdef bytearray take(self, Py_ssize_t size)
