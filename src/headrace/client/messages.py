"""Requests that are not on the hot path, from plain values, by kio's schemas.

A request has dicts, lists, ints (milliseconds where Kafka has a duration) and strings; what is left out is filled in.
Its reply is an entity of kio. Schemas are loaded when they are first needed, because that takes long: a process that
only fetches does without them (see `lookups`).
"""

from __future__ import annotations

import struct
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from headrace.client.errors import InvalidRequest
from headrace.client.wire import skip_tags
from headrace.format.schema import Frame, struct_reader, struct_writer


class Request(NamedTuple):
    """A request, ready to be encoded."""

    schema: Any
    response: Any
    fields: dict[str, Any]

    @property
    def key(self) -> int:
        return int(self.schema.__api_key__)

    @property
    def version(self) -> int:
        return int(self.schema.__version__)

    def encode(self) -> bytearray:
        """The body, with the empty tags of the request's header in front where it has them."""
        out = bytearray(_has_tags(self.schema))
        try:
            struct_writer(self.schema)(out, self.fields)
        except (struct.error, OverflowError) as error:
            raise InvalidRequest(
                f"{self.schema.__name__} holds a number or a text that is too large for Kafka's protocol ({error})"
            ) from None
        return out

    def decode(self, payload: memoryview) -> Any:
        """The reply, from the bytes behind the correlation id."""
        # An element takes a byte at least: this is no limit.
        frame = Frame(bytes(payload), len(payload))
        return struct_reader(self.response)(frame, skip_tags(payload, 0) if _has_tags(self.response) else 0)[0]


def request(api: str, version: int, /, **fields: Any) -> Request:
    """A request, by the API's snake-case name."""
    schema = _load(api, version, "request")
    if unknown := fields.keys() - schema.__dataclass_fields__.keys():
        raise TypeError(f"{schema.__name__} of version {version} has no {', '.join(sorted(unknown))}")
    return Request(schema, _load(api, version, "response"), fields)


def _has_tags(schema: Any) -> bool:
    return bool(schema.__header_schema__.__flexible__)


@cache
def _load(api: str, version: int, side: str) -> Any:
    """kio's class, past its index, which takes long to import."""
    module = import_module(f"kio.schema.{api}.v{version}.{side}")
    return getattr(module, "".join(word.capitalize() for word in api.split("_")) + side.capitalize())
