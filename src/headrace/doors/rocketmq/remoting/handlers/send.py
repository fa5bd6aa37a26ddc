"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): one message, or several of one topic.

To a warm topic without rules of its own a send is a plain call: it joins the batch of this turn of the loop. What must
be made, loaded, unpacked off the loop, delayed or let in first goes the way of every other door's messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.broker.publish import Admission, Message
from headrace.broker.publish.messages import DEDUPLICATION_ID
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.messages import (
    COMMITTED,
    COMPRESSED,
    PREPARED,
    PROPERTIES_BYTES_MAX,
    TRANSACTION,
    decode_batch,
    offset_id,
    read_properties,
)
from headrace.doors.rocketmq.names import DEFAULT_TOPIC, RETRY, dead_letter_topic, log_name
from headrace.doors.rocketmq.recall import RecallHandle, due_ms
from headrace.doors.rocketmq.records import (
    CLUSTER,
    DELAY,
    PRIORITY,
    REAL_QUEUE,
    REAL_TOPIC,
    REPLY_TO_CLIENT,
    TIMERS,
    UNIQUE_KEY,
    headers_of,
    key_of,
    priority_of,
)
from headrace.doors.rocketmq.sender import Row, Send
from headrace.doors.rocketmq.topics import WRITE, shape_of
from headrace.doors.rocketmq.transactions import PRODUCER_GROUP, TRANSACTION_PREPARED, strip_marks
from headrace.doors.rocketmq.unpacking import TooLargeHere, clear_compression, unpack
from headrace.log.interface import Partition, Topic

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# The names of the fields, and those of one letter that the second form has.
_SHORT = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "unitMode": "k",
}
_LONG = {name: name for name in _SHORT}
_DELAYS = TIMERS | {DELAY}
# The level of what is not delivered again.
NEVER = "-1"
# Of a larger batch so many messages are read before the loop has its turn.
BATCH_BYTES_NOW = 65_536
STEP_MESSAGES = 1_000
# What a record takes beside its body and properties, generously.
ROW_BYTES = 200


def field_names(code: int) -> Mapping[str, str]:
    """The names of the fields of a request."""
    return _LONG if code in (Request.SEND_MESSAGE, Request.SEND_REPLY_MESSAGE) else _SHORT


@dataclass(frozen=True, slots=True)
class SendRequest:
    """What a producer asks for."""

    topic: str
    queue_id: int
    properties: dict[str, str]
    """Of a single message."""
    body: bytes
    sys_flag: int
    flag: int
    born_ms: int
    is_batch: bool
    reconsume_times: int
    queues: int
    """That a topic shall have which is made by this message."""
    group: str
    """The producer's."""

    @property
    def size(self) -> int:
        """About that of what is stored."""
        return len(self.body) + sum(map(len, self.properties.values()))

    @property
    def is_prepared(self) -> bool:
        """Whether no reader is to see it until its transaction is committed."""
        if self.reconsume_times > 0 and DELAY in self.properties:
            # A consumer sends a message to be consumed again with all properties that it had.
            return False
        return self.properties.get(TRANSACTION_PREPARED) == "true" or self.sys_flag & TRANSACTION == PREPARED


