"""Markers: the control batches that end a producer's transaction on a partition.

`headrace.format.records.control` builds one; this reads one, in Python, because there is one record in it.
"""

from __future__ import annotations

import struct
from struct import Struct

from headrace.errors import InvalidRecords
from headrace.format.batch import HEADER_BYTES
from headrace.format.records import ABORT, COMMIT

CONTROL_KEY = Struct(">hh")
MARKER_VALUE = Struct(">hi")


def control_type(batch: bytes | bytearray | memoryview) -> tuple[bool, int]:
    """What the marker in a control batch says: whether it commits, and the epoch of the coordinator that wrote it."""
    try:
        at = HEADER_BYTES
        _, at = _varint(batch, at)  # length
        at += 1  # attributes
        _, at = _varint(batch, at)  # timestamp delta
        _, at = _varint(batch, at)  # offset delta
        key_length, at = _varint(batch, at)
        _, kind = CONTROL_KEY.unpack_from(batch, at)
        _, at = _varint(batch, at + key_length)  # length of the value
        _, coordinator_epoch = MARKER_VALUE.unpack_from(batch, at)
    except (IndexError, ValueError, struct.error) as broken:
        raise InvalidRecords("the marker in a control batch cannot be read") from broken
    if kind not in (ABORT, COMMIT):
        raise InvalidRecords(f"a control record of type {kind} is neither a commit nor an abort")
    return kind == COMMIT, coordinator_epoch


def _varint(buffer: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """A zigzag varint and where the next field begins."""
    value = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 35:
            raise ValueError("a varint of more than five bytes")
