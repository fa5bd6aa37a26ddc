"""Who is connected, and what clients tell of themselves.

GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204) and GET_ALL_PRODUCER_INFO (328) are answered from
heartbeats. INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY
(309) are forwarded to clients, and answered with what they answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.addresses import format_address
from headrace.doors.rocketmq import messages
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import Call, RemotingConnection
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import LANGUAGES, dump
from headrace.doors.rocketmq.names import rocketmq_name
from headrace.doors.rocketmq.remoting.handlers.lookup import LookupHandlers
from headrace.doors.rocketmq.remoting.queues import dump_with
from headrace.doors.rocketmq.subscriptions import describe_subscription

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# The fields of an offset id: an address of IPv4 or IPv6 and a port, and the physical offset.
_ID_LENGTHS = (32, 56)
_PHYSICAL_DIGITS = 16
# The offsets by queue in a client's answer, which is no JSON (`queues.py`).
_POSITIONS = re.compile(rb'"messageQueueTable":(\{(?:\{[^{}]*\}:-?\d+,?)*\})')


class ConnectionHandlers:
    """Describes clients, and asks them."""

    def __init__(self, remoting: Remoting, lookup: LookupHandlers) -> None:
        self._remoting = remoting
        self._lookup = lookup

    def consumers(self, call: Call) -> None:
        """GET_CONSUMER_CONNECTION_LIST."""
        group_id = call.text("consumerGroup")
        group = self._remoting.broker.groups.rocketmq.find(group_id)
        members = self._remoting.members(group_id)
        if group is None or not members or members[0].client is None:
            raise ResponseError(Code.CONSUMER_NOT_ONLINE, f"the consumer group[{group_id}] is not online")
        how = members[0].client.consumers[group_id]
        call.answer(
            body=dump(
                {
                    "connectionSet": _connections(members),
                    "consumeFromWhere": how.consume_from,
                    "consumeType": how.consume_type,
                    "messageModel": how.message_model,
                    "subscriptionTable": {
                        name: describe_subscription(name, subscription)
                        for topic in {topic: None for each in group.members.values() for topic in each.subscriptions}
                        if (name := rocketmq_name(topic)) is not None
                        and (subscription := group.subscription(topic)) is not None
                    },
                }
            )
        )

    def producers(self, call: Call) -> None:
        """GET_PRODUCER_CONNECTION_LIST."""
        group_id = call.text("producerGroup")
        found = self._remoting.producers.members(group_id)
        if not found:
            raise ResponseError(Code.SYSTEM_ERROR, f"the producer group[{group_id}] does not exist")
        described = [
            {
                "clientAddr": each.address,
                "clientId": each.client_id,
                "language": LANGUAGES[each.language],
                "version": each.version,
            }
            for each in found
        ]
        call.answer(body=dump({"connectionSet": described}))

    def all_producers(self, call: Call) -> None:
        """GET_ALL_PRODUCER_INFO."""
        producers = self._remoting.producers
        found = {
            group_id: [
                {
                    "clientId": each.client_id,
                    "language": LANGUAGES[each.language],
                    "lastUpdateTimestamp": each.heard_ms,
                    "remoteIP": f"/{each.address}",
                    "version": each.version,
                }
                for each in producers.members(group_id)
            ]
            for group_id in producers.names
        }
        call.answer(body=dump({"data": found}))

    # --- forwarded to clients -----------------------------------------------------------------------------------------

    async def status(self, call: Call) -> None:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the positions of each member, as it has them."""
        topic, group_id, only = call.text("topic"), call.text("group"), call.text("clientAddr", "")
        members = self._remoting.members(group_id)
        if not members:
            raise ResponseError(Code.CONSUMER_NOT_ONLINE, f"No consumer of the group[{group_id}] is online")
        table: dict[str, bytes] = {}
        for member in members:
            client_id = "" if member.client is None else member.client.client_id
            if only and only != client_id:
                continue
            answer = await member.ask(Request.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": group_id})
            if answer.code == Code.SUCCESS and answer.body:
                found = _POSITIONS.search(answer.body)
                table[client_id] = found[1] if found else b"{}"
        call.answer(body=dump_with({"consumerTable": dump_with(table), "messageQueueTable": b"{}"}))

    async def running(self, call: Call) -> None:
        """GET_CONSUMER_RUNNING_INFO."""
        await self._forward(call, call.request.fields, b"")

    async def consume(self, call: Call) -> None:
        """CONSUME_MESSAGE_DIRECTLY: a member consumes a message now, wherever its group is."""
        fields = {**call.request.fields, "brokerName": self._remoting.settings.rocketmq_broker_name}
        self._member(call)
        message_id = call.text("msgId")
        if len(message_id) not in _ID_LENGTHS:
            raise ResponseError(Code.INVALID_PARAMETER, f"{message_id[:60]!r} is not the offset id of a message")
        try:
            physical = int(message_id[-_PHYSICAL_DIGITS:], 16)
        except ValueError:
            raise ResponseError(Code.INVALID_PARAMETER, f"{message_id!r} is not the offset id of a message") from None
        await self._forward(call, fields, messages.encode(await self._lookup.find(call, physical)))

    async def _forward(self, call: Call, fields: dict[str, str], body: bytes) -> None:
        answer = await self._member(call).ask(call.request.code, fields, body)
        call.answer(answer.code, answer.fields, answer.body, answer.remark)

    def _member(self, call: Call) -> RemotingConnection:
        """The member that a request is for. Raises ResponseError."""
        group_id, client_id = call.text("consumerGroup"), call.text("clientId")
        for each in self._remoting.members(group_id):
            if each.client is not None and each.client.client_id == client_id:
                return each
        raise ResponseError(Code.SYSTEM_ERROR, f"The Consumer <{group_id}> <{client_id}> is not online")


def _connections(found: Iterable[RemotingConnection]) -> list[dict[str, object]]:
    return [
        {
            "clientAddr": format_address(*each.address),
            "clientId": each.client.client_id,
            "language": each.client.language,
            "version": each.client.version,
        }
        for each in found
        if each.client is not None
    ]
