"""The disk of a simulated process: the `Disk` and `File` of the runtime over a `Storage`.

A disk lives as long as its process. Each operation that changes something is counted, traced, and may be where the
process ends; after that every call raises, so that nothing a dying task does in its `finally` blocks can reach the
storage.
"""

from __future__ import annotations

import errno
import os
import random
import zlib
from collections.abc import Callable, Sequence

from headrace.errors import DataDirectoryLocked
from headrace.runtime.disk import Buffer
from simulation.faults import AFTER, BEFORE, MIDDLE, PHASES, Crash, CrashPoints, Killed, Plan, PowerCut, kind_of
from simulation.storage import FileNode, FolderNode, Storage


def os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class SimulatedDisk:
    """A data directory in memory."""

    def __init__(
        self,
        storage: Storage,
        rng: random.Random,
        *,
        plan: Plan | None = None,
        points: CrashPoints | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.storage = storage
        self.plan = plan or Plan()
        self.points = points or CrashPoints()
        self.operations = 0
        self.crash: Crash | None = None
        self.sync_failed = False
        """Whether a sync has answered EIO."""
        self._rng = rng
        self._trace = trace or (lambda event: None)
        self._locked = False

    # How operations end: each asks `begin` first and applies itself through `step`.

    def die(self, crash: Crash) -> None:
        """The process ends now."""
        self.crash = crash
        raise crash

    def check_alive(self) -> None:
        if self.crash is not None:
            raise self.crash

    def step(
        self, operation: str, path: str, apply: Callable[[], None], torn: Callable[[], None] | None = None
    ) -> None:
        """Do one operation, unless this is where the process ends. `torn` does a part of it."""
        self.check_alive()
        point = f"{operation} {kind_of(path)}"
        self.operations += 1
        self.points.reached[point] += 1
        self._trace(f"{operation} {path}")
        plan = self.plan
        if not self.points.should_crash(plan, self.operations, point, self._rng):
            apply()
            return
        phase = plan.phase or self._rng.choice(PHASES)
        if phase == MIDDLE and torn is None:
            phase = BEFORE
        if phase == MIDDLE and torn is not None:
            torn()
        elif phase == AFTER:
            apply()
        self.points.crashed[f"{point} ({phase})"] += 1
        self._trace(f"crash {phase} {point}")
        self.die(Killed(point) if plan.kill else PowerCut(point))

    def sync_fails(self, operation: str, path: str) -> bool:
        """Whether a sync answers EIO. It counts as the operation that is about to be stepped."""
        plan = self.plan
        failing = self.operations + 1 in plan.sync_errors_at or (
            plan.sync_error_chance > 0 and self._rng.random() < plan.sync_error_chance
        )
        if failing:
            self.sync_failed = True
            self.points.failed[f"{operation} {kind_of(path)}"] += 1
        return failing

    def ignores(self, operation: str, path: str) -> bool:
        return f"{operation} {kind_of(path)}" in self.plan.ignored or operation in self.plan.ignored

    # The Disk of the runtime.

    def lock(self) -> None:
        self.check_alive()
        if self._locked:
            raise DataDirectoryLocked("simulated", "1")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def open(self, path: str, *, write: bool = False, create: bool = False) -> SimulatedFile:
        self.check_alive()
        node = self.storage.find(path)
        if isinstance(node, FolderNode):
            raise os_error(errno.EISDIR, path)
        if node is None:
            if not create:
                raise os_error(errno.ENOENT, path)
            folder, name = self.storage.parent(path)
            made = FileNode()
            self.step("create", path, lambda: self.storage.change((folder, name, made)))
            node = made
        return SimulatedFile(self, path, node, write)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self.storage.find(path) is not None

    def listdir(self, path: str) -> list[str]:
        self.check_alive()
        node = self.storage.find(path)
        return sorted(node.entries) if isinstance(node, FolderNode) else []

    def mkdir(self, path: str) -> None:
        self.check_alive()
        if self.storage.find(path) is None:
            folder, name = self.storage.parent(path)
            self.step("mkdir", path, lambda: self.storage.change((folder, name, FolderNode())))

    def rename(self, old: str, new: str) -> None:
        self.check_alive()
        node = self.storage.find(old)
        if node is None:
            raise os_error(errno.ENOENT, old)
        source, source_name = self.storage.parent(old)
        target, target_name = self.storage.parent(new)
        replaced = target.entries.get(target_name)
        if isinstance(replaced, FolderNode) and (replaced.entries or isinstance(node, FileNode)):
            raise os_error(errno.ENOTEMPTY, new)
        changes = (target, target_name, node), (source, source_name, None)
        self.step("rename", new, lambda: self.storage.change(*changes))

    def remove(self, path: str) -> None:
        self.check_alive()
        node = self.storage.find(path)
        if node is None:
            return
        if isinstance(node, FolderNode):
            raise os_error(errno.EISDIR, path)
        folder, name = self.storage.parent(path)
        self.step("remove", path, lambda: self.storage.change((folder, name, None)))

    def remove_tree(self, path: str) -> None:
        self.check_alive()
        node = self.storage.find(path)
        if not isinstance(node, FolderNode):
            return
        for name in sorted(node.entries):
            child = f"{path}/{name}"
            if isinstance(node.entries[name], FolderNode):
                self.remove_tree(child)
            else:
                self.remove(child)
        folder, name = self.storage.parent(path)
        self.step("rmdir", path, lambda: self.storage.change((folder, name, None)))

    def sync_dir(self, path: str) -> None:
        self.check_alive()
        folder = self.storage.folder(path)
        if self.ignores("sync_dir", path):
            return
        if self.sync_fails("sync_dir", path):
            self.step("sync_dir", path, lambda: self.storage.fail_sync_folder(folder, self._rng))
            raise os_error(errno.EIO, path)
        self.step("sync_dir", path, lambda: self.storage.sync_folder(folder))

    def free_bytes(self) -> int:
        self.check_alive()
        return self.storage.free()

    def capacity_bytes(self) -> int:
        return self.storage.capacity or 1 << 40

    def open_files_max(self) -> int:
        return 1 << 20


class SimulatedFile:
    """An open file of a simulated disk."""

    __slots__ = ("_closed", "_disk", "_node", "_pins", "_writable", "path")

    def __init__(self, disk: SimulatedDisk, path: str, node: FileNode, writable: bool) -> None:
        self._disk = disk
        self.path = path
        self._node = node
        self._writable = writable
        self._closed = False
        self._pins = 0

    def _check_open(self, to_write: bool = False) -> None:
        self._disk.check_alive()
        if (self._closed and self._pins == 0) or (to_write and not self._writable):
            raise os_error(errno.EBADF, self.path)

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        self._check_open()
        return len(self._node.volatile)

    def read(self, position: int, length: int) -> bytes:
        self._check_open()
        if position < 0 or length < 0:
            raise os_error(errno.EINVAL, self.path)
        return bytes(self._node.volatile[position : position + length])

    def _take(self, position: int, data: bytes) -> bytes:
        """As much of a write as there is room for. Overwriting needs none."""
        storage, node = self._disk.storage, self._node
        growth = position + len(data) - len(node.volatile)
        if growth <= 0 or not node.linked:
            return data
        room = storage.free()
        if growth > room:
            self._disk.points.failed[f"write {kind_of(self.path)} (full)"] += 1
            return data[: max(0, len(data) - (growth - room))]
        return data

    def _put(self, position: int, data: bytes) -> None:
        node, before = self._node, len(self._node.volatile)
        node.write(position, data)
        if node.linked:
            self._disk.storage.used += len(node.volatile) - before

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._write("write", position, b"".join(buffers), durably=False)

    def write_one(self, position: int, buffer: Buffer) -> None:
        self.write(position, [buffer])

    def write_durably(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._check_open(to_write=True)
        data = b"".join(buffers)
        if self._disk.ignores("write_durably", self.path):
            self._write("write", position, data, durably=False)
        elif self._disk.sync_fails("write_durably", self.path):
            self._write("write_durably", position, data, durably=False)
            self._node.fail_sync(self._disk._rng)
            raise os_error(errno.EIO, self.path)
        else:
            self._write("write_durably", position, data, durably=True)

    def _write(self, operation: str, position: int, data: bytes, durably: bool) -> None:
        self._check_open(to_write=True)
        if position < 0:
            raise os_error(errno.EINVAL, self.path)
        fitting = self._take(position, data)

        def apply() -> None:
            self._put(position, fitting)
            if durably:
                self._node.sync_range(position, len(fitting))

        def torn() -> None:
            rng = self._disk._rng
            # A write that is under way has reached the cache whole or in part; what reached the device is drawn later.
            cut = len(fitting) if durably and rng.random() < 0.5 else rng.randint(0, len(fitting))
            self._put(position, fitting[:cut])

        self._disk._trace(f"{position} {len(fitting)} {zlib.crc32(fitting)}")
        self._disk.step(operation, self.path, apply, torn)
        if len(fitting) < len(data):
            raise os_error(errno.ENOSPC, self.path)

    def sync(self) -> None:
        self._check_open()
        disk, node = self._disk, self._node
        if disk.ignores("sync", self.path):
            return
        if disk.sync_fails("sync", self.path):
            disk.step("sync", self.path, lambda: node.fail_sync(disk._rng))
            raise os_error(errno.EIO, self.path)
        disk.step("sync", self.path, node.sync)

    def write_back(self, start: int, end: int) -> None:
        """What the device has of it stays unknown, as without it."""
        self._check_open()

    def allocate(self, size: int) -> None:
        self._check_open(to_write=True)
        growth = size - len(self._node.volatile)
        if growth <= 0:
            return
        if growth > self._disk.storage.free():
            self._disk.points.failed[f"allocate {kind_of(self.path)} (full)"] += 1
            raise os_error(errno.ENOSPC, self.path)
        self._disk.step("allocate", self.path, lambda: self._resize(size))

    def reserve(self, position: int, length: int) -> None:
        """No more than a wish: what a full disk does not give is not missed."""
        self._check_open(to_write=True)

    def truncate(self, size: int) -> None:
        self._check_open(to_write=True)
        self._disk.step("truncate", self.path, lambda: self._resize(size))

    def _resize(self, size: int) -> None:
        node, before = self._node, len(self._node.volatile)
        node.resize(size)
        if node.linked:
            self._disk.storage.used += len(node.volatile) - before

    def read_now(self, position: int, length: int) -> bytes:
        return self.read(position, length) if self.resident(position, length) else b""

    def resident(self, position: int, length: int) -> bool:
        self._check_open()
        # Drawn from the place, not from a stream: asking must not change what happens next.
        return zlib.crc32(f"{self.path} {position} {length}".encode()) % 4 != 0

    def pin(self) -> None:
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1

    def close(self) -> None:
        self._closed = True
