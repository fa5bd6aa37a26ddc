"""Partitions as requests name them and replies describe them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from headrace.broker.broker import Broker
from headrace.broker.groups import Commit
from headrace.broker.internal import is_internal
from headrace.broker.security import Operation, Resource
from headrace.broker.topics import check_name
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import KafkaError, error_code
from headrace.doors.kafka.placement import Placement
from headrace.errors import HeadraceError, PartitionOffline, UnknownTopic
from headrace.log.interface import Partition, Topic


def describe_topic(
    placement: Placement, topic: Topic, operations: int, partitions: Sequence[Partition] | None = None
) -> dict[str, Any]:
    """One topic of a Metadata or DescribeTopicPartitions reply, with all its partitions or some."""
    listed = topic.partitions if partitions is None else partitions
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": is_internal(topic.name),
        "partitions": [placement.describe(partition) for partition in listed],
        "topic_authorized_operations": operations,
    }


def refuse_topic(
    reason: ErrorCode | BaseException | None, name: str | None, operations: int, topic_id: UUID | None = None
) -> dict[str, Any]:
    """The same for one that is refused; without a reason, because there is no such topic."""
    if reason is None:
        try:
            check_name(name or "")
            reason = ErrorCode.unknown_topic_or_partition
        except HeadraceError as error:
            reason = error
    return {
        "error_code": error_code(reason) if isinstance(reason, BaseException) else reason,
        "name": name,
        "topic_id": topic_id,
        "is_internal": is_internal(name or ""),
        "partitions": (),
        "topic_authorized_operations": operations,
    }


async def warm_partition(broker: Broker, name: str, index: int, leader_epoch: int = -1) -> Partition:
    """Find it, hold the client's epoch (-1: none) against it, load it. Raises UnknownTopic, KafkaError or
    PartitionOffline."""
    topic = broker.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise UnknownTopic(f"there is no partition {index} of a topic '{name}'")
    partition = topic.partitions[index]
    if 0 <= leader_epoch < partition.epoch:
        raise KafkaError(
            ErrorCode.fenced_leader_epoch,
            f"leader epoch {leader_epoch} of {name}-{index} has passed: it is {partition.epoch}",
        )
    if leader_epoch > partition.epoch:
        raise KafkaError(
            ErrorCode.unknown_leader_epoch,
            f"leader epoch {leader_epoch} of {name}-{index} is not known: it is {partition.epoch}",
        )
    await partition.load()
    if partition.offline:
        raise PartitionOffline(f"{name}-{index} is offline: {partition.offline}")
    return partition


Named = tuple[dict[str, Any], Topic, Any]
"""A partition that exists: the dict of its reply, its topic, and what the request has of it."""


def find_partitions(call: Call, topics: Iterable[Any], by_id: bool = False) -> tuple[list[dict[str, Any]], list[Named]]:
    """The replies to a request that lists partitions by topic, by the topic's name or id; and those that exist and that
    the client may read, whose replies have no error code yet."""
    broker = call.broker
    replies: list[dict[str, Any]] = []
    existing: list[Named] = []
    for asked in topics:
        key = {"topic_id": asked.topic_id} if by_id else {"name": asked.name}
        topic = broker.log.topics.by_id.get(asked.topic_id) if by_id else broker.log.topics.get(asked.name)
        name = asked.name if topic is None else topic.name
        is_allowed = (topic is None and by_id) or call.allows(Operation.READ, Resource.TOPIC, name)
        partitions: list[dict[str, Any]] = []
        for each in asked.partitions:
            reply: dict[str, Any] = {"partition_index": each.partition_index}
            partitions.append(reply)
            if not is_allowed:
                reply["error_code"] = ErrorCode.topic_authorization_failed
            elif topic is not None and 0 <= each.partition_index < len(topic.partitions):
                existing.append((reply, topic, each))
            elif topic is None and by_id:
                reply["error_code"] = ErrorCode.unknown_topic_id
            else:
                reply["error_code"] = ErrorCode.unknown_topic_or_partition
        replies.append({**key, "partitions": partitions})
    return replies, existing


def commit_of(named: Named) -> Commit:
    """The offset that OffsetCommit or TxnOffsetCommit has for a partition."""
    _, topic, each = named
    epoch = getattr(each, "committed_leader_epoch", -1)
    index, metadata = each.partition_index, each.committed_metadata or ""
    return Commit(topic.name, topic.id, index, each.committed_offset, epoch, metadata)
