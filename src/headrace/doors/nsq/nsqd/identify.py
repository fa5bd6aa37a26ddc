"""IDENTIFY: who a client is, what it asks for, and what it gets.

The rules are nsqd's: 0 (or nothing) leaves a value at its default, -1 turns a thing off, and what lies outside of the
limits is refused, not clamped, except for the deflate level.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from headrace.doors.nsq.errors import CommandError
from headrace.doors.nsq.presence import NSQ_VERSION
from headrace.doors.nsq.settings import NsqSettings

HEARTBEAT_MS = 30_000
OUTPUT_BUFFER_BYTES = 16_384
OUTPUT_BUFFER_MS = 250
OUTPUT_BUFFER_LEAST_MS = 25
OUTPUT_BUFFER_LEAST_BYTES = 64
# The shortest heartbeat and message timeout that a client may ask for.
LEAST_MS = 1_000
SAMPLE_RATE_MAX = 99
DEFLATE_LEVEL = 6


@dataclass(frozen=True, slots=True)
class IdentifyRequest:
    """The JSON object of an IDENTIFY, by its own names."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    msg_timeout: int = 0
    sample_rate: int = 0
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    headrace: int = 0
    """1 asks for key and headers in messages, and for error texts behind REQs."""


_TYPES: dict[str, type] = {
    each.name: {"str": str, "bool": bool, "int": int}[str(each.type)] for each in fields(IdentifyRequest)
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What a connection is set to. Before IDENTIFY, this is all defaults."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    heartbeat_ms: int = HEARTBEAT_MS
    """0: no heartbeats."""
    output_buffer_size: int = OUTPUT_BUFFER_BYTES
    output_buffer_ms: int = OUTPUT_BUFFER_MS
    msg_timeout_ms: int | None = None
    """None: as the queue is configured."""
    sample_rate: int = 0
    """Of 100 messages, how many the client wants; 0: all."""
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = DEFLATE_LEVEL
    extended: bool = False
    negotiated: bool = False
    """The client reads a JSON reply."""


def parse(body: bytes) -> IdentifyRequest:
    """The object that a client sent. Names that are not known are left alone, as nsqd does."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
    if given is None:
        return IdentifyRequest()
    if not isinstance(given, dict):
        raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body: it is not an object")
    values: dict[str, Any] = {}
    for name, kind in _TYPES.items():
        value = given.get(name)
        if value is None:
            continue
        if type(value) is not kind:
            raise CommandError("E_BAD_BODY", f"IDENTIFY failed to decode JSON body: {name} is not a {kind.__name__}")
        values[name] = value
    return IdentifyRequest(**values)


def negotiate(asked: IdentifyRequest, settings: NsqSettings, tls: bool) -> Identity:
    """What the client gets; `tls`: the door has a certificate. Raises CommandError."""
    heartbeat = _bound(
        asked.heartbeat_interval,
        LEAST_MS,
        settings.nsq_max_heartbeat_interval_ms,
        HEARTBEAT_MS,
        0,
        "heartbeat interval",
    )
    size = asked.output_buffer_size
    timeout = _bound(
        asked.output_buffer_timeout,
        OUTPUT_BUFFER_LEAST_MS,
        settings.nsq_max_output_buffer_timeout_ms,
        OUTPUT_BUFFER_MS,
        0,
        "output buffer timeout",
    )
    buffered = _bound(
        size,
        OUTPUT_BUFFER_LEAST_BYTES,
        settings.nsq_max_output_buffer_size,
        OUTPUT_BUFFER_BYTES,
        1,
        "output buffer size",
    )
    if not 0 <= asked.sample_rate <= SAMPLE_RATE_MAX:
        raise CommandError("E_BAD_BODY", f"IDENTIFY sample rate ({asked.sample_rate}) is invalid")
    wait = asked.msg_timeout
    if wait and not LEAST_MS <= wait <= settings.nsq_max_msg_timeout_ms:
        raise CommandError("E_BAD_BODY", f"IDENTIFY msg timeout ({wait}) is invalid")
    negotiated = asked.feature_negotiation
    deflate = negotiated and asked.deflate
    snappy = negotiated and asked.snappy
    if deflate and snappy:
        raise CommandError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    level = asked.deflate_level if deflate and asked.deflate_level > 0 else DEFLATE_LEVEL
    return Identity(
        client_id=asked.client_id,
        hostname=asked.hostname,
        user_agent=asked.user_agent,
        heartbeat_ms=heartbeat,
        output_buffer_size=buffered,
        output_buffer_ms=0 if size == -1 else timeout,
        msg_timeout_ms=wait or None,
        sample_rate=asked.sample_rate,
        tls=negotiated and asked.tls_v1 and tls,
        snappy=snappy,
        deflate=deflate,
        deflate_level=min(level, settings.nsq_max_deflate_level),
        extended=negotiated and asked.headrace == 1,
        negotiated=negotiated,
    )


def _bound(value: int, least: int, most: int, default: int, off: int, what: str) -> int:
    if value == -1:
        return off
    if value == 0:
        return default
    if not least <= value <= most:
        raise CommandError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")
    return value


def reply(
    identity: Identity, settings: NsqSettings, timeout_ms: int, cluster_id: str = "", http_port: int = 0
) -> bytes:
    """The JSON reply with what the client got; `timeout_ms` is the message timeout of a new queue. Under the extension
    also with the broker's id and the port of its HTTP door (0: it is off)."""
    granted: dict[str, Any] = {
        "max_rdy_count": settings.nsq_max_rdy_count,
        "version": NSQ_VERSION,
        "max_msg_timeout": settings.nsq_max_msg_timeout_ms,
        "msg_timeout": identity.msg_timeout_ms or timeout_ms,
        "tls_v1": identity.tls,
        "deflate": identity.deflate,
        "deflate_level": identity.deflate_level,
        "max_deflate_level": settings.nsq_max_deflate_level,
        "snappy": identity.snappy,
        "sample_rate": identity.sample_rate,
        "auth_required": bool(settings.auth_http) or settings.nsq_auth_required,
        "output_buffer_size": identity.output_buffer_size,
        "output_buffer_timeout": identity.output_buffer_ms,
    }
    if identity.extended:
        granted |= {"headrace": 1, "cluster_id": cluster_id, "http_port": http_port}
    return json.dumps(granted, separators=(",", ":")).encode()
