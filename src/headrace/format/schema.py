"""Kafka's messages by their schemas: bytes to kio's entities, and plain dicts to bytes, for requests and replies alike.

kio supplies the schemas (one dataclass for each API, version and struct), not the code: its native reader allocates
whatever length a message announces and takes the process down with it. From a schema this module builds a chain of
small readers or writers, when first used. Readers trust nothing: an array holds at most as many elements as bytes are
left, and all arrays of a message together at most as many as its `Frame` allows. They raise ValueError, and `struct`'s
own error.

What is written is a dict that may have the fields of several versions. A version's writer takes what it knows, leaves
out what it does not, and fills in the schema's default (or zero, empty, null) for what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from struct import Struct
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from headrace.format.error_codes import ErrorCode
from headrace.format.varint import read_varint, write_varint

# A reader takes the frame and a position, and gives the value and the position after it.
Reader = Callable[["Frame", int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
_UINT16, _UINT32, _FLOAT64, _BOOL = Struct(">H"), Struct(">I"), Struct(">d"), Struct(">?")
_ZERO_UUID = bytes(16)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
# To some clients "for ever" is the largest number of milliseconds, which is more than a timedelta holds.
_LEAST, _MOST = timedelta.min // MILLISECOND, timedelta.max // MILLISECOND

_PLAIN = {
    "int8": _INT8,
    "int16": _INT16,
    "int32": _INT32,
    "int64": _INT64,
    "uint16": _UINT16,
    "uint32": _UINT32,
    "float64": _FLOAT64,
    "bool": _BOOL,
}


class Encoded(NamedTuple):
    """An array of a reply whose elements have been written before: a long one is written in pieces between which others
    have their turn on the loop."""

    length: int
    elements: bytearray


def load_schema(api_key: int, version: int, side: str) -> Any:
    """kio's class of a whole request or response."""
    # Here, when a message is first read or written: the index would take a tenth of the time to start a broker.
    from kio import index

    return (index.load_request_schema if side == "request" else index.load_response_schema)(api_key, version)


class Shape:
    """What a field's annotation says: an array or not, null allowed or not, and of what."""

    def __init__(self, field: Field[Any]) -> None:
        kind, self.nullable = _without_none(field.type)
        self.array = get_origin(kind) is tuple
        if self.array:
            kind, inner_nullable = _without_none(get_args(kind)[0])
            # kio writes the null of an array of structs on the inside now and then; there are no null elements.
            self.nullable = self.nullable or inner_nullable
        self.struct: Any = kind if is_dataclass(kind) else None
        self.kafka_type: str = "" if self.struct else field.metadata["kafka_type"]
        self.tag: int | None = field.metadata.get("tag")

    def default(self, field: Field[Any]) -> Any:
        """What a missing field counts as."""
        if field.default is not MISSING:
            return field.default
        if self.nullable:
            return None
        if self.array:
            return ()
        if self.struct:
            return {}
        return {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}.get(self.kafka_type, 0)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) is UnionType:
        inner = [each for each in get_args(kind) if each is not NoneType]
        return inner[0], len(inner) < len(get_args(kind))
    return kind, False


# --- reading ----------------------------------------------------------------------------------------------------------


class Frame(bytes):
    """A message that knows how many elements it may still announce."""

    elements_left: int

    def __new__(cls, frame: bytes, elements_max: int) -> Frame:
        return super().__new__(cls, frame)

    def __init__(self, _: bytes, elements_max: int) -> None:
        self.elements_max = self.elements_left = elements_max


