"""Requests off the hot path: from a frame to the handler of its API, and from what that returns to a reply.

The frame is copied out of the shared receive buffer, because a handler may await; the connection handles nothing else
until the reply is out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.quotas import Meter
from headrace.broker.quotas.steps import timed
from headrace.doors.kafka import codec
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import Malformed, Unanswerable
from headrace.doors.kafka.not_offered import refuse
from headrace.doors.kafka.registry import API_VERSIONS, APIS, Api, not_offered
from headrace.doors.kafka.rights import refuse_unauthorized
from headrace.doors.kafka.wire import INT32_PAIR, skip_tags

if TYPE_CHECKING:
    from headrace.doors.kafka.connection import Connection

# The version of a call that asked for a version of ApiVersions which is not there.
UNSUPPORTED = -1
# APIs that make, add or delete partitions.
MUTATING = frozenset((19, 20, 37))


def dispatch(
    connection: Connection,
    buffer: bytearray,
    position: int,
    body: int,
    stop: int,
    key: int,
    version: int,
    correlation: int,
    started: float,
) -> None:
    """Begin to answer one request. Raises Malformed or Unanswerable."""
    api = APIS.get(key) or not_offered(key)
    client = connection.client_id(buffer, position, body)
    meter = connection.meter(buffer, position, body) if connection.door.quotas.is_active else None
    if api is None or not api.oldest <= version <= api.newest:
        if api is None or key != API_VERSIONS:
            raise Unanswerable(f"{api.name if api else 'API'} {key} version {version} is not answered here")
        # A client newer than this broker: it comes back with a version from the list that error 35 brings.
        frame = b""
        version = UNSUPPORTED
    else:
        if version >= api.flexible:
            body = skip_tags(buffer, body, stop)
        frame = bytes(buffer[body:stop])
    call = Call(
        key,
        version,
        client,
        connection.client_host,
        connection.door.context,
        connection,
        connection.listener.name,
        *connection.listener.advertised_to(connection),
    )
    work = _answer(api, call, meter, correlation, frame, started)
    if meter is not None and meter.request is not None:
        work = timed(work, meter.request, connection.door.seconds)
    connection.run(work)


async def _answer(api: Api, call: Call, meter: Meter | None, correlation: int, frame: bytes, started: float) -> None:
    connection = call.connection
    offload = call.broker.runtime.offload
    metrics = call.broker.metrics.api("kafka", api.name)
    metrics.requests += 1
    try:
        if call.version == UNSUPPORTED:
            from headrace.doors.kafka.handlers.k18_api_versions import unsupported

            reply: dict[str, Any] | bytes | None = unsupported(call)
            version = 0
        else:
            version = call.version
            if api.key not in APIS:
                reply = refuse(api, version, frame)
            else:
                if len(frame) > codec.BYTES_ON_THE_LOOP:
                    request = await offload.run(codec.decode_request, api.key, version, frame, 0)
                else:
                    request = codec.decode_request(api.key, version, frame, 0)
                reply = refuse_unauthorized(api, call, request)
                if reply is None:
                    reply = await connection.door.answer(api, call, request, frame)
        throttle = 0.0
        if meter is not None:
            now = connection.door.loop.time()
            throttle = max(meter.asked(now), meter.wait_to_mutate(now) if api.key in MUTATING else 0.0)
        if reply is not None:
            if throttle and not isinstance(reply, bytes):
                reply["throttle_time"] = int(throttle * 1000)
            if isinstance(reply, bytes):
                body: bytes | bytearray = reply
            elif codec.is_large(reply):
                body = await offload.run(codec.encode_response, api.key, version, reply)
            else:
                body = codec.encode_response(api.key, version, reply)
            # The header of a flexible version ends with tagged fields, except in ApiVersions, whose reader does not
            # yet know which version it is reading.
            tags = b"\0" if version >= api.flexible and api.key != API_VERSIONS else b""
            head = INT32_PAIR.pack(4 + len(tags) + len(body), correlation)
            connection.flush([b"".join((head, tags, body))])
            if throttle:
                connection.mute(throttle)
    except Malformed:
        raise
    except Exception:
        metrics.failed("unknown_server_error")
        raise
    finally:
        metrics.latency.observe(connection.door.loop.time() - started)
