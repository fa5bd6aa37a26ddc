"""One client of the name server or of the broker: frames in, answers out in whatever order they are ready.

Answers carry the `opaque` of their request, so a request that awaits something (a pull above all) holds back no other.
What is ready by the end of a turn of the loop goes out in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from headrace.broker.quotas.steps import timed
from headrace.broker.security import OWN, Identity, Operation, Resource, Session
from headrace.broker.security.watches import Watch
from headrace.doors.connection import BUSY, FULL, LOST, BufferedConnection
from headrace.doors.rocketmq import frames
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.errors import ResponseError, translate
from headrace.doors.rocketmq.frames import HEAD, HEADER_BYTES_MAX, LENGTH_MASK, ONE_WAY, RESPONSE, Command, Malformed
from headrace.doors.rocketmq.gate import topic_resource
from headrace.doors.rocketmq.loop_time import KEPT_REQUESTS, PULLS
from headrace.doors.rocketmq.names import RETRY
from headrace.errors import AuthenticationFailed, HeadraceError, NotAuthorized

if TYPE_CHECKING:
    from headrace.doors.rocketmq.client import Client
    from headrace.doors.rocketmq.listener import RemotingListener
    from headrace.doors.rocketmq.membership import Memberships
    from headrace.doors.rocketmq.send_routes import Producer

log = structlog.get_logger("headrace.rocketmq")

# Requests of one client that await something; a consumer has a pull for each of its queues.
AWAITING_MAX = 16_384
# Bodies of requests of one client that are not answered yet.
AWAITING_BYTES_MAX = 16_777_216
LARGE_ANSWER = 65_536
INT64_MAX = (1 << 63) - 1
OPAQUE_MAX = (1 << 31) - 1


class Call:
    """A request under way."""

    __slots__ = ("connection", "request")

    def __init__(self, connection: RemotingConnection, request: Command) -> None:
        self.connection = connection
        self.request = request

    def answer(
        self,
        code: int = Code.SUCCESS,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> None:
        """Send the answer, unless none is wanted."""
        request = self.request
        if not request.is_one_way:
            self.connection.send(
                Command(code, request.opaque, RESPONSE, fields or {}, body, remark, serialization=request.serialization)
            )

    def refuse(self, error: Exception) -> None:
        """Send the answer to a request that cannot be done."""
        if isinstance(error, HeadraceError):
            refused = translate(error)
            self.answer(refused.response, refused.fields, remark=str(refused))
        else:
            log.error("a request failed", client=self.connection.name, code=self.request.code, exc_info=error)
            self.answer(Code.SYSTEM_ERROR, remark="the request failed: see the broker's log")

    # --- rights -------------------------------------------------------------------------------------------------------

    def check(self, operation: Operation, resource: Resource, name: str) -> None:
        """Raise NotAuthorized unless the client may do that."""
        self.connection.door.broker.security.check(self.connection.session, operation, resource, name)

    def check_topic(self, operation: Operation, name: str) -> None:
        """The same for a topic by RocketMQ's name."""
        resource, resource_name = topic_resource(name)
        self.check(Operation.READ if resource is Resource.GROUP else operation, resource, resource_name)

    def sees(self, topics: Iterable[str]) -> list[str]:
        """Those of some topics, by RocketMQ's names, that the client may describe."""
        security, session = self.connection.door.broker.security, self.connection.session
        found = []
        for name in topics:
            resource, resource_name = topic_resource(name)
            if security.visible(session, resource, [resource_name]):
                found.append(name)
        return found

    def session_to(self, topic: str) -> Session:
        """As whom a message goes to a topic: to a retry topic as the broker itself, for those who may read the group
        may not write such topics otherwise."""
        return OWN if topic.startswith(RETRY) else self.connection.session

    # --- fields of the request ----------------------------------------------------------------------------------------

    def text(self, name: str, default: str | None = None) -> str:
        """A field that must be there unless it has a default. Raises ResponseError."""
        value = self.request.fields.get(name, default)
        if value is None:
            raise ResponseError(Code.INVALID_PARAMETER, f"the request has no field {name}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """A field that is a number. Raises ResponseError."""
        value = self.request.fields.get(name)
        if value is None and default is not None:
            return default
        if value is not None and len(value) <= 18 and value.isdecimal():
            return int(value)
        try:
            number = int(self.text(name)) if len(value or "") <= 20 else INT64_MAX + 1
        except ValueError:
            number = INT64_MAX + 1
        if not -INT64_MAX <= number <= INT64_MAX:
            raise ResponseError(Code.INVALID_PARAMETER, f"the field {name} is not a number ({str(value)[:40]!r})")
        return number

    def flag(self, name: str) -> bool:
        """A field that is true or, also where it is missing, false."""
        return self.request.fields.get(name, "").lower() == "true"


async def _refuse_later(call: Call, error: AuthenticationFailed) -> None:
    """Answer a request whose client is not who it says, the later the more of them there were."""
    await asyncio.sleep(error.delay_ms / 1000)
    raise error


# Handles a request at once, or returns what awaits.
Handler = Callable[[Call], Coroutine[Any, Any, None] | None]
Handlers = Mapping[int, Handler]


class RemotingConnection(BufferedConnection):
    """A client."""

    __slots__ = (
        *("_asked", "_awaiting", "_awaiting_bytes", "_drained", "_out", "_requests"),
        *("client", "heartbeat", "memberships", "on_lost", "producer", "session", "suspended", "watches"),
    )

    door: RemotingListener

    def __init__(self, door: RemotingListener, number: int) -> None:
        super().__init__(door)
        self.session = Session(number, door=door.metrics.name)
        self.session.on_ended = self.end
        self.watches: dict[tuple[Operation, Resource, str], Watch] = {}
        """The rights that its requests live by."""
        self.memberships: Memberships | None = None
        """The groups that the client's heartbeats name."""
        self.on_lost: list[Callable[[], None]] = []
        """Called when the connection is lost."""
        self.client: Client | None = None
        """What the last heartbeat told of the client."""
        self.heartbeat = 0.0
        """When the last one came, by the loop's clock; 0: none did."""
        self.producer: Producer | None = None
        """What is kept of it for the messages that it sends."""
        self.suspended: dict[asyncio.Future[None], None] = {}
        """What pulls wait for."""
        self._awaiting: dict[asyncio.Task[None], None] = {}
        self._awaiting_bytes = 0
        self._drained: asyncio.Future[None] | None = None
        self._out: list[bytes | bytearray] = []
        self._requests = 0
        # What the client was asked and has not answered yet, by the `opaque` of the request.
        self._asked: dict[int, asyncio.Future[Command]] = {}

    # --- who it is ----------------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        super()._opened()
        self.session.host = self.address[0]
        certificate = self.transport.get_extra_info("peercert")
        if certificate:
            try:
                self.log_in(self.door.broker.security.authenticator.certificate(certificate, self.session))
            except AuthenticationFailed:
                # TLS has let it in: it is a client that nobody knows.
                return

    def log_in(self, identity: Identity) -> None:
        """The client has shown who it is."""
        self.door.broker.security.login(self.session, identity)
        # What was admitted before may not be now.
        self.producer = None

    def end(self, reason: str) -> None:
        """The client's identity has ended."""
        log.debug("a client's identity has ended", client=self.name, reason=reason)
        self.close()

    def revoke(self, error: NotAuthorized) -> None:
        """The client lives by a right that it has no more: it connects again, and is told what it may not do."""
        self.end(str(error))

    # --- frames in ----------------------------------------------------------------------------------------------------

    def _needed(self, buffer: bytearray, position: int, left: int) -> int:
        need = HEAD.unpack_from(buffer, position)[0] + 4 if left >= HEAD.size else 0
        return need if need <= self.door.frame_max + 4 else 0

    def _consume(self, buffer: bytearray, end: int) -> int:
        position = 0
        view = self.door.view if buffer is self.door.buffer else memoryview(buffer)
        while end - position >= HEAD.size and not self._held:
            size, kind = HEAD.unpack_from(buffer, position)
            header = kind & LENGTH_MASK
            if not 4 + header <= size <= self.door.frame_max or header > HEADER_BYTES_MAX:
                raise Malformed(
                    f"a frame of {size} bytes with a header of {header}; at most {self.door.frame_max} are read "
                    f"(rocketmq_frame_max_bytes), and {HEADER_BYTES_MAX} of a header"
                )
            stop = position + 4 + size
            if stop > end:
                break
            if not self.door.take(self, buffer, position, stop):
                self._handle(frames.decode(view[position:stop]))
            position = stop
        return position

    def _handle(self, request: Command) -> None:
        if request.is_response:
            asked = self._asked.get(request.opaque)
            if asked is not None and not asked.done():
                asked.set_result(request)
            return
        call = Call(self, request)
        handler = self.door.handlers.get(request.code)
        if handler is None:
            call.answer(
                Code.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"the request code {request.code} is not supported by the {self.door.title}",
            )
            return
        self.door.metrics_of(request.code).requests += 1
        quotas = self.door.broker.quotas
        began = self.door.seconds() if quotas.is_active else 0.0
        work = self._begin(call, handler)
        # Not before: the request may have shown whose it is.
        bucket = quotas.loop_time(self.session) if began else None
        if bucket is not None:
            bucket.count(self.door.seconds() - began, self.door.loop.time())
            if request.code in KEPT_REQUESTS and (wait := bucket.wait(self.door.loop.time())):
                self.mute(wait)
        if work is not None:
            self._await(call, timed(work, bucket, self.door.seconds))

    def _begin(self, call: Call, handler: Handler) -> Coroutine[Any, Any, None] | None:
        """Handle a request at once, or as far as it awaits something."""
        code = call.request.code
        try:
            self.door.gate.enter(call)
            if code not in KEPT_REQUESTS and code not in PULLS:
                self.door.broker.quotas.take_request(self.session)
            return handler(call)
        except AuthenticationFailed as error:
            return _refuse_later(call, error)
        except HeadraceError as error:
            call.refuse(error)
            return None

    def _await(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Do what awaits beside the requests that follow."""
        task = self.door.loop.create_task(self._finish(call, work))
        self._awaiting[task] = None
        task.add_done_callback(self._awaited)
        if len(self._awaiting) >= AWAITING_MAX:
            self._held |= FULL

    async def _finish(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        size = len(call.request.body)
        self.hold(size)
        try:
            await work
        except Exception as error:
            call.refuse(error)
        finally:
            self.let_go(size)

    def _awaited(self, task: asyncio.Task[None]) -> None:
        del self._awaiting[task]
        if self._held & FULL and self._has_room():
            self.release(FULL)
        elif self.closing and not self.lost:
            self._finish_closing()

    def hold(self, size: int) -> None:
        """A body is kept until its request is answered: no more is read of a client of which too much is kept."""
        self._awaiting_bytes += size
        if self._awaiting_bytes >= AWAITING_BYTES_MAX:
            self._held |= FULL

    def let_go(self, size: int) -> None:
        """A body is kept no longer."""
        self._awaiting_bytes -= size
        if self._held & FULL and self._has_room():
            self.release(FULL)

    def _has_room(self) -> bool:
        return len(self._awaiting) < AWAITING_MAX // 2 and self._awaiting_bytes < AWAITING_BYTES_MAX // 2

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Malformed):
            log.debug("connection closed: what came is no frame", client=self.name, reason=str(error))
            self.close()
        else:
            super()._failed(error)

    # --- frames out ---------------------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Send a command when this turn of the loop ends."""
        if not self._held & LOST:
            self.send_frame(frames.encode(command))

    def send_frame(self, frame: bytes | bytearray) -> None:
        """Send a frame when this turn of the loop ends."""
        if self._held & LOST:
            return
        self._out.append(frame)
        if len(frame) >= LARGE_ANSWER:
            # So that the next pull sees whether the client reads.
            self._flush()
        elif len(self._out) == 1:
            self.door.soon(self._flush)

    def request(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Ask the client for something that it does not answer."""
        self.send(Command(code, self._next_opaque(), ONE_WAY, fields, body))

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """The client's answer to a request. Raises ResponseError where none comes in time, or it owes too many."""
        settings = self.door.settings
        if len(self._asked) >= settings.rocketmq_client_requests_max:
            raise ResponseError(
                Code.SYSTEM_BUSY,
                f"the client {self.name} owes {len(self._asked)} answers (rocketmq_client_requests_max). Try again.",
            )
        opaque = self._next_opaque()
        answer: asyncio.Future[Command] = self.door.loop.create_future()
        self._asked[opaque] = answer
        timeout_ms = settings.rocketmq_client_timeout_ms
        try:
            self.send(Command(code, opaque, 0, fields, body))
            if not self.lost:
                await asyncio.wait((answer,), timeout=timeout_ms / 1000)
        finally:
            del self._asked[opaque]
        if answer.done() and not answer.cancelled():
            return answer.result()
        outcome = "has closed its connection" if self.lost else f"gave no answer within {timeout_ms} ms"
        raise ResponseError(Code.CONSUME_MSG_TIMEOUT, f"the client {self.name} {outcome}")

    def _next_opaque(self) -> int:
        self._requests = self._requests % OPAQUE_MAX + 1
        return self._requests

    def _flush(self) -> None:
        out = self._out
        if out and not self._held & LOST:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()

    async def drain(self) -> None:
        """Wait until the client has read what it was sent: no more is made for one that does not read."""
        while self.unread and not self.lost:
            if self._drained is None:
                self._drained = self.door.loop.create_future()
            await asyncio.shield(self._drained)

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        super().resume_writing()
        if drained is not None:
            drained.set_result(None)

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self._awaiting and not self._out and super().idle

    def close_when_idle(self) -> None:
        """Handle no further request, end pulls that wait, and close once what is under way is answered."""
        self.wake_pulls()
        super().close_when_idle()

    def wake_pulls(self) -> None:
        """Have the pulls that wait look again."""
        for waiter in list(self.suspended):
            if not waiter.done():
                waiter.set_result(None)

    def _finish_closing(self) -> None:
        self._flush()
        if not self._awaiting and not self._held & BUSY:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._out.clear()
        # What was asked for is done, be its client there or not; only pulls have no client to wait for.
        self.wake_pulls()
        for asked in self._asked.values():
            asked.cancel()
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self.memberships is not None:
            self.memberships.leave_all()
        for call in self.on_lost:
            call()
        for watch in self.watches.values():
            watch.end()
        if self.session.identity is not None:
            self.door.broker.security.logout(self.session)
