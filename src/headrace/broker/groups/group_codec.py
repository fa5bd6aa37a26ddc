"""The records of `__consumer_offsets`, in Kafka's own formats, so that Kafka's tools can read them.

A key begins with its kind: 0 and 1 are a committed offset (group, topic, partition), 2 is a group. A record without a
value is a tombstone. Values begin with their version: offsets are written as version 4, which has room for the topic's
id (so that a topic made anew under an old name does not inherit its offsets), or as version 1 where an old client asked
for a retention of its own; groups as version 3. All older versions are read. Groups of the consumer protocol have kinds
of their own (`consumer/consumer_codec.py`). Keys of other kinds belong to protocols that are not spoken here: they stay
as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from headrace.broker.fields import INT16, INT32, INT64, Reader, sized_bytes, string
from headrace.broker.groups.consumer.consumer_codec import KINDS, KINDS_OF_MEMBERS, ConsumerKey
from headrace.format.varint import varint
from headrace.log.interface import Topic

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
NO_EPOCH = -1
NO_EXPIRY = -1

_TOPIC_ID_TAG = 0
_OFFSET_VERSION = 4
_OFFSET_VERSION_WITH_EXPIRY = 1
_GROUP_VERSION = 3


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Whose offset, and of which partition."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Which group."""

    group_id: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset."""

    offset: int
    leader_epoch: int = NO_EPOCH
    """Of the last record that was consumed, as the consumer saw it."""
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int = NO_EXPIRY
    """A time of its own, which old clients could ask for."""
    topic_id: UUID | None = None
    written_epoch: int = NO_EPOCH
    """The epoch of the log when the commit was appended; not part of the value, but of the batch around it."""

    def is_of(self, topic: Topic | None) -> bool:
        """Whether it is an offset of this topic, and not of another that had its name."""
        own = self.topic_id
        # Ids are often the same object, and Python compares two of them in Python.
        return own is None or (topic is not None and (topic.id is own or topic.id == own))


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a stored group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as its last completed rebalance left it."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_ms: int
    members: tuple[StoredMember, ...]


# --- writing ----------------------------------------------------------------------------------------------------------


def write_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset."""
    return INT16.pack(OFFSET_KEY_VERSION) + string(group_id) + string(topic) + INT32.pack(partition)


def write_group_key(group_id: str) -> bytes:
    """The key of a group."""
    return INT16.pack(GROUP_KEY_VERSION) + string(group_id)


def write_offset(committed: Committed) -> bytes:
    """The value of a committed offset."""
    if committed.expire_ms != NO_EXPIRY:
        return b"".join(
            (
                INT16.pack(_OFFSET_VERSION_WITH_EXPIRY),
                INT64.pack(committed.offset),
                string(committed.metadata),
                INT64.pack(committed.commit_ms),
                INT64.pack(committed.expire_ms),
            )
        )
    metadata = committed.metadata.encode()
    tags = b"\0" if committed.topic_id is None else bytes((1, _TOPIC_ID_TAG, 16)) + committed.topic_id.bytes
    return b"".join(
        (
            INT16.pack(_OFFSET_VERSION),
            INT64.pack(committed.offset),
            INT32.pack(committed.leader_epoch),
            varint(len(metadata) + 1),
            metadata,
            INT64.pack(committed.commit_ms),
            tags,
        )
    )


def write_group(group: StoredGroup) -> bytes:
    """The value of a group."""
    parts = [
        INT16.pack(_GROUP_VERSION),
        string(group.protocol_type),
        INT32.pack(group.generation),
        string(group.protocol_name),
        string(group.leader),
        INT64.pack(group.state_ms),
        INT32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            string(member.member_id),
            string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            sized_bytes(member.subscription),
            sized_bytes(member.assignment),
        )
    return b"".join(parts)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_key(raw: bytes) -> OffsetKey | GroupKey | ConsumerKey | None:
    """What a record is about; None where it is about something that this broker does not know."""
    reader = Reader(raw)
    kind = reader.int16()
    if kind in (0, OFFSET_KEY_VERSION):
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if kind == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    if kind in KINDS:
        return ConsumerKey(kind, reader.string(), reader.string() if kind in KINDS_OF_MEMBERS else "")
    return None


def read_offset(raw: bytes, written_epoch: int = NO_EPOCH) -> Committed:
    """A committed offset, of any version."""
    reader = Reader(raw)
    version = reader.version(_OFFSET_VERSION)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
    metadata = reader.compact_string() if version >= 4 else reader.string()
    commit_ms = reader.int64()
    expire_ms = reader.int64() if version == 1 else NO_EXPIRY
    topic_id = _topic_id(reader) if version >= 4 else None
    return Committed(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id, written_epoch)


def read_group(raw: bytes) -> StoredGroup:
    """A group, of any version that is not flexible."""
    reader = Reader(raw)
    version = reader.version(_GROUP_VERSION)
    protocol_type = reader.string()
    generation = reader.int32()
    protocol_name = reader.nullable_string()
    leader = reader.nullable_string()
    state_ms = reader.int64() if version >= 2 else -1
    members = []
    for _ in range(reader.count()):
        member_id = reader.string()
        instance_id = reader.nullable_string() if version >= 3 else None
        client_id = reader.string()
        client_host = reader.string()
        rebalance_timeout_ms = reader.int32() if version >= 1 else -1
        session_timeout_ms = reader.int32()
        if rebalance_timeout_ms < 0:
            rebalance_timeout_ms = session_timeout_ms
        members.append(
            StoredMember(
                member_id,
                instance_id,
                client_id,
                client_host,
                rebalance_timeout_ms,
                session_timeout_ms,
                reader.sized_bytes(),
                reader.sized_bytes(),
            )
        )
    return StoredGroup(protocol_type, generation, protocol_name, leader, state_ms, tuple(members))


def _topic_id(reader: Reader) -> UUID | None:
    """The tagged fields at the end of a value, of which only the topic's id means something here."""
    raw = reader.tagged().get(_TOPIC_ID_TAG, b"")
    return UUID(bytes=raw) if len(raw) == 16 and any(raw) else None
