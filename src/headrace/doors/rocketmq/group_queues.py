"""The queues that groups receive from: a group's messages of a topic are those of a queue with the group's name.

The queue is made by the first receive, and begins where the group has committed; where it has not, with the oldest
message, as at RocketMQ's proxy. From then on both move together (`broker/rocketmq/positions.py`). What is not settled
after the group's retries is dead, and goes to `%DLQ%GROUP`. A group that RocketMQ's tools have made orderly
(`consumeMessageOrderly`) gets the messages of a message group in order: the queue's order by key. A queue that was made
otherwise keeps the settings that it has, unless such a tool has given the group settings of its own.
"""

from __future__ import annotations

from headrace.broker.broker import Broker
from headrace.broker.queues import Queue
from headrace.broker.rocketmq.subscription_groups import RETRIES_MAX
from headrace.broker.security import Session
from headrace.doors.rocketmq.names import dead_letter_topic, log_name
from headrace.doors.rocketmq.topics import shape_of
from headrace.errors import InvalidQueue
from headrace.log.interface import EARLIEST, Topic


class GroupQueues:
    """Finds and makes the queues of groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._receives = 0

    async def load(self) -> None:
        """Know the settings of groups. Raises StorageFailed."""
        await self._broker.rocketmq.load()

    async def find(self, topic: str, group: str) -> Queue | None:
        """The queue of a group, open, if it is there. Raises a HeadraceError."""
        queue = self._broker.queues.get(log_name(topic), queue_name(group))
        if queue is not None and not _is_open(queue):
            await self._broker.queues.open(queue)
        return queue

    async def open(self, topic: Topic, group: str, session: Session, start: int = EARLIEST) -> Queue:
        """The queue of a group, made for a session if it is missing. Raises a HeadraceError."""
        queues, name = self._broker.queues, queue_name(group)
        queue = queues.get(topic.name, name)
        is_new = queue is None
        if queue is None or not _is_open(queue):
            await self.load()
            queue = await queues.ensure(topic, name, start, session=session)
        wanted: dict[str, object] = {}
        if is_new:
            wanted["dead_letter_topic"] = log_name(dead_letter_topic(group))
        if is_new or group in self._broker.rocketmq.groups:
            wanted |= {"max_attempts": self.attempts_max(group), "order_by_key": self.is_orderly(group)}
        if any(getattr(queue.settings, each) != value for each, value in wanted.items()):
            await queues.configure(queue, wanted)
        await self._broker.positions.follow(queue, group, is_new=is_new)
        return queue

    async def settle_position(self, topic: str, group: str) -> None:
        """The group's offsets are where its queue is, if it reads through one. Raises GroupError."""
        if "%7C%" not in group:
            await self._broker.positions.settle(self._broker.queues.get(log_name(topic), queue_name(group)))

    def is_orderly(self, group: str) -> bool:
        """Whether message groups are consumed in order."""
        settings = self._broker.rocketmq.groups.get(group)
        return settings is not None and bool(settings.values["consumeMessageOrderly"])

    def goes_by_priority(self, topic: Topic, group: str) -> bool:
        """Whether this receive takes the messages of higher queues first."""
        if not shape_of(topic).has_priorities:
            return False
        settings = self._broker.rocketmq.groups.get(group)
        self._receives = (self._receives + 1) % 100
        return settings is None or self._receives < settings.priority_factor

    def attempts_max(self, group: str) -> int:
        """How often a message is delivered before it is dead."""
        settings = self._broker.rocketmq.groups.get(group)
        return max(RETRIES_MAX if settings is None else settings.retries_max, 0) + 1


def queue_name(group: str) -> str:
    """The name of a group's queues. Raises InvalidQueue."""
    if "%7C%" in group:
        raise InvalidQueue(f"{group[:40]!r} would be taken for another group: choose a name without %7C%")
    return group.replace("%", ".").replace("|", ".7C.")


def _is_open(queue: Queue) -> bool:
    return all(lane.open for lane in queue.lanes.values())
