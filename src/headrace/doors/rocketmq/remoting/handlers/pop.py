"""POP_MESSAGE (200050) and what settles it: ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151),
CHANGE_MESSAGE_INVISIBLETIME (200053); and NOTIFICATION (200054), POLLING_INFO (200055), which only look.

What is popped is leased, from the queue that gRPC clients of the group receive from (`group_queues.py`); POP_CK is the
handle (`checkpoints.py`). A message that is not acknowledged comes again from where it is, so there are no retry topics
of pops, and no revive queues; after the group's retries it is dead.

Left out: POP_ROLLBACK, which moves RocketMQ's own files, and lite topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.queues import Lease, Queue, Wanted
from headrace.broker.queues.leases import RECEIVE_MAX
from headrace.broker.security import Operation, Resource
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import load
from headrace.doors.rocketmq.group_queues import GroupQueues
from headrace.doors.rocketmq.messages import encode, read_properties, write_properties
from headrace.doors.rocketmq.remoting.checkpoints import NORMAL, Checkpoint, read_batch
from headrace.doors.rocketmq.remoting.handlers.clients import read_objects, read_text
from headrace.doors.rocketmq.remoting.reader import QueueReader
from headrace.doors.rocketmq.subscriptions import exact_filter_of, parse_subscription
from headrace.doors.rocketmq.topics import READ, shape_of
from headrace.errors import InvalidHandle
from headrace.log.interface import EARLIEST, LATEST, Topic

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.handlers.pull import PullHandler
    from headrace.doors.rocketmq.remoting.listener import Remoting

ANY_QUEUE = -1
FROM_END = 1
WAIT_MS_MAX = 60_000
# What an answer may be late, as at RocketMQ's broker.
LATE_MS = 500
INVISIBLE_MAX_MS = 43_200_000
ACKS_MAX = 1_000
POP_CK = "POP_CK"

T = TypeVar("T")


class PopHandlers:
    """Hands out messages by leases, and settles them."""

    def __init__(self, remoting: Remoting, pull: PullHandler) -> None:
        self._remoting = remoting
        self._broker = remoting.broker
        self._pull = pull
        self._reader = QueueReader(remoting)
        self._queues = GroupQueues(remoting.broker)
        self._now_ms = remoting.broker.runtime.clock.now_ms

    # --- popping ------------------------------------------------------------------------------------------------------

    async def pop(self, call: Call) -> None:
        """POP_MESSAGE."""
        wait_ms = self._time_left(call)
        count, invisible_ms = call.number("maxMsgNums"), call.number("invisibleTime")
        if count > RECEIVE_MAX:
            raise ResponseError(Code.INVALID_PARAMETER, f"maxMsgNums is at most {RECEIVE_MAX} ({count})")
        if not 0 < invisible_ms <= INVISIBLE_MAX_MS:
            raise ResponseError(Code.INVALID_PARAMETER, f"invisibleTime is 1 to {INVISIBLE_MAX_MS} ({invisible_ms})")
        queue = await self._open(call, LATEST if call.number("initMode", 0) == FROM_END else EARLIEST)
        subscription = parse_subscription(call.text("exp", "*") or "*", call.text("expType", "TAG") or "TAG")
        wanted = Wanted(
            max(count, 1),
            invisible_ms,
            exact_filter_of(subscription),
            lane=self._lane(call, queue.topic),
            in_order=call.flag("order"),
            highest_first=not call.flag("order")
            and self._queues.goes_by_priority(queue.topic, call.text("consumerGroup")),
        )
        await call.connection.drain()
        self._broker.quotas.take_consume(call.connection.session)
        leases = await self._while_connected(call, queue.leases.receive(wanted, wait_ms))
        if leases is None:
            return
        if call.connection.lost:
            for lease in leases:
                queue.leases.give_back(lease.handle)
            return
        if not leases:
            self._answer_none(call, queue, invisible_ms)
            return
        # A lease ends a little later than was asked for.
        await self._answer_found(call, queue, leases, min(leases[0].handle.until_ms - invisible_ms, self._now_ms()))

    async def _answer_found(self, call: Call, queue: Queue, leases: Sequence[Lease], popped_ms: int) -> None:
        by_lane: dict[int, list[Lease]] = {}
        for lease in leases:
            by_lane.setdefault(lease.handle.lane, []).append(lease)
        broker, host = self._remoting.settings.rocketmq_broker_name, self._remoting.store_host(call.connection)
        parts = []
        for lane, of_lane in by_lane.items():
            start = of_lane[0].handle.offset
            partition = queue.lanes[lane].partition
            for lease in of_lane:
                message = await self._reader.message(partition, lease.record, host)
                check = Checkpoint.of(lease.handle, popped_ms).encode(start, broker)
                properties = write_properties({**read_properties(message.properties), POP_CK: check})
                times = message.reconsume_times + lease.handle.attempt - 1
                parts.append(encode(replace(message, properties=properties, reconsume_times=times)))
        first = leases[0].handle
        fields = {
            "popTime": str(popped_ms),
            "invisibleTime": str(first.until_ms - popped_ms),
            "reviveQid": str(first.attempt),
            "restNum": str(_rest(queue)),
            "startOffsetInfo": ";".join(f"{NORMAL} {lane} {found[0].handle.offset}" for lane, found in by_lane.items()),
            "msgOffsetInfo": ";".join(
                f"{NORMAL} {lane} {','.join(str(each.handle.offset) for each in found)}"
                for lane, found in by_lane.items()
            ),
        }
        if call.flag("order"):
            fields["orderCountInfo"] = ";".join(
                f"{NORMAL} {lane} {found[0].handle.attempt - 1}" for lane, found in by_lane.items()
            )
        body = b"".join(parts)
        self._broker.quotas.consumed(call.connection.session, len(body))
        call.answer(Code.SUCCESS, fields, body, remark="FOUND")

    def _answer_none(self, call: Call, queue: Queue, invisible_ms: int) -> None:
        fields = {
            "popTime": str(self._now_ms()),
            "invisibleTime": str(invisible_ms),
            "reviveQid": "0",
            "restNum": str(_rest(queue)),
            "startOffsetInfo": "",
            "msgOffsetInfo": "",
        }
        if call.flag("order"):
            fields["orderCountInfo"] = ""
        call.answer(Code.POLLING_TIMEOUT, fields, remark="there is no message to pop")

    # --- looking ------------------------------------------------------------------------------------------------------

    async def notify(self, call: Call) -> None:
        """NOTIFICATION: whether there is something to pop, or comes within the time."""
        wait_ms = self._time_left(call)
        queue = await self._open(call, EARLIEST)
        wanted = Wanted(0, 1, lane=self._lane(call, queue.topic), in_order=call.flag("order"))
        found = await self._while_connected(call, queue.leases.await_message(wanted, wait_ms))
        if found is not None:
            call.answer(fields={"hasMsg": str(found).lower(), "pollingFull": "false"})

    async def polling(self, call: Call) -> None:
        """POLLING_INFO: how many pops of a queue wait."""
        topic, group = call.text("topic"), call.text("consumerGroup")
        lane = self._lane(call, self._remoting.topics.existing(topic))
        queue = await self._queues.find(topic, group)
        waiting = () if queue is None else queue.leases.receivers
        call.answer(fields={"pollingNum": str(sum(each.wanted.lane == lane for each in waiting))})

    # --- settling -----------------------------------------------------------------------------------------------------

    async def acknowledge(self, call: Call) -> None:
        """ACK_MESSAGE. As at RocketMQ's broker, a stale handle is no error: it settles nothing."""
        queue = await self._queue_of(call)
        check = self._check(call)
        if queue is not None:
            queue.leases.finish_many([check.handle(queue.id)])
        call.answer()

    async def acknowledge_batch(self, call: Call) -> None:
        """BATCH_ACK_MESSAGE: each entry has the group, the topic, and a bit for each message."""
        entries = read_objects(load(call.request.body), "acks", ACKS_MAX)
        try:
            checks = [(each, read_batch(each)) for each in entries]
        except InvalidHandle as error:
            raise ResponseError(Code.MESSAGE_ILLEGAL, str(error)) from None
        for entry, found in checks:
            name, group = read_text(entry, "t"), read_text(entry, "c")
            call.check(Operation.READ, Resource.GROUP, group)
            call.check_topic(Operation.READ, name)
            self._remoting.topics.existing(name)
            queue = await self._queues.find(name, group)
            if queue is not None:
                queue.leases.finish_many([each.handle(queue.id) for each in found])
        call.answer()

    async def change(self, call: Call) -> None:
        """CHANGE_MESSAGE_INVISIBLETIME: the message comes again after that time; the handle changes."""
        queue = await self._queue_of(call)
        check = self._check(call)
        invisible_ms = call.number("invisibleTime")
        if not 0 <= invisible_ms <= INVISIBLE_MAX_MS:
            raise ResponseError(Code.INVALID_PARAMETER, f"invisibleTime is 0 to {INVISIBLE_MAX_MS} ({invisible_ms})")
        handle = check.handle(0 if queue is None else queue.id)
        now = self._now_ms()
        if queue is None:
            changed = None
        elif invisible_ms:
            changed = queue.leases.extend(handle, invisible_ms)
        else:
            changed = handle._replace(until_ms=now) if queue.leases.give_back(handle) else None
        if changed is None:
            raise ResponseError(Code.NO_MESSAGE, "the message is settled, or was delivered or changed since")
        fields = {
            "popTime": str(now),
            "invisibleTime": str(changed.until_ms - now),
            "reviveQid": str(changed.attempt),
        }
        call.answer(fields=fields)

    @staticmethod
    def _check(call: Call) -> Checkpoint:
        """What the request names. Raises ResponseError."""
        try:
            check = Checkpoint.decode(call.text("extraInfo"))
        except InvalidHandle as error:
            raise ResponseError(Code.MESSAGE_ILLEGAL, str(error)) from None
        if (check.lane, check.offset) != (call.number("queueId"), call.number("offset")):
            raise ResponseError(Code.MESSAGE_ILLEGAL, "queueId and offset are not those of extraInfo")
        return check

    async def _queue_of(self, call: Call) -> Queue | None:
        name, lane, offset = call.text("topic"), call.number("queueId"), call.number("offset")
        partitions = self._remoting.topics.existing(name).partitions
        if not 0 <= lane < len(partitions):
            raise ResponseError(
                Code.MESSAGE_ILLEGAL, f"queueId[{lane}] is illegal: the topic {name} has {len(partitions)} queues"
            )
        if not 0 <= offset <= partitions[lane].last_stable:
            raise ResponseError(Code.NO_MESSAGE, f"there is no message at the offset {offset}")
        return await self._queues.find(name, call.text("consumerGroup"))

    # --- what is asked for --------------------------------------------------------------------------------------------

    def _time_left(self, call: Call) -> int:
        """How long the client waits, from now on. Raises ResponseError where that is over."""
        wait_ms = min(max(call.number("pollTime", 0), 0), WAIT_MS_MAX)
        born_ms = call.number("bornTime", 0)
        left = born_ms + wait_ms - self._now_ms() if born_ms else wait_ms
        if left < -LATE_MS:
            raise ResponseError(Code.POLLING_TIMEOUT, "the client waits no longer")
        return min(max(left, 0), wait_ms)

    async def _open(self, call: Call, start: int) -> Queue:
        """The queue of the group. Raises a HeadraceError."""
        name, group = call.text("topic"), call.text("consumerGroup")
        await self._queues.load()
        self._pull.check_group(call, group)
        topic = self._remoting.topics.existing(name)
        if not shape_of(topic).perm & READ:
            raise ResponseError(Code.NO_PERMISSION, f"the topic[{name}] may not be read (rocketmq.perm)")
        self._lane(call, topic)
        return await self._queues.open(topic, group, call.connection.session, start)

    def _lane(self, call: Call, topic: Topic) -> int | None:
        """The queue of the topic; None: any. Raises ResponseError."""
        number = call.number("queueId")
        if not ANY_QUEUE <= number < len(topic.partitions):
            raise ResponseError(
                Code.INVALID_PARAMETER, f"queueId[{number}] is illegal: there are {len(topic.partitions)} queues"
            )
        return None if number == ANY_QUEUE else number

    async def _while_connected(self, call: Call, waiting: Awaitable[T]) -> T | None:
        """What is waited for; None where the client has gone meanwhile."""
        connection = call.connection
        gone: asyncio.Future[None] = self._remoting.loop.create_future()
        task = asyncio.ensure_future(waiting)
        connection.suspended[gone] = None
        try:
            if not connection.closing:
                await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            del connection.suspended[gone]
            if not task.done():
                task.cancel()
        if task.done():
            return await task
        with suppress(asyncio.CancelledError):
            await task
        if not connection.lost:
            call.answer(Code.POLLING_TIMEOUT, remark="the broker stops")
        return None


def _rest(queue: Queue) -> int:
    return sum(lane.available for lane in queue.lanes.values())
