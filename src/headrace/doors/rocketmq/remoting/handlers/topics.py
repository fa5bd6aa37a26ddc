"""Administration of topics: UPDATE_AND_CREATE_TOPIC (17) and DELETE_TOPIC_IN_BROKER (215)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.names import log_name
from headrace.doors.rocketmq.topics import PERM, READ, READ_QUEUES, WRITE, WRITE_QUEUES

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting


class TopicHandlers:
    """Makes, changes and deletes topics."""

    def __init__(self, remoting: Remoting) -> None:
        self._topics = remoting.broker.topics

    async def update(self, call: Call) -> None:
        """UPDATE_AND_CREATE_TOPIC. Partitions never shrink: those beyond the counts are drained, or not read."""
        name = log_name(call.text("topic"))
        read, write = call.number("readQueueNums"), call.number("writeQueueNums")
        perm = call.number("perm", READ | WRITE)
        if read < 1 or write < 1 or not 0 <= perm <= 7:
            raise ResponseError(
                Code.INVALID_PARAMETER,
                f"a topic has queues and a permission of 0 to 7 (got readQueueNums {read}, writeQueueNums {write}, "
                f"perm {perm})",
            )
        own = {READ_QUEUES: str(read), WRITE_QUEUES: str(write), PERM: str(perm)}

        def change(before: Mapping[str, str]) -> Mapping[str, str]:
            return {**before, **own}

        count = max(read, write)
        topic = self._topics.get(name)
        if topic is None:
            topic = await self._topics.open(name, count, own)
        if len(topic.partitions) < count:
            topic = await self._topics.grow(name, count)
        if change(topic.config) != topic.config:
            await self._topics.alter_config(name, change)
        call.answer()

    async def delete(self, call: Call) -> None:
        """DELETE_TOPIC_IN_BROKER: also where there is none, as by RocketMQ."""
        topic = self._topics.get(log_name(call.text("topic")))
        if topic is not None:
            await self._topics.delete(topic.name, topic)
        call.answer()
