"""Markers: the control batches that end a producer's transaction on a partition.

`headrace.format.records.control` builds one; this reads one, in Python, because there is one record in it.
"""

from __future__ import annotations

import struct

from headrace.errors import InvalidRecords
from headrace.format.batch import HEADER_BYTES
from headrace.format.records import ABORT, COMMIT, CONTROL_KEY, CONTROL_VALUE
from headrace.format.varint import read_zigzag


def control_type(batch: bytes | bytearray | memoryview) -> tuple[bool, int]:
    """What the marker in a control batch says: whether it commits, and the epoch of the coordinator that wrote it."""
    try:
        at = HEADER_BYTES
        _, at = read_zigzag(batch, at)  # length
        at += 1  # attributes
        _, at = read_zigzag(batch, at)  # timestamp delta
        _, at = read_zigzag(batch, at)  # offset delta
        key_length, at = read_zigzag(batch, at)
        _, kind = CONTROL_KEY.unpack_from(batch, at)
        _, at = read_zigzag(batch, at + key_length)  # length of the value
        _, coordinator_epoch = CONTROL_VALUE.unpack_from(batch, at)
    except (ValueError, struct.error) as broken:
        raise InvalidRecords("the marker in a control batch cannot be read") from broken
    if kind not in (ABORT, COMMIT):
        raise InvalidRecords(f"a control record of type {kind} is neither a commit nor an abort")
    return kind == COMMIT, coordinator_epoch
