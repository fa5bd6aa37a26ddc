"""SendMessage and RecallMessage: messages for now and for later, and prepared ones.

The messages of a request are stored all or none. Those of one message group go to one queue, by the group's hash; one
with a priority to the queue of that number; the others to the queues in turn. A message for later gets a handle with
which it can be recalled until it is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.publish import Headers, Message, Place
from headrace.broker.publish.messages import DEDUPLICATION_ID
from headrace.broker.security import Session
from headrace.doors.receiving import EndOfTurn
from headrace.doors.rocketmq.grpc.clients import Clients
from headrace.doors.rocketmq.grpc.methods import Caller
from headrace.doors.rocketmq.grpc.proto_messages import (
    check_message,
    has_priority,
    is_packed,
    read_message,
    to_ms,
    type_of,
    unpack_body,
)
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, definition, service
from headrace.doors.rocketmq.grpc.resources import topic_of
from headrace.doors.rocketmq.grpc.status import ResponseError, make_status
from headrace.doors.rocketmq.grpc.transactions import TransactionHandlers
from headrace.doors.rocketmq.recall import RecallHandle, decode_handle
from headrace.doors.rocketmq.sender import Row, Send, Sender
from headrace.doors.rocketmq.settings import RocketMqSettings
from headrace.doors.rocketmq.topics import ANY_TYPES, WRITE, RocketMqTopics, shape_of
from headrace.doors.rocketmq.unpacking import INLINE_BYTES, TooLargeHere
from headrace.format.partitioning import partition_of
from headrace.log.interface import Topic

_d: Any = definition
_s: Any = service
MESSAGES_MAX = 1_024
# What a record takes beside its body, generously.
ROW_BYTES = 1_024


class SendHandlers:
    """Takes what producers send."""

    def __init__(
        self,
        broker: Broker,
        settings: RocketMqSettings,
        topics: RocketMqTopics,
        clients: Clients,
        transactions: TransactionHandlers,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._topics = topics
        self._clients = clients
        self._transactions = transactions
        self._turn = count()
        self._sender = Sender(broker, EndOfTurn().soon)

    async def send(self, caller: Caller, request: Proto) -> Proto:
        """SendMessage."""
        messages = request.messages
        if not 0 < len(messages) <= MESSAGES_MAX:
            raise ResponseError(
                Code.MESSAGE_CORRUPTED, f"no message to send, or more than {MESSAGES_MAX} (there are {len(messages)})"
            )
        topic = topic_of(messages[0].topic)
        for message in messages:
            if message.topic != messages[0].topic:
                raise ResponseError(Code.MESSAGE_CORRUPTED, "topic in message is not same")
            check_message(message, self._settings.rocketmq_max_message_size)
            _check_type(message)
        opened = await self._topics.open(topic, self._topics.queues_of_new, caller.session)
        shape = shape_of(opened)
        if not shape.perm & WRITE or not shape.write_queues:
            raise ResponseError(Code.FORBIDDEN, f"the topic[{topic}] may not be written (rocketmq.perm)")
        _check_types(shape.message_type, messages)
        turn = next(self._turn)
        bodies = [await self._body(message) for message in messages]
        rows = []
        for message, body in zip(messages, bodies, strict=True):
            key, headers = read_message(message, caller.host, topic)
            if has_priority(message):
                queue = min(message.system_properties.priority, shape.write_queues - 1)
            else:
                queue = turn % shape.write_queues if key is None else partition_of(key, shape.write_queues)
            rows.append((queue, (key, body, headers)))
        if any(message.system_properties.message_type == _d.TRANSACTION for message in messages):
            entries = await self._prepare(caller, topic, opened, messages, rows)
        else:
            entries = await self._publish(caller.session, topic, opened, messages, rows)
        return _s.SendMessageResponse(status=make_status(), entries=entries)

    async def _body(self, message: Proto) -> bytes:
        limit = self._settings.rocketmq_max_message_size
        if not is_packed(message):
            return bytes(message.body)
        try:
            return unpack_body(message, limit, INLINE_BYTES)
        except TooLargeHere:
            return await self._broker.runtime.offload.run(unpack_body, message, limit, limit)

    async def _publish(
        self,
        session: Session,
        topic: str,
        opened: Topic,
        messages: Sequence[Proto],
        rows: Sequence[tuple[int, tuple[bytes | None, bytes, Headers]]],
    ) -> list[Proto]:
        if len(messages) == 1 and not messages[0].system_properties.HasField("delivery_timestamp"):
            ((queue, row),) = rows
            offset = await self._append(session, opened, queue, row)
            if offset is not None:
                return [self._entry(topic, messages[0], Place(queue, offset))]
        asked = [
            Message(*row, queue, to_ms(message.system_properties.delivery_timestamp))
            for message, (queue, row) in zip(messages, rows, strict=True)
        ]
        places = await self._broker.publisher.publish(session, opened.name, asked)
        return [self._entry(topic, message, place) for message, place in zip(messages, places, strict=True)]

    async def _append(self, session: Session, topic: Topic, queue: int, row: Row) -> int | None:
        """Append a message with the others of this turn of the loop; its offset, None where it takes more than that."""
        partition = topic.partitions[queue]
        admission = self._broker.publisher.admit(session, topic)
        if not self._sender.can_append(admission, partition) or any(name == DEDUPLICATION_ID for name, _ in row[2]):
            return None
        self._broker.publisher.take(session, len(row[1] or b""))
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_done(error: Exception | None, base: int) -> None:
            if waiter.done():
                # The client did not wait.
                return
            if error is None:
                waiter.set_result(base)
            else:
                waiter.set_exception(error)

        self._sender.add(Send(admission, [row], len(row[1] or b"") + ROW_BYTES, on_done), partition)
        return await waiter

    def _entry(self, topic: str, message: Proto, place: Place) -> Proto:
        message_id = message.system_properties.message_id
        handle = ""
        if place.timer:
            unique_key = "-" if " " in message_id else message_id
            broker = self._settings.rocketmq_broker_name
            handle = RecallHandle(topic, broker, place.due_ms, unique_key, place.timer).encode()
        return _s.SendResultEntry(
            status=make_status(),
            message_id=message_id,
            transaction_id=message_id,
            offset=max(place.offset, 0),
            recall_handle=handle,
        )

    async def _prepare(
        self,
        caller: Caller,
        topic: str,
        opened: Topic,
        messages: Sequence[Proto],
        rows: Sequence[tuple[int, tuple[bytes | None, bytes, Headers]]],
    ) -> list[Proto]:
        if len(messages) > 1:
            raise ResponseError(
                Code.MESSAGE_CORRUPTED, "a transaction has one message: send them in requests of their own"
            )
        client = self._clients.find(caller.client_id)
        if client is not None:
            client.publish([topic], self._transactions.ask)
        ((queue, row),) = rows
        transaction_id = await self._transactions.prepare(caller.session, topic, opened.name, queue, messages[0], row)
        message_id = messages[0].system_properties.message_id
        return [_s.SendResultEntry(status=make_status(), message_id=message_id, transaction_id=transaction_id)]

    # --- recalling ----------------------------------------------------------------------------------------------------

    async def recall(self, caller: Caller, request: Proto) -> Proto:
        """RecallMessage."""
        topic = topic_of(request.topic)
        handle = decode_handle(request.recall_handle)
        if (handle.topic, handle.broker_name) != (topic, self._settings.rocketmq_broker_name):
            raise ResponseError(
                Code.BAD_REQUEST, f"the recall handle is one of the topic {handle.topic[:80]}, not of {topic}"
            )
        if not await self._broker.timer.cancel(handle.timer):
            raise ResponseError(
                Code.MESSAGE_NOT_FOUND, "no message waits by this handle: it was delivered, or recalled"
            )
        return _s.RecallMessageResponse(status=make_status(), message_id=handle.unique_key)


def _check_types(wanted: str, messages: Sequence[Proto]) -> None:
    """Raise ResponseError where a message is not of the type that its topic takes."""
    if wanted in ANY_TYPES:
        return
    for message in messages:
        found = _d.MessageType.Name(type_of(message))
        if found != wanted:
            raise ResponseError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"TopicMessageType validate failed, topic type is {wanted}, message type is {found}",
            )


def _check_type(message: Proto) -> None:
    """Raise ResponseError where a message is not of the type that it says."""
    system = message.system_properties
    is_delayed, is_grouped = system.HasField("delivery_timestamp"), system.HasField("message_group")
    if system.HasField("lite_topic"):
        raise ResponseError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "messages of lite topics are not taken. Send another type."
        )
    if system.HasField("priority") and system.priority < 0:
        raise ResponseError(Code.BAD_REQUEST, f"a priority is 0 or more (got {system.priority})")
    conflicts = {
        _d.NORMAL: is_delayed or is_grouped,
        _d.FIFO: is_delayed or not is_grouped,
        _d.DELAY: not is_delayed or is_grouped,
        _d.TRANSACTION: is_delayed,
        _d.PRIORITY: not has_priority(message),
        _d.MESSAGE_TYPE_UNSPECIFIED: False,
    }
    if conflicts.get(system.message_type, True):
        raise ResponseError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the properties of the message are not those of its type, {system.message_type}",
        )
