"""Messages of peers that are read by any version: JSON objects whose fields are those of a dataclass.

A later version may say more, which is passed over, and an earlier one less, where a field has a default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

M = TypeVar("M", bound="DataclassInstance")
# By the name of a field, what makes its value of JSON's.
Readers = Mapping[str, Callable[[Any], Any]]

PLAIN = ("int", "str", "bool")


class PeerProtocolError(HeadraceError):
    """A peer sent what is no message of this protocol."""


def write(message: DataclassInstance) -> bytes:
    """A message as it travels."""
    return json.dumps(asdict(message), separators=(",", ":")).encode()


def read(kind: type[M], body: bytes, readers: Readers) -> M:
    """A message. Raises PeerProtocolError."""
    try:
        return read_fields(kind, json.loads(body), readers)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PeerProtocolError(f"a peer sent a {kind.__name__} that cannot be read: {error!r}") from error


def read_fields(kind: type[M], values: Mapping[str, Any], readers: Readers) -> M:
    """The same of an object within a message. Raises ValueError, TypeError, KeyError, AttributeError."""
    found = {}
    for each in fields(kind):
        if each.name not in values and each.default is not MISSING:
            continue
        value = values[each.name]
        if each.name in readers:
            value = readers[each.name](value)
        elif each.type in PLAIN and type(value).__name__ != each.type:
            raise TypeError(f"{each.name} must be {each.type} (got {value!r})")
        found[each.name] = value
    return kind(**found)
