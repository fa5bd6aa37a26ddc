"""The methods of the service: what every request passes before and behind its handler.

A request names its client in its metadata. What a handler refuses is an answer with a status; so is what it fails at.
Methods without a handler are refused by gRPC itself, as RocketMQ's proxy refuses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Any, Protocol

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import aio

from headrace.broker.metrics import ApiMetrics, Metrics
from headrace.broker.security import Session
from headrace.doors.rocketmq.grpc.access import Access, metadata_of
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, service
from headrace.doors.rocketmq.grpc.rights import rights_of
from headrace.doors.rocketmq.grpc.status import ResponseError, make_status, status_of
from headrace.doors.rocketmq.messages import Host
from headrace.errors import HeadraceError

log = structlog.get_logger("headrace.rocketmq")

DOOR = "rocketmq_grpc"
CLIENT_ID = "x-mq-client-id"
CLIENT_ID_MAX = 255
# What an answer takes to its client.
MARGIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    client_id: str
    host: Host
    session: Session
    seconds_left: float | None = None
    """Until the client waits no longer; None: for ever."""

    @property
    def wait_max_ms(self) -> int:
        """How long an answer may be waited for, so that it still comes in time."""
        return 1 << 31 if self.seconds_left is None else max(int((self.seconds_left - MARGIN_SECONDS) * 1_000), 0)


Unary = Callable[[Caller, Proto], Awaitable[Proto]]
Streaming = Callable[[Caller, Proto], AsyncIterator[Proto]]


class Service(Protocol):
    """What answers the methods."""

    @property
    def unary(self) -> Mapping[str, Unary]:
        """By name: one answer to one request."""

    @property
    def streaming(self) -> Mapping[str, Streaming]:
        """By name: a stream of answers to one request."""

    async def telemetry(self, commands: AsyncIterator[bytes], context: Any) -> None:
        """A stream each way."""


def methods_of(handlers: Service, access: Access, metrics: Metrics, door: str) -> dict[str, Any]:
    """The handlers of a service, as grpcio takes them."""
    methods = {}
    for name, unary in handlers.unary.items():
        request, response = _types(name)
        behaviour: Any = _answer_once(name, unary, request, response, access, metrics.api(door, name))
        methods[name] = grpc.unary_unary_rpc_method_handler(behaviour, None, response.SerializeToString)
    for name, streaming in handlers.streaming.items():
        request, response = _types(name)
        behaviour = _answer_often(name, streaming, request, response, access, metrics.api(door, name))
        methods[name] = grpc.unary_stream_rpc_method_handler(behaviour, None, response.SerializeToString)
    command: Any = service.TelemetryCommand
    counted = metrics.api(door, "Telemetry")

    async def telemetry(commands: AsyncIterator[bytes], context: Any) -> None:
        counted.requests += 1
        await handlers.telemetry(commands, context)

    methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(telemetry, None, command.SerializeToString)
    return methods


def find_caller(context: Any) -> Caller:
    """Who asks. Raises ResponseError."""
    client_id = metadata_of(context).get(CLIENT_ID, "")
    if not client_id:
        raise ResponseError(Code.CLIENT_ID_REQUIRED, f"client id cannot be empty. Send it as metadata, {CLIENT_ID}.")
    if len(client_id) > CLIENT_ID_MAX:
        raise ResponseError(
            Code.BAD_REQUEST, f"the client id must have at most {CLIENT_ID_MAX} characters (got {len(client_id)})"
        )
    host = _host_of(context.peer())
    session = Session(host=str(ip_address(host.ip)), client_id=client_id, door=DOOR)
    return Caller(client_id, host, session, context.time_remaining())


@lru_cache(maxsize=4_096)
def _host_of(peer: str) -> Host:
    """The address in "ipv4:127.0.0.1:5000" or "ipv6:%5B::1%5D:5000"."""
    host, _, port = peer.partition(":")[2].rpartition(":")
    return Host.of(host.removeprefix("%5B").removesuffix("%5D").strip("[]"), int(port) if port.isdecimal() else 0)


def parse(kind: Any, raw: bytes) -> Proto:
    """A message of the protos. Raises ResponseError; grpcio would log what is none with a traceback."""
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise ResponseError(Code.BAD_REQUEST, f"the request is not a {kind.DESCRIPTOR.name}: {error}") from None


def _types(name: str) -> tuple[Any, Any]:
    return getattr(service, f"{name}Request"), getattr(service, f"{name}Response")


def _answer_once(
    name: str, handle: Unary, request_type: Any, response: Any, access: Access, metrics: ApiMetrics
) -> Any:
    clock = asyncio.get_running_loop().time

    async def answer(request: bytes, context: aio.ServicerContext) -> Proto:
        metrics.requests += 1
        begin = clock()
        try:
            caller, asked = find_caller(context), parse(request_type, request)
            try:
                await access.identify(caller.session, context)
                access.check(caller.session, rights_of(name, asked))
                work = partial(handle, caller, asked)
                answered = await access.loop_time.once(name, caller.session, caller.wait_max_ms, work)
            finally:
                access.forget(caller.session)
        except Exception as error:
            answered = response(status=_refuse(error, metrics))
        metrics.latency.observe(clock() - begin)
        return answered

    return answer


def _answer_often(
    name: str, handle: Streaming, request_type: Any, response: Any, access: Access, metrics: ApiMetrics
) -> Any:
    async def answer(request: bytes, context: aio.ServicerContext) -> AsyncIterator[Proto]:
        metrics.requests += 1
        try:
            caller, asked = find_caller(context), parse(request_type, request)
            try:
                await access.identify(caller.session, context)
                answers = access.loop_time.often(caller.session, handle(caller, asked))
                if access.security.is_enforced:
                    answers = access.while_allowed(caller.session, rights_of(name, asked), answers)
                async for each in answers:
                    yield each
            finally:
                access.forget(caller.session)
        except Exception as error:
            yield response(status=_refuse(error, metrics))

    return answer


def _refuse(error: Exception, metrics: ApiMetrics) -> Proto:
    if isinstance(error, HeadraceError):
        status = status_of(error)
    else:
        log.error("a request failed", method=metrics.name, exc_info=error)
        status = make_status(Code.INTERNAL_SERVER_ERROR, "the request failed: see the broker's log")
    metrics.failed(Code.Name(status.code))
    return status
