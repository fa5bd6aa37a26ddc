"""How far groups are: GET_CONSUME_STATS (208), GET_BROKER_CONSUME_STATS (317), QUERY_CONSUME_TIME_SPAN (303),
QUERY_CORRECTION_OFFSET (308) and CLONE_GROUP_OFFSET (314).

The lag is the one that every other tool shows: the last stable offset of a queue, less the group's committed offset. A
queue in which a group has committed nothing counts from its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.groups.rocketmq_coordinator import BY_TOOL
from headrace.doors.rocketmq.connection import INT64_MAX, Call
from headrace.doors.rocketmq.frames import dump
from headrace.doors.rocketmq.names import rocketmq_name
from headrace.doors.rocketmq.remoting.queues import Queue, dump_table, dump_with
from headrace.doors.rocketmq.remoting.rates import Rates
from headrace.doors.rocketmq.remoting.reader import QueueReader
from headrace.doors.rocketmq.topics import shape_of
from headrace.log.interface import Partition, Topic

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# Requests that read messages of many queues, at once.
READERS_MAX = 4


class ProgressHandlers:
    """Describes the positions of groups."""

    def __init__(self, remoting: Remoting, rates: Rates) -> None:
        self._remoting = remoting
        self._groups = remoting.broker.groups
        self._reader = QueueReader(remoting)
        self._rates = rates
        self._turn = asyncio.Semaphore(READERS_MAX)

    async def consume_stats(self, call: Call) -> None:
        """GET_CONSUME_STATS: of one topic, or of all in which the group has positions."""
        names = [name for name in call.text("topicList", "").split(";") if name]
        if name := call.text("topic", ""):
            names.append(name)
        async with self._turn:
            group = call.text("consumerGroup")
            topics = [topic for name in names if (topic := self._remoting.topics.find(name)) is not None]
            stats, _ = await self._stats(group, topics if names else await self._topics_of(group))
        call.answer(body=stats)

    async def broker_stats(self, call: Call) -> None:
        """GET_BROKER_CONSUME_STATS: of all groups."""
        rows, total = [], 0
        async with self._turn:
            for group in await self._groups.rocketmq.all():
                stats, lag = await self._stats(group.group_id, await self._topics_of(group.group_id))
                rows.append(dump_with({group.group_id: b"[" + stats + b"]"}))
                total += lag
        fields = {
            "brokerAddr": dump(self._remoting.own_address(call.connection)),
            "consumeStatsList": b"[" + b",".join(rows) + b"]",
            "totalDiff": dump(total),
            "totalInflightDiff": b"0",
        }
        call.answer(body=dump_with(fields))

    async def _topics_of(self, group: str) -> list[Topic]:
        _, committed = await self._groups.committed(group, None)
        found = (self._remoting.broker.topics.get(name) for name in committed if rocketmq_name(name) is not None)
        return [topic for topic in found if topic is not None]

    async def _stats(self, group: str, topics: Iterable[Topic]) -> tuple[bytes, int]:
        """A group's positions as RocketMQ's tools read them, and its lag."""
        table: dict[Queue, object] = {}
        total = consumed = 0
        for topic in topics:
            for partition in await self._partitions(topic):
                end = partition.last_stable
                position = await self._groups.rocketmq.position(group, topic, partition.index)
                at = partition.start if position is None else position
                table[self._queue(partition)] = {
                    "brokerOffset": end,
                    "consumerOffset": at,
                    "lastTimestamp": max(await self._time(partition, at - 1), 0),
                    "pullOffset": at,
                }
                total += end - at
                consumed += at
        rate = self._rates.look(f"group {group}", consumed)
        return dump_with({"consumeTps": dump(rate), "offsetTable": dump_table(table)}), total

    async def time_span(self, call: Call) -> None:
        """QUERY_CONSUME_TIME_SPAN: the times of the first and last message of each queue, and of the last consumed."""
        topic, group = self._remoting.topics.existing(call.text("topic")), call.text("group")
        now = self._remoting.broker.runtime.clock.now_ms()
        spans = []
        async with self._turn:
            for partition in await self._partitions(topic):
                first = await self._time(partition, partition.start)
                position = await self._groups.rocketmq.position(group, topic, partition.index) or 0
                waiting = await self._time(partition, position)
                spans.append(
                    {
                        "consumeTimeStamp": await self._time(partition, position - 1) if position else first,
                        "delayTime": now - waiting if waiting >= 0 else 0,
                        "maxTimeStamp": await self._time(partition, partition.last_stable - 1),
                        "messageQueue": self._queue(partition).describe(),
                        "minTimeStamp": first,
                    }
                )
        call.answer(body=dump({"consumeTimeSpanSet": spans}))

    async def correction(self, call: Call) -> None:
        """QUERY_CORRECTION_OFFSET: the least position of all groups in each queue; the largest number where the group
        that is compared with is behind it."""
        left_out = {name.strip() for name in call.text("filterGroups", "").split(",")}
        compared = call.text("compareGroup", "")
        topic = self._remoting.topics.find(call.text("topic"))
        least: dict[int, int] = {}
        if topic is not None:
            by_group = {
                group: committed.get(topic.name, {})
                for group in await self._groups.rocketmq.readers(topic.name)
                for _, committed in [await self._groups.committed(group, None)]
            }
            for group, positions in by_group.items():
                for index, committed in positions.items():
                    start = topic.partitions[index].start if index < len(topic.partitions) else INT64_MAX
                    if group not in left_out and committed is not None and committed.offset >= start:
                        least[index] = min(committed.offset, least.get(index, INT64_MAX))
            for index, committed in by_group.get(compared, {}).items():
                if committed is not None and least.get(index, 0) > committed.offset:
                    least[index] = INT64_MAX
        call.answer(body=dump({"correctionOffsets": {str(index): offset for index, offset in sorted(least.items())}}))

    async def clone(self, call: Call) -> None:
        """CLONE_GROUP_OFFSET: a group goes on where another one is, in one topic or in all."""
        source, target, name = call.text("srcGroup"), call.text("destGroup"), call.text("topic", "")
        self._remoting.existing_group(target)
        topics = [self._remoting.topics.existing(name)] if name else await self._topics_of(source)
        for topic in topics:
            for partition in topic.partitions:
                position = await self._groups.rocketmq.position(source, topic, partition.index)
                if position is not None:
                    self._groups.rocketmq.move(target, topic, partition.index, position, BY_TOOL)
        await self._groups.rocketmq.settle(target)
        call.answer()

    # --- queues -------------------------------------------------------------------------------------------------------

    async def _partitions(self, topic: Topic) -> list[Partition]:
        """The queues that are read, loaded."""
        partitions = topic.partitions[: shape_of(topic).read_queues]
        for partition in partitions:
            if not partition.loaded:
                await partition.load()
        return list(partitions)

    async def _time(self, partition: Partition, offset: int) -> int:
        """When the message at an offset was stored; -1 where there is none."""
        if not partition.start <= offset < partition.last_stable:
            return -1
        record = await self._reader.at(partition, offset)
        return -1 if record is None else record[1]

    def _queue(self, partition: Partition) -> Queue:
        name = partition.topic.name
        return Queue(self._remoting.settings.rocketmq_broker_name, rocketmq_name(name) or name, partition.index)
