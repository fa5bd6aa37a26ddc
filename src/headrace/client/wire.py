"""Produce and Fetch, packed by hand: batches go in and come out as they are, without a copy or a look inside.

Produce version 8 and Fetch version 11 are the last whose fields have fixed places, and every broker from Kafka 2.4 to 4
speaks them. Produce version 12 has the same fields in the compact form; its number alone tells the broker to take the
partition into the transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from headrace.format.varint import read_varint, varint

Buffer = bytes | bytearray | memoryview

PRODUCE, PRODUCE_VERSION = 0, 8
FETCH, FETCH_VERSION = 1, 11

INT16 = Struct(">h")
INT32 = Struct(">i")
ACKS_AND_TIMEOUT = Struct(">hi")
PARTITION_AND_SIZE = Struct(">ii")
PRODUCED = Struct(">ihqqq")
FETCH_HEAD = Struct(">iiiibiii")
FETCH_PARTITION = Struct(">iiqqi")
FETCHED_HEAD = Struct(">ihii")
FETCHED = Struct(">ihqqqi")
ABORTED = Struct(">qq")
NO_FORGOTTEN_NO_RACK = bytes(6)

CONSUMER = -1
NO_SESSION = (0, -1)
NO_EPOCH = -1


class Produced(NamedTuple):
    """The outcome of one batch."""

    topic: str
    partition: int
    error: int
    base_offset: int
    log_append_time: int
    log_start: int
    message: str | None


class FetchPosition(NamedTuple):
    """What to fetch of one partition."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class Fetched(NamedTuple):
    """What a broker has of one partition."""

    topic: str
    partition: int
    error: int
    high_watermark: int
    last_stable: int
    log_start: int
    aborted: list[tuple[int, int]]
    """Producer id and first offset of aborted transactions, where committed records were asked for."""
    records: memoryview
    """Whole batches, one behind the other; the last may be cut short."""


class ProduceForm:
    """A version of Produce: with lengths in fixed places, or in the compact form, where structs end with tags."""

    def __init__(self, version: int, *, compact: bool) -> None:
        self.version = version
        self._string, self._take_string = (compact_string, take_compact_string) if compact else (string, take_string)
        self._count: Callable[[int], bytes] = compact_count if compact else INT32.pack
        self._take_count = take_compact_count if compact else take_count
        self._skip_tags = skip_tags if compact else lambda payload, position: position
        self._tags = b"\0" if compact else b""

    def encode(
        self, batches: Iterable[tuple[str, int, Buffer]], acks: int, timeout_ms: int, transactional_id: str | None
    ) -> list[Buffer]:
        """A request's body, in parts, of (topic, partition, batch), one batch a partition; with the empty tags of the
        request's header in front where it has them."""
        topics = _by_topic(batches)
        head = self._tags + self._string(transactional_id) + ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
        parts: list[Buffer] = [head + self._count(len(topics))]
        for topic, partitions in topics.items():
            parts.append(self._string(topic) + self._count(len(partitions)))
            for partition, batch in partitions:
                parts += (INT32.pack(partition) + self._count(len(batch)), batch, self._tags)
            parts.append(self._tags)
        parts.append(self._tags)
        return parts

    def decode(self, payload: memoryview) -> list[Produced]:
        found = []
        topics, position = self._take_count(payload, self._skip_tags(payload, 0))
        for _ in range(topics):
            topic, position = self._take_string(payload, position)
            partitions, position = self._take_count(payload, position)
            for _ in range(partitions):
                index, error, base, time, start = PRODUCED.unpack_from(payload, position)
                records, position = self._take_count(payload, position + PRODUCED.size)
                message = None
                for _ in range(records):
                    message, position = self._take_string(payload, position + INT32.size)
                    position = self._skip_tags(payload, position)
                overall, position = self._take_string(payload, position)
                position = self._skip_tags(payload, position)
                found.append(Produced(topic or "", index, error, base, time, start, overall or message))
            position = self._skip_tags(payload, position)
        return found


