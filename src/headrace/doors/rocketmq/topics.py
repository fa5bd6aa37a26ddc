"""Topics as RocketMQ sees them: queues to read and to write, a permission, and those that are not stored yet.

A topic's partitions are its queues. How many of them are read and written, and the permission, are settings of the
topic (`rocketmq.read.queues`, `rocketmq.write.queues`, `rocketmq.perm`): partitions never shrink, and one beyond the
count for writing is drained by its readers. A retry topic has one queue from the first heartbeat of its group, and is
stored with the first message that is sent back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.broker.broker import Broker
from headrace.broker.search.fields import INDEX, ROCKETMQ_INDEX
from headrace.broker.security import Session
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.names import DEAD, DEFAULT_TOPIC, RETRY, log_name, reply_topic, retry_topic, rocketmq_name
from headrace.errors import InvalidTopic
from headrace.log.interface import Partition, Topic

READ = 4
WRITE = 2
INHERIT = 1
# As RocketMQ's own producers ask for.
DEFAULT_QUEUES = 4
READ_QUEUES = "rocketmq.read.queues"
WRITE_QUEUES = "rocketmq.write.queues"
PERM = "rocketmq.perm"
MESSAGE_TYPE = "rocketmq.message.type"
ANY_TYPE = "ANY"
ANY_TYPES = (ANY_TYPE, "MIXED")
BY_PRIORITY = "PRIORITY"
# RocketMQ's own broker can search all of its topics.
INDEXED = {INDEX: ROCKETMQ_INDEX}
GROUP_NAME_MAX = 255
# Of a retry topic, whatever the settings of its group ask for.
RETRY_QUEUES_MAX = 64


@dataclass(frozen=True, slots=True)
class TopicShape:
    """What a route tells of a topic."""

    read_queues: int
    write_queues: int
    perm: int
    message_type: str = ANY_TYPE
    """By RocketMQ's name."""

    @property
    def has_priorities(self) -> bool:
        """Whether the messages of higher queues are received first."""
        return self.message_type == BY_PRIORITY


# A group's retry topic has one queue.
RETRY_SHAPE = TopicShape(1, 1, READ | WRITE)


def shape_of(topic: Topic) -> TopicShape:
    """What the settings of a topic make of its partitions."""
    count = len(topic.partitions)

    def queues(name: str) -> int:
        given = int(topic.config.get(name, "-1"))
        return count if given < 0 else min(given, count)

    perm, message_type = topic.config.get(PERM, str(READ | WRITE)), topic.config.get(MESSAGE_TYPE, ANY_TYPE)
    return TopicShape(queues(READ_QUEUES), queues(WRITE_QUEUES), int(perm), message_type)


class RocketMqTopics:
    """The broker's topics by RocketMQ's names."""

    def __init__(self, broker: Broker, queues_max: int, cluster: str) -> None:
        self._broker = broker
        self._queues_max = queues_max
        self._reply_topic = reply_topic(cluster)

    def names(self) -> Iterator[str]:
        """Every topic that RocketMQ can name."""
        return (name for name in map(rocketmq_name, self._broker.topics.all) if name is not None)

    async def all_names(self) -> set[str]:
        """These, the retry topics of all groups, and the topic by which producers make others. Raises GroupError."""
        found = {*self.names(), *(retry_topic(each.group_id) for each in await self._broker.groups.rocketmq.all())}
        return found | {DEFAULT_TOPIC} if self._broker.config.auto_create_topics else found

    async def is_of_group(self, name: str) -> bool:
        """Whether the topic is the retry topic of a group: its route is how tools find the group. Raises GroupError."""
        return name.startswith(RETRY) and await self._broker.groups.rocketmq.exists(name.removeprefix(RETRY))

    def find(self, name: str) -> Topic | None:
        """The topic of that name, if it is stored."""
        try:
            return self._broker.topics.get(log_name(name))
        except InvalidTopic:
            return None

    def is_expected(self, name: str) -> bool:
        """Whether the topic is the retry topic of a group that has members: it is stored when it is first used."""
        return name.startswith(RETRY) and self._broker.groups.rocketmq.find(name.removeprefix(RETRY)) is not None

    def shape(self, name: str) -> TopicShape | None:
        """What a route tells of a topic; None where there is none."""
        topic = self.find(name)
        if topic is not None:
            return shape_of(topic)
        if name == DEFAULT_TOPIC and self._broker.config.auto_create_topics:
            return TopicShape(self._queues_max, self._queues_max, READ | WRITE | INHERIT)
        return RETRY_SHAPE if name == self._reply_topic or self.is_expected(name) else None

    async def open(self, name: str, queues: int, session: Session) -> Topic:
        """The topic of that name, which is made for a session, with so many queues, where a message may make it. Raises
        ResponseError, InvalidTopic, QuotaExceeded or BoundReached."""
        found = self._broker.topics.get(log_name(name))
        if found is not None:
            return found
        if name.startswith((RETRY, DEAD)):
            settings = self._broker.rocketmq.groups.get(name.removeprefix(RETRY))
            count = 1 if settings is None else min(max(settings.retry_queues, 1), RETRY_QUEUES_MAX)
            return await self._broker.topics.open(log_name(name), count, INDEXED)
        if not self._broker.config.auto_create_topics:
            raise ResponseError(
                Code.TOPIC_NOT_EXIST, f"the topic[{name}] does not exist, and no message makes it (auto_create_topics)"
            )
        count = max(min(queues, self._queues_max), 1)
        self._broker.quotas.take_mutate(session, count)
        return await self._broker.topics.open(log_name(name), count, INDEXED, session=session)

    @property
    def queues_of_new(self) -> int:
        """How many queues a topic gets whose first producer does not choose."""
        return min(DEFAULT_QUEUES, self._queues_max)

    def existing(self, name: str) -> Topic:
        """The topic of that name. Raises ResponseError."""
        topic = self.find(name)
        if topic is None:
            raise ResponseError(Code.TOPIC_NOT_EXIST, f"the topic[{name}] does not exist. Create it first.")
        return topic

    def queue(self, name: str, queue_id: int) -> Partition:
        """A queue of a topic. Raises ResponseError."""
        topic = self.existing(name)
        if not 0 <= queue_id < len(topic.partitions):
            raise ResponseError(
                Code.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal: the topic {name} has {len(topic.partitions)} queues, the first is 0",
            )
        return topic.partitions[queue_id]
