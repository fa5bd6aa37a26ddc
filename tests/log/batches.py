"""A tiny builder of record batches, uncompressed, so that the log's tests stand on nothing but the format itself."""

from __future__ import annotations

from crc32c import crc32c

from headrace.format.batch import CONTROL, CRC_FROM, HEADER, HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL, batches_in
from headrace.log.interface import Partition


def varint(value: int) -> bytes:
    """A zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    """One record."""
    body = b"\0" + varint(timestamp_delta) + varint(delta)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(0)
    return varint(len(body)) + body


def batch(
    base: int,
    records: list[tuple[bytes | None, bytes | None]] | int = 1,
    *,
    timestamp: int = 1_000,
    size: int = 10,
    producer: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """One batch from `base`; `records` may be just their number, each then has a value of `size` bytes."""
    if isinstance(records, int):
        records = [(None, b"v" * size)] * records
    body = b"".join(record(i, 0, key, value) for i, (key, value) in enumerate(records))
    fields = (attributes, len(records) - 1, timestamp, timestamp, producer, producer_epoch, sequence, len(records))
    length = HEADER_BYTES - PREFIX_BYTES + len(body)
    whole = bytearray(HEADER.pack(base, length, leader_epoch, 2, 0, *fields) + body)
    whole[17:21] = crc32c(bytes(whole[CRC_FROM:])).to_bytes(4, "big")
    return bytes(whole)


def marker(
    base: int, producer: int, epoch: int, committed: bool, *, coordinator_epoch: int = 0, timestamp: int = 1_000
) -> bytes:
    """A control batch that ends a transaction."""
    key = b"\0\0" + (b"\0\1" if committed else b"\0\0")
    value = b"\0\0" + coordinator_epoch.to_bytes(4, "big")
    return batch(
        base,
        [(key, value)],
        timestamp=timestamp,
        producer=producer,
        producer_epoch=epoch,
        attributes=CONTROL | TRANSACTIONAL,
    )


def read(partition: Partition) -> list[bytes]:
    """Each batch that a reader gets, from memory and files."""
    found: list[bytes] = []
    offset = partition.start
    while offset < partition.high_watermark:
        chunk = partition.read(offset, 1 << 20)
        if chunk.cold is not None:
            chunk.cold()
            continue
        data = chunk.read()
        chunk.release()
        for position, header in batches_in(data):
            found.append(data[position : position + header.size])
            offset = header.last_offset + 1
    return found