@cache
def struct_reader(struct: Any) -> Reader:
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    tagged_defaults: dict[str, Any] = {}
    for field in fields(struct):
        shape = Shape(field)
        reader = _field_reader(shape, struct.__flexible__)
        if shape.tag is None:
            plain.append((field.name, reader))
        else:
            tagged[shape.tag] = (field.name, reader)
            default = shape.default(field)
            tagged_defaults[field.name] = _empty(shape.struct) if default == {} and shape.struct else default

    def read(frame: Frame, position: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, reader in plain:
            values[name], position = reader(frame, position)
        return struct(**values), position

    def read_flexible(frame: Frame, position: int) -> tuple[Any, int]:
        values = dict(tagged_defaults)
        for name, reader in plain:
            values[name], position = reader(frame, position)
        count, position = read_varint(frame, position)
        for _ in range(_bounded(count, frame, position)):
            tag, position = read_varint(frame, position)
            size, position = read_varint(frame, position)
            end = position + size
            if end > len(frame):
                raise ValueError(f"tagged field {tag} announces {size} bytes, more than there are")
            known = tagged.get(tag)
            if known is not None:
                name, reader = known
                values[name], after = reader(frame, position)
                if after != end:
                    raise ValueError(f"tagged field {tag} announces {size} bytes and takes {after - position}")
            position = end
        return struct(**values), position

    return read_flexible if struct.__flexible__ else read


def _empty(struct: Any) -> Any:
    """A struct with nothing but defaults."""
    values = {}
    for field in fields(struct):
        shape = Shape(field)
        default = shape.default(field)
        values[field.name] = _empty(shape.struct) if default == {} and shape.struct else default
    return struct(**values)


def _field_reader(shape: Shape, flexible: bool) -> Reader:
    if shape.array:
        inner = struct_reader(shape.struct) if shape.struct else _primitive_reader(shape.kafka_type, flexible, False)
        return _array_reader(inner, flexible, shape.nullable)
    if shape.struct:
        return _nullable_struct_reader(struct_reader(shape.struct)) if shape.nullable else struct_reader(shape.struct)
    # A tag that is there has a value: null is written by leaving the tag out, except where the type itself has a null.
    return _primitive_reader(shape.kafka_type, flexible, shape.nullable)


def _bounded(count: int, frame: Frame, position: int) -> int:
    if count > frame.elements_left or count > len(frame) - position:
        raise ValueError(
            f"an array announces {count} elements with {len(frame) - position} bytes left, after "
            f"{frame.elements_max - frame.elements_left} of at most {frame.elements_max} (array_max)"
        )
    frame.elements_left -= count
    return count


def _array_reader(inner: Reader, flexible: bool, nullable: bool) -> Reader:
    def read(frame: Frame, position: int) -> tuple[Any, int]:
        if flexible:
            count, position = read_varint(frame, position)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(frame, position)
            position += 4
        if count < 0:
            if count == -1 and nullable:
                return None, position
            raise ValueError(f"an array of length {count}")
        elements = []
        for _ in range(_bounded(count, frame, position)):
            element, position = inner(frame, position)
            elements.append(element)
        return tuple(elements), position

    return read


def _nullable_struct_reader(inner: Reader) -> Reader:
    def read(frame: Frame, position: int) -> tuple[Any, int]:
        (marker,) = _INT8.unpack_from(frame, position)
        if marker < 0:
            return None, position + 1
        return inner(frame, position + 1)

    return read


def _primitive_reader(kafka_type: str, flexible: bool, nullable: bool) -> Reader:
    plain = _PLAIN.get(kafka_type)
    if plain is not None:
        unpack, size = plain.unpack_from, plain.size

        def read_plain(frame: Frame, position: int) -> tuple[Any, int]:
            return unpack(frame, position)[0], position + size

        return read_plain
    if kafka_type == "string":
        sized = _sized_reader(flexible, _INT16, nullable)

        def read_string(frame: Frame, position: int) -> tuple[Any, int]:
            raw, position = sized(frame, position)
            return (raw if raw is None else raw.decode()), position

        return read_string
    if kafka_type in ("bytes", "records"):
        return _sized_reader(flexible, _INT32, nullable)
    return {
        "uuid": _read_uuid,
        "error_code": _read_error_code,
        "timedelta_i32": _read_timedelta_i32,
        "timedelta_i64": _read_timedelta_i64,
        "datetime_i64": _read_datetime,
    }[kafka_type]


def _sized_reader(flexible: bool, prefix: Struct, nullable: bool) -> Reader:
    def read(frame: Frame, position: int) -> tuple[Any, int]:
        if flexible:
            size, position = read_varint(frame, position)
            size -= 1
        else:
            (size,) = prefix.unpack_from(frame, position)
            position += prefix.size
        if size < 0:
            if size == -1 and nullable:
                return None, position
            raise ValueError(f"a string of length {size}")
        end = position + size
        if end > len(frame):
            raise ValueError(f"a string announces {size} bytes with {len(frame) - position} left")
        return frame[position:end], end

    return read


def _read_uuid(frame: Frame, position: int) -> tuple[UUID | None, int]:
    raw = frame[position : position + 16]
    if len(raw) < 16:
        raise ValueError("a uuid is cut off")
    return (None if raw == _ZERO_UUID else UUID(bytes=raw)), position + 16


def _read_error_code(frame: Frame, position: int) -> tuple[ErrorCode, int]:
    return ErrorCode(_INT16.unpack_from(frame, position)[0]), position + 2


def _read_timedelta_i32(frame: Frame, position: int) -> tuple[timedelta, int]:
    return timedelta(milliseconds=_INT32.unpack_from(frame, position)[0]), position + 4


def _read_timedelta_i64(frame: Frame, position: int) -> tuple[timedelta, int]:
    (time,) = _INT64.unpack_from(frame, position)
    return timedelta(milliseconds=max(_LEAST, min(time, _MOST))), position + 8


def _read_datetime(frame: Frame, position: int) -> tuple[datetime | None, int]:
    (value,) = _INT64.unpack_from(frame, position)
    return (None if value == -1 else EPOCH + timedelta(milliseconds=value)), position + 8


# --- writing ----------------------------------------------------------------------------------------------------------


@cache
def struct_writer(struct: Any) -> Writer:
    plain: list[tuple[str, Any, Writer]] = []
    tagged: list[tuple[int, str, Any, Writer]] = []
    for field in fields(struct):
        shape = Shape(field)
        writer = _field_writer(shape, struct.__flexible__)
        default = shape.default(field)
        if shape.tag is None:
            plain.append((field.name, default, writer))
        else:
            tagged.append((shape.tag, field.name, default, writer))
    tagged.sort(key=lambda entry: entry[0])

    def write(out: bytearray, values: dict[str, Any]) -> None:
        get = values.get
        for name, default, writer in plain:
            writer(out, get(name, default))

    def write_flexible(out: bytearray, values: dict[str, Any]) -> None:
        write(out, values)
        present = []
        for tag, name, default, writer in tagged:
            value = values.get(name, default)
            if value is None or value == default or (not default and not value):
                continue
            body = bytearray()
            writer(body, value)
            present.append((tag, body))
        write_varint(out, len(present))
        for tag, body in present:
            write_varint(out, tag)
            write_varint(out, len(body))
            out += body

    return write_flexible if struct.__flexible__ else write


def _field_writer(shape: Shape, flexible: bool) -> Writer:
    inner = struct_writer(shape.struct) if shape.struct else _primitive_writer(shape.kafka_type, flexible)
    if shape.array:
        return _array_writer(inner, flexible)
    if shape.struct and shape.nullable and shape.tag is None:
        return _nullable_struct_writer(inner)
    return inner


def _nullable_struct_writer(inner: Writer) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\xff"
        else:
            out += b"\x01"
            inner(out, value)

    return write


def _array_writer(inner: Writer, flexible: bool) -> Writer:
    def write(out: bytearray, elements: Any) -> None:
        encoded = type(elements) is Encoded
        count = elements.length if encoded else -1 if elements is None else len(elements)
        if flexible:
            write_varint(out, count + 1)
        else:
            out += _INT32.pack(count)
        if encoded:
            out += elements.elements
            return
        for element in elements or ():
            inner(out, element)

    return write


def _primitive_writer(kafka_type: str, flexible: bool) -> Writer:
    plain = _PLAIN.get(kafka_type)
    if plain is not None:
        pack = plain.pack

        def write_plain(out: bytearray, value: Any) -> None:
            out += pack(value)

        return write_plain
    if kafka_type in ("string", "bytes", "records"):
        prefix = _INT16 if kafka_type == "string" else _INT32
        return _write_compact if flexible else _sized_writer(prefix)
    return {
        "uuid": _write_uuid,
        "error_code": _write_error_code,
        "timedelta_i32": _write_timedelta_i32,
        "timedelta_i64": _write_timedelta_i64,
        "datetime_i64": _write_datetime,
    }[kafka_type]


def _write_compact(out: bytearray, value: Any) -> None:
    if value is None:
        out.append(0)
        return
    raw = value.encode() if isinstance(value, str) else value
    write_varint(out, len(raw) + 1)
    out += raw


def _sized_writer(prefix: Struct) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out += prefix.pack(-1)
            return
        raw = value.encode() if isinstance(value, str) else value
        out += prefix.pack(len(raw))
        out += raw

    return write


def _write_uuid(out: bytearray, value: Any) -> None:
    out += _ZERO_UUID if value is None else value.bytes


def _write_error_code(out: bytearray, value: Any) -> None:
    out += _INT16.pack(int(value))


def _write_timedelta_i32(out: bytearray, value: Any) -> None:
    out += _INT32.pack(value if isinstance(value, int) else value // MILLISECOND)


def _write_timedelta_i64(out: bytearray, value: Any) -> None:
    out += _INT64.pack(value if isinstance(value, int) else value // MILLISECOND)


def _write_datetime(out: bytearray, value: Any) -> None:
    if isinstance(value, datetime):
        value = (value - EPOCH) // MILLISECOND
    out += _INT64.pack(-1 if value is None else value)
