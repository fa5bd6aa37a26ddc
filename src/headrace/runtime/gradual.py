"""Large work for the device, in small pieces.

A sync of hundreds of megabytes, or the removal of a file of that size, keeps the device and the file system's own
journal busy for tenths of a second, and every small sync beside it waits for as long. Done in pieces, with a wait for
each, it lets the small ones in between (`docs/log.md` has figures). Nothing may be waiting for it to end, because it
takes longer altogether.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache

# What is written back at a time, and what is given back at a time.
WRITE_BYTES = 1 << 20
FREE_BYTES = 8 << 20
# Between two pieces that are given back: this, and at least some times what the last one took.
FREE_PAUSE_S = 0.01
FREE_PAUSE_TIMES = 3
# Files that may wait for it: each holds a descriptor.
WAITING_MAX = 64
# How often to look again whether a process still reads a file that was removed, and for how long.
READ_PAUSE_S = 0.5
READ_LOOKS = 120
# Of sync_file_range(2): wait for what is on its way, start the rest, wait for that.
_BEFORE_WRITE_AFTER = 7
# Of fallocate(2).
_KEEP_SIZE = 1
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ESPIPE, errno.EOPNOTSUPP)


@cache
def _system_call(name: str, *arguments: str) -> Callable[..., int] | None:
    """A call that Python does not have, by the names of its arguments' types in ctypes; the error number, or 0."""
    # Imported here: a broker that never has much to write never pays for it.
    import ctypes

    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except AttributeError:
        return None
    call.argtypes = tuple(getattr(ctypes, argument) for argument in arguments)

    def checked(*given: int) -> int:
        return ctypes.get_errno() if call(*given) else 0

    return checked


def write_back(fd: int, start: int, end: int) -> None:
    """Let the device have what is dirty in a range of a file, and wait for it. It is not durable before a sync, but
    there is little left for that to do. Raises what a sync would: an error that is raised here is not raised again."""
    call = _system_call("sync_file_range", "c_int", "c_int64", "c_int64", "c_uint")
    if call is None:
        return
    for at in range(start, end, WRITE_BYTES):
        failed = call(fd, at, min(WRITE_BYTES, end - at), _BEFORE_WRITE_AFTER)
        if failed in _UNSUPPORTED:
            return
        if failed:
            raise OSError(failed, os.strerror(failed))


def reserve(fd: int, start: int, length: int) -> None:
    """Find room for a range of a file without making the file longer. What does not work is left to the writes."""
    call = _system_call("fallocate", "c_int", "c_int", "c_int64", "c_int64")
    if call is not None:
        call(fd, _KEEP_SIZE, start, length)


class Reclaimer:
    """Gives the room of removed files back. Its thread lives while there is something to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._removed: deque[int] = deque()
        self._running = False

    def give(self, fd: int) -> None:
        """Take over the descriptor, open for writing, of a file that has no name any more. Where too many wait already,
        its room comes back at once."""
        with self._lock:
            full = len(self._removed) >= WAITING_MAX
            if not full:
                self._removed.append(fd)
            start = not self._running and not full
            self._running |= start
        if full:
            os.close(fd)
        if not start:
            return
        threading.Thread(target=self._run, name="headrace-reclaim", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._removed:
                    self._running = False
                    return
                fd = self._removed.popleft()
            try:
                if _only_descriptor(fd):
                    _free(fd)
            except OSError:
                pass  # closing it gives back what is left
            finally:
                os.close(fd)


def _only_descriptor(fd: int) -> bool:
    """Whether no other process has the file open, waiting for readers to come to their end."""
    for _ in range(READ_LOOKS):
        try:
            # Granted only where no other descriptor of the file is open, in this process or any other.
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return False
            time.sleep(READ_PAUSE_S)
            continue
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
    return False


def _free(fd: int) -> None:
    size = os.fstat(fd).st_size
    while size > 0:
        size = max(0, size - FREE_BYTES)
        began = time.monotonic()
        os.ftruncate(fd, size)
        time.sleep(max(FREE_PAUSE_S, FREE_PAUSE_TIMES * (time.monotonic() - began)))
