"""Requests by plain fields, answered by a handler, in any version: kio writes the request and reads the reply.

The door's own codec stands in between both ways, so a handler that leaves out a field of some version shows here.
"""

from __future__ import annotations

import dataclasses
import io
import typing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from headrace.broker.broker import Broker
from headrace.broker.security import Session
from headrace.doors.door import DoorContext
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.codec import decode_request, encode_response
from headrace.doors.kafka.registry import handler

KEYS = {schema: key for key, schema in api_key_map.items()}


class LocalClient:
    """A client of one broker, without a socket."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection = SimpleNamespace(session=Session(host="127.0.0.1"), holder=None, sasl=None)
        unwatched = SimpleNamespace(joined=lambda *_: None, beats=lambda *_: None, left=lambda *_: None)
        self.connection.watched = lambda: unwatched

    async def __call__(self, api: str, version: int, **fields: Any) -> Any:
        """Ask, and give kio's entity of the reply."""
        key = KEYS[api]
        asked = io.BytesIO()
        kind = load_request_schema(KEYS[api], version)
        entity_writer(kind)(asked, build(kind, fields))
        context: DoorContext[Any] = DoorContext(self.broker, self.broker.config, self.broker.config)  # type: ignore[arg-type]
        call = Call(key, version, "test", "127.0.0.1", context, self.connection, "kafka", "broker.test", 9092)  # type: ignore[arg-type]
        reply = await handler(key)(call, decode_request(key, version, asked.getvalue(), 0))
        assert reply is not None
        raw = bytes(encode_response(key, version, reply))
        entity, size = entity_reader(load_response_schema(KEYS[api], version))(raw, 0)
        assert size == len(raw)
        return entity


def build(kind: Any, values: dict[str, Any]) -> Any:
    """A kio entity from dicts and lists; fields that the version lacks are left out."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.name in values]
    return kind(**{name: _convert(hints[name], values[name]) for name in names})


def _convert(hint: Any, value: Any) -> Any:
    inner = typing.get_args(hint)
    if isinstance(value, list):
        array = hint if typing.get_origin(hint) is tuple else next(each for each in inner if typing.get_args(each))
        return tuple(_convert(typing.get_args(array)[0], element) for element in value)
    if isinstance(value, dict):
        return build(next((each for each in inner if dataclasses.is_dataclass(each)), hint), value)
    if isinstance(value, int) and "imedelta" in str(hint):
        return timedelta(milliseconds=value)
    return value
