"""SEND_REPLY_MESSAGE (324, 325): the reply to a request, which goes straight to the client that waits for it (326).

A producer's request is a message like any other, with the id of its client. The consumer's reply names that client, and
the broker passes it on, if the client is connected here. Replies are not stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.messages import read_properties, write_properties
from headrace.doors.rocketmq.records import REPLY_TO_CLIENT
from headrace.doors.rocketmq.remoting.handlers.send import field_names

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

PUSHED_AT = "PUSH_REPLY_TIME"
_FIELDS = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp"),
    *("flag", "reconsumeTimes", "unitMode"),
)


class ReplyHandler:
    """Passes replies on."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting

    async def handle(self, call: Call) -> None:
        """Answered once the client has the reply."""
        names = field_names(call.request.code)
        properties = read_properties(call.text(names["properties"], ""))
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            raise ResponseError(Code.SYSTEM_ERROR, f"reply message properties[{REPLY_TO_CLIENT}] is null")
        client = self._remoting.clients.get(client_id)
        if client is None:
            raise ResponseError(
                Code.SYSTEM_ERROR,
                f"push reply message fail, channel of <{client_id[:80]}> not found: it is not connected",
            )
        now = self._remoting.broker.runtime.clock.now_ms()
        given = call.request.fields
        fields = {name: given[names[name]] for name in _FIELDS if names[name] in given}
        fields |= {
            "bornHost": str(self._remoting.born_host(call.connection)),
            "storeHost": str(self._remoting.store_host(call.connection)),
            "storeTimestamp": str(now),
            "properties": write_properties(properties | {PUSHED_AT: str(now)}),
        }
        try:
            answer = await client.ask(Request.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, call.request.body)
        except ResponseError as error:
            raise ResponseError(Code.SYSTEM_ERROR, f"push reply message to {client_id[:80]} fail: {error}") from None
        if answer.code != Code.SUCCESS:
            raise ResponseError(Code.SYSTEM_ERROR, f"push reply message to {client_id[:80]} fail: {answer.remark}")
        call.answer(fields={"msgId": "0", "queueId": call.text(names["queueId"], "0"), "queueOffset": "0"})
