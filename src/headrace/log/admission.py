"""Admission: whether a batch may be appended, as far as the batch and its topic alone tell.

Everything that a client could get wrong is found here, before anything has changed: length, format, checksum, counts,
times, and on topics that are compacted or bound the times of their records, the records themselves. Only the 61-byte
header is read in Python; the checksum is one call into C, and records are a kernel's business.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from headrace.errors import BatchTooLarge, CorruptBatch, InvalidRecords, UnsupportedBatch
from headrace.format import records
from headrace.format.batch import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_AT,
    PREFIX_BYTES,
    TRANSACTIONAL,
    BatchHeader,
)
from headrace.format.markers import control_type
from headrace.log.header_check import plain
from headrace.log.interface import Topic, TopicSettings

ZSTD = 4
# What a batch without a largest timestamp may unpack to, where that has to be found on the loop.
UNSTAMPED_BYTES_MAX = 4 << 20

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_CRC_AND_ATTRIBUTES = Struct(">Ih")


def plainly(batch: bytearray | memoryview, settings: TopicSettings, now_ms: int) -> tuple[int, int] | None:
    """Last offset delta and largest timestamp of a batch that is admitted as it is, as most are. None: it has a
    producer's number, its topic asks for more, or something is wrong with it, and `admit` is to look at it."""
    if settings.compact or settings.log_append_time:
        return None
    return plain(
        batch, settings.max_batch_bytes, now_ms, settings.timestamp_before_max_ms, settings.timestamp_after_max_ms
    )


def admit(
    batch: bytearray | memoryview,
    topic: Topic,
    now_ms: int,
    unpacked_max: int,
    sparse: bool = False,
    moved: bool = False,
) -> BatchHeader:
    """The header of a batch that may be appended; raises an AppendRefused otherwise. Stamps the batch with `now_ms`
    where the topic says so. `sparse`: the broker has taken some of its records out. `moved`: see `Write.moved`."""
    header = _header(batch)
    size, settings = len(batch), topic.settings
    if moved and size - HEADER_BYTES > unpacked_max:
        raise BatchTooLarge(
            f"the batch has {size} bytes, and the broker reads {unpacked_max} at most: raise decompressed_max_bytes"
        )
    if not moved and size > settings.max_batch_bytes:
        raise BatchTooLarge(
            f"the batch has {size} bytes, the topic {topic.name} takes {settings.max_batch_bytes} (max.message.bytes)"
        )
    _check_crc(batch, header)
    if not sparse and (header.record_count <= 0 or header.last_offset_delta != header.record_count - 1):
        raise InvalidRecords(
            f"the batch says {header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    if header.producer_id >= 0 > header.base_sequence and not header.attributes & (CONTROL | TRANSACTIONAL):
        # Markers have none, nor have offsets that the broker commits for a transaction.
        raise InvalidRecords(f"a batch of producer {header.producer_id} has the sequence {header.base_sequence}")
    if header.attributes & COMPRESSION_MASK > ZSTD:
        raise UnsupportedBatch(f"compression {header.attributes & COMPRESSION_MASK} is not known")
    if settings.log_append_time:
        if settings.compact and not header.is_control:
            records.check(batch, True, unpacked_max, sparse=sparse)
        return _stamp(batch, header, header.attributes | LOG_APPEND_TIME, now_ms)
    if header.is_control:
        return header
    newest = header.max_timestamp
    earliest = _INT64_MIN if moved else max(now_ms - settings.timestamp_before_max_ms, _INT64_MIN)
    latest = _INT64_MAX if moved else min(now_ms + settings.timestamp_after_max_ms, _INT64_MAX)
    bounded = settings.bounds_times and not moved
    # Some clients leave the largest time out, such as Sarama before 1.45.1, and Kafka sets it: look-ups by time and
    # retention go by it.
    if settings.compact or bounded or newest < header.base_timestamp or newest > latest:
        if not (settings.compact or bounded or moved):
            # It was not unpacked off the loop before.
            unpacked_max = min(unpacked_max, UNSTAMPED_BYTES_MAX)
        newest = records.check(batch, settings.compact, unpacked_max, earliest, latest, sparse)
        if newest != header.max_timestamp:
            return _stamp(batch, header, header.attributes, newest)
    return header


def split(batches: bytearray | memoryview) -> list[tuple[memoryview, BatchHeader]]:
    """Batches one behind the other, that come as they are: each, and its header. Raises CorruptBatch,
    UnsupportedBatch, or InvalidRecords of a marker."""
    view = memoryview(batches)
    parts: list[tuple[memoryview, BatchHeader]] = []
    while view or not parts:
        size = HEADER.unpack_from(view)[1] + PREFIX_BYTES if len(view) >= HEADER_BYTES else len(view)
        batch = view[: max(size, HEADER_BYTES)]
        header = _header(batch)
        _check_crc(batch, header)
        if header.last_offset_delta < 0:
            raise CorruptBatch(f"the batch has a last offset delta of {header.last_offset_delta}")
        if header.is_control and header.producer_id >= 0:
            control_type(batch)
        parts.append((batch, header))
        view = view[header.size :]
    return parts


def _header(batch: bytearray | memoryview) -> BatchHeader:
    """The header of what must be one whole batch."""
    size = len(batch)
    if size < HEADER_BYTES:
        raise CorruptBatch(f"{size} bytes are too few for a record batch, which has {HEADER_BYTES} bytes of header")
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if header.magic != 2:
        raise UnsupportedBatch(f"the batch is of format {header.magic}; only format 2 is stored: use a newer client")
    if header.length + PREFIX_BYTES != size:
        raise CorruptBatch(f"the batch says that it has {header.length + PREFIX_BYTES} bytes, but {size} came")
    return header


def _check_crc(batch: bytearray | memoryview, header: BatchHeader) -> None:
    if crc32c(memoryview(batch)[CRC_FROM:]) != header.crc:
        raise CorruptBatch("the batch does not fit its checksum")


def _stamp(batch: bytearray | memoryview, header: BatchHeader, attributes: int, timestamp: int) -> BatchHeader:
    """Another largest timestamp than the producer's, and perhaps the log's own time: with them the checksum changes."""
    _CRC_AND_ATTRIBUTES.pack_into(batch, CRC_AT, 0, attributes)
    MAX_TIMESTAMP.pack_into(batch, MAX_TIMESTAMP_AT, timestamp)
    crc = crc32c(memoryview(batch)[CRC_FROM:])
    _CRC_AND_ATTRIBUTES.pack_into(batch, CRC_AT, crc, attributes)
    return header._replace(crc=crc, attributes=attributes, max_timestamp=timestamp)
