"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): messages of one queue from an offset on.

A pull that finds nothing waits, if it may: until a message arrives, or its time is up. What is not for the reader's
tags is left out by Java's hash of the tag; the client, which knows the text, leaves out the rest. What does not meet
the reader's SQL92 expression is left out, too. A pull that finds only such messages is answered at once with the offset
behind them, so that the reader gets on.

Left out: class filters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.broker.groups.rocketmq_group import RocketMqSubscription
from headrace.doors.rocketmq.client import BROADCASTING
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.names import log_name
from headrace.doors.rocketmq.remoting.reader import Found, QueueReader, Wanted
from headrace.doors.rocketmq.subscriptions import filter_of, parse_subscription
from headrace.doors.rocketmq.topics import READ, shape_of
from headrace.errors import OffsetOutOfRange
from headrace.log.interface import Partition, Topic

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# Bits of the system flag of a pull.
COMMITS = 1
MAY_WAIT = 2
HAS_SUBSCRIPTION = 4

MESSAGES_MAX = 128
BYTES_MAX = 262_144
WAIT_MS_MAX = 60_000
READS_MAX = 64


@dataclass(slots=True)
class Pull:
    """A pull under way."""

    call: Call
    group: str
    partition: Partition
    wanted: Wanted
    deadline: float
    """Until when it may wait for a message."""
    position: int
    """What its group has consumed, which is still to be committed; -1: nothing."""


