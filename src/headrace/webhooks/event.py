"""A message as a CloudEvent 1.0 over HTTP: in binary mode, in structured mode, or several in a batch.

A message that holds an event already, as CloudEvents are stored on Kafka (headers `ce_NAME`, docs/http.md), is that
event. Any other becomes one: its id is the message's, its subject the key. The value's bytes are sent as they are, also
inside of JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from headrace.sdk import Message

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
JSON, TEXT, BYTES = "application/json", "text/plain; charset=utf-8", "application/octet-stream"
CONTENT_TYPE = "content-type"
STORED_PREFIX = "ce_"
# The broker's own, which say nothing to a receiver.
OWN_PREFIX = "headrace-"
HEADER_PREFIX = "Headrace-Header-"
ATTEMPT_HEADER = "Headrace-Attempt"
DROPPED_HEADER = "Headrace-Headers-Dropped"
PASSED_ON = ("traceparent", "tracestate")
ATTRIBUTE = re.compile(r"[a-z0-9]+")
JSON_KIND = re.compile(r"[^/]+/(json|[^;]+\+json)\s*(;|\Z)", re.IGNORECASE)
TEXT_KIND = re.compile(r"text/", re.IGNORECASE)
SAFE = re.compile(r"[!#$&-~]*")
UNSAFE = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
# Names that a header cannot have in an event: its own attributes'.
RESERVED = frozenset(
    ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "partitionkey")
)
# Servers take heads of 8 KiB and more; what would not fit is left out, and counted.
HEADERS_BYTES_MAX = 6_144
YEAR_10000_MS = 253_402_300_800_000

_decoder = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class Form:
    """How the operator configures the events."""

    source: str = ""
    """Empty: /topics/TOPIC."""
    type: str = "headrace.message"
    content_type: str = ""
    """Of values that say nothing of it themselves; empty: found out."""
    structured: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent, but for the signature."""

    id: str
    headers: dict[str, str]
    body: bytes


def id_of(message: Message) -> str:
    """The same for every delivery of a message."""
    if message.id:
        return message.id
    # A system without coordinates: by what does not change between deliveries.
    parts = (message.topic.encode(), b"%d" % message.timestamp_ms, message.key or b"", message.value)
    digest = hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts))
    return f"{message.topic}/{digest.hexdigest()[:32]}"


def request_of(messages: Sequence[Message], form: Form, batch: bool) -> Request:
    """One request for a message, or for a batch of them."""
    if batch:
        ids = [id_of(each) for each in messages]
        id = ids[0] if len(ids) == 1 else "batch/" + hashlib.sha256("\n".join(ids).encode()).hexdigest()[:32]
        return Request(id, {"Content-Type": BATCH}, b"[" + b",".join(_json(each, form) for each in messages) + b"]")
    [message] = messages
    headers = {ATTEMPT_HEADER: str(message.attempt)}
    for name in PASSED_ON:
        if (value := _text(message.headers.get(name))) is not None:
            headers[name] = _safe(value)
    if form.structured:
        return Request(id_of(message), {**headers, "Content-Type": STRUCTURED}, _json(message, form))
    kind = _kind(message, form)
    headers |= {f"ce-{name}": _safe(value) for name, value in _attributes(message, form).items()}
    return Request(id_of(message), {**headers, "Content-Type": kind, **_plain(message)}, message.value)


def _attributes(message: Message, form: Form) -> dict[str, str]:
    """The attributes of a message's event, but for the type of its data."""
    own = {}
    for name, value in message.headers.items():
        attribute = name.removeprefix(STORED_PREFIX)
        text = _text(value)
        if name.startswith(STORED_PREFIX) and ATTRIBUTE.fullmatch(attribute) and text:
            own[attribute] = text
    key = _text(message.key)
    if own.get("specversion") == "1.0" and all(own.get(name) for name in ("id", "source", "type")):
        return own
    found = {
        "specversion": "1.0",
        "id": id_of(message),
        "source": form.source or f"/topics/{quote(message.topic)}",
        "type": form.type,
    }
    # A producer may say any time, microseconds for milliseconds too; an event has none that no calendar has.
    if 0 <= message.timestamp_ms < YEAR_10000_MS:
        moment = datetime.fromtimestamp(message.timestamp_ms / 1_000, UTC)
        found["time"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if key:
        found |= {"subject": key, "partitionkey": key}
    elif message.key:
        found["keybase64"] = base64.b64encode(message.key).decode()
    return found


def _json(message: Message, form: Form) -> bytes:
    """An event in JSON. Its data is the value itself where that is JSON."""
    kind = _kind(message, form)
    attributes = {**_extensions(message), **_attributes(message, form), "datacontenttype": kind}
    head = json.dumps(attributes, ensure_ascii=False).encode()[:-1]
    value = message.value
    text = _text(value)
    if JSON_KIND.match(kind) and text is not None and _is_json(value):
        data = b', "data": ' + value
    elif TEXT_KIND.match(kind) and text is not None:
        data = b', "data": ' + json.dumps(text, ensure_ascii=False).encode()
    elif value:
        data = b', "data_base64": "' + base64.b64encode(value) + b'"'
    else:
        data = b""
    return head + data + b"}"


def _kind(message: Message, form: Form) -> str:
    """The type of the value: that of its message, the configured one, or what it looks like."""
    if given := _text(message.headers.get(CONTENT_TYPE)):
        return _safe(given, encode="")
    if form.content_type:
        return form.content_type
    if _is_json(message.value):
        return JSON
    return BYTES if _text(message.value) is None else TEXT


def _user_headers(message: Message) -> list[tuple[str, bytes]]:
    """The headers that are neither the event's nor the broker's."""
    return [
        (name, value)
        for name, value in message.headers.items()
        if name != CONTENT_TYPE and name not in PASSED_ON and not name.startswith((STORED_PREFIX, OWN_PREFIX))
    ]


def _plain(message: Message) -> dict[str, str]:
    """The message's headers as those of the request."""
    found: dict[str, str] = {}
    room = HEADERS_BYTES_MAX
    dropped = 0
    for name, value in _user_headers(message):
        safe = HEADER_PREFIX + UNSAFE.sub("-", name)
        text = _safe(value.decode(errors="replace"))
        room -= len(safe) + len(text) + 4
        if room < 0 or safe in found:
            dropped += 1
        else:
            found[safe] = text
    return {**found, DROPPED_HEADER: str(dropped)} if dropped else found


def _extensions(message: Message) -> dict[str, str]:
    """The message's headers as attributes of the event."""
    found: dict[str, str] = {}
    for name, value in _user_headers(message):
        attribute = re.sub("[^a-z0-9]", "", name.lower())
        if not attribute or attribute in RESERVED:
            attribute = "header" + attribute
        text = _text(value)
        if text is None:
            attribute, text = attribute + "base64", base64.b64encode(value).decode()
        found.setdefault(attribute, text)
    for name in PASSED_ON:
        if (text := _text(message.headers.get(name))) is not None:
            found[name] = text
    return found


def _safe(value: str, encode: str = '"%') -> str:
    """A text as a header carries it: what is not printable ASCII, and the characters that quoting uses, as percent and
    two digits for each byte of its UTF-8."""
    if SAFE.fullmatch(value):
        return value
    return "".join(
        each
        if ("\x20" < each < "\x7f" and each not in encode) or (each == " " and not encode)
        else "".join(f"%{byte:02X}" for byte in each.encode("utf-8", "surrogatepass"))
        for each in value
    )


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _is_json(value: bytes) -> bool:
    try:
        _decoder.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
