"""ApiVersions, Metadata and ListOffsets, packed by hand.

A process that reads for a moment, such as a worker of Spark, needs these three and Fetch. It need not import kio's
schemas, which takes longer than the reading. The versions are those that Kafka 2.8 to 4 have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, TypeVar
from uuid import UUID

from headrace.client.wire import (
    INT16,
    INT32,
    Buffer,
    compact_count,
    compact_string,
    skip_tags,
    take_compact_count,
    take_compact_string,
    take_count,
)
from headrace.format.varint import read_varint

T = TypeVar("T")

LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 7
METADATA, METADATA_VERSION = 3, 12
API_VERSIONS, API_VERSIONS_VERSION = 18, 3

NO_TAGS = b"\0"
NO_TOPIC_ID = bytes(16)
FINALIZED_EPOCH_TAG, FINALIZED_TAG = 1, 2
SPOKEN = Struct(">hhh")
INT64 = Struct(">q")
LEVELS = Struct(">hh")
PARTITION_STATE = Struct(">hiii")
OFFSETS_HEAD = Struct(">ib")
OFFSET_WANTED = Struct(">iiq")
OFFSET_FOUND = Struct(">ihqqi")


class ApiVersions(NamedTuple):
    """The answer to ApiVersions."""

    versions: dict[int, tuple[int, int]]
    """Per API key the lowest and the highest version."""
    features: dict[str, int]
    """The finalized feature levels of the cluster."""


@dataclass(frozen=True, slots=True, order=True)
class PartitionState:
    """A partition in metadata."""

    index: int
    leader: int
    """-1: there is none at the moment."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic in metadata."""

    name: str
    id: UUID | None
    internal: bool
    partitions: tuple[PartitionState, ...]
    """In the order of their numbers."""


class Metadata(NamedTuple):
    """A cluster in the view of one of its brokers."""

    brokers: list[tuple[int, str, int]]
    """Node id, host and port."""
    cluster_id: str | None
    controller: int
    topics: list[tuple[int, TopicState]]
    """Each with its error."""


class ListedOffset(NamedTuple):
    """The offset at a time, with the timestamp of its record; -1 where there is none."""

    topic: str
    partition: int
    error: int
    timestamp: int
    offset: int
    leader_epoch: int


def encode_api_versions(software: str, version: str) -> list[Buffer]:
    return [NO_TAGS + compact_string(software) + compact_string(version) + NO_TAGS]


def decode_api_versions(payload: memoryview) -> ApiVersions:
    """The header of this answer has no tags, unlike that of all others in the compact form."""
    (error,) = INT16.unpack_from(payload)
    if error:
        raise ValueError(f"ApiVersions is answered with error {error}")
    entries, position = _array(payload, 2, _spoken)
    return ApiVersions(dict(entries), _features(payload, position + INT32.size))


def _spoken(payload: memoryview, position: int) -> tuple[tuple[int, tuple[int, int]], int]:
    key, lowest, highest = SPOKEN.unpack_from(payload, position)
    return (key, (lowest, highest)), skip_tags(payload, position + SPOKEN.size)


def _features(payload: memoryview, position: int) -> dict[str, int]:
    found: list[tuple[str, int]] = []
    epoch = -1
    count, position = read_varint(payload, position)
    for _ in range(count):
        tag, position = read_varint(payload, position)
        size, position = read_varint(payload, position)
        if tag == FINALIZED_EPOCH_TAG:
            (epoch,) = INT64.unpack_from(payload, position)
        elif tag == FINALIZED_TAG:
            found, _ = _array(payload, position, _feature)
        position += size
    return dict(found) if epoch >= 0 else {}


def _feature(payload: memoryview, position: int) -> tuple[tuple[str, int], int]:
    name, position = take_compact_string(payload, position)
    highest, _ = LEVELS.unpack_from(payload, position)
    return (name or "", highest), skip_tags(payload, position + LEVELS.size)


