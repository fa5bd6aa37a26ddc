cdef class Page:
    cdef unsigned long long[::1] cells
    cdef readonly long long number
    cdef readonly Py_ssize_t ready, in_flight, deferred, blocked, condemned, stuck, leased, done
    cdef readonly bint dirty
    cdef readonly long long deadline, due, lease_end


cdef class Ledger:
    cdef readonly long long floor, cursor
    cdef readonly Py_ssize_t ready, in_flight, deferred, blocked, condemned, stuck, leased
    cdef readonly bint moved
    cdef public long long attempts_max
    cdef readonly dict pages
    cdef readonly list dropped
    cdef Page last

    cdef Page find(self, long long number)
    cdef Page make(self, long long number)
    cdef Page revive(self, long long number)
    cdef int change(self, Page page, Py_ssize_t index, unsigned long long cell) except? -1
    cdef int forget(self, Page page) except? -1
    cdef int put(self, long long offset, unsigned long long cell) except? -1
    cdef int take(self, long long offset, long long owner, long long deadline) except? -1
    cdef long long owned(self, long long offset, long long owner, long long attempt) except? -2
    cdef long long leased_as(self, long long offset, long long attempt, long long until) except? -2
    cdef int put_lease(self, Page page, Py_ssize_t index, long long attempt, long long until) except? -1
    cdef int give_back(self, Page page, Py_ssize_t index, long long attempt, long long due) except? -1
    cdef long long first(self, long long start, unsigned long long state) except? -2
    cpdef Py_ssize_t unsettled(self) except? -1
    cdef int pass_over(self, long long offset) except? -1
    cdef long long encode(self, Page page, bytearray out, long long last, unsigned long long only) except? -1
    cdef int drop_below(self, long long start) except? -1
    cdef int grow(self, long long cursor) except? -1
    cdef int believe(self, long long cursor) except? -1
    cdef int load(self, long long number, long long end) except? -1
    cdef Py_ssize_t decode(self, bytes written, Py_ssize_t at, long long last, long long limit) except? -1
