"""QUERY_ASSIGNMENT (400) and SET_MESSAGE_REQUEST_MODE (401): which queues a client reads, and whether it pulls or pops.

Clients without a rebalance of their own ask which queues are theirs. A group that pulls shares out the queues among its
members, in the order of their ids; one that pops has each member pop from any. Retry topics are always pulled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.rocketmq.request_modes import MODES, POP, PULL, RequestMode
from headrace.broker.security import Operation, Resource
from headrace.doors.rocketmq.client import BROADCASTING
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import dump, load
from headrace.doors.rocketmq.names import RETRY
from headrace.doors.rocketmq.remoting.handlers.clients import read_text
from headrace.doors.rocketmq.topics import GROUP_NAME_MAX

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

AVERAGE = "AVG"
CIRCLE = "AVG_BY_CIRCLE"


class AssignmentHandlers:
    """Shares out queues."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._state = remoting.broker.rocketmq

    async def set_mode(self, call: Call) -> None:
        """SET_MESSAGE_REQUEST_MODE: durable."""
        given = load(call.request.body)
        topic, group, mode = read_text(given, "topic"), read_text(given, "consumerGroup"), read_text(given, "mode")
        call.check(Operation.ALTER_CONFIGS, Resource.GROUP, group)
        if topic.startswith(RETRY):
            raise ResponseError(Code.NO_PERMISSION, "retry topic is not allowed to set mode")
        share = given.get("popShareQueueNum", 0)
        if mode not in MODES or not isinstance(share, int) or isinstance(share, bool) or not topic:
            raise ResponseError(
                Code.INVALID_PARAMETER, f"mode is one of {', '.join(MODES)} ({mode[:20]!r}), popShareQueueNum a number"
            )
        if not 0 < len(group) <= GROUP_NAME_MAX:
            raise ResponseError(Code.INVALID_PARAMETER, f"a group's name has 1 to {GROUP_NAME_MAX} characters")
        await self._state.load()
        most = self._remoting.settings.rocketmq_groups_max
        if (group, topic) not in self._state.modes and len(self._state.modes) >= most:
            raise ResponseError(Code.SYSTEM_ERROR, f"{most} groups have request modes already (rocketmq_groups_max)")
        await self._state.put_mode(group, topic, RequestMode(mode, share))
        call.answer()

    async def query(self, call: Call) -> None:
        """QUERY_ASSIGNMENT."""
        given = load(call.request.body)
        topic, group = read_text(given, "topic"), read_text(given, "consumerGroup")
        call.check(Operation.READ, Resource.GROUP, group)
        call.check_topic(Operation.READ, topic)
        client_id, strategy = read_text(given, "clientId"), read_text(given, "strategyName") or AVERAGE
        await self._state.load()
        mode = PULL if topic.startswith(RETRY) else self._state.modes.get((group, topic), RequestMode(PULL)).mode
        shape = self._remoting.topics.shape(topic)
        if shape is None:
            numbers: list[int] = []
        elif read_text(given, "messageModel") == BROADCASTING:
            numbers = list(range(shape.read_queues))
        elif mode == POP:
            # Any queue.
            numbers = [-1] if shape.read_queues else []
        else:
            numbers = self._share(group, client_id, strategy, shape.read_queues)
        broker = self._remoting.settings.rocketmq_broker_name
        assigned = [
            {
                "messageQueue": {"brokerName": broker, "queueId": number, "topic": topic},
                "mode": mode,
            }
            for number in numbers
        ]
        call.answer(body=dump({"messageQueueAssignments": assigned}))

    def _share(self, group_id: str, client_id: str, strategy: str, queues: int) -> list[int]:
        """A member's share. Raises ResponseError."""
        group = self._remoting.broker.groups.rocketmq.find(group_id)
        members = [] if group is None else sorted(group.members)
        if client_id not in members:
            return []
        place, count = members.index(client_id), len(members)
        if strategy == CIRCLE:
            return list(range(place, queues, count))
        if strategy != AVERAGE:
            raise ResponseError(
                Code.INVALID_PARAMETER, f"the strategy {strategy[:40]!r} is not known. Use {AVERAGE} or {CIRCLE}."
            )
        size, more = divmod(queues, count)
        first = place * size + min(place, more)
        return list(range(first, first + size + (place < more)))
