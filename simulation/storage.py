"""What a simulated device holds, apart from what the operating system's cache holds.

Two layers of truth. *Volatile* is what a program sees: every write, every name. *Durable* is what survives the dark.
Between them stands what was not synced: for each sector all contents that it had since the last sync (the cache may
have written back any of them), for each file the sizes it went through, for each folder the changes of names. A power
cut draws, for each of these on its own, what had reached the device. The rules are those of POSIX, not of one
friendly file system:

- A sector (512 bytes) holds one of its contents since the last sync, whatever became of its neighbours.
- A truncate is undone or kept, and contents from before a kept one do not come back.
- A size of unsynced growth comes back as the old one, the new one, or one between.
- Creates, removes and renames are undone or kept one by one (a rename is atomic), except that a kept change of a name
  implies the earlier changes of the same name. Half of the power cuts keep a prefix of all changes instead, as a
  journaling file system does.
- A file in a folder whose own name was not synced is lost with its folder.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

SECTOR = 512


class _Version(NamedTuple):
    """A content that a sector had. A barrier is one left by a truncate: nothing from before it reaches past its end."""

    epoch: int
    content: bytes
    barrier: bool


class _Size(NamedTuple):
    """A size that a file had."""

    epoch: int
    size: int
    truncated: bool


class FileNode:
    """The contents of a file."""

    __slots__ = ("_epoch", "_sizes", "_versions", "durable", "linked", "volatile")

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.volatile = bytearray(content)
        self.durable = bytearray(content)
        self.linked = True
        self._versions: dict[int, list[_Version]] = {}
        self._sizes: list[_Size] = []
        # Truncates since the last sync: they are kept in order, so their count is enough.
        self._epoch = 0

    @property
    def clean(self) -> bool:
        return not self._versions and not self._sizes

    def write(self, position: int, data: bytes) -> None:
        volatile = self.volatile
        end = position + len(data)
        if position > len(volatile):
            volatile.extend(bytes(position - len(volatile)))
        grown = end > len(volatile)
        volatile[position:end] = data
        if grown:
            self._sizes.append(_Size(self._epoch, len(volatile), False))
        if data:
            self._touch(position // SECTOR, (end - 1) // SECTOR, False)

    def _touch(self, first: int, last: int, barrier: bool) -> None:
        volatile, versions, epoch = self.volatile, self._versions, self._epoch
        for sector in range(first, last + 1):
            content = bytes(volatile[sector * SECTOR : (sector + 1) * SECTOR])
            versions.setdefault(sector, []).append(_Version(epoch, content, barrier))

    def resize(self, size: int) -> None:
        """Truncate, or grow with zeroes."""
        old = len(self.volatile)
        if size < old:
            del self.volatile[size:]
            self._epoch += 1
            self._sizes.append(_Size(self._epoch, size, True))
            self._touch(size // SECTOR, (old - 1) // SECTOR, True)
        elif size > old:
            self.volatile.extend(bytes(size - old))
            self._sizes.append(_Size(self._epoch, size, False))

    def sync(self) -> None:
        """What fdatasync does: contents and size are on the device."""
        for sector in self._versions:
            self._put(self.durable, sector, self._cached(sector))
        self._mark_clean()

    def _mark_clean(self) -> None:
        self._grow_durable(len(self.volatile))
        del self.durable[len(self.volatile) :]
        self._versions.clear()
        self._sizes.clear()
        self._epoch = 0

    def sync_range(self, position: int, length: int) -> None:
        """What a write with RWF_DSYNC does after writing: this range, and the metadata that is needed to find it."""
        self._keep_truncates()
        if length:
            for sector in range(position // SECTOR, (position + length - 1) // SECTOR + 1):
                if self._versions.pop(sector, None) is not None:
                    self._put(self.durable, sector, self._cached(sector))
            self._grow_durable(position + length)
        self._sizes = [size for size in self._sizes if size.size > len(self.durable)]

    def fail_sync(self, rng: random.Random) -> None:
        """A sync that answered EIO: each dirty sector was written or not, and the cache calls all of them clean from
        now on. What was not written may still be seen until the page is dropped, or may have gone back to the old
        contents."""
        for sector in sorted(self._versions):
            fate = rng.randrange(3)
            if fate == 0:
                self._put(self.durable, sector, self._cached(sector))
            elif fate == 1:
                start = sector * SECTOR
                old = bytes(self.durable[start : start + SECTOR])
                seen = len(self.volatile[start : start + SECTOR])
                self.volatile[start : start + seen] = old[:seen].ljust(seen, b"\0")
        self._mark_clean()

    def _cached(self, sector: int) -> bytes:
        return bytes(self.volatile[sector * SECTOR : (sector + 1) * SECTOR])

    def _grow_durable(self, size: int) -> None:
        if size > len(self.durable):
            self.durable.extend(bytes(size - len(self.durable)))

    def _keep_truncates(self) -> None:
        if not self._epoch:
            return
        limit = len(self.durable)
        for sector, versions in list(self._versions.items()):
            base, contents = self._after_truncates(sector, versions)
            self._put(self.durable, sector, base.ljust(SECTOR, b"\0"))
            if contents:
                self._versions[sector] = [_Version(0, content, False) for content in contents]
            else:
                del self._versions[sector]
        growth: list[_Size] = []
        for size in self._sizes:
            if size.truncated:
                limit, growth = min(limit, size.size), []
            else:
                growth.append(size._replace(epoch=0))
        del self.durable[limit:]
        self._sizes = growth
        self._epoch = 0

    def _after_truncates(self, sector: int, versions: list[_Version]) -> tuple[bytes, list[bytes]]:
        """What the device has of a sector, and what it may have instead, once the truncates have happened."""
        base = bytes(self.durable[sector * SECTOR : (sector + 1) * SECTOR])
        contents: list[bytes] = []
        for version in versions:
            if version.barrier:
                cut = len(version.content)
                base = base[:cut]
                contents = [content[:cut] for content in contents] if cut else []
            else:
                contents.append(version.content)
        return base, contents

    @staticmethod
    def _put(image: bytearray, sector: int, content: bytes) -> None:
        start = sector * SECTOR
        if len(image) < start:
            image.extend(bytes(start - len(image)))
        image[start : start + SECTOR] = content

    def survivor(self, rng: random.Random) -> FileNode:
        """The file as it is found after a power cut."""
        if self.clean:
            return FileNode(self.durable)
        kept = rng.randint(0, self._epoch)
        sizes = [len(self.durable)]
        for size in self._sizes:
            if size.epoch > kept:
                break
            if size.truncated:
                sizes = [min(old, size.size) for old in sizes]
            else:
                sizes.append(size.size)
        draw = rng.randrange(3)
        size_now = sizes[-1] if draw == 0 else rng.choice(sizes) if draw == 1 else rng.randint(min(sizes), max(sizes))
        image = bytearray(self.durable)
        # Whole files are often written back or forgotten as one; a coin for each sector alone would hardly ever draw
        # that.
        share = rng.choice((0.0, 1.0, 0.5, 0.95, rng.random()))
        for sector in sorted(self._versions):
            versions = [version for version in self._versions[sector] if version.epoch <= kept]
            content, contents = self._after_truncates(sector, versions)
            if contents and rng.random() < share:
                content = contents[-1] if rng.random() < 0.75 else rng.choice(contents)
            self._put(image, sector, content.ljust(SECTOR, b"\0"))
        del image[size_now:]
        image.extend(bytes(size_now - len(image)))
        return FileNode(image)


class FolderNode:
    """The names in a folder."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | FolderNode


