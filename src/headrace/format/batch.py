"""The record batch, version 2: the unit of the wire, the disk and the replica.

Only the 61-byte header is read here; the records behind it are a kernel's business. All integers are big-endian.

    0   base offset          int64     assigned by the log on append; not under the checksum
    8   batch length         int32     bytes after this field
    12  leader epoch         int32     assigned by the log on append; not under the checksum
    16  magic                int8      2
    17  crc                  uint32    CRC-32C of everything from the attributes to the end
    21  attributes           int16     bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control,
                                       6 delete horizon
    23  last offset delta    int32
    27  base timestamp       int64
    35  max timestamp        int64
    43  producer id          int64
    51  producer epoch       int16
    53  base sequence        int32
    57  record count         int32
    61  records
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import CorruptBatch

HEADER_BYTES = 61
# Base offset and length: what must be there to know how much more there is.
PREFIX_BYTES = 12
MAGIC = 2
CRC_AT = 17
CRC_FROM = 21
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35
PRODUCER_AT = 43
LENGTH_MAX = (1 << 31) - 1

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

HEADER = Struct(">qiibIhiqqqhii")
PREFIX = Struct(">qi")
CRC = Struct(">I")
# Base offset, length, leader epoch: what the log patches on append.
OFFSET_AND_EPOCH = Struct(">qii")
# Base offset, length, magic, last offset delta, max timestamp: what a walk over many batches looks at.
STEP = Struct(">qi4xb6xi8xq")
MAX_TIMESTAMP = Struct(">q")
# Id, epoch and base sequence.
PRODUCER = Struct(">qhi")

NO_PRODUCER = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1


class BatchHeader(NamedTuple):
    """The fields of a header in their order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


def header_at(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Read the header at `position`. The buffer must hold all 61 bytes of it."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def new_header(
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> BatchHeader:
    """The header of a new batch of so many records. Length and checksum are yet to come, offset and epoch the log's."""
    times = base_timestamp, max_timestamp
    producer = producer_id, producer_epoch, base_sequence
    return BatchHeader(0, 0, -1, MAGIC, 0, attributes, count - 1, *times, *producer, count)


def crc_fits(buffer: bytes | bytearray | memoryview, position: int, header: BatchHeader) -> bool:
    """Whether the whole batch at `position` fits its checksum."""
    return crc32c(memoryview(buffer)[position + CRC_FROM : position + header.size]) == header.crc


def batches_in(buffer: bytes | bytearray | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """The whole batches that stand one behind the other in `buffer`, with their positions; a cut last one is left
    out."""
    position, end = 0, len(buffer)
    while end - position >= HEADER_BYTES:
        header = header_at(buffer, position)
        if header.length < HEADER_BYTES - PREFIX_BYTES:
            raise CorruptBatch(
                f"a batch of {header.length} bytes stands at position {position}: shorter than its own header"
            )
        if end - position < header.size:
            return
        yield position, header
        position += header.size
