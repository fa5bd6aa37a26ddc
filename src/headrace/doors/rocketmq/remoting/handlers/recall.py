"""RECALL_MESSAGE (370): take a delayed message back before it is delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.recall import decode_handle

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting


class RecallHandler:
    """Recalls messages."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting

    async def handle(self, call: Call) -> None:
        """RECALL_MESSAGE. One that was recalled before is answered alike: it will not be delivered."""
        name = call.text("topic")
        self._remoting.topics.existing(name)
        handle = decode_handle(call.text("recallHandle"))
        if handle.topic != name or handle.broker_name != self._remoting.settings.rocketmq_broker_name:
            raise ResponseError(
                Code.ILLEGAL_OPERATION,
                f"the recall handle is one of the topic {handle.topic[:80]} at {handle.broker_name[:80]}, not of "
                f"{name}",
            )
        broker = self._remoting.broker
        if not await broker.timer.cancel(handle.timer) and handle.due_ms <= broker.runtime.clock.now_ms():
            raise ResponseError(Code.ILLEGAL_OPERATION, "recall failed, timestamp invalid: the message was delivered")
        call.answer(fields={"msgId": handle.unique_key})
