"""A message of RocketMQ as a record of the log, and any record of the log as a message of RocketMQ.

The body is the record's value, unpacked where the producer had compressed it. The record's key is the sharding key
(`__SHARDINGKEY`), else there is none. Every property is a header of the same name; what RocketMQ keeps beside the
properties has headers that begin with `rocketmq-`, and is left out where it has the value that most have.

The other way round every header is a property, whichever door its message came through. A value that is not text, or
has one of the two characters that RocketMQ puts between properties, is a property in base64 whose name ends with
`-bin`; a header whose name has one of the two is left out; of several with one name the last counts; a null is empty
text. Properties beyond the 32,767 bytes that RocketMQ's format has room for are left out, the last ones first.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache

from headrace.broker.publish import Headers
from headrace.doors.rocketmq.messages import (
    COMPRESSED,
    COMPRESSION_MASK,
    NAME_VALUE,
    PROPERTIES_BYTES_MAX,
    PROPERTY,
    Host,
    StoredMessage,
    write_properties,
)
from headrace.format.records import Record

TAGS = "TAGS"
SHARDING_KEY = "__SHARDINGKEY"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
UNIQUE_KEY = "UNIQ_KEY"
REAL_TOPIC = "REAL_TOPIC"
REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
# What RocketMQ's broker adds to each message, unless it is there: without a region, consumers from 5.0 on record no
# trace.
ADDED = {REGION: "DefaultRegion", TRACE_ON: "true"}
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
CLUSTER = "CLUSTER"
REAL_QUEUE = "REAL_QID"
# When a message is to be delivered: after seconds, after milliseconds, at a time; the first that is there counts.
TIMER_SECONDS = "TIMER_DELAY_SEC"
TIMER_MS = "TIMER_DELAY_MS"
TIMER_AT_MS = "TIMER_DELIVER_MS"
TIMERS = frozenset((TIMER_SECONDS, TIMER_MS, TIMER_AT_MS))
# A number from 0 on: it is the message's queue, and the highest queue is received from first.
PRIORITY = "_SYS_MSG_PRIORITY_"
PRIORITY_MAX = (1 << 31) - 1
# What makes a message one of another type, whatever its priority.
_TYPED = frozenset((*TIMERS, DELAY, SHARDING_KEY))

BORN_MS = "rocketmq-born-time"
BORN_HOST = "rocketmq-born-host"
FLAG = "rocketmq-flag"
SYS_FLAG = "rocketmq-sys-flag"
RECONSUME_TIMES = "rocketmq-reconsume-times"
_OWN = frozenset((BORN_MS, BORN_HOST, FLAG, SYS_FLAG, RECONSUME_TIMES))


def headers_of(
    properties: Mapping[str, str],
    *,
    born_ms: int,
    born_host: Host,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
) -> Headers:
    """The headers of a record."""
    headers: Headers = [(name, value.encode()) for name, value in properties.items() if name not in _OWN]
    headers.append((BORN_MS, b"%d" % born_ms))
    headers.append((BORN_HOST, _host_text(born_host)))
    for name, number in ((FLAG, flag), (SYS_FLAG, sys_flag), (RECONSUME_TIMES, reconsume_times)):
        if number:
            headers.append((name, b"%d" % number))
    return headers


def key_of(properties: Mapping[str, str]) -> bytes | None:
    """The key of a record."""
    sharding_key = properties.get(SHARDING_KEY)
    return None if sharding_key is None else sharding_key.encode()


def priority_of(properties: Mapping[str, str]) -> int:
    """The priority of a message; -1: it has none, be it that it is of another type or that it is no number."""
    text = properties.get(PRIORITY, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 10) or not _TYPED.isdisjoint(properties):
        return -1
    priority = int(text)
    return priority if priority <= PRIORITY_MAX else -1


def message_of(record: Record, topic: str, queue_id: int, physical_offset: int, store_host: Host) -> StoredMessage:
    """A record as a message."""
    offset, timestamp, _, value, headers = record
    own = {name: content for name, content in headers if name in _OWN}
    properties = properties_of(headers)
    for name, value_added in ADDED.items():
        properties.setdefault(name, value_added)
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=physical_offset,
        body=value or b"",
        properties=write_bounded(properties),
        born_ms=_number(own.get(BORN_MS), 64, timestamp),
        born_host=_host(own.get(BORN_HOST) or b"") or store_host,
        store_ms=timestamp,
        store_host=store_host,
        flag=_number(own.get(FLAG), 32, 0),
        # No body is compressed, whatever another door wrote there.
        sys_flag=_number(own.get(SYS_FLAG), 31, 0) & ~(COMPRESSED | COMPRESSION_MASK),
        reconsume_times=_number(own.get(RECONSUME_TIMES), 32, 0),
    )


def properties_of(headers: Headers) -> dict[str, str]:
    """The properties of a record."""
    properties: dict[str, str] = {}
    for name, content in headers:
        if name in _OWN or NAME_VALUE in name or PROPERTY in name:
            continue
        try:
            text = (content or b"").decode()
        except UnicodeDecodeError:
            text = NAME_VALUE
        if NAME_VALUE in text or PROPERTY in text:
            name, text = f"{name}-bin", b64encode(content or b"").decode()
        properties[name] = text
    return properties


def tag_of(headers: Headers) -> str:
    """The tag of a record; empty where it has none."""
    content = next((content for name, content in reversed(headers) if name == TAGS), None)
    return (content or b"").decode("utf-8", "replace")


def write_bounded(properties: Mapping[str, str]) -> str:
    """Properties as text, as many as the format has room for."""
    text = write_properties(properties)
    if len(text) * 3 <= PROPERTIES_BYTES_MAX or len(text.encode()) <= PROPERTIES_BYTES_MAX:
        return text
    kept, size = [], 0
    for name, value in properties.items():
        pair = write_properties({name: value})
        size += len(pair.encode())
        if size > PROPERTIES_BYTES_MAX:
            break
        kept.append(pair)
    return "".join(kept)


def _number(content: bytes | None, bits: int, default: int) -> int:
    """A number that another door may have written as it likes."""
    if content is None or len(content) > 20:
        return default
    try:
        number = int(content)
    except ValueError:
        return default
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else default


# Reading or writing an address in text takes longer than the rest of a small message.
@lru_cache(maxsize=4_096)
def _host_text(host: Host) -> bytes:
    return str(host).encode()


@lru_cache(maxsize=4_096)
def host_bytes(content: bytes) -> bytes:
    """An address of a header as messages have it; empty where it is none."""
    host = _host(content)
    return b"" if host is None else host.ip + host.port.to_bytes(4, "big")


@lru_cache(maxsize=4_096)
def _host(content: bytes) -> Host | None:
    try:
        host = Host.parse(content.decode())
    except ValueError:
        return None
    return host if 0 <= host.port <= 65_535 else None
