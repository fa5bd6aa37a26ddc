"""The partition that a request names, warm and of the leader epoch that the client believes in."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from headrace.broker.broker import Broker
from headrace.doors.kafka.errors import KafkaError
from headrace.errors import PartitionOffline, UnknownTopic
from headrace.log.interface import Partition


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
    if not partition.loaded:
        await partition.load()
    if partition.offline:
        raise PartitionOffline(f"{name}-{index} is offline: {partition.offline}")
    return partition
