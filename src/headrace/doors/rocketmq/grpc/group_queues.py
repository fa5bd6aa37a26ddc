"""The queues that groups receive from: a group's messages of a topic are those of a queue with the group's name.

The queue is made by the first receive, and begins with the oldest message, as at RocketMQ's proxy. What is not settled
after the group's retries is dead, and goes to `%DLQ%GROUP`. A group that RocketMQ's tools have made orderly
(`consumeMessageOrderly`) gets the messages of a message group in order: the queue's order by key. A queue that was made
otherwise keeps the settings that it has, unless such a tool has given the group settings of its own.
"""

from __future__ import annotations

import asyncio

from headrace.broker.broker import Broker
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.settings import NAME_MAX
from headrace.broker.rocketmq.subscription_groups import RETRIES_MAX
from headrace.doors.rocketmq.grpc.protocol import Code
from headrace.doors.rocketmq.grpc.status import ResponseError
from headrace.doors.rocketmq.names import dead_letter_topic, log_name
from headrace.doors.rocketmq.topics import RocketMqTopics
from headrace.log.interface import EARLIEST


class GroupQueues:
    """Finds and makes the queues of groups."""

    def __init__(self, broker: Broker, topics: RocketMqTopics) -> None:
        self._broker = broker
        self._topics = topics
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let those return that wait for a topic."""
        self._stopping.set()

    async def load(self) -> None:
        """Know the settings of groups. Raises StorageFailed."""
        await self._broker.rocketmq.load()

    def find(self, topic: str, group: str) -> Queue | None:
        """The queue of a group, if it is there."""
        return self._broker.queues.get(log_name(topic), _queue_name(group))

    async def open(self, topic: str, group: str, wait_ms: int) -> Queue | None:
        """The queue of a group, made if it is missing; None where the topic did not come within `wait_ms` to be.
        Raises a HeadraceError."""
        found = self._topics.find(topic)
        if found is None and self._broker.config.auto_create_topics:
            try:
                await asyncio.wait_for(self._stopping.wait(), wait_ms / 1_000)
            except TimeoutError:
                return None
        if found is None:
            raise ResponseError(Code.TOPIC_NOT_FOUND, f"the topic {topic} does not exist. Create it first.")
        queues, name = self._broker.queues, _queue_name(group)
        queue = queues.get(found.name, name)
        is_new = queue is None
        if queue is None or not all(lane.open for lane in queue.lanes.values()):
            await self.load()
            queue = await queues.ensure(found, name, EARLIEST)
        wanted: dict[str, object] = {}
        if is_new:
            wanted["dead_letter_topic"] = log_name(dead_letter_topic(group))
        if is_new or group in self._broker.rocketmq.groups:
            wanted |= {"max_attempts": self.attempts_max(group), "order_by_key": self.is_orderly(group)}
        if any(getattr(queue.settings, each) != value for each, value in wanted.items()):
            await queues.configure(queue, wanted)
        return queue

    def is_orderly(self, group: str) -> bool:
        """Whether message groups are consumed in order."""
        settings = self._broker.rocketmq.groups.get(group)
        return settings is not None and bool(settings.values["consumeMessageOrderly"])

    def attempts_max(self, group: str) -> int:
        """How often a message is delivered before it is dead."""
        settings = self._broker.rocketmq.groups.get(group)
        return max(RETRIES_MAX if settings is None else settings.retries_max, 0) + 1


def _queue_name(group: str) -> str:
    name = group.replace("%", ".").replace("|", ".7C.")
    if len(name) > NAME_MAX:
        raise ResponseError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"the group {group[:40]!r} has more than the {NAME_MAX} characters of a group that receives",
        )
    return name
