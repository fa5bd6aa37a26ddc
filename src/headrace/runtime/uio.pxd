cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

    ssize_t pwritev2(int fd, const iovec* pieces, int count, long long position, int flags)
    int RWF_DSYNC
