"""Positions: those of groups (14, 15), and those of queues (29 to 32).

The largest offset is the last stable one: nothing of an open transaction is read. A group that has committed nothing is
given 0 where the queue still has its first message, as by RocketMQ; elsewhere it decides for itself where to begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.group_queues import GroupQueues
from headrace.doors.rocketmq.remoting.reader import QueueReader
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting


class OffsetHandlers:
    """Answers where groups and queues are."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._groups = remoting.broker.groups.rocketmq
        self._reader = QueueReader(remoting)
        self._queues = GroupQueues(remoting.broker)

    async def query(self, call: Call) -> None:
        """QUERY_CONSUMER_OFFSET."""
        partition = await self._queue(call)
        group = call.text("consumerGroup")
        if partition is not None:
            await self._queues.settle_position(call.text("topic"), group)
            position = await self._groups.position(group, partition.topic, partition.index)
            if position is None and partition.start == 0 < partition.high_watermark:
                position = 0 if call.text("setZeroIfNotFound", "true") != "false" else None
            if position is not None:
                call.answer(fields={"offset": str(position)})
                return
        raise ResponseError(Code.QUERY_NOT_FOUND, f"the group {group} has no position there: it may be its first start")

    async def update(self, call: Call) -> None:
        """UPDATE_CONSUMER_OFFSET: answered once it is durable."""
        partition = await self._queue(call)
        if partition is not None:
            group, offset = call.text("consumerGroup"), call.number("commitOffset")
            if offset < 0:
                raise ResponseError(Code.INVALID_PARAMETER, f"a position is 0 or more (got {offset})")
            await self._remoting.broker.rocketmq.load()
            self._remoting.existing_group(group)
            # What a member has read before its group was reset no longer counts.
            if self._remoting.resets.find(group, partition) is None:
                self._groups.move(group, partition.topic, partition.index, offset)
                await self._groups.settle(group)
                await self._queues.settle_position(call.text("topic"), group)
        call.answer()

    async def max(self, call: Call) -> None:
        """GET_MAX_OFFSET."""
        partition = await self._queue(call)
        call.answer(fields={"offset": str(0 if partition is None else partition.last_stable)})

    async def min(self, call: Call) -> None:
        """GET_MIN_OFFSET."""
        partition = await self._queue(call)
        call.answer(fields={"offset": str(0 if partition is None else partition.start)})

    async def search(self, call: Call) -> None:
        """SEARCH_OFFSET_BY_TIMESTAMP: the first message at or after a time, or the end."""
        partition = await self._queue(call)
        if partition is None:
            call.answer(fields={"offset": "0"})
            return
        found = await partition.offset_at(max(call.number("timestamp"), 0))
        end = partition.last_stable
        call.answer(fields={"offset": str(end if found.offset < 0 else min(found.offset, end))})

    async def earliest(self, call: Call) -> None:
        """GET_EARLIEST_MSG_STORETIME; -1 where the queue is empty."""
        partition = await self._queue(call)
        record = None
        if partition is not None and partition.start < partition.last_stable:
            record = await self._reader.at(partition, partition.start)
        call.answer(fields={"timestamp": str(-1 if record is None else record[1])})

    async def _queue(self, call: Call) -> Partition | None:
        """The queue that is asked for, loaded; None where its topic is not stored yet. Raises ResponseError."""
        name = call.text("topic")
        if self._remoting.topics.find(name) is None and self._remoting.topics.is_expected(name):
            return None
        partition = self._remoting.topics.queue(name, call.number("queueId"))
        if not partition.loaded:
            await partition.load()
        return partition