def _by_topic(batches: Iterable[tuple[str, int, Buffer]]) -> dict[str, list[tuple[int, Buffer]]]:
    topics: dict[str, list[tuple[int, Buffer]]] = {}
    for topic, partition, batch in batches:
        topics.setdefault(topic, []).append((partition, batch))
    return topics


def encode_fetch(
    wanted: Sequence[FetchPosition], *, max_wait_ms: int, min_bytes: int, max_bytes: int, committed: bool
) -> list[Buffer]:
    """A request's body, in parts."""
    topics: dict[str, list[FetchPosition]] = {}
    for each in wanted:
        topics.setdefault(each.topic, []).append(each)
    head = FETCH_HEAD.pack(CONSUMER, max_wait_ms, min_bytes, max_bytes, committed, *NO_SESSION, len(topics))
    parts: list[Buffer] = [head]
    for topic, partitions in topics.items():
        parts.append(string(topic) + INT32.pack(len(partitions)))
        parts.extend(
            FETCH_PARTITION.pack(each.partition, NO_EPOCH, each.offset, -1, each.max_bytes) for each in partitions
        )
    parts.append(NO_FORGOTTEN_NO_RACK)
    return parts


def decode_fetch(payload: memoryview) -> tuple[int, list[Fetched]]:
    """The error of the whole request, and what there is of each partition. The records are views of `payload`."""
    found = []
    _, error, _, topics = FETCHED_HEAD.unpack_from(payload)
    position = FETCHED_HEAD.size
    for _ in range(topics):
        topic, position = take_string(payload, position)
        partitions, position = take_count(payload, position)
        for _ in range(partitions):
            index, code, high, stable, start, count = FETCHED.unpack_from(payload, position)
            position += FETCHED.size
            aborted = []
            for _ in range(count):
                aborted.append(ABORTED.unpack_from(payload, position))
                position += ABORTED.size
            _, size = PARTITION_AND_SIZE.unpack_from(payload, position)
            position += PARTITION_AND_SIZE.size
            size = max(size, 0)
            if size > len(payload) - position:
                raise ValueError(f"{size} bytes of records where {len(payload) - position} are left")
            records = payload[position : position + size]
            position += size
            found.append(Fetched(topic or "", index, code, high, stable, start, aborted, records))
    return error, found


def string(text: str | None) -> bytes:
    if text is None:
        return INT16.pack(-1)
    encoded = text.encode()
    return INT16.pack(len(encoded)) + encoded


def take_string(payload: memoryview, position: int) -> tuple[str | None, int]:
    (size,) = INT16.unpack_from(payload, position)
    position += 2
    if size < 0:
        return None, position
    if size > len(payload) - position:
        raise ValueError(f"a string of {size} bytes where {len(payload) - position} are left")
    return str(payload[position : position + size], "utf-8"), position + size


def take_count(payload: memoryview, position: int) -> tuple[int, int]:
    return INT32.unpack_from(payload, position)[0], position + INT32.size


# --- the compact form: lengths are varints of one more, so that 0 is null; entities end with tagged fields ---


def compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode()
    return varint(len(encoded) + 1) + encoded


def take_compact_string(payload: memoryview, position: int) -> tuple[str | None, int]:
    size, position = read_varint(payload, position)
    if size == 0:
        return None, position
    if size - 1 > len(payload) - position:
        raise ValueError(f"a string of {size - 1} bytes where {len(payload) - position} are left")
    return str(payload[position : position + size - 1], "utf-8"), position + size - 1


def compact_count(count: int) -> bytes:
    return varint(count + 1)


def take_compact_count(payload: memoryview, position: int) -> tuple[int, int]:
    count, position = read_varint(payload, position)
    return count - 1, position


def skip_tags(payload: memoryview, position: int) -> int:
    """Step over tagged fields: none of those that Kafka has defined so far matters here."""
    count, position = read_varint(payload, position)
    for _ in range(count):
        _, position = read_varint(payload, position)
        size, position = read_varint(payload, position)
        position += size
    return position


FIXED = ProduceForm(PRODUCE_VERSION, compact=False)
ENROLLING = ProduceForm(12, compact=True)
