"""Frames of a replicated journal: what a group's leader writes, and its followers store byte for byte.

    frame   magic u32 "HRJ2", crc-32c u32 (of all that follows), version u8, flags u8, reserved u16, group u32,
            epoch u32, sequence u64, previous epoch u32, time u64 (ms), committed u64, entries u32, payload bytes u32,
            payload

A frame's place is (epoch, sequence). Sequences have no gaps, so the frame before is the one with the sequence before;
its epoch is in the frame too. After a truncation an old file may still hold a frame of that sequence: of another epoch.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import CorruptLog

MAGIC = 0x48524A32  # "HRJ2"
# The feature level of the cluster when it was written: what its entries may mean.
NEWEST_VERSION = 2
HEADER = Struct(">IIBBHIIQIQQII")
CHECKED = Struct(">BBHIIQIQQII")
HEADER_BYTES = HEADER.size
CRC_END = 8

BEGIN = 1
"""The first frame of a leadership. It has no entries."""


class Position(NamedTuple):
    """Where a frame stands. In this order: a higher epoch is newer whatever the sequences are."""

    epoch: int
    sequence: int


NOTHING = Position(0, 0)
"""Before the first frame of a group."""


class GroupFrame(NamedTuple):
    """A frame by its header."""

    flags: int
    group: int
    epoch: int
    sequence: int
    previous_epoch: int
    time_ms: int
    committed: int
    entries: int
    length: int

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.sequence)

    @property
    def previous(self) -> Position:
        return Position(self.previous_epoch, self.sequence - 1)

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return HEADER_BYTES + self.length


def group_number(name: str) -> int:
    """What frames carry of a group's name: enough to see that one is of another group."""
    return crc32c(name.encode())


def build(frame: GroupFrame, payload: bytes, version: int = NEWEST_VERSION) -> bytes:
    """The bytes of a frame."""
    flags, group, epoch, sequence, previous_epoch, time_ms, committed, entries, length = frame
    fields = version, flags, 0, group, epoch, sequence, previous_epoch, time_ms, committed, entries, length
    crc = crc32c(payload, crc32c(CHECKED.pack(*fields)))
    return HEADER.pack(MAGIC, crc, *fields) + payload


def header_of(data: bytes | memoryview, at: int = 0) -> GroupFrame | None:
    """The header that may stand there; None where there is none. Its checksum is not looked at."""
    if len(data) - at < HEADER_BYTES:
        return None
    magic, _, version, flags, _, *fields = HEADER.unpack_from(data, at)
    if magic != MAGIC or not 1 <= version <= NEWEST_VERSION:
        return None
    return GroupFrame(flags, *fields)


def version_of(data: bytes) -> int:
    """The version of a whole frame."""
    return data[CRC_END]


def is_whole(data: bytes | memoryview, frame: GroupFrame, at: int = 0) -> bool:
    """Whether all of a frame is there, as it was written."""
    whole = memoryview(data)[at : at + frame.size]
    return len(whole) == frame.size and crc32c(whole[CRC_END:]) == int.from_bytes(whole[4:CRC_END], "big")


def parse(data: bytes) -> GroupFrame:
    """The frame that all of `data` is. Raises CorruptLog."""
    frame = header_of(data)
    if frame is None or frame.size != len(data) or not is_whole(data, frame):
        raise CorruptLog(f"{len(data)} bytes are not a whole frame of a replicated journal")
    return frame


def payload_of(data: bytes) -> bytes:
    """What a whole frame carries."""
    return data[HEADER_BYTES:]
