"""The shapes of bodies and answers, as JSON Schema: what a route declares beside its handler.

A shape with a name of its own stands once in the OpenAPI document, and everything else refers to it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Named:
    """A shape with a name of its own."""

    name: str
    schema: Schema


Shape = Schema | Named


def text(doc: str = "", choices: Sequence[str] = (), **more: object) -> Schema:
    return _with({"type": "string", **({"enum": list(choices)} if choices else {}), **more}, doc)


def integer(doc: str = "", least: int | None = None, most: int | None = None, default: int | None = None) -> Schema:
    limits = {"minimum": least, "maximum": most, "default": default}
    return _with({"type": "integer", **{name: value for name, value in limits.items() if value is not None}}, doc)


def decimal(doc: str = "") -> Schema:
    return _with({"type": "number"}, doc)


def flag(doc: str = "") -> Schema:
    return _with({"type": "boolean"}, doc)


def anything(doc: str = "") -> Schema:
    return _with({}, doc)


def array(items: Shape, doc: str = "", most: int | None = None) -> Schema:
    return _with({"type": "array", "items": items, **({} if most is None else {"maxItems": most})}, doc)


def mapping(values: Shape, doc: str = "") -> Schema:
    """An object whose names are data."""
    return _with({"type": "object", "additionalProperties": values}, doc)


def object_of(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, doc: str = "") -> Schema:
    """An object of known fields, and no others."""
    schema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    return _with(schema, doc)


def either(*shapes: Shape, doc: str = "") -> Schema:
    return _with({"anyOf": list(shapes)}, doc)


def nullable(shape: Shape) -> Schema:
    """The shape, or null."""
    if isinstance(shape, Mapping) and isinstance(shape.get("type"), str) and "enum" not in shape:
        return {**shape, "type": [shape["type"], "null"]}
    return {"anyOf": [shape, {"type": "null"}]}


def given_bytes(name: str) -> dict[str, Shape]:
    """The fields by which a request gives bytes: one of them."""
    return {name: nullable(text()), name + "_base64": nullable(text(f"`{name}` where it is not UTF-8."))}


def bytes_fields(name: str, doc: str = "") -> dict[str, Shape]:
    """The fields under which bytes stand: one of them is there."""
    return {
        name: nullable(text(doc)),
        name + "_base64": text(f"`{name}` where it is not UTF-8."),
        name + "_bytes": nullable(integer(f"The size of `{name}`, where it is cut.")),
    }


def _with(schema: dict[str, Any], doc: str) -> Schema:
    return {**schema, "description": doc} if doc else schema
