"""Frames of the remoting protocol: bytes to commands and back, without I/O.

A frame is its length (int32), one byte for how the header is written and three for the header's length, the header, and
a body. Headers are JSON or RocketMQ's own binary form, and both may come on one connection. A command is a request or,
by bit 0 of its flag, the answer to one with the same `opaque`; bit 1 marks a request that wants no answer.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from json.encoder import encode_basestring as _quote
from struct import Struct
from typing import Any

from headrace.errors import HeadraceError

JSON = 0
BINARY = 1
RESPONSE = 1
ONE_WAY = 2

# Length of the frame, and how the header is written with the length of the header.
HEAD = Struct(">ii")
LENGTH_MASK = 0xFFFFFF
# What the header of a request may have: it is read on the loop. Those of RocketMQ's clients have under 64 KiB.
HEADER_BYTES_MAX = 1_048_576
# Code, language, version, opaque, flag, and the length of the remark.
_BINARY_HEAD = Struct(">hbhiii")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
# As it stands in JSON, a half of a pair that stands for one character.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
# The version that answers carry: RocketMQ's number for 5.5.0.
VERSION = 513
LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS"),
    *("RUST", "NODE_JS"),
)


class Malformed(HeadraceError):
    """What came is no frame: nothing after it could be understood either."""


@dataclass(slots=True)
class Command:
    """A request or an answer."""

    code: int
    opaque: int = 0
    flag: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    language: int = 0
    version: int = VERSION
    serialization: int = JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY)


def encode(command: Command) -> bytes:
    """A command as a frame. Raises Malformed where the binary form has no room for what a client wrote in JSON."""
    try:
        header = _encode_json(command) if command.serialization == JSON else _encode_binary(command)
    except struct.error as error:
        raise Malformed(f"the code {command.code} or a field has no room in a binary header: {error}") from None
    head = HEAD.pack(4 + len(header) + len(command.body), command.serialization << 24 | len(header))
    return b"".join((head, header, command.body))


def decode(frame: bytes | memoryview) -> Command:
    """The command of a whole frame. Raises Malformed."""
    kind = HEAD.unpack_from(frame)[1]
    serialization, length = kind >> 24 & 0xFF, kind & LENGTH_MASK
    end = HEAD.size + length
    if end > len(frame):
        raise Malformed(f"a header of {length} bytes in a frame of {len(frame)}")
    header = bytes(frame[HEAD.size : end])
    if serialization == JSON:
        command = _decode_json(header)
    elif serialization == BINARY:
        command = _decode_binary(header)
    else:
        raise Malformed(f"a header is written as 0 (JSON) or 1 (RocketMQ), not as {serialization}")
    command.body = bytes(frame[end:])
    return command


# --- JSON -------------------------------------------------------------------------------------------------------------


def _encode_json(command: Command) -> bytes:
    # In the order of RocketMQ's own encoder, which leaves out what is null. An encoder of any value takes four times
    # as long.
    fields = ",".join([f"{_quote(name)}:{_quote(value)}" for name, value in command.fields.items()])
    extension = f'"extFields":{{{fields}}},' if fields else ""
    remark = "" if command.remark is None else f'"remark":{_quote(command.remark)},'
    return (
        f'{{"code":{command.code:d},{extension}"flag":{command.flag},'
        f'"language":"{LANGUAGES[command.language]}","opaque":{command.opaque},{remark}'
        f'"serializeTypeCurrentRPC":"JSON","version":{command.version}}}'
    ).encode(errors="replace")


def dump(value: object) -> bytes:
    """A value as JSON in the fewest bytes."""
    # A client's JSON can have what UTF-8 cannot, and an answer may repeat it.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def load(text: bytes) -> dict[str, Any]:
    """An object of JSON. Raises Malformed."""
    try:
        value = json.loads(text)
        if _HALF.search(text):
            # JSON can name half a character, which no text of a frame or of the log can hold.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Malformed(f"an object of JSON is expected, not {type(value).__name__}")
    return value


def _decode_json(header: bytes) -> Command:
    value = load(header)
    fields = value.get("extFields") or {}
    language = value.get("language")
    try:
        return Command(
            code=_number(value.get("code", 0)),
            opaque=_number(value.get("opaque", 0)),
            flag=_number(value.get("flag", 0)),
            fields={
                name: each if type(each) is str else _text(each) for name, each in fields.items() if each is not None
            },
            remark=None if value.get("remark") is None else _text(value["remark"]),
            language=LANGUAGES.index(language) if language in LANGUAGES else LANGUAGES.index("OTHER"),
            version=_number(value.get("version", 0)),
            serialization=JSON,
        )
    except (AttributeError, TypeError) as error:
        raise Malformed(f"a header of JSON has a field of the wrong type: {error}") from None


def _number(value: object) -> int:
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
        raise TypeError(f"{str(value)[:40]!r} is not a 32-bit number")
    return value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise TypeError(f"{str(value)[:40]!r} is not a text")
    return str(value)


# --- RocketMQ's own form ----------------------------------------------------------------------------------------------


def _encode_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    parts = [
        _BINARY_HEAD.pack(command.code, command.language, command.version, command.opaque, command.flag, len(remark)),
        remark,
        b"",
    ]
    size = 0
    for name, value in command.fields.items():
        raw_name, raw_value = name.encode(), value.encode()
        parts += (_INT16.pack(len(raw_name)), raw_name, _INT32.pack(len(raw_value)), raw_value)
        size += 6 + len(raw_name) + len(raw_value)
    parts[2] = _INT32.pack(size)
    return b"".join(parts)


def _decode_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag, length = _BINARY_HEAD.unpack_from(header)
        remark, position = _take(header, _BINARY_HEAD.size, length)
        (size,) = _INT32.unpack_from(header, position)
        position += 4
        end = position + size
        if size < 0 or end != len(header):
            raise Malformed(f"fields of {size} bytes in a header that has {len(header) - position} left")
        fields = {}
        while position < end:
            (length,) = _INT16.unpack_from(header, position)
            name, position = _take(header, position + 2, length)
            (length,) = _INT32.unpack_from(header, position)
            fields[name], position = _take(header, position + 4, length)
    except struct.error:
        raise Malformed("a binary header ends inside a number") from None
    except UnicodeDecodeError:
        raise Malformed("a binary header has text that is not UTF-8") from None
    other = LANGUAGES.index("OTHER")
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        fields=fields,
        remark=remark or None,
        language=language if 0 <= language < len(LANGUAGES) else other,
        version=version,
        serialization=BINARY,
    )


def _take(header: bytes, position: int, length: int) -> tuple[str, int]:
    if not 0 <= length <= len(header) - position:
        raise Malformed(f"a text of {length} bytes in a header that has {len(header) - position} left")
    return header[position : position + length].decode(), position + length
