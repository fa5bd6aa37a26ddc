"""What `__consumer_offsets` keeps of a group of the consumer protocol, in Kafka's own formats.

A key begins with its kind: 3 is the group's epoch, 5 the traits of a member, 6 the epoch of the targets, 7 the
target of a member, 8 where a member is. A record without a value is a tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from uuid import UUID

from headrace.broker.fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    Reader,
    UnreadableRecord,
    compact_string,
    nullable_compact_string,
    string,
)
from headrace.broker.groups.consumer.consumer_member import Position, Step, Traits
from headrace.broker.groups.consumer.places import Places
from headrace.format.varint import varint

EPOCH = 3
MEMBER = 5
TARGET_EPOCH = 6
TARGET = 7
POSITION = 8
KINDS_OF_MEMBERS = (MEMBER, TARGET, POSITION)
KINDS = (EPOCH, TARGET_EPOCH, *KINDS_OF_MEMBERS)

_VERSION = INT16.pack(0)
_NO_TAGS = b"\0"
_FINGERPRINT_TAG = 0


@dataclass(frozen=True, slots=True)
class ConsumerKey:
    """What a record is about."""

    kind: int
    group_id: str
    member_id: str = ""


@dataclass(slots=True)
class StoredConsumerGroup:
    """A group, as far as it has been read."""

    epoch: int = 0
    fingerprint: int = 0
    assignment_epoch: int = 0
    members: dict[str, Traits] = field(default_factory=dict)
    targets: dict[str, Places] = field(default_factory=dict)
    positions: dict[str, Position] = field(default_factory=dict)

    def take(self, key: ConsumerKey, value: bytes | None) -> None:
        """One record of the group."""
        of_member: dict[int, dict[str, Traits] | dict[str, Places] | dict[str, Position]] = {
            MEMBER: self.members,
            TARGET: self.targets,
            POSITION: self.positions,
        }
        if value is None:
            if key.kind in of_member:
                of_member[key.kind].pop(key.member_id, None)
        elif key.kind == EPOCH:
            self.epoch, self.fingerprint = read_epoch(value)
        elif key.kind == TARGET_EPOCH:
            self.assignment_epoch = read_target_epoch(value)
        elif key.kind == MEMBER:
            self.members[key.member_id] = read_member(value)
        elif key.kind == TARGET:
            self.targets[key.member_id] = read_target(value)
        else:
            self.positions[key.member_id] = read_position(value)


# --- writing ----------------------------------------------------------------------------------------------------------


def write_key(key: ConsumerKey) -> bytes:
    """The key of a record."""
    raw = INT16.pack(key.kind) + string(key.group_id)
    return raw + string(key.member_id) if key.kind in KINDS_OF_MEMBERS else raw


def write_epoch(epoch: int, fingerprint: int) -> bytes:
    """The value of a group's epoch."""
    tags = bytes((1, _FINGERPRINT_TAG, INT64.size)) + INT64.pack(fingerprint) if fingerprint else _NO_TAGS
    return _VERSION + INT32.pack(epoch) + tags


def write_target_epoch(epoch: int) -> bytes:
    """The value of the targets' epoch."""
    return _VERSION + INT32.pack(epoch) + _NO_TAGS


def write_member(traits: Traits) -> bytes:
    """The value of a member's traits."""
    return b"".join(
        (
            _VERSION,
            nullable_compact_string(traits.instance_id),
            nullable_compact_string(traits.rack_id),
            compact_string(traits.client_id),
            compact_string(traits.client_host),
            varint(len(traits.topics) + 1),
            *map(compact_string, traits.topics),
            nullable_compact_string(traits.pattern),
            INT32.pack(traits.rebalance_timeout_ms),
            nullable_compact_string(traits.assignor),
            _NO_TAGS,
        )
    )


def write_target(places: Places) -> bytes:
    """The value of a member's target."""
    return _VERSION + _places(places) + _NO_TAGS


def write_position(position: Position) -> bytes:
    """The value of where a member is."""
    return b"".join(
        (
            _VERSION,
            INT32.pack(position.epoch),
            INT32.pack(position.previous_epoch),
            INT8.pack(position.step),
            _places(position.assigned),
            _places(position.revoking),
            _NO_TAGS,
        )
    )


def _places(places: Places) -> bytes:
    parts = [varint(len(places) + 1)]
    for topic in sorted(places, key=attrgetter("bytes")):
        indexes = sorted(places[topic])
        parts += (topic.bytes, varint(len(indexes) + 1), *map(INT32.pack, indexes), _NO_TAGS)
    return b"".join(parts)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_epoch(raw: bytes) -> tuple[int, int]:
    """A group's epoch, and the fingerprint of its topics."""
    reader = _reader(raw)
    epoch = reader.int32()
    fingerprint = reader.tagged().get(_FINGERPRINT_TAG, b"")
    return epoch, INT64.unpack(fingerprint)[0] if len(fingerprint) == INT64.size else 0


def read_target_epoch(raw: bytes) -> int:
    """The targets' epoch."""
    return _reader(raw).int32()


def read_member(raw: bytes) -> Traits:
    """A member's traits."""
    reader = _reader(raw)
    instance_id = reader.nullable_compact_string()
    rack_id = reader.nullable_compact_string()
    client_id = reader.compact_string()
    client_host = reader.compact_string()
    topics = tuple(reader.compact_string() for _ in range(reader.compact_count()))
    pattern = reader.nullable_compact_string() or ""
    rebalance_timeout_ms = reader.int32()
    assignor = reader.nullable_compact_string()
    return Traits(instance_id, rack_id, client_id, client_host, topics, pattern, rebalance_timeout_ms, assignor)


def read_target(raw: bytes) -> Places:
    """A member's target."""
    return _read_places(_reader(raw))


def read_position(raw: bytes) -> Position:
    """Where a member is."""
    reader = _reader(raw)
    epoch, previous = reader.int32(), reader.int32()
    code = reader.int8()
    try:
        step = Step(code)
    except ValueError:
        raise UnreadableRecord(f"a member in step {code}, which this broker does not know") from None
    return Position(epoch, previous, step, _read_places(reader), _read_places(reader))


def _read_places(reader: Reader) -> Places:
    places: dict[UUID, frozenset[int]] = {}
    for _ in range(reader.compact_count()):
        topic = reader.uuid()
        indexes = frozenset(reader.int32() for _ in range(reader.compact_count()))
        reader.tagged()
        if indexes:
            places[topic] = indexes
    return places


def _reader(raw: bytes) -> Reader:
    reader = Reader(raw)
    reader.version(0)
    return reader
