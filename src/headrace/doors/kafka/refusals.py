"""A request of any API, refused: its reply with one error in every place that has room for one.

Kafka's replies have errors as a whole, or with each topic, partition, group or id that was asked about. The schemas say
where: an array of a reply whose elements have an error code answers an array of the request, element by element. It is
the one of the same name, or else the next one in order, since replies list things as requests do. What names an
element (`name`, `partition_index`, `group_id`) is taken over from the request by name; where the request has bare
names or numbers, by type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any

from headrace.doors.kafka.placement import Leader
from headrace.format.error_codes import ErrorCode
from headrace.format.schema import Shape, load_schema

Reply = dict[str, Any]

ALTER_USERS = 51


def refuse(
    api_key: int, version: int, request: Any, code: ErrorCode, sentence: str, leader: Leader | None = None
) -> Reply:
    """The reply to a request of kio's. `leader` is named to clients of an API that can take it."""
    said: Reply = {"error_code": code, "error_message": sentence}
    if api_key == ALTER_USERS:
        # Its answers are about users, whom the request names in two places.
        names = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
        return {"results": [{**said, "user": name} for name in names]}
    if leader is not None:
        said["current_leader"] = leader.current
        said["node_endpoints"] = [leader.endpoint._asdict()]
    return _reply(load_schema(api_key, version, "response"), request, said)


def _reply(struct: Any, asked: Any, said: Mapping[str, Any]) -> Reply:
    """One struct of a reply, about one element of the request."""
    reply: Reply = {}
    arrays = _arrays(asked)
    for field in fields(struct):
        shape, name = Shape(field), field.name
        if _is_error(shape):
            reply[name] = said["error_code"]
        elif name in said and (not shape.array or name == "node_endpoints"):
            reply[name] = said[name]
        elif shape.array and shape.struct is not None and _has_error(shape.struct):
            found = arrays.pop(name, None)
            if found is None and arrays:
                found = arrays.pop(next(iter(arrays)))
            reply[name] = [_reply(shape.struct, each, said) for each in found or ()]
        elif not shape.array and shape.struct is None and name != "throttle_time":
            value = _value(field, shape, asked, struct)
            if value is not None:
                reply[name] = value
    return reply


def _arrays(asked: Any) -> dict[str, Any]:
    if not is_dataclass(asked):
        return {}
    return {each.name: getattr(asked, each.name) for each in fields(asked) if Shape(each).array}


def _value(field: Field[Any], shape: Shape, asked: Any, struct: Any) -> Any:
    """What names the element that a struct of a reply is about."""
    if is_dataclass(asked):
        return getattr(asked, field.name, None)
    kind: type = type(asked)
    return asked if field.name == _key(struct, kind) else None


@cache
def _key(struct: Any, kind: type) -> str:
    """The field of a reply's element that says which it is, by the type of the bare value in the request."""
    return next((each.name for each, shape in _scalars(struct) if _takes(shape, kind)), "")


def _scalars(struct: Any) -> Iterator[tuple[Field[Any], Shape]]:
    for each in fields(struct):
        shape = Shape(each)
        if not shape.array and shape.struct is None and not _is_error(shape) and each.name != "error_message":
            yield each, shape


def _takes(shape: Shape, kind: type) -> bool:
    if issubclass(kind, str):
        return shape.kafka_type == "string"
    if issubclass(kind, int):
        return shape.kafka_type in ("int8", "int16", "int32", "int64")
    return shape.kafka_type == "uuid"


def _is_error(shape: Shape) -> bool:
    return shape.kafka_type == "error_code" and shape.tag is None


@cache
def _has_error(struct: Any) -> bool:
    """Whether there is room for an error in a struct, or in those of its arrays."""
    for each in fields(struct):
        shape = Shape(each)
        if _is_error(shape) or (shape.array and shape.struct is not None and _has_error(shape.struct)):
            return True
    return False
