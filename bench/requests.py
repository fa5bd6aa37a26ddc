"""Kafka requests as ready-made bytes, and the little of the replies that a load generator must read.

Everything is built before the clock starts. Correlation ids repeat: replies come in order, so none needs them. Bulk
batches of one topic are all alike, which lets a fetch reply be understood from the length of its records alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from struct import Struct

from crc32c import crc32c

from headrace.format import records
from headrace.format.batch import CRC_AT, CRC_FROM, TRANSACTIONAL

PRODUCE, FETCH, END_TXN, TXN_OFFSET_COMMIT = 0, 1, 26, 28
# The newest versions that name topics instead of giving their ids: what librdkafka sends, within a field or two.
PRODUCE_VERSION, FETCH_VERSION = 10, 12
# By these numbers a broker takes partitions and groups into a transaction by itself, and gives each a new epoch.
TRANSACTIONAL_VERSION = {PRODUCE: 12, TXN_OFFSET_COMMIT: 5, END_TXN: 5}
CLIENT_ID = b"bench"
ALL = -1
PLAIN_RECORD = 100
MIB = 1 << 20
# Where the producer's id stands in a batch.
PRODUCER_AT = 43

_HEAD = Struct(">hhih")
_ACKS_AND_TIMEOUT = Struct(">hi")
_FETCH = Struct(">iiiibii")
_FETCH_PARTITION = Struct(">iiqiqi")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT64 = Struct(">q")
_IDENTITY = Struct(">qh")
_ENDED = Struct(">hqh")
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
    count = max(1, (size - 61) // (PLAIN_RECORD + 10))
    while len(made := batch_of(count)) > size and count > 1:
        count -= 1
    return made, count


def batch_of(count: int, **producer: int) -> bytes:
    """A batch of so many plain records."""
    noise = Random(count)
    now = int(time.time() * 1000)
    return bytes(records.build([(now, None, noise.randbytes(PLAIN_RECORD), []) for _ in range(count)], **producer))


def _frame(key: int, version: int, body: bytes) -> bytes:
    framed = _HEAD.pack(key, version, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0" + body
    return _INT32.pack(len(framed)) + framed


def produce(topic: str, batches: Sequence[tuple[int, bytes]], acks: int = ALL) -> bytes:
    """One request with a batch for each of these partitions."""
    return _produce(PRODUCE_VERSION, b"\0", topic, batches, acks)


def _produce(version: int, whose: bytes, topic: str, batches: Sequence[tuple[int, bytes]], acks: int) -> bytes:
    name = _string(topic)
    body = [whose, _ACKS_AND_TIMEOUT.pack(acks, 30_000), b"\x02", name, varint(len(batches) + 1)]
    for partition, made in batches:
        body += [_INT32.pack(partition), varint(len(made) + 1), made, b"\0"]
    return _frame(PRODUCE, version, b"".join([*body, b"\0\0"]))


def _string(text: str) -> bytes:
    encoded = text.encode()
    return varint(len(encoded) + 1) + encoded


class Transaction:
    """The requests of one producer's transactions, patched with each new identity and sent again."""

    def __init__(
        self, transactional_id: str, topic: str, partitions: Sequence[int], count: int, source: tuple[str, str] | None
    ) -> None:
        """`count` records a partition; with a `source` (group, topic), its first partition's offset goes along."""
        made = batch_of(count, producer_id=0, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
        whose = _string(transactional_id)
        version = TRANSACTIONAL_VERSION[PRODUCE]
        self.produce = bytearray(_produce(version, whose, topic, [(each, made) for each in partitions], ALL))
        self._size = len(made)
        self._at = []
        for _ in partitions:
            self._at.append(self.produce.index(made, self._at[-1] + len(made) if self._at else 0))
        self.end = bytearray(_frame(END_TXN, TRANSACTIONAL_VERSION[END_TXN], whose + _IDENTITY.pack(0, 0) + b"\x01\0"))
        self._end_at = len(self.end) - _IDENTITY.size - 2
        self.offsets = bytearray()
        if source is not None:
            group, read = map(_string, source)
            # No member, no instance; one topic, one partition, its offset, no leader epoch, empty metadata.
            body = whose + group + _IDENTITY.pack(0, 0) + _INT32.pack(-1) + b"\x01\0" + b"\x02" + read + b"\x02"
            body += _INT32.pack(0) + _INT64.pack(0) + _INT32.pack(-1) + b"\x01\0\0\0"
            self.offsets = bytearray(_frame(TXN_OFFSET_COMMIT, TRANSACTIONAL_VERSION[TXN_OFFSET_COMMIT], body))
            ahead = len(self.offsets) - len(body)
            self._offsets_at = ahead + len(whose) + len(group)
            self._offset_at = len(self.offsets) - 4 - _INT32.size - _INT64.size

    def identify(self, producer: int, epoch: int) -> None:
        """Go on as this producer in this epoch, with sequence numbers from 0."""
        view = memoryview(self.produce)
        for at in self._at:
            _IDENTITY.pack_into(view, at + PRODUCER_AT, producer, epoch)
            _UINT32.pack_into(view, at + CRC_AT, crc32c(view[at + CRC_FROM : at + self._size]))
        _IDENTITY.pack_into(self.end, self._end_at, producer, epoch)
        if self.offsets:
            _IDENTITY.pack_into(self.offsets, self._offsets_at, producer, epoch)

    def read_to(self, offset: int) -> None:
        """The group has come so far."""
        _INT64.pack_into(self.offsets, self._offset_at, offset)


def produce_errors(reply: memoryview) -> list[int]:
    """The error codes of a reply to a transactional Produce of one topic (without its length prefix)."""
    # Correlation id, no tags, one topic and its name.
    partitions, position = _varint(reply, 7 + reply[6] - 1)
    found = []
    for _ in range(partitions - 1):
        found.append(int.from_bytes(reply[position + 4 : position + 6]))
        # Index, error, base offset, times and start; no bad records; the message; tags.
        message, position = _varint(reply, position + 30 + 1)
        position += max(message - 1, 0)
        tags, position = _varint(reply, position)
        for _ in range(tags):
            _, position = _varint(reply, position)
            size, position = _varint(reply, position)
            position += size
    return found


def end_reply(reply: memoryview) -> tuple[int, int, int]:
    """Error, producer id and epoch for the next transaction (reply without its length prefix)."""
    error, producer, epoch = _ENDED.unpack_from(reply, 9)
    return int(error), int(producer), int(epoch)


def offsets_error(reply: memoryview) -> int:
    """The error code of a reply to TxnOffsetCommit of one partition (without its length prefix)."""
    # Correlation id, no tags, throttle time, one topic and its name, one partition and its index.
    return int.from_bytes(reply[(at := 11 + reply[10] - 1 + 1 + 4) : at + 2])


@dataclass
class Fetch:
    """A fetch request that is patched with the next offsets and sent again."""

    frame: bytearray
    at: list[int]
    """Where each partition's offset stands in the frame."""

    def move(self, index: int, offset: int) -> None:
        """The index-th partition is read from here on."""
        _INT64.pack_into(self.frame, self.at[index], offset)


def fetch(
    topic: str,
    partitions: Sequence[int],
    *,
    max_wait_ms: int,
    partition_bytes: int = MIB,
    committed: bool = False,
) -> Fetch:
    """A request without a session for these partitions from their beginning."""
    name = topic.encode()
    body = bytearray(_FETCH.pack(-1, max_wait_ms, 1, 50 * MIB, committed, 0, -1))
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
