"""The records of `__consumer_offsets`, in Kafka's own formats, so that Kafka's tools can read them.

A key begins with its kind: 0 and 1 are a committed offset (group, topic, partition), 2 is a group. A record without a
value is a tombstone. Values begin with their version: offsets are written as version 4, which has room for the topic's
id (so that a topic made anew under an old name does not inherit its offsets), or as version 1 where an old client asked
for a retention of its own; groups as version 3. All older versions are read. Keys of other kinds belong to protocols
that are not spoken here; they are left alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from headrace.errors import HeadraceError

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
NO_EPOCH = -1
NO_EXPIRY = -1

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_TOPIC_ID_TAG = 0
_OFFSET_VERSION = 4
_OFFSET_VERSION_WITH_EXPIRY = 1
_GROUP_VERSION = 3


class UnreadableRecord(HeadraceError):
    """A record of `__consumer_offsets` that does not follow its format."""


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


def _string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _bytes(raw: bytes) -> bytes:
    return _INT32.pack(len(raw)) + raw


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset."""
    return _INT16.pack(OFFSET_KEY_VERSION) + _string(group_id) + _string(topic) + _INT32.pack(partition)


def write_group_key(group_id: str) -> bytes:
    """The key of a group."""
    return _INT16.pack(GROUP_KEY_VERSION) + _string(group_id)


def write_offset(committed: Committed) -> bytes:
    """The value of a committed offset."""
    if committed.expire_ms != NO_EXPIRY:
        return b"".join(
            (
                _INT16.pack(_OFFSET_VERSION_WITH_EXPIRY),
                _INT64.pack(committed.offset),
                _string(committed.metadata),
                _INT64.pack(committed.commit_ms),
                _INT64.pack(committed.expire_ms),
            )
        )
    metadata = committed.metadata.encode()
    tags = b"\0" if committed.topic_id is None else bytes((1, _TOPIC_ID_TAG, 16)) + committed.topic_id.bytes
    return b"".join(
        (
            _INT16.pack(_OFFSET_VERSION),
            _INT64.pack(committed.offset),
            _INT32.pack(committed.leader_epoch),
            _varint(len(metadata) + 1),
            metadata,
            _INT64.pack(committed.commit_ms),
            tags,
        )
    )


def write_group(group: StoredGroup) -> bytes:
    """The value of a group."""
    parts = [
        _INT16.pack(_GROUP_VERSION),
        _string(group.protocol_type),
        _INT32.pack(group.generation),
        _string(group.protocol_name),
        _string(group.leader),
        _INT64.pack(group.state_ms),
        _INT32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_key(raw: bytes) -> OffsetKey | GroupKey | None:
    """What a record is about; None where it is about something that this broker does not know."""
    reader = _Reader(raw)
    kind = reader.int16()
    if kind in (0, OFFSET_KEY_VERSION):
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if kind == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    return None


def read_offset(raw: bytes, written_epoch: int = NO_EPOCH) -> Committed:
    """A committed offset, of any version."""
    reader = _Reader(raw)
    version = reader.version(_OFFSET_VERSION)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
    metadata = reader.compact_string() if version >= 4 else reader.string()
    commit_ms = reader.int64()
    expire_ms = reader.int64() if version == 1 else NO_EXPIRY
    topic_id = reader.tagged_topic_id() if version >= 4 else None
    return Committed(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id, written_epoch)


def read_group(raw: bytes) -> StoredGroup:
    """A group, of any version that is not flexible."""
    reader = _Reader(raw)
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


class _Reader:
    """Takes one field after the other, and says so when the bytes end too soon."""

    __slots__ = ("_position", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._position = 0

    def version(self, newest: int) -> int:
        version = self.int16()
        if not 0 <= version <= newest:
            raise UnreadableRecord(f"a value of version {version}; this broker reads 0 to {newest}")
        return version

    def int16(self) -> int:
        return self._unpack(_INT16)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def int64(self) -> int:
        return self._unpack(_INT64)

    def count(self) -> int:
        count = self.int32()
        if not 0 <= count <= len(self._raw):
            raise UnreadableRecord(f"an array of {count} elements in a record of {len(self._raw)} bytes")
        return count

    def string(self) -> str:
        return self._text(self.int16())

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length == -1 else self._text(length)

    def compact_string(self) -> str:
        return self._text(self.varint() - 1)

    def sized_bytes(self) -> bytes:
        return self._take(self.int32())

    def varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise UnreadableRecord("a variable-length integer of more than five bytes")

    def tagged_topic_id(self) -> UUID | None:
        """The tagged fields at the end of a value, of which only the topic's id means something here."""
        topic_id = None
        for _ in range(self.varint()):
            tag = self.varint()
            raw = self._take(self.varint())
            if tag == _TOPIC_ID_TAG and len(raw) == 16 and any(raw):
                topic_id = UUID(bytes=raw)
        return topic_id

    def _unpack(self, kind: Struct) -> int:
        try:
            (value,) = kind.unpack_from(self._raw, self._position)
        except struct.error:
            raise UnreadableRecord(f"a record of {len(self._raw)} bytes ends within a field") from None
        self._position += kind.size
        return int(value)

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise UnreadableRecord("a string that is not UTF-8") from None

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._raw):
            raise UnreadableRecord(f"a field of {length} bytes in a record of {len(self._raw)}")
        taken = self._raw[self._position : end]
        self._position = end
        return taken
