"""Between bytes and what a handler wants: bytes, text, JSON as plain values, dataclasses, msgspec's structs, pydantic's
models. The annotation of the handler's parameter decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec

Decoder = Callable[[bytes], Any]


class BadPayload(Exception):
    """The bytes are not what the handler wants: the message goes to the dead letters with this as the reason."""


def decoder(wanted: Any) -> Decoder:
    """What turns a message's value into `wanted`; raises BadPayload."""
    if wanted is bytes:
        return bytes
    if wanted is str:
        return _text
    if is_pydantic(wanted):
        return _check(wanted.model_validate_json, wanted)
    try:
        made = msgspec.json.Decoder(wanted)
    except TypeError as error:
        raise TypeError(f"a handler cannot be given a {wanted!r}: {error}") from None
    return _check(made.decode, wanted)


def encode(payload: Any) -> bytes:
    """The bytes of a payload: itself, UTF-8, or JSON."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        return payload.encode()
    if is_pydantic(type(payload)):
        return bytes(payload.model_dump_json().encode())
    try:
        return msgspec.json.encode(payload)
    except TypeError as error:
        raise TypeError(f"a payload of {type(payload).__name__} cannot be sent: {error}") from None


def field_of(payload: Any, name: str) -> bytes | None:
    """A field of a payload, as a key; None where it has none."""
    if isinstance(payload, bytes | str):
        try:
            payload = msgspec.json.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            return None
        if not isinstance(payload, dict):
            return None
    value = payload.get(name) if isinstance(payload, dict) else getattr(payload, name, None)
    if value is None:
        return None
    return value if isinstance(value, bytes) else str(value).encode()


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadPayload(f"the value is not UTF-8: {error}") from None


def _check(decode: Callable[[bytes], Any], wanted: Any) -> Decoder:
    name = getattr(wanted, "__name__", str(wanted))

    def decoded(raw: bytes) -> Any:
        try:
            return decode(raw)
        except Exception as error:  # also what a type of the application's own raises, and too deep a nesting
            raise BadPayload(f"the value is not a {name}: {error}") from None

    return decoded


def is_pydantic(kind: Any) -> bool:
    """Without importing pydantic, which an application may not have."""
    return isinstance(kind, type) and not dataclasses.is_dataclass(kind) and hasattr(kind, "model_validate_json")
