"""PEEK_MESSAGE (200052): what a group would pop next, without a lease.

A queue of the topic shows what has come back, and then what nobody was handed yet, as far as `maxMsgNums` goes. A group
that never popped is shown what it would begin with; neither a queue nor a position is made for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker.queues import Queue
from headrace.broker.queues.leases import RECEIVE_MAX
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.group_queues import GroupQueues
from headrace.doors.rocketmq.messages import Host, encode
from headrace.doors.rocketmq.remoting.reader import QueueReader, Wanted
from headrace.doors.rocketmq.subscriptions import ALL_RECORDS
from headrace.doors.rocketmq.topics import READ, shape_of
from headrace.errors import OffsetOutOfRange
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.handlers.pull import PullHandler
    from headrace.doors.rocketmq.remoting.listener import Remoting

ANY_QUEUE = -1
# Of one answer.
BYTES_MAX = 1_048_576


class PeekHandler:
    """Shows messages."""

    def __init__(self, remoting: Remoting, pull: PullHandler) -> None:
        self._remoting = remoting
        self._broker = remoting.broker
        self._pull = pull
        self._reader = QueueReader(remoting)
        self._queues = GroupQueues(remoting.broker)

    async def handle(self, call: Call) -> None:
        """PEEK_MESSAGE."""
        name, group, number = call.text("topic"), call.text("consumerGroup"), call.number("queueId")
        limit = min(max(call.number("maxMsgNums"), 0), RECEIVE_MAX)
        await self._queues.load()
        self._remoting.existing_group(group)
        self._pull.check_group(call, group)
        topic = self._remoting.topics.existing(name)
        shape = shape_of(topic)
        if not shape.perm & READ:
            raise ResponseError(Code.NO_PERMISSION, f"the topic[{name}] may not be read (rocketmq.perm)")
        if number >= len(topic.partitions):
            raise ResponseError(
                Code.INVALID_PARAMETER, f"queueId[{number}] is illegal: there are {len(topic.partitions)} queues"
            )
        chosen = topic.partitions if number < 0 else topic.partitions[number : number + 1]
        await call.connection.drain()
        self._broker.quotas.take_consume(call.connection.session)
        queue = await self._queues.find(name, group)
        host = self._remoting.store_host(call.connection)
        rest, parts = await (
            self._look(group, chosen, limit, host)
            if queue is None
            else self._look_into(queue, chosen, number, limit, host)
        )
        body = b"".join(parts)
        self._broker.quotas.consumed(call.connection.session, len(body))
        fields = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(rest)}
        if parts:
            call.answer(Code.SUCCESS, fields, body, remark="FOUND")
        else:
            call.answer(Code.PULL_NOT_FOUND, fields, remark="NO_MESSAGE_IN_QUEUE")

    async def _look_into(
        self, queue: Queue, chosen: Sequence[Partition], number: int, limit: int, host: Host
    ) -> tuple[int, list[bytes | bytearray]]:
        """How much there is to pop, and the first messages of it."""
        parts: list[bytes | bytearray] = []
        if limit:
            peeked = await queue.peek(limit, (number, 0) if number >= 0 else None, BYTES_MAX)
            for each in peeked.messages:
                if number in (ANY_QUEUE, each.lane):
                    record = (each.offset, each.timestamp, each.key, each.value, each.headers)
                    message = await self._reader.message(queue.lanes[each.lane].partition, record, host)
                    parts.append(encode(replace(message, reconsume_times=message.reconsume_times + each.attempts)))
        return sum(queue.lanes[each.index].available for each in chosen if each.index in queue.lanes), parts

    async def _look(
        self, group: str, chosen: Sequence[Partition], limit: int, host: Host
    ) -> tuple[int, list[bytes | bytearray]]:
        """The same for a group that has popped nothing of the topic yet."""
        parts: list[bytes | bytearray] = []
        rest = count = size = 0
        for partition in chosen:
            if not partition.loaded:
                await partition.load()
            position = await self._broker.groups.rocketmq.position(group, partition.topic, partition.index)
            begin = max(position or 0, partition.start)
            rest += max(partition.last_stable - begin, 0)
            if count < limit and size < BYTES_MAX and begin < partition.last_stable:
                wanted = Wanted(begin, limit - count, BYTES_MAX - size, ALL_RECORDS)
                with suppress(OffsetOutOfRange):
                    # Else the log has moved its start meanwhile.
                    found = await self._reader.read(partition, wanted, host)
                    parts += found.parts
                    count += found.count
                    size += found.size
        return rest, parts
