cdef bint chosen(long long offset, unsigned long long salt, unsigned long long bound, object key, object headers) except? -1
