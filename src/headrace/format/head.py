"""The header of a record batch: taken off before a kernel reads the records, put on after one has written them.

The layout is in `headrace.format.batch`. The checksum is tested here once, so no kernel ever reads a damaged batch.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import CorruptBatch, InvalidRecords, UnsupportedBatch
from headrace.format.batch import (
    COMPRESSION_MASK,
    CRC,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_MAX,
    MAGIC,
    PREFIX_BYTES,
)
from headrace.format.compression import compress

Buffer = bytes | bytearray | memoryview

OFFSET_MAX: int = (1 << 63) - 1


class Head(NamedTuple):
    """What the kernels need of a batch's header."""

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


def open_head(batch: Buffer) -> tuple[Head, memoryview]:
    """The header and the still packed records of one whole batch, whose checksum fits."""
    view = memoryview(batch)
    if len(view) < HEADER_BYTES:
        raise CorruptBatch(f"{len(view)} bytes do not hold the header of a record batch ({HEADER_BYTES})")
    (base_offset, length, leader_epoch, magic, crc, attributes, last_delta, base_time, max_time, *producer) = (
        HEADER.unpack_from(view)
    )
    if magic != MAGIC:
        raise UnsupportedBatch(f"a batch of format {magic} came: only format {MAGIC} (Kafka 0.11 and later) is read")
    if length != len(view) - PREFIX_BYTES:
        raise CorruptBatch(f"the batch says it has {length + PREFIX_BYTES} bytes, but {len(view)} are there")
    found = crc32c(view[CRC_FROM:])
    if found != crc:
        raise CorruptBatch(f"the checksum of the batch is {found:#010x}, but its header says {crc:#010x}")
    head = Head(base_offset, leader_epoch, attributes, last_delta, base_time, max_time, *producer)
    if base_offset < 0 or last_delta < 0 or base_offset > OFFSET_MAX - last_delta:
        raise InvalidRecords(f"the batch claims the offsets from {base_offset} to {base_offset} + {last_delta}")
    if not 0 <= head.record_count <= last_delta + 1:
        raise InvalidRecords(f"the batch claims {head.record_count} records on {last_delta + 1} offsets")
    return head, view[HEADER_BYTES:]


def seal(out: bytearray, head: Head) -> bytearray:
    """Make a batch of records that stand behind the room for its header: pack them and write the header."""
    codec = head.attributes & COMPRESSION_MASK
    if codec and head.record_count:
        packed = compress(codec, memoryview(out)[HEADER_BYTES:])
        out = bytearray(HEADER_BYTES)
        out += packed
    if len(out) - PREFIX_BYTES > LENGTH_MAX:
        raise InvalidRecords(f"a batch of {len(out)} bytes is larger than the format allows: use smaller ones")
    length = len(out) - PREFIX_BYTES
    HEADER.pack_into(out, 0, head.base_offset, length, head.leader_epoch, MAGIC, 0, *head[2:])
    CRC.pack_into(out, CRC_AT, crc32c(memoryview(out)[CRC_FROM:]))
    return out
