"""The spool: small `async` batches of many partitions, in one write.

An acknowledgement of an `async` topic means that the operating system has the batch, in whatever file. Where one turn
of the loop brings batches for many partitions, a write to each one's segment would be most of their cost; so all of
them go into one frame of a shared file, with one write, and reach their segments later, many batches at a time, as
those of `sync` topics do behind the journal. Nothing here waits for the device.

One idea makes it simple: a frame is only ever true. It says which batch stands at which offset, it is written when
that is decided, and an offset is not decided twice in one epoch. So recovery may read frames in any order, twice, or
some of them; what it must not believe are those of an earlier epoch, and they name theirs. A partition goes on as far
as batches follow each other: what a power cut has left behind a gap is not used.

    frame   magic u32, crc-32c u32 (of all that follows), sequence u64, epoch u64, entries u32, payload bytes u32,
            payload: entries as in the journal

There are two files. When one is full the other takes its place, and while that one fills, partition after partition
of the full one stores what still waits, so that no turn has to store all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from typing import Protocol

from headrace.log.frames import FRAME, Entry, Frame, frame_at, frame_header
from headrace.log.journal import FOLDER
from headrace.runtime.disk import Disk, File

MAGIC = 0x48525331  # "HRS1"
SUFFIX = ".spool"
FILES = 2
# With more bytes than this to a partition, writing them twice costs more than it saves.
SMALL_BYTES = 4_096


class Spooled(Protocol):
    """A partition, as the spool sees it."""

    def spool(self, end: int, entries: list[bytes]) -> int:
        """Add the entries of all that is below `end` and has not been acknowledged; their bytes."""
        ...

    def settle(self, end: int) -> bool:
        """Store everything below `end`; False if the disk does not take it."""
        ...


class _SpoolFile:
    __slots__ = ("file", "filled", "waiting", "waiting_at_first")

    def __init__(self, file: File) -> None:
        self.file = file
        self.filled = 0
        # The partitions that may not have stored what this file has of them, and up to where that is.
        self.waiting: dict[Spooled, int] = {}
        self.waiting_at_first = 0


class Spool:
    """The two files and what is in them. Belongs to the loop, except for `make`."""

    def __init__(self, disk: Disk, file_bytes: int, epoch: int, want: Callable[[], None]) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self._epoch = epoch
        self._sequence = 0
        # The one that is written, and the one that was.
        self._files: list[_SpoolFile] = []
        # Those that are not written any more: a start believes them until they are gone.
        self._left: list[_SpoolFile] = []
        self._want = want
        # Whether the files were asked for: once, unless they are given up for a truncation.
        self._wanted = False

    def make(self) -> list[File]:
        """Make the files. Blocks; raises what the disk raises. Hand them to `use`."""
        files: list[File] = []
        try:
            for number in range(FILES):
                path = f"{FOLDER}/{number}{SUFFIX}"
                self._disk.remove(path)
                files.append(self._disk.open(path, write=True, create=True))
                files[-1].allocate(self._file_bytes)
        except OSError:
            for number, file in enumerate(files):
                file.close()
                self._disk.remove(f"{FOLDER}/{number}{SUFFIX}")
            raise
        return files

    def use(self, files: list[File]) -> None:
        """Use them from now on."""
        self._files = [_SpoolFile(file) for file in files]

    def empty(self) -> bool:
        """Have all partitions store what is here, and use no file any more; False if the disk does not take it. Call
        `reuse` when the files are gone."""
        if not all(self._settle(each, 0) for each in [*self._files, *self._left]):
            return False
        self.close()
        return True

    def reuse(self) -> None:
        """Files may be made again."""
        self._left = []
        self._wanted = False

    @property
    def is_used(self) -> bool:
        """Whether a start may find something in a file."""
        return bool(self._files or self._left)

    def take(self, ends: Collection[tuple[Spooled, int]], size: int) -> bool:
        """Write what partitions have gathered below their `ends`, some `size` bytes in all; False if they must do that
        themselves."""
        if size > SMALL_BYTES * len(ends):
            return False
        if not self._files:
            if not self._wanted:
                self._wanted = True
                self._want()
            return False
        entries: list[bytes] = []
        length = 0
        for partition, end in ends:
            length += partition.spool(end, entries)
        if not entries:
            return True
        if not self._write(entries, length):
            return False
        self._files[0].waiting.update(ends)
        self._settle_some()
        return True

    def _write(self, entries: list[bytes], length: int) -> bool:
        current = self._files[0]
        if current.filled + FRAME.size + length > self._file_bytes:
            if FRAME.size + length > self._file_bytes or not self._turn_over():
                return False
            current = self._files[0]
        self._sequence += 1
        count = len(entries) // 2
        payload = b"".join(entries)
        header = frame_header(MAGIC, self._sequence, self._epoch, count, payload)
        try:
            current.file.write_one(current.filled, header + payload)
        except OSError:
            # A frame that may be there or not may turn out not to be true.
            self._give_up(current)
            return False
        current.filled += FRAME.size + length
        return True

    def _turn_over(self) -> bool:
        """Begin the other file; False if partitions still need what it has."""
        current, other = self._files
        if not self._settle(other, 0):
            return False
        other.filled = 0
        self._files = [other, current]
        current.waiting_at_first = len(current.waiting)
        return True

    def _settle_some(self) -> None:
        """As much of the full file as the other one has filled."""
        current, full = self._files
        if full.waiting:
            self._settle(full, int(full.waiting_at_first * (1 - current.filled / self._file_bytes)))

    @staticmethod
    def _settle(full: _SpoolFile, leave: int) -> bool:
        waiting = full.waiting
        while len(waiting) > leave:
            partition, end = waiting.popitem()
            if not partition.settle(end):
                waiting[partition] = end
                return False
        return True

    def _give_up(self, current: _SpoolFile) -> None:
        try:
            current.file.truncate(current.filled)
        except OSError:
            pass  # the device fails: writes to segments will report it
        self.close()

    def close(self) -> None:
        files, self._files = self._files, []
        self._left += files
        for each in files:
            each.file.close()


def read_spool(disk: Disk, epoch: int) -> list[Entry]:
    """What the spool's files have of an epoch, in the order in which it was written. Blocks."""
    frames: list[Frame] = []
    for name in disk.listdir(FOLDER):
        if name.endswith(SUFFIX):
            with closing(disk.open(f"{FOLDER}/{name}")) as file:
                frames += _frames(file, epoch)
    frames.sort(key=lambda frame: frame.sequence)
    return [entry for frame in frames for entry in frame.entries()]


def remove_spool(disk: Disk) -> None:
    """Remove the files of the life before: a checkpoint has made them superfluous. Blocks."""
    for name in disk.listdir(FOLDER):
        if name.endswith(SUFFIX):
            disk.remove(f"{FOLDER}/{name}")


def give_back(disk: Disk, epoch: int) -> None:
    """Let the disk have the room in which no frame of an epoch stands. Blocks."""
    for name in disk.listdir(FOLDER):
        if name.endswith(SUFFIX):
            with closing(disk.open(f"{FOLDER}/{name}", write=True)) as file:
                file.truncate(sum(FRAME.size + len(frame.payload) for frame in _frames(file, epoch)))


def _frames(file: File, epoch: int) -> Iterator[Frame]:
    """The whole frames from the beginning; what follows the last of them is of the file's former life, or torn."""
    position, last, size = 0, 0, file.size()
    while (frame := frame_at(file, position, size, MAGIC)) is not None:
        # Where the journal has the number of the frame before, the spool has its epoch.
        if frame.previous != epoch or frame.sequence <= last:
            return
        yield frame
        position, last = position + FRAME.size + len(frame.payload), frame.sequence
