cdef class Reader:
    cdef object head
    cdef bytes body
    cdef const unsigned char* bytes_at
    cdef Py_ssize_t position, end, count
    cdef long long base_offset, base_timestamp, last_offset_delta, append_time
    cdef bint stamped
    cdef Py_ssize_t index, record_start, record_end
    cdef long long offset_delta, previous_delta, timestamp
    cdef Py_ssize_t fields_at, key_length, key_at, value_length, value_at, headers_at, header_count

    cdef long long varlong(self, Py_ssize_t end) except? -4611686018427387905
    cdef long long varint(self, Py_ssize_t end) except -4294967296
    cdef Py_ssize_t field(self, Py_ssize_t end) except -2
    cdef bint begin(self) except -1
    cdef bint skip(self) except -1
    cdef bint next(self) except -1
    cdef bint next_readable(self, object faults) except -1
    cdef object key(self)
    cdef object value(self)
    cdef list headers(self)


cdef class Writer:
    cdef bytearray buffer
    cdef unsigned char* bytes_at
    cdef Py_ssize_t position, size

    cdef int reserve(self, Py_ssize_t count) except? -1
    cdef bytearray take(self)
    cdef void varint(self, long long value) noexcept
    cdef void raw(self, bytes data, Py_ssize_t start, Py_ssize_t length) noexcept
    cdef int copy(self, Reader reader, long long base_timestamp) except? -1


cdef class Picker:
    cdef Reader reader
    cdef readonly long long after
    cdef bint stands
    cdef object broken


cdef int varint_bytes(long long value) noexcept