def encode_metadata(topics: Iterable[str] | None, create: bool) -> list[Buffer]:
    """Of these topics, or (None) of all."""
    names = None if topics is None else list(topics)
    parts: list[Buffer] = [NO_TAGS, compact_count(-1 if names is None else len(names))]
    parts += [NO_TOPIC_ID + compact_string(name) + NO_TAGS for name in names or ()]
    parts.append(bytes((create, False)) + NO_TAGS)
    return parts


def decode_metadata(payload: memoryview) -> Metadata:
    position = skip_tags(payload, 0) + INT32.size
    brokers, position = _array(payload, position, _broker)
    cluster_id, position = take_compact_string(payload, position)
    (controller,) = INT32.unpack_from(payload, position)
    topics, _ = _array(payload, position + INT32.size, _topic)
    return Metadata(brokers, cluster_id, controller, topics)


def _broker(payload: memoryview, position: int) -> tuple[tuple[int, str, int], int]:
    (node,) = INT32.unpack_from(payload, position)
    host, position = take_compact_string(payload, position + INT32.size)
    (port,) = INT32.unpack_from(payload, position)
    _, position = take_compact_string(payload, position + INT32.size)
    return (node, host or "", port), skip_tags(payload, position)


def _topic(payload: memoryview, position: int) -> tuple[tuple[int, TopicState], int]:
    (error,) = INT16.unpack_from(payload, position)
    name, position = take_compact_string(payload, position + INT16.size)
    identity = bytes(payload[position : position + 16])
    internal = payload[position + 16] != 0
    partitions, position = _array(payload, position + 17, _partition)
    known = UUID(bytes=identity) if any(identity) else None
    topic = TopicState(name or "", known, internal, tuple(sorted(partitions)))
    return (error, topic), skip_tags(payload, position + INT32.size)


def _partition(payload: memoryview, position: int) -> tuple[PartitionState, int]:
    _, index, leader, epoch = PARTITION_STATE.unpack_from(payload, position)
    replicas, position = _array(payload, position + PARTITION_STATE.size, take_count)
    in_sync, position = _array(payload, position, take_count)
    _, position = _array(payload, position, take_count)
    return PartitionState(index, leader, epoch, tuple(replicas), tuple(in_sync)), skip_tags(payload, position)


def encode_list_offsets(wanted: Mapping[str, Sequence[tuple[int, int]]], committed: bool) -> list[Buffer]:
    """By topic the partitions, each with a time (ms) or one of the numbers for an end."""
    parts: list[Buffer] = [NO_TAGS, OFFSETS_HEAD.pack(-1, committed), compact_count(len(wanted))]
    for topic, partitions in wanted.items():
        parts.append(compact_string(topic) + compact_count(len(partitions)))
        parts += [OFFSET_WANTED.pack(index, -1, time) + NO_TAGS for index, time in partitions]
        parts.append(NO_TAGS)
    parts.append(NO_TAGS)
    return parts


def decode_list_offsets(payload: memoryview) -> list[ListedOffset]:
    topics, _ = _array(payload, skip_tags(payload, 0) + INT32.size, _offsets)
    return [each for topic in topics for each in topic]


def _offsets(payload: memoryview, position: int) -> tuple[list[ListedOffset], int]:
    topic, position = take_compact_string(payload, position)
    name = topic or ""

    def one(payload: memoryview, position: int) -> tuple[ListedOffset, int]:
        index, error, time, offset, epoch = OFFSET_FOUND.unpack_from(payload, position)
        return ListedOffset(name, index, error, time, offset, epoch), skip_tags(payload, position + OFFSET_FOUND.size)

    found, position = _array(payload, position, one)
    return found, skip_tags(payload, position)


def _array(payload: memoryview, position: int, take: Callable[[memoryview, int], tuple[T, int]]) -> tuple[list[T], int]:
    """The entries of an array in the compact form, and where it ends. A count that is too large runs off the end."""
    count, position = take_compact_count(payload, position)
    found = []
    for _ in range(count):
        entry, position = take(payload, position)
        found.append(entry)
    return found, position
