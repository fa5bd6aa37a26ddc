"""A data directory and its files, as the log needs them.

All paths are relative to the directory and use `/`. Nothing is durable until `File.sync` (contents) and `Disk.sync_dir`
(names: creates, renames, removes) have returned; the simulator's disk takes that literally. `File.sync`,
`File.write_back`, `File.write_durably` and `Disk.sync_dir` block on the device: call them through `Offload`, never on
the loop.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import DataDirectoryLocked
from headrace.runtime import gradual

Buffer = bytes | bytearray | memoryview

# The kernel takes at most this many buffers in one vectored write.
IOV_MAX = 1024

# Errors that pass: of a disk that has no room, and of too many clients.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

# How a file system in memory, where nothing waits, answers to reads that shall not.
IN_MEMORY = (errno.EOPNOTSUPP, errno.EINVAL)

# How far apart a range is probed for being in memory.
PROBE_BYTES = 524_288

# A file of this size is removed little by little.
LARGE_BYTES = 16_777_216

# Messages are for the broker's own user alone, whatever the umask.
FOLDER_MODE = 0o700
FILE_MODE = 0o600
GROUP_READS = 0o050
OTHERS = 0o007

# Files are pinned on the loop and let go in other threads.
PINNING = threading.Lock()


class File(Protocol):
    """An open file. Reads and writes name their position; there is no cursor."""

    @property
    def path(self) -> str:
        """Where it was opened, relative to the disk's root."""
        ...

    def fileno(self) -> int:
        """The descriptor, for sendfile; -1 where there is none (the simulator)."""
        ...

    def size(self) -> int: ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer at the end of the file."""
        ...

    def read_now(self, position: int, length: int) -> bytes | bytearray:
        """The same, as far as it can be read without waiting for the device; perhaps nothing."""
        ...

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers`, one behind the other, into the page cache."""
        ...

    def write_one(self, position: int, buffer: Buffer) -> None:
        """The same for one buffer."""
        ...

    def write_durably(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers` and return once the device has them. Blocks."""
        ...

    def sync(self) -> None:
        """Return once the device has everything written so far (fdatasync). Blocks."""
        ...

    def write_back(self, start: int, end: int) -> None:
        """Let the device have a range in small pieces, so that a sync has little to do and others' syncs need not wait
        for it. Takes longer altogether; makes nothing durable; raises what a sync would. Blocks."""
        ...

    def allocate(self, size: int) -> None:
        """Make the file at least `size` long, with its space reserved on the device."""
        ...

    def reserve(self, position: int, length: int) -> None:
        """Find room on the device for a range that will be written soon, which makes those writes cheaper. The file's
        size stays; `truncate` gives back what lies behind it. Where it cannot be had, nothing happens."""
        ...

    def truncate(self, size: int) -> None: ...

    def resident(self, position: int, length: int) -> bool:
        """Whether the range can very likely be read without waiting for the device."""
        ...

    def pin(self) -> None:
        """Keep the descriptor open until `unpin`, even past `close`: a reply is being sent from it."""
        ...

    def unpin(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class FileRange:
    """Bytes of a file that is pinned, to be sent without being read. Its holder must `release` it."""

    file: File
    position: int
    length: int
    warm: int = 0
    """How many of its first bytes the page cache very likely has, as was just seen."""

    def is_resident(self) -> bool:
        """Whether it can very likely be read without waiting for the device."""
        return self.file.resident(self.position, self.length)

    def read(self) -> bytes:
        """Its bytes. Blocks if they are not resident."""
        return self.file.read(self.position, self.length)

    def release(self) -> None:
        """Let go of the file."""
        self.file.unpin()


class Disk(Protocol):
    """A data directory."""

    def lock(self) -> None:
        """Take the directory for this process, or raise `DataDirectoryLocked`."""
        ...

    def unlock(self) -> None: ...

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file; `create` makes it if it is missing (its folder must exist). Raises FileNotFoundError."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted; empty if there is no such folder."""
        ...

    def mkdir(self, path: str) -> None:
        """Make a folder (not its parents); fine if it is there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Move a file or folder, replacing a file of the new name."""
        ...

    def remove(self, path: str) -> None:
        """Unlink a file; fine if it is gone. A large one's room comes back little by little."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable. Blocks."""
        ...

    def free_bytes(self) -> int: ...

    def capacity_bytes(self) -> int:
        """The size of the whole device."""
        ...

    def open_files_max(self) -> int:
        """How many files this process may have open, of whatever kind."""
        ...


def read_whole(disk: Disk, path: str) -> bytes | None:
    """A small file's contents, or None if there is no such file."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    with closing(file):
        return file.read(0, file.size())


def replace_whole(disk: Disk, path: str, contents: bytes) -> None:
    """Put a small file in place durably and at once: readers see the old contents or the new, never a mixture.
    Blocks."""
    temporary = path + ".tmp"
    disk.remove(temporary)
    file = disk.open(temporary, write=True, create=True)
    try:
        file.write(0, [contents])
        file.sync()
    except OSError:
        # It may be half of what a full disk has left.
        disk.remove(temporary)
        raise
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(path.rpartition("/")[0])


class SystemFile:
    """A file of the operating system."""

    __slots__ = ("_closed", "_fd", "_pins", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._pins = 0
        self._closed = False

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, length: int) -> bytes:
        return os.pread(self._fd, length, position)

    def read_now(self, position: int, length: int) -> bytes | bytearray:
        buffer = bytearray(length)
        try:
            got = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno in IN_MEMORY:
                return self.read(position, length)
            raise
        return buffer if got == length else buffer[:got]

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._write(position, buffers, 0)

    def write_one(self, position: int, buffer: Buffer) -> None:
        if os.pwrite(self._fd, buffer, position) != len(buffer):
            self._write(position, [buffer], 0)

    def write_durably(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._write(position, buffers, os.RWF_DSYNC)

    def _write(self, position: int, buffers: Sequence[Buffer], flags: int) -> None:
        if len(buffers) > IOV_MAX:
            buffers = [b"".join(buffers)]
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, position, flags)
        if written == total:
            return
        # A short write happens at the edge of a full disk: the rest raises ENOSPC itself or goes through.
        rest = memoryview(b"".join(buffers))
        while written < total:
            step = os.pwritev(self._fd, [rest[written:]], position + written, flags)
            if step == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            written += step

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def write_back(self, start: int, end: int) -> None:
        gradual.write_back(self._fd, start, end)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def reserve(self, position: int, length: int) -> None:
        gradual.reserve(self._fd, position, length)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def resident(self, position: int, length: int) -> bool:
        # Pages come by read-ahead and go by age, in long runs of either, so a few probes speak for the range.
        probe = [bytearray(1)]
        last = position + length - 1
        try:
            while position < last:
                if not os.preadv(self._fd, probe, position, os.RWF_NOWAIT):
                    return True
                position += PROBE_BYTES
            os.preadv(self._fd, probe, last, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in IN_MEMORY:
                return True
            raise
        return True

    def pin(self) -> None:
        with PINNING:
            self._pins += 1

    def unpin(self) -> None:
        with PINNING:
            self._pins -= 1
            over = self._closed and self._pins == 0
        if over:
            os.close(self._fd)

    def close(self) -> None:
        with PINNING:
            over = not self._closed and self._pins == 0
            self._closed = True
        if over:
            os.close(self._fd)


class SystemDisk:
    """A data directory of the operating system, made if it is missing."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        os.makedirs(self.root, FOLDER_MODE, exist_ok=True)
        mode = os.stat(self.root).st_mode
        # A directory that a group may read, and no others, was opened to it on purpose: so is what comes into it.
        group = 0 if mode & OTHERS else mode & GROUP_READS
        self._folder_mode = FOLDER_MODE | group
        self._file_mode = FILE_MODE | (group & ~0o111)
        self._lock_fd = -1
        self._reclaimer = gradual.Reclaimer()

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def lock(self) -> None:
        fd = os.open(self._at(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._file_mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise DataDirectoryLocked(self.root, holder) from None
        self._lock_fd = fd
        number = b"%d\n" % os.getpid()
        try:
            # In place: a full disk that has given room back need not give it again.
            os.pwrite(fd, number, 0)
        except OSError as error:
            # The number is for people. The lock is there without it.
            if error.errno not in NO_SPACE:
                self.unlock()
                raise
        else:
            os.ftruncate(fd, len(number))

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            # Explicitly, because a child that the host has forked holds a copy of the descriptor, and with it the lock.
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return SystemFile(path, os.open(self._at(path), flags, self._file_mode))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except FileNotFoundError:
            return []

    def mkdir(self, path: str) -> None:
        try:
            os.mkdir(self._at(path), self._folder_mode)
        except FileExistsError:
            pass

    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))

    def remove(self, path: str) -> None:
        try:
            self._remove(self._at(path))
        except FileNotFoundError:
            pass

    def _remove(self, path: str) -> None:
        if os.stat(path, follow_symlinks=False).st_size < LARGE_BYTES:
            os.unlink(path)
            return
        # While a process has it open, the name goes and the room stays.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.unlink(path)
        except BaseException:
            os.close(fd)
            raise
        self._reclaimer.give(fd)

    def remove_tree(self, path: str) -> None:
        for folder, _, names in os.walk(self._at(path)):
            for name in names:
                try:
                    self._remove(f"{folder}/{name}")
                except OSError:
                    continue  # whatever it is, it is left to the last resort
        shutil.rmtree(self._at(path), ignore_errors=True)

    def sync_dir(self, path: str) -> None:
        fd = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def capacity_bytes(self) -> int:
        stat = os.statvfs(self.root)
        # What is kept for the machine's administrator is nobody else's.
        return (stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize

    def open_files_max(self) -> int:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return sys.maxsize if soft == resource.RLIM_INFINITY else soft
