"""The journal: one sequential file that makes `sync` cheap.

Everything that must be durable and is not yet in its segment goes into a *frame*: one write, one wait for the device,
however many partitions and clients it serves. A frame is all or nothing (one checksum), which is what makes an append
to several partitions atomic. Frames carry a growing sequence number and the number of the acknowledged frame before
them, so recovery walks back from the newest whole frame and finds exactly those that were acknowledged: a frame whose
flush failed is not on that chain, even if it reached the disk.

    frame   magic u32, crc-32c u32 (of all that follows), sequence u64, previous u64, entries u32, payload bytes u32,
            payload
    entry   kind u8, topic id 16 bytes, partition i32, offset i64, epoch i32, length u32, data

Files are reserved in full, filled, and reused once a checkpoint has made their frames superfluous: what a reused file
still holds of its former life has lower sequence numbers and is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from crc32c import crc32c

from headrace.ground.disk import Buffer, Disk, File

FOLDER = "journal"
MAGIC = 0x48524A31  # "HRJ1"

FRAME = Struct(">IIQQII")
FRAME_CHECKED = Struct(">QQII")
ENTRY = Struct(">B16siqiI")

# Files kept for reuse beyond the one being written.
SPARE_FILES = 2


class Kind(IntEnum):
    """What an entry records."""

    DATA = 1
    """A record batch of a partition; offset is its base offset."""
    POINT = 2
    """The partition's segments are synced up to offset."""
    START = 3
    """The partition's records before offset are forgotten."""
    CATALOGUE = 4
    """A change of the catalogue, as JSON."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as recovery reads it."""

    kind: Kind
    topic: bytes
    partition: int
    offset: int
    epoch: int
    data: bytes

    def read(self) -> bytes:
        """Its data, as a call."""
        return self.data


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame as recovery reads it."""

    sequence: int
    previous: int
    payload: bytes

    def entries(self) -> Iterator[Entry]:
        """Its entries in their order."""
        position, payload = 0, self.payload
        while position < len(payload):
            kind, topic, partition, offset, epoch, length = ENTRY.unpack_from(payload, position)
            position += ENTRY.size
            yield Entry(Kind(kind), topic, partition, offset, epoch, payload[position : position + length])
            position += length


@dataclass(slots=True)
class _JournalFile:
    path: str
    file: File | None
    size: int
    last_sequence: int = 0


class Journal:
    """Places frames in files. `write` runs in the journal's lane; everything else on the loop."""

    def __init__(self, disk: Disk, file_bytes: int, next_sequence: int) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self._next_file = 0
        self._current: _JournalFile | None = None
        self._position = 0
        self._full: list[_JournalFile] = []
        self._spare: list[_JournalFile] = []
        self.next_sequence = next_sequence
        # The last frame that was acknowledged: what the next one names as its previous.
        self.acknowledged = 0

    def place(self, payload: Sequence[Buffer], size: int, entries: int) -> PlacedFrame:
        """Choose where the next frame goes. Only one may be on its way at a time."""
        total = FRAME.size + size
        current = self._current
        if current is None or self._position + total > current.size:
            if current is not None:
                self._full.append(current)
            current = self._take(total)
            self._position = 0
        placed = PlacedFrame(
            self, current, self._position, self.next_sequence, self.acknowledged, payload, size, entries
        )
        current.last_sequence = self.next_sequence
        self.next_sequence += 1
        self._position += total
        return placed

    def _take(self, total: int) -> _JournalFile:
        for index, spare in enumerate(self._spare):
            if spare.size >= total:
                self._current = self._spare.pop(index)
                return self._current
        path = f"{FOLDER}/{self._next_file:08d}.journal"
        self._next_file += 1
        self._current = _JournalFile(path, None, max(self._file_bytes, total))
        return self._current

    def abandon(self) -> None:
        """The last flush failed: its file is never written again, since nobody knows what the device made of it."""
        if self._current is not None:
            self._full.append(self._current)
            self._current = None

    def switch(self) -> int:
        """Begin a new file with the next frame; the sequence number from which on recovery will need the journal once
        everything before it is in its segment and synced."""
        if self._current is not None:
            self._full.append(self._current)
            self._current = None
        return self.next_sequence

    def retire(self, before: int) -> list[str]:
        """Everything before frame `before` is superfluous: keep some files for reuse; the paths of those to be
        removed."""
        removed = []
        for done in [file for file in self._full if file.last_sequence < before]:
            self._full.remove(done)
            if len(self._spare) < SPARE_FILES and done.file is not None and done.size == self._file_bytes:
                self._spare.append(done)
            else:
                if done.file is not None:
                    done.file.close()
                removed.append(done.path)
        return removed

    @property
    def used(self) -> int:
        """Bytes of frames that recovery would read now."""
        return self._position + sum(file.size for file in self._full)

    def close(self) -> None:
        for each in [*self._full, *self._spare, *([self._current] if self._current else [])]:
            if each.file is not None:
                each.file.close()