class _NameChange:
    """One atomic change of names: a name in a folder now means a node, or nothing."""

    __slots__ = ("changes", "folders", "names")

    def __init__(self, changes: tuple[tuple[FolderNode, str, Node | None], ...]) -> None:
        self.changes = changes
        self.folders = {id(folder) for folder, _, _ in changes}
        self.names = {(id(folder), name) for folder, name, _ in changes}

    def apply(self) -> None:
        for folder, name, node in self.changes:
            if node is None:
                folder.durable.pop(name, None)
            else:
                folder.durable[name] = node


@dataclass(slots=True)
class Storage:
    """A tree of folders and files, with what of it is durable."""

    root: FolderNode = field(default_factory=FolderNode)
    capacity: int | None = None
    """Bytes that fit; None: no limit."""
    used: int = 0
    _pending: list[_NameChange] = field(default_factory=list)

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for name in path.split("/") if path else ():
            if not isinstance(node, FolderNode):
                return None
            found = node.entries.get(name)
            if found is None:
                return None
            node = found
        return node

    def folder(self, path: str) -> FolderNode:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        if not isinstance(node, FolderNode):
            raise NotADirectoryError(20, "Not a directory", path)
        return node

    def parent(self, path: str) -> tuple[FolderNode, str]:
        folder, _, name = path.rpartition("/")
        return self.folder(folder), name

    def free(self) -> int:
        return 1 << 40 if self.capacity is None else max(0, self.capacity - self.used)

    def change(self, *changes: tuple[FolderNode, str, Node | None]) -> None:
        """Change names, atomically, not yet durably."""
        for folder, name, node in changes:
            old = folder.entries.get(name)
            if isinstance(old, FileNode) and old is not node:
                old.linked = False
                self.used -= len(old.volatile)
            if node is None:
                folder.entries.pop(name, None)
            else:
                if isinstance(node, FileNode) and not node.linked:
                    node.linked = True
                    self.used += len(node.volatile)
                folder.entries[name] = node
        self._pending.append(_NameChange(changes))

    def sync_folder(self, folder: FolderNode) -> None:
        """Make the names in a folder durable, and with them whatever those changes build on."""
        wanted: set[tuple[int, str]] = set()
        kept = []
        for change in reversed(self._pending):
            if id(folder) in change.folders or not wanted.isdisjoint(change.names):
                wanted |= change.names
                kept.append(change)
        for change in reversed(kept):
            change.apply()
        done = {id(change) for change in kept}
        self._pending = [change for change in self._pending if id(change) not in done]

    def fail_sync_folder(self, folder: FolderNode, rng: random.Random) -> None:
        """A folder sync that answered EIO: it happened or it did not."""
        if rng.random() < 0.5:
            self.sync_folder(folder)

    def files(self) -> Iterator[tuple[str, FileNode]]:
        """All files that a program sees, by path."""
        stack: list[tuple[str, FolderNode]] = [("", self.root)]
        while stack:
            prefix, folder = stack.pop()
            for name in sorted(folder.entries):
                node = folder.entries[name]
                if isinstance(node, FileNode):
                    yield prefix + name, node
                else:
                    stack.append((f"{prefix}{name}/", node))

    def after_power_cut(self, rng: random.Random) -> Storage:
        """What is found when the power comes back. This storage is spent afterwards."""
        for change in self._surviving_changes(rng):
            change.apply()
        return self._twin(lambda folder: folder.durable, lambda node: node.survivor(rng))

    def copy(self) -> Storage:
        """What a program sees now, all of it durable: a backup."""
        return self._twin(lambda folder: folder.entries, lambda node: FileNode(node.volatile))

    def _twin(self, names: Callable[[FolderNode], dict[str, Node]], copy: Callable[[FileNode], FileNode]) -> Storage:
        """Another storage, with a copy of every file that has a name."""
        copies: dict[int, FileNode] = {}

        def copy_folder(folder: FolderNode) -> FolderNode:
            twin = FolderNode()
            for name, node in sorted(names(folder).items()):
                if isinstance(node, FolderNode):
                    twin.entries[name] = copy_folder(node)
                else:
                    if id(node) not in copies:
                        copies[id(node)] = copy(node)
                    twin.entries[name] = copies[id(node)]
            twin.durable = dict(twin.entries)
            return twin

        storage = Storage(copy_folder(self.root), self.capacity)
        storage.used = sum(len(node.volatile) for _, node in storage.files())
        return storage

    def _surviving_changes(self, rng: random.Random) -> list[_NameChange]:
        if rng.random() < 0.5:
            count = len(self._pending)
            return self._pending[: rng.choice((0, count, rng.randint(0, count)))]
        share = rng.choice((0.5, 0.1, 0.9))
        kept: list[_NameChange] = []
        undone: set[tuple[int, str]] = set()
        for change in self._pending:
            names = change.names
            if undone.isdisjoint(names) and rng.random() < share:
                kept.append(change)
            else:
                undone |= names
        return kept
