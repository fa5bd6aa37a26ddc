"""The records of `__transaction_state`, in Kafka's own formats, so that Kafka's tools can read them.

The key is a version (0) and the transactional id. Values are written as version 1, whose tagged fields keep the
producer id before the last change and the client's transaction version, and read in both versions. A record without a
value is a tombstone.
"""

from __future__ import annotations

from headrace.broker.fields import INT8, INT16, INT32, INT64, Reader, UnreadableRecord, compact_string, string
from headrace.broker.groups.offsets import TopicPartition
from headrace.broker.transactions.transaction import NO_PRODUCER, Status, Transaction
from headrace.format.varint import varint

KEY_VERSION = 0
VALUE_VERSION = 1
_FLEXIBLE = 1
_PREVIOUS_PRODUCER_ID = 0
_CLIENT_VERSION = 2


def write_key(transactional_id: str) -> bytes:
    """The key of a transactional id."""
    return INT16.pack(KEY_VERSION) + string(transactional_id)


def read_key(raw: bytes) -> str | None:
    """The transactional id; None where the record is about something else."""
    reader = Reader(raw)
    return reader.string() if reader.int16() == KEY_VERSION else None


def write_value(state: Transaction) -> bytes:
    """The value of a transactional id."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(state.places):
        by_topic.setdefault(topic, []).append(index)
    parts = [
        INT16.pack(VALUE_VERSION),
        INT64.pack(state.producer_id),
        INT16.pack(state.epoch),
        INT32.pack(state.timeout_ms),
        INT8.pack(state.status),
        # Null where no partitions can be: Kafka writes it so.
        varint(0 if state.status is Status.EMPTY else len(by_topic) + 1),
    ]
    for topic, indexes in by_topic.items():
        parts += (compact_string(topic), varint(len(indexes) + 1), *map(INT32.pack, indexes), b"\0")
    parts += (INT64.pack(state.updated_ms), INT64.pack(state.started_ms))
    tags = []
    if state.previous_producer_id != NO_PRODUCER:
        tags.append(varint(_PREVIOUS_PRODUCER_ID) + varint(8) + INT64.pack(state.previous_producer_id))
    if state.client_version:
        tags.append(varint(_CLIENT_VERSION) + varint(2) + INT16.pack(state.client_version))
    return b"".join((*parts, varint(len(tags)), *tags))


def read_value(raw: bytes) -> Transaction:
    """A transactional id's state, of either version. Raises UnreadableRecord."""
    reader = Reader(raw)
    flexible = reader.version(VALUE_VERSION) >= _FLEXIBLE
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    number = reader.int8()
    try:
        status = Status(number)
    except ValueError:
        raise UnreadableRecord(f"a transaction in state {number}, which is not known") from None
    places: set[TopicPartition] = set()
    for _ in range(reader.compact_count() if flexible else reader.nullable_count()):
        topic = reader.compact_string() if flexible else reader.string()
        for _ in range(reader.compact_count() if flexible else reader.count()):
            places.add((topic, reader.int32()))
        if flexible:
            reader.tagged()
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = reader.tagged() if flexible else {}
    return Transaction(
        producer_id,
        epoch,
        timeout_ms,
        updated_ms,
        status,
        frozenset(places),
        started_ms,
        _number(tags.get(_PREVIOUS_PRODUCER_ID), NO_PRODUCER),
        _number(tags.get(_CLIENT_VERSION), 0),
    )


def _number(raw: bytes | None, default: int) -> int:
    return default if raw is None else int.from_bytes(raw, "big", signed=True)
