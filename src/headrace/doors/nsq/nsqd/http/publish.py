"""Publishing over HTTP: /pub and /mpub, answered once the messages are durable.

A body becomes batches by the same kernels as over TCP. Requests share the partitions of a topic in turn; those of most
topics that NSQ made are one.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.broker import Broker
from headrace.broker.deduplication.ids import HEADER, ID_BYTES_MAX
from headrace.broker.durable import durable
from headrace.broker.publish import Headers, Message
from headrace.doors.http.server.messages import HttpError, Request
from headrace.doors.nsq.errors import CommandError
from headrace.doors.nsq.names import log_name
from headrace.doors.nsq.nsqd import lines, publish_wire
from headrace.doors.nsq.nsqd.topics import NsqTopics
from headrace.doors.nsq.routes import topic_name
from headrace.doors.nsq.settings import NsqSettings

DEDUPLICATION_ID = HEADER.decode()
# As nsqd reads it, any other word too means binary.
FALSE = ("false", "0")
MPUB_COUNT_BYTES = 4


class PublishHandlers:
    """The two handlers."""

    def __init__(self, broker: Broker, settings: NsqSettings, topics: NsqTopics) -> None:
        self._broker = broker
        self._settings = settings
        self._topics = topics

    async def pub(self, request: Request, parameters: Mapping[str, str]) -> object:
        """The body is one message."""
        if len(request.body) > self._settings.nsq_max_msg_size:
            raise HttpError(413, "MSG_TOO_BIG")
        if not request.body:
            raise HttpError(400, "MSG_EMPTY")
        name = topic_name(parameters, "INVALID_TOPIC")
        delay_ms = self._delay_ms(parameters)
        id = dedup_id(request, parameters)
        now = self._broker.runtime.clock.now_ms()
        headers: Headers = [] if id is None else [(DEDUPLICATION_ID, id)]
        message = Message(None, request.body, headers, due_ms=now + delay_ms if delay_ms else 0)
        await self._broker.publisher.publish(request.session, log_name(name), [message], self._topics.settings(name))
        return "OK"

    async def mpub(self, request: Request, parameters: Mapping[str, str]) -> object:
        """The body is many messages: one on each line, or NSQ's binary form. All are taken or none."""
        name = topic_name(parameters, "INVALID_TOPIC")
        size_max = self._settings.nsq_max_msg_size
        is_binary = parameters.get("binary", "false") not in FALSE
        body = bytearray(request.body) if is_binary else lines.mpub_body(request.body, size_max)
        if body is None:
            raise HttpError(413, "MSG_TOO_BIG")
        session, publisher = request.session, self._broker.publisher
        publisher.take(session, len(body))
        admission = await publisher.ready(session, log_name(name), self._topics.settings(name))
        if is_binary or len(body) > MPUB_COUNT_BYTES:
            try:
                batches, _ = publish_wire.mpub(
                    body,
                    0,
                    len(body),
                    size_max,
                    self._settings.nsq_max_body_size,
                    admission.topic.settings.max_batch_bytes,
                    self._broker.runtime.clock.now_ms(),
                    False,
                )
            except CommandError as error:
                raise HttpError(413, error.nsq_code.removeprefix("E_")) from None
            waiter, done = durable(None)
            publisher.append(admission, session.partition_of(admission.topic), batches, done).complete(done)
            await waiter
        return "OK"

    def _delay_ms(self, parameters: Mapping[str, str]) -> int:
        if "defer" not in parameters:
            return 0
        try:
            delay = int(parameters["defer"])
        except ValueError:
            raise HttpError(400, "INVALID_DEFER") from None
        if not 0 <= delay <= self._settings.nsq_max_req_timeout_ms:
            raise HttpError(400, "INVALID_DEFER")
        return delay


def dedup_id(request: Request, parameters: Mapping[str, str]) -> bytes | None:
    """The deduplication id that a message is published with, from a parameter or a header."""
    given = parameters.get("dedup_id", request.headers.get("headrace-dedup-id"))
    if given is None:
        return None
    id = given.encode("utf-8", "surrogateescape")
    if not 1 <= len(id) <= ID_BYTES_MAX:
        raise HttpError(400, "INVALID_DEDUP_ID")
    return id
