"""Messages as the commands read and print them.

Three forms, the same in both directions, so that `consume | produce` copies: `text` is one line a message (optionally
with its key in front), `json` one object a line that keeps everything, `raw` the bytes alone (one message in, all
values out). Bytes that are not UTF-8 are written in JSON under the name with `_base64`.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, BinaryIO, NamedTuple

from headrace.errors import HeadraceError
from headrace.settings import INT64_MAX

Headers = list[tuple[str, bytes | None]]

# Of input for one message. Brokers take 100 MiB in one request by default; longer input is no message, but perhaps a
# device that never ends.
INPUT_MAX_BYTES = 256 << 20


class Form(StrEnum):
    """How messages are written outside of the broker."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


class Message(NamedTuple):
    """A message to send."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None = None
    """Milliseconds since the epoch; None: now."""


class InputInvalid(HeadraceError):
    """The input cannot be read any further. The messages before it can be sent."""


class Parser:
    """Messages out of a stream that comes in pieces."""

    def __init__(self, form: Form, key_separator: str | None) -> None:
        if key_separator == "":
            raise HeadraceError("--key-separator must not be empty. Give the text between key and value.")
        self._form = form
        self._given = key_separator
        self._separator = None if key_separator is None else _unescape(key_separator)
        # Pieces of what is not whole yet; joined once, so that a long line costs no more than its length.
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._number = 0

    def feed(self, piece: bytes) -> Iterator[Message]:
        """The messages that are whole with this piece."""
        if piece:
            self._rest.append(piece)
            self._rest_bytes += len(piece)
        if self._form is Form.RAW or b"\n" not in piece:
            if self._rest_bytes > INPUT_MAX_BYTES:
                what = "the message" if self._form is Form.RAW else f"line {self._number + 1}"
                raise InputInvalid(f"{what} is longer than {INPUT_MAX_BYTES} bytes, which no message can be")
            return
        *lines, last = b"".join(self._rest).split(b"\n")
        self._rest = [last] if last else []
        self._rest_bytes = len(last)
        for line in lines:
            yield from self._line(line)

    def end(self) -> Iterator[Message]:
        """What is left when the stream has ended."""
        if self._form is Form.RAW:
            yield Message(None, b"".join(self._rest), [])
        elif self._rest:
            yield from self._line(b"".join(self._rest))

    def _line(self, line: bytes) -> Iterator[Message]:
        self._number += 1
        line = line.removesuffix(b"\r")
        if self._form is Form.JSON:
            if line.strip():
                yield _from_json(line, self._number)
        elif self._separator is None:
            yield Message(None, line, [])
        else:
            key, found, value = line.partition(self._separator)
            if not found:
                raise InputInvalid(f"line {self._number} has no key: {self._given!r} does not occur in it")
            yield Message(key, value, [])


def format_record(
    form: Form, key_separator: str | None, topic: str, partition: int, record: tuple[int, int, Any, Any, Any]
) -> bytes:
    """One record (offset, time, key, value, headers) in one of the forms."""
    offset, timestamp, key, value, headers = record
    if form is Form.RAW:
        return value or b""
    if form is Form.TEXT:
        line = (value or b"") + b"\n"
        return line if key_separator is None else (key or b"") + _unescape(key_separator) + line
    entry: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp}
    if 0 <= timestamp < 253_402_300_800_000:
        entry["time"] = datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    _put(entry, "key", key)
    _put(entry, "value", value)
    if headers:
        entry["headers"] = [_header(name, content) for name, content in headers]
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


def binary_output() -> BinaryIO:
    """Standard output for bytes. With PYTHONUNBUFFERED, Python's own stream may write only a part on an interrupt or a
    full disk; this one writes all, or raises."""
    return open(sys.stdout.fileno(), "wb", closefd=False)


def parse_header(text: str) -> tuple[str, bytes]:
    """A header given as NAME=VALUE."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise HeadraceError(f"--header must be NAME=VALUE (got {text!r})")
    return name.encode().decode(), os.fsencode(value)


def _unescape(separator: str) -> bytes:
    """The separator with \\t and \\0 as the characters that they stand for, since shells make those hard to type."""
    return separator.encode().replace(b"\\t", b"\t").replace(b"\\0", b"\0")


def _put(entry: dict[str, Any], name: str, content: bytes | None) -> None:
    if content is None:
        entry[name] = None
        return
    try:
        entry[name] = content.decode()
    except UnicodeDecodeError:
        entry[name + "_base64"] = b64encode(content).decode()


def _header(name: str | bytes, content: bytes | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name if isinstance(name, str) else name.decode("utf-8", "replace")}
    _put(entry, "value", content)
    return entry


def _from_json(line: bytes, number: int) -> Message:
    try:
        entry = json.loads(line)
        if not isinstance(entry, dict):
            raise ValueError("it is not an object")
        # Without this check a slip in the name would send a tombstone, which deletes a key.
        if "value" not in entry and "value_base64" not in entry:
            raise ValueError("it has no value, not even null")
        headers = entry.get("headers") or []
        if not isinstance(headers, list) or not all(_is_header(each) for each in headers):
            raise ValueError('headers are not a list of {"name": ..., "value": ...}')
        timestamp = entry.get("timestamp")
        if timestamp is not None and (type(timestamp) is not int or not -1 <= timestamp <= INT64_MAX):
            raise ValueError("timestamp is not a number of milliseconds")
        named = [(each["name"].encode().decode(), _take(each, "value")) for each in headers]
        return Message(_take(entry, "key"), _take(entry, "value"), named, timestamp)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputInvalid(
            f"line {number} is not a JSON object with value, key, headers and timestamp: {error}"
        ) from None


def _is_header(each: Any) -> bool:
    return isinstance(each, dict) and isinstance(each.get("name"), str)


def _take(entry: dict[str, Any], name: str) -> bytes | None:
    if (encoded := entry.get(name + "_base64")) is not None:
        return b64decode(encoded, validate=True)
    content = entry.get(name)
    if content is None or isinstance(content, str):
        return None if content is None else content.encode()
    # Any other JSON value stands for its own text: {"value": {"a": 1}} is a message of eight bytes.
    return json.dumps(content, ensure_ascii=False).encode()
