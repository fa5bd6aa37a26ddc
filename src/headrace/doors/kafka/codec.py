"""Requests and replies off the hot path: bytes to kio's entities, and plain dicts to bytes, in every version.

All arrays of a request together have at most `ARRAY_MAX` elements, since a byte on the wire can be an element in an
array within an array, and an element costs a hundred times that here. A reply is a dict with the union of all versions'
fields; `headrace.format.schema` has the readers and writers.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from struct import error as StructError  # noqa: N812 - the module's own name says nothing
from typing import Any

from headrace.doors.kafka.errors import Malformed
from headrace.format.schema import Encoded, Frame, Reader, Shape, Writer, load_schema, struct_reader, struct_writer

# The default of `Config.array_max`; the door sets it when it opens.
ARRAY_MAX = 200_000
# Structs that take about a millisecond to write.
STRUCTS_A_TURN = 100
# Requests and replies above these take milliseconds: they are read and written off the loop.
STRUCTS_ON_THE_LOOP = 500
BYTES_ON_THE_LOOP = 32_768


def decode_request(api_key: int, version: int, frame: bytes, position: int) -> Any:
    """The entity of a request whose body begins at `position`. Raises Malformed."""
    reader = _request_reader(api_key, version)
    try:
        return reader(Frame(frame, ARRAY_MAX), position)[0]
    except (StructError, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise Malformed(f"a request of API {api_key} version {version} does not parse: {error}") from None


def preload(api_key: int, version: int) -> None:
    """Make what reads and writes one version of an API."""
    _request_reader(api_key, version)
    _response_writer(api_key, version)


def encode_response(api_key: int, version: int, values: dict[str, Any]) -> bytearray:
    """The body of a reply, without length, correlation id and header."""
    out = bytearray()
    _response_writer(api_key, version)(out, values)
    return out


def is_large(reply: dict[str, Any]) -> bool:
    """Whether a reply has so many structs that writing it on the loop would keep others from their turn."""
    left = STRUCTS_ON_THE_LOOP
    waiting: list[Any] = [reply]
    while waiting:
        for value in waiting.pop().values():
            if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
                left -= len(value)
                if left < 0:
                    return True
                waiting += value
    return False


async def encode_in_turns(
    api_key: int, version: int, array: str, elements: Iterable[tuple[int, dict[str, Any]]]
) -> Encoded:
    """Write the elements of an array of structs at the top of a reply. Each comes with the number of structs in it, by
    which others get their turn about every millisecond."""
    write = _element_writer(api_key, version, array)
    out, length, written = bytearray(), 0, 0
    for structs, element in elements:
        write(out, element)
        length += 1
        written += structs
        if written >= STRUCTS_A_TURN:
            written = 0
            await sleep(0)
    return Encoded(length, out)


@cache
def _element_writer(api_key: int, version: int, array: str) -> Writer:
    struct = load_schema(api_key, version, "response")
    (field,) = (field for field in fields(struct) if field.name == array)
    return struct_writer(Shape(field).struct)


@cache
def _request_reader(api_key: int, version: int) -> Reader:
    return struct_reader(load_schema(api_key, version, "request"))


@cache
def _response_writer(api_key: int, version: int) -> Writer:
    return struct_writer(load_schema(api_key, version, "response"))
