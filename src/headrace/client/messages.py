"""Requests that are not on the hot path, as kio's entities, made from plain values.

kio has one class per message and version, with types of its own for numbers, names and times. `request` builds such an
entity from dicts, lists, ints (milliseconds where Kafka has a duration) and strings, and fills in what was left out.
Schemas are loaded when they are first needed, because that takes long: a process that only fetches does without them
(see `lookups`).
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from importlib import import_module
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from headrace.client.errors import InvalidRequest
from headrace.client.wire import skip_tags
from headrace.format.error_codes import ErrorCode

ZEROES: dict[str, Any] = {"string": "", "bytes": b"", "bool": False, "uuid": None}


def request(api: str, version: int, /, **fields: Any) -> Any:
    """The entity of a request, by the API's snake-case name."""
    return _entity(_class(api, version, "request"), fields)


def encode(entity: Any) -> bytes:
    """The body of a request."""
    from kio.serial import entity_writer

    out = io.BytesIO()
    try:
        entity_writer(type(entity))(out, entity)
    except (struct.error, OverflowError) as error:
        raise InvalidRequest(
            f"{type(entity).__name__} holds a number or a text that is too large for Kafka's protocol ({error})"
        ) from None
    return out.getvalue()


def decode_response(entity: Any, payload: bytes) -> Any:
    """The answer to a request, from the bytes behind the correlation id."""
    from kio.serial import entity_reader

    response = _class(type(entity).__module__.split(".")[2], int(entity.__version__), "response")
    position = 0
    if response.__header_schema__.__flexible__:
        position = skip_tags(memoryview(payload), 0)
    return entity_reader(response)(payload, position)[0]


@cache
def _class(api: str, version: int, kind: str) -> Any:
    module = import_module(f"kio.schema.{api}.v{version}.{kind}")
    return getattr(module, "".join(word.capitalize() for word in api.split("_")) + kind.capitalize())


class _Field(NamedTuple):
    """What is known of a field from its class alone, found out once."""

    name: str
    kind: str
    array: bool
    nested: Any
    required: bool


@cache
def _fields(entity: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(entity)
    return tuple(
        _Field(
            each.name,
            each.metadata.get("kafka_type", ""),
            _is_array(hints[each.name]),
            _nested(hints[each.name]),
            each.default is dataclasses.MISSING,
        )
        for each in dataclasses.fields(entity)
    )


def _entity(entity: Any, values: Mapping[str, Any]) -> Any:
    known = _fields(entity)
    if unknown := set(values) - {field.name for field in known}:
        raise TypeError(f"{entity.__name__} of version {entity.__version__} has no {', '.join(sorted(unknown))}")
    made = {}
    for field in known:
        if field.name in values:
            made[field.name] = _value(field, values[field.name])
        elif field.required:
            made[field.name] = _missing(field)
    return entity(**made)


def _value(field: _Field, value: Any) -> Any:
    if value is None:
        return None
    if field.kind.startswith("timedelta") and not isinstance(value, timedelta):
        return timedelta(milliseconds=value)
    if field.kind == "error_code":
        return ErrorCode(value)
    if field.array:
        return tuple(value) if field.nested is None else tuple(_entity(field.nested, each) for each in value)
    return value if field.nested is None else _entity(field.nested, value)


def _missing(field: _Field) -> Any:
    if field.array:
        return ()
    if field.kind == "error_code":
        return ErrorCode(0)
    return timedelta(0) if field.kind.startswith("timedelta") else ZEROES.get(field.kind, 0)


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is UnionType or isinstance(hint, UnionType) else (hint,)


def _is_array(hint: Any) -> bool:
    return any(get_origin(option) is tuple for option in _options(hint))


def _nested(hint: Any) -> Any:
    for option in _options(hint):
        candidate = get_args(option)[0] if get_origin(option) is tuple else option
        if dataclasses.is_dataclass(candidate):
            return candidate
    return None
