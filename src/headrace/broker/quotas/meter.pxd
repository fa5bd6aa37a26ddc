from headrace.broker.quotas.bucket cimport Bucket


cdef class Meter:
    cdef Bucket produce, consume, mutate
    cdef readonly Bucket request

    cpdef double produced(self, double size, double now)
    cpdef double consumed(self, double size, double now)
