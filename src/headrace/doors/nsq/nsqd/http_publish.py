"""Publishing over HTTP: /pub and /mpub, answered once the messages are durable.

A body becomes batches by the same kernels as over TCP. Requests share the partitions of a topic in turn; those of most
topics that NSQ made are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from headrace.broker.broker import Broker
from headrace.broker.deduplication.ids import HEADER as DEDUPLICATION_ID
from headrace.broker.deduplication.ids import ID_BYTES_MAX
from headrace.broker.durable import append_durably, durable
from headrace.config import Config
from headrace.doors.http.server.messages import Request
from headrace.doors.nsq.names import is_topic_name
from headrace.doors.nsq.nsqd import lines
from headrace.doors.nsq.nsqd import wire as nsq
from headrace.doors.nsq.nsqd.topics import Births
from headrace.doors.nsq.routes import ApiError, wanted
from headrace.errors import BatchTooLarge, HeadraceError, InvalidTopic, PartitionOffline, UnknownTopic
from headrace.format import records
from headrace.log.interface import Partition, Topic, Write

# As nsqd reads it, any other word too means binary.
FALSE = ("false", "0")
MPUB_COUNT_BYTES = 4


class Publisher:
    """The two handlers."""

    def __init__(self, broker: Broker, config: Config, births: Births) -> None:
        self._broker = broker
        self._config = config
        self._births = births
        self._turns = count()

    async def pub(self, request: Request, parameters: Mapping[str, str]) -> object:
        """The body is one message."""
        if len(request.body) > self._config.nsq_max_msg_size:
            raise ApiError(413, "MSG_TOO_BIG")
        if not request.body:
            raise ApiError(400, "MSG_EMPTY")
        name = topic_name(parameters)
        delay_ms = self._delay_ms(parameters)
        id = dedup_id(request, parameters)
        topic, partition = await self._place(name)
        once = id is not None and await self._knows_ids(topic)
        now = self._broker.ground.clock.now_ms()
        batch = records.build([(now, None, request.body, [] if id is None else [(DEDUPLICATION_ID, id)])])
        await self._append(topic, partition, batch, now + delay_ms if delay_ms else 0, once)
        return "OK"

    async def mpub(self, request: Request, parameters: Mapping[str, str]) -> object:
        """The body is many messages: one on each line, or NSQ's binary form. All are taken or none."""
        name = topic_name(parameters)
        size_max = self._config.nsq_max_msg_size
        is_binary = parameters.get("binary", "false") not in FALSE
        body = bytearray(request.body) if is_binary else lines.mpub_body(request.body, size_max)
        if body is None:
            raise ApiError(413, "MSG_TOO_BIG")
        topic, partition = await self._place(name)
        if is_binary or len(body) > MPUB_COUNT_BYTES:
            now = self._broker.ground.clock.now_ms()
            try:
                batches, _ = nsq.mpub(
                    body,
                    0,
                    len(body),
                    size_max,
                    self._config.nsq_max_body_size,
                    topic.settings.max_batch_bytes,
                    now,
                    False,
                )
            except nsq.Malformed as error:
                raise ApiError(413, error.nsq_code.removeprefix("E_")) from None
            await self._append(topic, partition, batches, 0)
        return "OK"

    def _delay_ms(self, parameters: Mapping[str, str]) -> int:
        if "defer" not in parameters:
            return 0
        try:
            delay = int(parameters["defer"])
        except ValueError:
            raise ApiError(400, "INVALID_DEFER") from None
        if not 0 <= delay <= self._config.nsq_max_req_timeout_ms:
            raise ApiError(400, "INVALID_DEFER")
        return delay

    async def _place(self, name: str) -> tuple[Topic, Partition]:
        """The topic, made if it is missing, and the partition of it whose turn it is, ready to be appended to."""
        try:
            topic = await self._births.ensure(name)
            partition = topic.partitions[next(self._turns) % len(topic.partitions)]
            if not partition.loaded:
                await partition.load()
            if partition.offline:
                raise PartitionOffline(partition.offline)
            room = self._broker.overflow.admit(topic)
            if room is not None:
                await room
        except InvalidTopic:
            raise ApiError(400, "INVALID_TOPIC") from None
        except UnknownTopic:
            raise ApiError(404, "TOPIC_NOT_FOUND") from None
        except HeadraceError as error:
            raise ApiError(503, "PUB_FAILED", str(error)) from None
        return topic, partition

    async def _knows_ids(self, topic: Topic) -> bool:
        """Whether a message with an id can be told from one that was there before; the topic's ids are loaded then."""
        deduplication = self._broker.deduplication
        try:
            if deduplication.heeds(topic):
                await deduplication.load(topic)
        except HeadraceError as error:
            raise ApiError(503, "PUB_FAILED", str(error)) from None
        return deduplication.ready(topic)

    async def _append(
        self, topic: Topic, partition: Partition, batches: bytearray, due_ms: int, once: bool = False
    ) -> None:
        """Return once the batches are durable, in the log or, with a time to come, in the timer; with `once`, unless
        they were before."""
        size = len(batches)
        try:
            if once:
                waiter, done = durable()
                if due_ms:
                    self._broker.deduplication.schedule(partition, batches, due_ms, done)
                else:
                    self._broker.deduplication.publish([(partition, batches)], done)
                await waiter
            elif due_ms:
                waiter, done = durable()
                self._broker.timer.schedule(topic, partition.index, batches, due_ms, done)
                await waiter
            else:
                await append_durably(self._broker.log, [Write(partition, batches)])
        except BatchTooLarge:
            raise ApiError(413, "MSG_TOO_BIG") from None
        except HeadraceError as error:
            raise ApiError(503, "PUB_FAILED", str(error)) from None
        metrics = self._broker.metrics.topic(topic.name)
        metrics.batches_in += 1
        metrics.bytes_in += size


def dedup_id(request: Request, parameters: Mapping[str, str]) -> bytes | None:
    """The deduplication id that a message is published with, from a parameter or a header."""
    given = parameters.get("dedup_id", request.headers.get("headrace-dedup-id"))
    if given is None:
        return None
    id = given.encode("utf-8", "surrogateescape")
    if not 1 <= len(id) <= ID_BYTES_MAX:
        raise ApiError(400, "INVALID_DEDUP_ID")
    return id


def topic_name(parameters: Mapping[str, str]) -> str:
    """The name of the topic that a request is for."""
    name = wanted(parameters, "topic")
    if not is_topic_name(name):
        raise ApiError(400, "INVALID_TOPIC")
    return name
