"""Frames: how the journal and the spool write what belongs together, and read it again.

A frame is all or nothing: one checksum is over all of it.

    frame   magic u32, crc-32c u32 (of all that follows), sequence u64, previous u64, entries u32, payload bytes u32,
            payload
    entry   kind u8, topic id 16 bytes, partition i32, offset i64, epoch i32, length u32, data

Where the journal has the number of the frame before, the spool has its epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from crc32c import crc32c

from headrace.runtime.disk import File

FRAME = Struct(">IIQQII")
FRAME_CHECKED = Struct(">QQII")
ENTRY = Struct(">B16siqiI")


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
    EPOCH = 5
    """The partition's leader epoch is raised to epoch."""
    TRUNCATE = 6
    """The partition's log ends at offset: what was behind is void. A later point says that its files have that."""


# Every batch needs them: looking them up each time was a third of what its entry costs.
PACK_ENTRY = ENTRY.pack
ENTRY_BYTES = ENTRY.size
DATA = int(Kind.DATA)


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


def frame_header(magic: int, sequence: int, previous: int, entries: int, payload: bytes) -> bytes:
    """What stands before the payload of a frame."""
    checked = FRAME_CHECKED.pack(sequence, previous, entries, len(payload))
    return FRAME.pack(magic, crc32c(payload, crc32c(checked)), sequence, previous, entries, len(payload))


def header_at(file: File, position: int, size: int, magic: int) -> tuple[int, int, int, int] | None:
    """Checksum, sequence number, previous and length of a frame that may stand there in a file of `size` bytes."""
    header = file.read(position, FRAME.size)
    if len(header) < FRAME.size:
        return None
    found, crc, sequence, previous, _, length = FRAME.unpack(header)
    if found != magic or position + FRAME.size + length > size:
        return None
    return crc, sequence, previous, length


def frame_at(file: File, position: int, size: int, magic: int) -> Frame | None:
    """The whole frame that stands there in a file of `size` bytes, if one does. Blocks."""
    header = header_at(file, position, size, magic)
    if header is None:
        return None
    crc, sequence, previous, length = header
    whole = file.read(position + 8, FRAME.size - 8 + length)
    return Frame(sequence, previous, whole[FRAME.size - 8 :]) if crc32c(whole) == crc else None