class PlacedFrame:
    """A frame on its way to the disk."""

    __slots__ = ("_entries", "_file", "_journal", "_payload", "_position", "_previous", "_size", "sequence")

    def __init__(
        self,
        journal: Journal,
        file: _JournalFile,
        position: int,
        sequence: int,
        previous: int,
        payload: Sequence[Buffer],
        size: int,
        entries: int,
    ) -> None:
        self._journal = journal
        self._file = file
        self._position = position
        self.sequence = sequence
        self._previous = previous
        self._payload = payload
        self._size = size
        self._entries = entries

    def write(self) -> None:
        """Write the frame and wait for the device. Blocks: for the journal's lane."""
        target = self._file
        if target.file is None:
            disk = self._journal._disk
            file = disk.open(target.path, write=True, create=True)
            try:
                file.allocate(target.size)
            except OSError:
                file.close()
                disk.remove(target.path)
                raise
            disk.sync_dir(FOLDER)
            target.file = file
        body = b"".join(self._payload)
        checked = FRAME_CHECKED.pack(self.sequence, self._previous, self._entries, self._size)
        crc = crc32c(body, crc32c(checked))
        header = FRAME.pack(MAGIC, crc, self.sequence, self._previous, self._entries, self._size)
        target.file.write_durably(self._position, [header, body])


def read_frames(disk: Disk, since: int) -> list[Frame]:
    """The acknowledged frames numbered `since` or more, in order, from all files of the journal. Blocks."""
    found: dict[int, Frame] = {}
    for name in disk.listdir(FOLDER):
        file = disk.open(f"{FOLDER}/{name}")
        try:
            for frame in _frames_in(file):
                if frame.sequence >= since:
                    found[frame.sequence] = frame
        finally:
            file.close()
    chain: list[Frame] = []
    at = max(found, default=0)
    while at in found:
        chain.append(found[at])
        at = found[at].previous
    chain.reverse()
    return chain


def _frames_in(file: File) -> Iterator[Frame]:
    position, last, size = 0, 0, file.size()
    while position + FRAME.size <= size:
        header = file.read(position, FRAME.size)
        if len(header) < FRAME.size:
            return
        magic, crc, sequence, previous, _, length = FRAME.unpack(header)
        if magic != MAGIC or sequence <= last or position + FRAME.size + length > size:
            return
        payload = file.read(position + FRAME.size, length)
        if crc32c(payload, crc32c(header[8:])) != crc:
            return
        yield Frame(sequence, previous, payload)
        last = sequence
        position += FRAME.size + length


def remove_files(disk: Disk) -> None:
    """Remove all files of the journal: a checkpoint has made them superfluous. Blocks."""
    for name in disk.listdir(FOLDER):
        disk.remove(f"{FOLDER}/{name}")
    disk.sync_dir(FOLDER)


def set_aside(disk: Disk, epoch: int) -> str:
    """Move all files of the journal to a folder of their own, for whoever looks into the damage; its name. Blocks."""
    folder = f"{FOLDER}.kept-{epoch}"
    disk.mkdir(folder)
    for name in disk.listdir(FOLDER):
        disk.rename(f"{FOLDER}/{name}", f"{folder}/{name}")
    disk.sync_dir(folder)
    disk.sync_dir(FOLDER)
    disk.sync_dir("")
    return folder