class PullHandler:
    """Hands out messages."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._broker = remoting.broker
        self._reader = QueueReader(remoting)
        # What all clients together can have the broker read at once.
        self._reads = asyncio.Semaphore(READS_MAX)
        # Pulls that wait for a topic to be stored, by the log's name.
        self._expecting: dict[str, list[asyncio.Future[None]]] = {}
        self._broker.topics.changed.append(self._topic_changed)

    def handle(self, call: Call) -> Coroutine[Any, Any, None] | None:
        name = call.text("topic")
        topic = self._remoting.topics.find(name)
        if topic is None or not self._broker.rocketmq.loaded:
            return self._load(call, name)
        pull = self._begin(call, name)
        if not pull.partition.loaded or not self._look(pull):
            return self._follow(pull)
        return None

    async def _load(self, call: Call, name: str) -> None:
        """The first pulls after a start, and those of a topic that is not stored yet."""
        if not self._broker.rocketmq.loaded:
            await self._broker.rocketmq.load()
        if self._remoting.topics.find(name) is None and self._remoting.topics.is_expected(name):
            self.check_group(call, call.text("consumerGroup"))
            self._subscription(call, call.text("consumerGroup"), name, call.number("sysFlag", 0))
            await self._wait_for_topic(call, log_name(name), self._deadline(call))
            if self._remoting.topics.find(name) is None:
                self._answer(call, Code.PULL_NOT_FOUND, 0, 0, 0)
                return
        await self._follow(self._begin(call, name))

    def _begin(self, call: Call, name: str) -> Pull:
        """What a pull asks for. Raises ResponseError."""
        queue_id, group, sys_flag = call.number("queueId"), call.text("consumerGroup"), call.number("sysFlag", 0)
        self.check_group(call, group)
        subscription = self._subscription(call, group, name, sys_flag)
        partition = self._remoting.topics.queue(name, queue_id)
        if not shape_of(partition.topic).perm & READ:
            raise ResponseError(Code.NO_PERMISSION, f"the topic[{name}] may not be read (rocketmq.perm)")
        wanted = Wanted(
            call.number("queueOffset"),
            max(min(call.number("maxMsgNums", 32), MESSAGES_MAX), 1),
            min(call.number("maxMsgBytes", BYTES_MAX), BYTES_MAX),
            filter_of(subscription),
        )
        position = call.number("commitOffset", 0) if sys_flag & COMMITS else -1
        return Pull(call, group, partition, wanted, self._deadline(call), position)

    def _deadline(self, call: Call) -> float:
        """Until when a pull may wait."""
        may_wait = call.number("sysFlag", 0) & MAY_WAIT
        wait_ms = min(call.number("suspendTimeoutMillis", 0), WAIT_MS_MAX) if may_wait else 0
        return self._remoting.loop.time() + wait_ms / 1000

    async def _follow(self, pull: Pull) -> None:
        """Answer a pull that must wait for something."""
        if not pull.partition.loaded:
            await pull.partition.load()
        while not self._look(pull):
            if self._is_within(pull):
                await self._read(pull)
                return
            await self._wait(pull.call, pull.partition, pull.deadline)

    def _look(self, pull: Pull) -> bool:
        """Answer a pull; False where it must wait, or what it asks for must be read off the loop."""
        call, partition, offset = pull.call, pull.partition, pull.wanted.offset
        moved_to = self._remoting.resets.find(pull.group, partition)
        if pull.position >= 0:
            if moved_to is None:
                self._broker.groups.rocketmq.move(pull.group, partition.topic, partition.index, pull.position)
            pull.position = -1
        start, end = partition.start, partition.last_stable
        if moved_to is not None and moved_to != offset:
            remark = "the group was reset: go on at nextBeginOffset"
            self._answer(call, Code.PULL_OFFSET_MOVED, moved_to, start, end, remark=remark)
            return True
        if moved_to is not None:
            self._remoting.resets.drop(pull.group, partition)
        if self._is_within(pull):
            return self._read_now(pull)
        if offset == end or (not end and not offset):
            may_wait = self._remoting.loop.time() < pull.deadline
            if may_wait and not call.connection.closing and not partition.topic.deleted:
                return False
            self._answer(call, Code.PULL_NOT_FOUND, offset, start, end)
            return True
        self._answer(call, Code.PULL_OFFSET_MOVED, start if offset < start else end, start, end)
        return True

    @staticmethod
    def _is_within(pull: Pull) -> bool:
        """Whether there is something at the offset."""
        return pull.partition.start <= pull.wanted.offset < pull.partition.last_stable

    def _read_now(self, pull: Pull) -> bool:
        """Answer a pull that finds something, if its client reads and nothing is to be waited for."""
        connection = pull.call.connection
        if connection.unread or connection.lost or self._broker.quotas.meter(connection.session) is not None:
            return False
        found = self._reader.read_now(pull.partition, pull.wanted, self._remoting.store_host(connection))
        if found is None:
            return False
        self._answer_found(pull, found)
        return True

    async def _read(self, pull: Pull) -> None:
        """Answer a pull that finds something, once its client has read what it was sent before."""
        call, partition, connection = pull.call, pull.partition, pull.call.connection
        if self._broker.quotas.is_active:
            await self._broker.quotas.wait_to_consume(connection.session, lambda: connection.closing)
        while not connection.lost:
            await connection.drain()
            async with self._reads:
                if connection.unread or connection.lost:
                    continue
                try:
                    found = await self._reader.read(partition, pull.wanted, self._remoting.store_host(connection))
                except OffsetOutOfRange:
                    # The log has moved its start meanwhile.
                    self._answer(call, Code.PULL_OFFSET_MOVED, partition.start, partition.start, partition.last_stable)
                    return
                self._answer_found(pull, found)
                return

    def _answer_found(self, pull: Pull, found: Found) -> None:
        partition = pull.partition
        code = Code.SUCCESS if found.parts else Code.PULL_RETRY_IMMEDIATELY
        body = b"".join(found.parts)
        self._broker.quotas.consumed(pull.call.connection.session, len(body))
        self._answer(pull.call, code, found.next_offset, partition.start, partition.last_stable, body)

    @staticmethod
    def _answer(
        call: Call, code: Code, next_offset: int, start: int, end: int, body: bytes = b"", remark: str | None = None
    ) -> None:
        call.answer(
            code,
            {
                "suggestWhichBrokerId": "0",
                "topicSysFlag": "0",
                "groupSysFlag": "0",
                "nextBeginOffset": str(next_offset),
                "minOffset": str(start),
                "maxOffset": str(end),
            },
            body,
            remark=remark or _REMARKS.get(code),
        )

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def _wait(self, call: Call, partition: Partition, deadline: float) -> None:
        """Until readers can get further, or the time is up."""
        waiter: asyncio.Future[None] = self._remoting.loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        partition.wait(wake)
        try:
            await self._suspend(call, waiter, deadline)
        finally:
            partition.unwait(wake)

    async def _wait_for_topic(self, call: Call, name: str, deadline: float) -> None:
        waiter: asyncio.Future[None] = self._remoting.loop.create_future()
        self._expecting.setdefault(name, []).append(waiter)
        try:
            await self._suspend(call, waiter, deadline)
        finally:
            waiters = self._expecting.get(name, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._expecting.pop(name, None)

    async def _suspend(self, call: Call, waiter: asyncio.Future[None], deadline: float) -> None:
        suspended = call.connection.suspended
        suspended[waiter] = None
        alarm = self._remoting.loop.call_at(deadline, _finish, waiter)
        try:
            if not call.connection.closing:
                await waiter
        finally:
            alarm.cancel()
            del suspended[waiter]

    def _topic_changed(self, topic: Topic) -> None:
        for waiter in self._expecting.pop(topic.name, ()):
            _finish(waiter)

    # --- whose ---

    def check_group(self, call: Call, group: str) -> None:
        """Whether the group may consume. Raises ResponseError."""
        settings = self._broker.rocketmq.groups.get(group)
        if settings is None:
            if not self._remoting.settings.rocketmq_auto_create_groups:
                self._remoting.existing_group(group)
            return
        client = call.connection.client
        consumption = None if client is None else client.consumers.get(group)
        if not settings.may_consume:
            raise ResponseError(
                Code.NO_PERMISSION, f"the group {group} may not consume (consumeEnable)", _GROUP_FORBIDDEN
            )
        if not settings.may_broadcast and consumption is not None and consumption.message_model == BROADCASTING:
            raise ResponseError(
                Code.NO_PERMISSION,
                f"the group {group} may not consume by broadcast (consumeBroadcastEnable)",
                _BROADCAST_FORBIDDEN,
            )

    def _subscription(self, call: Call, group: str, topic: str, sys_flag: int) -> RocketMqSubscription:
        """What the reader wants of the topic. Raises ResponseError."""
        if sys_flag & HAS_SUBSCRIPTION:
            return parse_subscription(call.text("subscription", "*"), call.text("expressionType", "TAG"))
        memberships = call.connection.memberships
        member = None if memberships is None else memberships.find(group)
        found = self._broker.groups.rocketmq.find(group)
        if member is None and (found is None or found.is_vacant):
            raise ResponseError(
                Code.SUBSCRIPTION_NOT_EXIST, f"the group {group} has no members: send a heartbeat first"
            )
        name = log_name(topic)
        subscription = member.subscriptions.get(name) if member is not None else None
        if subscription is None and found is not None:
            subscription = found.subscription(name)
        if subscription is None:
            raise ResponseError(
                Code.SUBSCRIPTION_NOT_EXIST, f"the group {group} does not subscribe to the topic {topic}"
            )
        if subscription.version < call.number("subVersion", 0):
            raise ResponseError(
                Code.SUBSCRIPTION_NOT_LATEST, f"the subscription of the group {group} is newer than its last heartbeat"
            )
        return subscription


# What is forbidden, in RocketMQ's numbers.
_GROUP_FORBIDDEN = {"forbiddenType": "2"}
_BROADCAST_FORBIDDEN = {"forbiddenType": "4"}
_REMARKS = {
    Code.PULL_NOT_FOUND: "there is no message at the offset yet",
    Code.PULL_RETRY_IMMEDIATELY: "no message that was looked at is for this reader: go on at nextBeginOffset",
    Code.PULL_OFFSET_MOVED: "the offset lies outside of the queue: go on at nextBeginOffset",
}


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
