"""Durable writes by a thread that does not need the interpreter for them.

A thread that comes back from the device has to ask for the interpreter, and gets it when the loop has nothing left to
do: on a busy broker, a millisecond after a write that took a quarter of one. Compiled, a serial executor's thread takes
a write, waits for the device and wakes the loop without ever asking; it asks only for jobs that are Python.
Interpreted, there is nothing here to be used, and the executor does such a write as it does any other job.
"""

from __future__ import annotations

import os

import cython

if cython.compiled:
    from cython.cimports.headrace.runtime.uio import RWF_DSYNC, iovec, pwritev2
    from cython.cimports.libc.errno import EINTR, ENOSPC, errno
    from cython.cimports.posix.unistd import read, write

COMPILED: bool = cython.compiled
ONE = cython.declare(cython.ulonglong, 1)


@cython.cclass
class Writer:
    """One write at a time, handed over by an eventfd each way: `wake` for the thread, `done` for the loop.

    There is no lock: the loop touches nothing between `submit` and the count on `done`, the thread nothing outside.
    """

    wake: cython.int
    done: cython.int
    waiting: cython.bint
    error: cython.int
    fd: cython.int
    position: cython.longlong
    at: cython.p_const_char
    left: cython.size_t
    # What `at` points into.
    data: bytes

    def __init__(self, wake: int, done: int) -> None:
        self.wake = wake
        self.done = done
        self.waiting = False

    def submit(self, fd: int, position: int, data: bytes) -> None:
        """On the loop: write all of `data`, wait for the device, then count one up on `done`."""
        self.fd = fd
        self.position = position
        self.data = data
        self.at = data
        self.left = len(data)
        self.waiting = True
        write(self.wake, cython.address(ONE), 8)

    def result(self) -> OSError | None:
        """On the loop, once that is counted: what came of it."""
        self.data = b""
        return OSError(self.error, os.strerror(self.error)) if self.error else None

    def serve(self) -> int:
        """In the thread: write what is submitted, until `wake` is counted up for anything else; by how much."""
        count: cython.longlong = 0
        with cython.nogil:
            while count == 0:
                count = self.serve_one()
        if count < 0:
            raise OSError(-count, os.strerror(-count))
        return count

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def serve_one(self) -> cython.longlong:
        """What was counted beside a write; below 0, the error's number."""
        count: cython.longlong = 0
        if read(self.wake, cython.address(count), 8) != 8:
            return 0 if errno == EINTR else -errno
        if self.waiting:
            self.waiting = False
            self.error = self.write_all()
            write(self.done, cython.address(ONE), 8)
            count -= 1
        return count

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def write_all(self) -> cython.int:
        """The number of the error that came, or 0."""
        piece = cython.declare(iovec)
        written: cython.Py_ssize_t
        while self.left:
            piece.iov_base = cython.cast(cython.p_void, self.at)
            piece.iov_len = self.left
            written = pwritev2(self.fd, cython.address(piece), 1, self.position, RWF_DSYNC)
            if written < 0:
                if errno == EINTR:
                    continue
                return errno
            # A short write happens at the edge of a full disk: the rest fails by itself or goes through.
            if written == 0:
                return ENOSPC
            self.at += written
            self.left -= written
            self.position += written
        return 0
