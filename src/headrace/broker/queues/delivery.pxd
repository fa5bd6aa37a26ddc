from headrace.broker.queues.ledger cimport Ledger
from headrace.format.records cimport Reader


cdef class Feed:
    cdef readonly bytes data
    cdef readonly Py_ssize_t position
    cdef readonly long long base, after, offset
    cdef Py_ssize_t unpacked_max
    cdef long long start
    cdef Reader reader
    cdef bint held
    cdef object broken, aborted

    cdef bint step(self) except -1
    cdef bint open_next(self) except -1


cdef class Look:
    cdef readonly Py_ssize_t size
    cdef readonly bint done
    cdef Reader reader


cdef class Claimed:
    cdef readonly Py_ssize_t count, size
    cdef readonly long long lane
    cdef list readers
    cdef long long[::1] cells

    cdef int add(self, Reader reader, long long attempt) except -1
    cdef object key_of(self, Py_ssize_t number)
    cdef list headers_of(self, Py_ssize_t number)


cdef class Rules:
    cdef public bytes queue
    cdef public list conditions
    cdef public object keys
    cdef public long long lookahead_max

    cdef bint wants(self, Reader reader) except -1
    cdef bint meets(self, Reader reader, object condition) except -1