class SendHandler:
    """Takes what producers send."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._broker = remoting.broker
        self._sender = remoting.sender

    def handle(self, call: Call) -> Coroutine[Any, Any, None] | None:
        if not self._broker.rocketmq.loaded:
            return self._load(call)
        request = self._parse(call)
        if request.is_prepared:
            return self._prepare(call, request)
        topic = self._broker.topics.get(log_name(request.topic))
        if topic is None or not _DELAYS.isdisjoint(request.properties) or _has_id(request):
            return self._publish(call, request)
        partition = topic.partitions[self._queue(call, request, topic)]
        admission = self._broker.publisher.admit(call.session_to(request.topic), topic)
        if not self._sender.can_append(admission, partition):
            return self._publish(call, request)
        self._broker.publisher.take(call.connection.session, request.size)
        try:
            request = self._unpack_now(request)
        except TooLargeHere:
            return self._publish(call, request)
        if request.is_batch and len(request.body) > BATCH_BYTES_NOW:
            return self._read_and_append(call, request, admission, partition)
        self._append(call, request, admission, partition, self._rows(call, request))
        return None

    async def _load(self, call: Call) -> None:
        """The first sends after a start."""
        await self._broker.rocketmq.load()
        work = self.handle(call)
        if work is not None:
            await work

    async def _read_and_append(
        self, call: Call, request: SendRequest, admission: Admission, partition: Partition
    ) -> None:
        """Append a large batch, of which the loop reads a part at a time."""
        rows: list[Row] = []
        for row in self._read(call, request):
            rows.append(row)
            if len(rows) % STEP_MESSAGES == 0:
                await asyncio.sleep(0)
        self._append(call, request, admission, partition, _checked(rows))

    def _append(
        self, call: Call, request: SendRequest, admission: Admission, partition: Partition, rows: Sequence[Row]
    ) -> None:
        """Append with the other sends of this turn, and answer."""
        connection, body_size = call.connection, len(call.request.body)
        connection.hold(body_size)

        def on_done(error: Exception | None, base: int) -> None:
            connection.let_go(body_size)
            if error is not None:
                call.refuse(error)
            else:
                offsets = range(base, base + len(rows))
                self._sender.answer(call, partition, offsets, request.properties.get(UNIQUE_KEY))

        size = request.size + ROW_BYTES * len(rows)
        self._sender.add(Send(admission, rows, size, on_done), partition)

    # --- the request --------------------------------------------------------------------------------------------------

    def _parse(self, call: Call) -> SendRequest:
        names = field_names(call.request.code)
        text = call.text(names["properties"], "")
        body = call.request.body
        limit = self._remoting.settings.rocketmq_max_message_size
        if len(body) > limit:
            raise ResponseError(
                Code.MESSAGE_ILLEGAL,
                f"the body has {len(body)} bytes, and at most {limit} are taken (rocketmq_max_message_size)",
            )
        if len(text) > PROPERTIES_BYTES_MAX or len(text.encode()) > PROPERTIES_BYTES_MAX:
            raise ResponseError(Code.MESSAGE_ILLEGAL, f"the properties have more than {PROPERTIES_BYTES_MAX} bytes")
        properties = read_properties(text)
        if REPLY_TO_CLIENT in properties:
            # By it the consumer knows where a reply goes.
            properties[CLUSTER] = self._remoting.settings.rocketmq_cluster
        sys_flag = call.number(names["sysFlag"], 0)
        request = SendRequest(
            topic=call.text(names["topic"]),
            queue_id=call.number(names["queueId"], -1),
            properties=properties,
            body=body,
            sys_flag=sys_flag,
            flag=call.number(names["flag"], 0),
            born_ms=call.number(names["bornTimestamp"], 0),
            is_batch=call.request.code == Request.SEND_BATCH_MESSAGE or call.flag(names["batch"]),
            reconsume_times=call.number(names["reconsumeTimes"], 0),
            queues=call.number(names["defaultTopicQueueNums"], 4),
            group=call.text(names["producerGroup"], ""),
        )
        if PRIORITY in properties and (request.is_prepared or priority_of(properties) < 0):
            # It is of another type, as by RocketMQ's broker.
            del properties[PRIORITY]
        if request.topic == DEFAULT_TOPIC:
            raise ResponseError(Code.INVALID_PARAMETER, f"the topic[{DEFAULT_TOPIC}] is a system topic: choose another")
        if request.topic.startswith(RETRY):
            group = request.topic.removeprefix(RETRY)
            settings = self._remoting.existing_group(group)
            most = call.number(names["maxReconsumeTimes"], settings.retries_max)
            # An orderly consumer, which has locks, sends back only what it has given up, as RocketMQ's broker knows.
            if request.reconsume_times > most or self._is_locked(group):
                properties[DELAY] = NEVER
                request = replace(request, topic=dead_letter_topic(group), queue_id=0)
        return request

    def _is_locked(self, group: str) -> bool:
        found = self._broker.groups.rocketmq.find(group)
        return found is not None and found.has_locks(self._broker.runtime.clock.now_ms())

    def _queue(self, call: Call, request: SendRequest, topic: Topic) -> int:
        """The queue of a request. Raises ResponseError."""
        shape = shape_of(topic)
        if not shape.perm & WRITE:
            raise ResponseError(Code.NO_PERMISSION, f"the topic[{request.topic}] may not be written (rocketmq.perm)")
        if request.queue_id >= len(topic.partitions):
            raise ResponseError(
                Code.INVALID_PARAMETER,
                f"request queueId[{request.queue_id}] is illegal: the topic {request.topic} has "
                f"{len(topic.partitions)} queues, the first being 0",
            )
        priority = -1 if request.is_batch else priority_of(request.properties)
        if priority >= 0:
            return min(priority, max(shape.write_queues, 1) - 1)
        if request.queue_id >= 0:
            return request.queue_id
        return call.connection.session.number % max(shape.write_queues, 1)

    def _unpack_now(self, request: SendRequest) -> SendRequest:
        if not request.sys_flag & COMPRESSED:
            return request
        limit = self._remoting.settings.rocketmq_max_message_size
        return replace(
            request, body=unpack(request.sys_flag, request.body, limit), sys_flag=clear_compression(request.sys_flag)
        )

    def _rows(self, call: Call, request: SendRequest) -> list[Row]:
        """The records of a request. Raises InvalidRecords or ResponseError."""
        return _checked(list(self._read(call, request)))

    def _read(self, call: Call, request: SendRequest) -> Iterator[Row]:
        host = self._remoting.born_host(call.connection)

        def row(properties: dict[str, str], body: bytes, flag: int) -> Row:
            headers = headers_of(
                properties,
                born_ms=request.born_ms,
                born_host=host,
                flag=flag,
                sys_flag=request.sys_flag,
                reconsume_times=request.reconsume_times,
            )
            return key_of(properties), body, headers

        if not request.is_batch:
            yield row(request.properties, request.body, request.flag)
            return
        for flag, body, text in decode_batch(request.body):
            yield row(read_properties(text), body, flag)

    # --- what awaits --------------------------------------------------------------------------------------------------

    async def _publish(self, call: Call, request: SendRequest) -> None:
        topic = await self._remoting.topics.open(request.topic, request.queues, call.connection.session)
        queue_id = self._queue(call, request, topic)
        request = await self._unpack(request)
        due, request = self._delay(request, queue_id)
        messages = [Message(*row, queue_id, due) for row in self._rows(call, request)]
        await self._broker.rocketmq.number(topic)
        places = await self._broker.publisher.publish(call.session_to(request.topic), topic.name, messages)
        partition = topic.partitions[places[0].partition]
        offsets = [each.offset for each in places]
        unique_key = request.properties.get(UNIQUE_KEY)
        more = {}
        if places[0].timer and not TIMERS.isdisjoint(request.properties) and not request.topic.startswith(RETRY):
            name = self._remoting.settings.rocketmq_broker_name
            handle = RecallHandle(request.topic, name, due, unique_key or "-", places[0].timer)
            more["recallHandle"] = handle.encode()
        self._sender.answer(call, partition, offsets, unique_key, more)

    async def _prepare(self, call: Call, request: SendRequest) -> None:
        """Store a prepared message: its producer ends the transaction by the physical offset of the answer."""
        if request.is_batch or not _DELAYS.isdisjoint(request.properties):
            raise ResponseError(Code.MESSAGE_ILLEGAL, "a prepared message cannot be in a batch, or be delayed")
        topic = await self._remoting.topics.open(request.topic, request.queues, call.connection.session)
        queue_id = self._queue(call, request, topic)
        request = await self._unpack(request)
        group = request.properties.get(PRODUCER_GROUP) or request.group
        stored = replace(
            request,
            properties=strip_marks(request.properties),
            sys_flag=request.sys_flag & ~TRANSACTION | COMMITTED,
        )
        (row,) = self._rows(call, stored)
        transactions = self._remoting.transactions
        place = await transactions.prepare(topic, queue_id, row, group, request.properties, call.connection.session)
        fields = {
            "msgId": offset_id(self._remoting.store_host(call.connection), place.physical_offset),
            "queueId": str(queue_id),
            "queueOffset": str(place.queue_offset),
        }
        if (unique_key := request.properties.get(UNIQUE_KEY)) is not None:
            fields["transactionId"] = unique_key
        call.answer(fields=fields)

    async def _unpack(self, request: SendRequest) -> SendRequest:
        """A request with its body unpacked, off the loop."""
        if not request.sys_flag & COMPRESSED:
            return request
        limit = self._remoting.settings.rocketmq_max_message_size
        body = await self._broker.runtime.offload.run(unpack, request.sys_flag, request.body, limit, limit)
        return replace(request, body=body, sys_flag=clear_compression(request.sys_flag))

    def _delay(self, request: SendRequest, queue_id: int) -> tuple[int, SendRequest]:
        """When the message is due, and the message as it then appears. A delay level goes before a time."""
        if request.is_batch:
            return 0, request
        now = self._broker.runtime.clock.now_ms()
        level = request.properties.get(DELAY, "0")
        properties = request.properties
        if delay := self._remoting.delay_ms(int(level) if level.isdecimal() and len(level) < 10 else 0):
            due = now + delay
            properties = {name: value for name, value in properties.items() if name not in TIMERS}
        else:
            due = due_ms(properties, now)
        if not due:
            return 0, request
        return due, replace(request, properties=properties | {REAL_TOPIC: request.topic, REAL_QUEUE: str(queue_id)})


def _checked(rows: list[Row]) -> list[Row]:
    if not rows:
        raise ResponseError(Code.MESSAGE_ILLEGAL, "the batch has no messages")
    return rows


def _has_id(request: SendRequest) -> bool:
    """Whether a message may have a deduplication id, as a property."""
    return DEDUPLICATION_ID in request.properties or (request.is_batch and DEDUPLICATION_ID.encode() in request.body)
