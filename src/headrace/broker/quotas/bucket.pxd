cdef class Throttling:
    cdef public long long throttled, refused
    cdef public double seconds


cdef class Bucket:
    cdef object __weakref__
    cdef readonly double rate
    cdef double burst, wait_max, level, then
    cdef Throttling figures

    cpdef double charge(self, double amount, double now)
    cpdef void count(self, double amount, double now)
    cpdef double wait(self, double now)
    cdef double hold(self, double level)
