"""Kafka requests as ready-made bytes, and the little of the replies that a load generator must read.

Everything is built before the clock starts. Correlation ids repeat: replies come in order, so nobody needs them. Bulk
batches of one topic are all alike, which lets a fetch reply be understood from the length of its records alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from struct import Struct

from headrace.kernels import records

PRODUCE, FETCH = 0, 1
# The newest versions that name topics instead of giving their ids: what librdkafka sends, within a field or two.
PRODUCE_VERSION, FETCH_VERSION = 10, 12
CLIENT_ID = b"bench"
ALL = -1
PLAIN_RECORD = 100
MIB = 1 << 20

_HEAD = Struct(">hhih")
_ACKS_AND_TIMEOUT = Struct(">hi")
_FETCH = Struct(">iiiibii")
_FETCH_PARTITION = Struct(">iiqiqi")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_PARTITION_REPLY = Struct(">ihqqq")


def varint(value: int) -> bytes:
    """An unsigned variable-length integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def batch(size: int) -> tuple[bytes, int]:
    """A batch of plain records that just fits into so many bytes, and how many records it holds."""
    noise = Random(size)
    now = int(time.time() * 1000)
    count = max(1, (size - 61) // (PLAIN_RECORD + 10))
    while True:
        made = records.build([(now, None, noise.randbytes(PLAIN_RECORD), []) for _ in range(count)])
        if len(made) > size and count > 1:
            count -= 1
            continue
        return bytes(made), count


def _frame(key: int, version: int, body: bytes) -> bytes:
    framed = _HEAD.pack(key, version, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0" + body
    return _INT32.pack(len(framed)) + framed


def produce(topic: str, batches: Sequence[tuple[int, bytes]], acks: int = ALL) -> bytes:
    """One request with a batch for each of these partitions."""
    name = topic.encode()
    body = [b"\0", _ACKS_AND_TIMEOUT.pack(acks, 30_000), b"\x02", varint(len(name) + 1), name, varint(len(batches) + 1)]
    for partition, made in batches:
        body += [_INT32.pack(partition), varint(len(made) + 1), made, b"\0"]
    return _frame(PRODUCE, PRODUCE_VERSION, b"".join([*body, b"\0\0"]))


@dataclass
class Fetch:
    """A fetch request that is patched with the next offsets and sent again."""

    frame: bytearray
    at: list[int]
    """Where each partition's offset stands in the frame."""

    def move(self, index: int, offset: int) -> None:
        """The index-th partition is read from here on."""
        _INT64.pack_into(self.frame, self.at[index], offset)


def fetch(topic: str, partitions: Sequence[int], *, max_wait_ms: int, partition_bytes: int = MIB) -> Fetch:
    """A request without a session for these partitions from their beginning."""
    name = topic.encode()
    body = bytearray(_FETCH.pack(-1, max_wait_ms, 1, 50 * MIB, 0, 0, -1))
    body += b"\x02" + varint(len(name) + 1) + name + varint(len(partitions) + 1)
    at = []
    for partition in partitions:
        at.append(len(body) + 8)
        body += _FETCH_PARTITION.pack(partition, -1, 0, -1, -1, partition_bytes) + b"\0"
    framed = _frame(FETCH, FETCH_VERSION, bytes(body + b"\0\x01\x01\0"))
    ahead = len(framed) - len(body) - 4
    return Fetch(bytearray(framed), [position + ahead for position in at])


def fetched(reply: memoryview) -> list[tuple[int, int, int]]:
    """Partition, and begin and end of its records, of each partition in a fetch reply (without its length prefix)."""
    found = []
    # Correlation id, no tags, throttle time, error, session id, one topic and its name.
    if reply[9:11] != b"\0\0":
        raise RuntimeError(f"fetch was refused with error {int.from_bytes(reply[9:11])}")
    if reply[15] == 1:
        return []
    position = 17 + reply[16] - 1
    partitions, position = _varint(reply, position)
    for _ in range(partitions - 1):
        partition, error, *_ = _PARTITION_REPLY.unpack_from(reply, position)
        if error:
            raise RuntimeError(f"fetch of partition {partition} was refused with error {error}")
        # No aborted transactions, whether null or empty; the preferred replica.
        position += _PARTITION_REPLY.size + 1 + 4
        size, position = _varint(reply, position)
        begin, position = position, position + max(size - 1, 0)
        found.append((partition, begin, position))
        position += 1
    return found


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
