"""The header of a record batch: taken off before a kernel reads the records, put on after one has written them.

The layout is in `headrace.format.batch`. The checksum is tested here once, so no kernel ever reads a damaged batch.
"""

from __future__ import annotations

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
    BatchHeader,
    header_at,
)
from headrace.format.compression import compress

Buffer = bytes | bytearray | memoryview

OFFSET_MAX: int = (1 << 63) - 1


def open_head(batch: Buffer) -> tuple[BatchHeader, memoryview]:
    """The header and the still packed records of one whole batch, whose checksum fits."""
    view = memoryview(batch)
    if len(view) < HEADER_BYTES:
        raise CorruptBatch(f"{len(view)} bytes do not hold the header of a record batch ({HEADER_BYTES})")
    head = header_at(view)
    if head.magic != MAGIC:
        raise UnsupportedBatch(
            f"a batch of format {head.magic} came: only format {MAGIC} (Kafka 0.11 and later) is read"
        )
    if head.size != len(view):
        raise CorruptBatch(f"the batch says it has {head.size} bytes, but {len(view)} are there")
    found = crc32c(view[CRC_FROM:])
    if found != head.crc:
        raise CorruptBatch(f"the checksum of the batch is {found:#010x}, but its header says {head.crc:#010x}")
    first, delta = head.base_offset, head.last_offset_delta
    if first < 0 or delta < 0 or first > OFFSET_MAX - delta:
        raise InvalidRecords(f"the batch claims the offsets from {first} to {first} + {delta}")
    if not 0 <= head.record_count <= delta + 1:
        raise InvalidRecords(f"the batch claims {head.record_count} records on {delta + 1} offsets")
    return head, view[HEADER_BYTES:]


def seal(out: bytearray, head: BatchHeader) -> bytearray:
    """Make a batch of records that stand behind the room for its header: pack them and write the header,
    with their length and checksum."""
    codec = head.attributes & COMPRESSION_MASK
    if codec and head.record_count:
        packed = compress(codec, memoryview(out)[HEADER_BYTES:])
        out = bytearray(HEADER_BYTES)
        out += packed
    if len(out) - PREFIX_BYTES > LENGTH_MAX:
        raise InvalidRecords(f"a batch of {len(out)} bytes is larger than the format allows: use smaller ones")
    length = len(out) - PREFIX_BYTES
    HEADER.pack_into(out, 0, head.base_offset, length, head.leader_epoch, MAGIC, 0, *head[5:])
    CRC.pack_into(out, CRC_AT, crc32c(memoryview(out)[CRC_FROM:]))
    return out
