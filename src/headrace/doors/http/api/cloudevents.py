"""CloudEvents 1.0 as they come over HTTP: in binary mode, in structured mode, and many at once.

They are stored as in the CloudEvents binding for Kafka, in binary mode: the data is the value, an attribute is a
header `ce_NAME`, the data's type the header `content-type`, the extension `partitionkey` the key. So a Kafka consumer
with a CloudEvents library reads them, and `headrace subscribe` sends them on as the same events.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from headrace.broker.publish import Headers
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.message_fields import check_count, json_of
from headrace.doors.http.server.messages import HttpError, Request

KIND = "application/cloudevents"
STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
PREFIX, STORED_PREFIX = "ce-", "ce_"
VERSION = "ce-specversion"
KNOWN_VERSION = "1.0"
NEEDED = ("id", "source", "type")
PARTITION_KEY = "partitionkey"
NAME = re.compile(r"[a-z0-9]+")
JSON_KIND = re.compile(r"[^/]+/(json|[^;]+\+json)", re.IGNORECASE)
INTEGER_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it is stored."""

    headers: Headers
    data: bytes
    key: bytes | None
    identity: bytes
    """Source and id, which no two events share."""


def of_request(request: Request) -> Event:
    """The event of a request in binary mode."""
    attributes = {}
    for name, value in request.headers.items():
        if name.startswith(PREFIX):
            attributes[name.removeprefix(PREFIX)] = _header_text(name, value)
    return _event(attributes, request.headers.get("content-type", ""), request.body)


def one(body: bytes) -> Event:
    """The event of a body in structured mode."""
    return _parse_structured(_json(body))


def several(body: bytes) -> list[Event]:
    """The events of a body in batched mode."""
    given = _json(body)
    if not isinstance(given, list) or not given:
        raise bad_request("a batch of CloudEvents is a JSON array of them, one at least")
    check_count(len(given))
    events = []
    for number, each in enumerate(given):
        try:
            events.append(_parse_structured(each))
        except HttpError as error:
            raise bad_request(f"event {number} of the batch: {error}") from None
    return events


def _parse_structured(given: Any) -> Event:
    if not isinstance(given, dict):
        raise bad_request("a CloudEvent is a JSON object")
    attributes = {name: value for name, value in given.items() if value is not None}
    data, packed = attributes.pop("data", None), attributes.pop("data_base64", None)
    kind = attributes.pop("datacontenttype", "")
    if not isinstance(kind, str):
        raise bad_request(f"the event's datacontenttype must be a text (got {kind!r})")
    if data is not None and packed is not None:
        raise bad_request("the event has both data and data_base64. Give one of them.")
    if packed is not None:
        if not isinstance(packed, str):
            raise bad_request("the event's data_base64 must be a text")
        try:
            return _event(attributes, kind, b64decode(packed, validate=True))
        except ValueError as error:
            raise bad_request(f"the event's data_base64 is not Base64: {error}") from None
    if data is None:
        return _event(attributes, kind, b"")
    if not kind or JSON_KIND.match(kind):
        return _event(attributes, kind or "application/json", json_of("the event's data", data))
    if not isinstance(data, str):
        raise bad_request(f"the event's data is of type {kind}: it is a text, or Base64 in data_base64")
    return _event(attributes, kind, _utf8("data", data))


def _event(attributes: Mapping[str, Any], kind: str, data: bytes) -> Event:
    version = attributes.get("specversion")
    if version != KNOWN_VERSION:
        raise bad_request(f"the event's specversion is {version!r}; it must be {KNOWN_VERSION!r}")
    texts = {}
    for name, value in attributes.items():
        if not NAME.fullmatch(name):
            raise bad_request(f"the event has an attribute {name!r}; names are of a-z and 0-9")
        texts[name] = _canonical(name, value)
    for name in NEEDED:
        if not texts.get(name):
            raise bad_request(f"the event has no {name}: id, source and type are needed")
    if "time" in texts:
        try:
            moment = datetime.fromisoformat(texts["time"])
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise bad_request(f"the event's time is {texts['time']!r}; it is as in 2026-11-16T12:00:00Z")
    headers: Headers = [(STORED_PREFIX + name, _utf8(name, value)) for name, value in texts.items()]
    if kind:
        headers.append(("content-type", _utf8("datacontenttype", kind)))
    key = _utf8(PARTITION_KEY, texts[PARTITION_KEY]) if PARTITION_KEY in texts else None
    return Event(headers, data, key, _utf8("id", f"{texts['source']} {texts['id']}"))


def _canonical(name: str, value: Any) -> str:
    """The text of an attribute that JSON gives as what it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -INTEGER_MAX - 1 <= value <= INTEGER_MAX:
        return str(value)
    raise bad_request(
        f"the event's {name} is {value!r}; an attribute is a text, a whole number of 32 bits, or true or false"
    )


def _header_text(name: str, value: str) -> str:
    """A header's value, whose unusual characters are percent-encoded UTF-8."""
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise bad_request(f"the header {name} is {value!r}, which is not UTF-8") from None


def _utf8(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise bad_request(f"the event's {name} has no form in UTF-8") from None


def _json(body: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from None
