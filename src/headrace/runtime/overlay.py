"""A data directory that is looked at and never changed.

The log repairs what it opens: it cuts torn tails, replays the journal, finishes what a crash cut short. A reader wants
to see all of that and to have none of it happen. So what is written to this disk stays in memory, in blocks over the
files as they are, and the same code recovers the same log beside the folder instead of in it. The folder may be on a
medium that cannot be written.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from headrace.errors import DataDirectoryLocked
from headrace.runtime import Runtime
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import Buffer, File, SystemFile
from headrace.runtime.offload import SerialDone, SerialExecutor
from headrace.runtime.random import SystemRandom

T = TypeVar("T")

BLOCK_BYTES = 65_536


class Contents:
    """What a file holds: that of a real file up to `kept`, zeros up to `size`, and changed blocks over both."""

    __slots__ = ("blocks", "kept", "size", "source")

    def __init__(self, source: str | None, size: int) -> None:
        self.source = source
        """The real file, if there is one."""
        self.size = size
        self.kept = size
        self.blocks: dict[int, bytearray] = {}


class OverlayFile(SystemFile):
    """A file that takes writes and keeps them to itself."""

    __slots__ = ("_contents",)

    def __init__(self, path: str, contents: Contents) -> None:
        # A file without a real one has a descriptor all the same, so that it closes like any other.
        super().__init__(path, os.open(contents.source or os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        self._contents = contents

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return self._contents.size

    def read(self, position: int, length: int) -> bytes:
        contents = self._contents
        length = max(0, min(length, contents.size - position))
        if not contents.blocks and position + length <= contents.kept:
            return os.pread(self._fd, length, position)
        first, last = position // BLOCK_BYTES, (position + length - 1) // BLOCK_BYTES
        whole = b"".join([self._block(index) for index in range(first, last + 1)])
        return whole[position - first * BLOCK_BYTES :][:length]

    def _block(self, index: int) -> bytes | bytearray:
        contents = self._contents
        changed = contents.blocks.get(index)
        if changed is not None:
            return changed
        start = index * BLOCK_BYTES
        kept = os.pread(self._fd, max(0, min(BLOCK_BYTES, contents.kept - start)), start)
        return kept.ljust(BLOCK_BYTES, b"\0")

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        contents = self._contents
        # Recovery writes again what it found; that need not be held twice.
        if position + len(data) <= contents.size and self.read(position, len(data)) == data:
            return
        view = memoryview(data)
        at = position
        while view:
            index, inside = divmod(at, BLOCK_BYTES)
            part = view[: BLOCK_BYTES - inside]
            block = contents.blocks.get(index)
            if block is None:
                block = contents.blocks[index] = bytearray(self._block(index))
            block[inside : inside + len(part)] = part
            at += len(part)
            view = view[len(part) :]
        if data:
            contents.size = max(contents.size, at)

    def write_one(self, position: int, buffer: Buffer) -> None:
        self.write(position, [buffer])

    def write_durably(self, position: int, buffers: Sequence[Buffer]) -> None:
        self.write(position, buffers)

    def sync(self) -> None:
        """Nothing here outlives the process."""

    def write_back(self, start: int, end: int) -> None:
        """Nor does this."""

    def allocate(self, size: int) -> None:
        self._contents.size = max(self._contents.size, size)

    def reserve(self, position: int, length: int) -> None:
        """There is no device to find room on."""

    def truncate(self, size: int) -> None:
        contents = self._contents
        if size < contents.size:
            edge, inside = divmod(size, BLOCK_BYTES)
            contents.kept = min(contents.kept, size)
            contents.blocks = {index: block for index, block in contents.blocks.items() if index <= edge}
            if edge in contents.blocks:
                contents.blocks[edge][inside:] = bytes(BLOCK_BYTES - inside)
        contents.size = size

    def read_now(self, position: int, length: int) -> bytes:
        return self.read(position, length)

    def resident(self, position: int, length: int) -> bool:
        return True


class OverlayDisk:
    """A data directory of the operating system, with changes that no other process sees."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._lock_fd = -1
        # What is known by its own contents: files that were opened, made or moved here.
        self._files: dict[str, Contents] = {}
        self._folders: set[str] = set()
        # Real names that do not count any more; a folder's hides everything below it.
        self._gone: set[str] = set()

    def lock(self) -> None:
        """Keep brokers away while a process reads; readers do not mind each other."""
        try:
            fd = os.open(f"{self.root}/.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # a copy that no broker has ever run on
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise DataDirectoryLocked(self.root, holder) from None
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _real(self, path: str) -> str | None:
        """Where a name stands in the real directory, if it counts."""
        name = path
        while name:
            if name in self._gone:
                return None
            name = name.rpartition("/")[0]
        real = f"{self.root}/{path}" if path else self.root
        return real if os.path.exists(real) else None

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        contents = self._files.get(path)
        if contents is None:
            real = self._real(path)
            if real is not None:
                contents = Contents(real, os.stat(real).st_size)
            elif create:
                contents = Contents(None, 0)
            else:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._files[path] = contents
        return OverlayFile(path, contents)

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._folders or self._real(path) is not None

    def listdir(self, path: str) -> list[str]:
        real = self._real(path)
        above = f"{path}/" if path else ""
        names = {name for name in os.listdir(real) if above + name not in self._gone} if real else set()
        for each in (*self._files, *self._folders):
            if each.startswith(above):
                names.add(each[len(above) :].partition("/")[0])
        return sorted(names)

    def mkdir(self, path: str) -> None:
        self._folders.add(path)

    def rename(self, old: str, new: str) -> None:
        # Files alone: folders move when a topic is deleted, and no topic is deleted here.
        self.open(old).close()
        self._files[new] = self._files.pop(old)
        self._gone.add(old)

    def remove(self, path: str) -> None:
        self._files.pop(path, None)
        self._gone.add(path)

    def remove_tree(self, path: str) -> None:
        self._files = {each: held for each, held in self._files.items() if not f"{each}/".startswith(f"{path}/")}
        self._folders = {each for each in self._folders if not f"{each}/".startswith(f"{path}/")}
        self._gone.add(path)

    def sync_dir(self, path: str) -> None:
        """Nothing here outlives the process."""

    def free_bytes(self) -> int:
        return 1 << 62

    def capacity_bytes(self) -> int:
        return 1 << 62

    def open_files_max(self) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class InPlace:
    """No way off the loop: a reader has nothing else to do meanwhile."""

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def serial_executor(self, name: str) -> SerialExecutor:
        return self

    def submit(self, job: Callable[[], None], done: SerialDone) -> None:
        try:
            job()
        except Exception as error:
            done(error)
        else:
            done(None)

    def write(self, file: File, position: int, data: bytes, done: SerialDone) -> None:
        self.submit(partial(file.write_durably, position, [data]), done)

    def work(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        raise NotImplementedError("nothing is computed over a directory that is only looked at")

    def close(self) -> None:
        """There is nothing to end."""


def read_only_runtime(data: str) -> Runtime:
    """A runtime over the data directory `data` that leaves it as it is."""
    return Runtime(SystemClock(), OverlayDisk(data), SystemRandom(), InPlace(), socket.gethostname())
