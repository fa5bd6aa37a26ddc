"""The primitives of Kafka's wire as the hot path reads them: in place, in a buffer that holds more than the frame.

The receive buffer is shared, so reading past the end of a frame would show another connection's bytes. Every length is
therefore held against the end of its frame, never against the buffer's.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from headrace.doors.kafka.errors import Malformed
from headrace.format.varint import write_varint

INT8: Final = Struct(">b")
INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
INT32_PAIR: Final = Struct(">ii")

# Length, API key, version, correlation id, length of the client id: a request up to its client id.
HEAD: Final = Struct(">ihhih")

# Tagged fields of one struct; no schema has more than a handful.
TAGS_MAX: Final = 32


def read_varint(buffer: bytes | bytearray, position: int, end: int) -> tuple[int, int]:
    """An unsigned variable-length integer of at most 32 bits, and the position after it."""
    value = shift = 0
    while position < end and shift <= 28:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise Malformed("a variable-length integer is cut off or too long")


def read_count(buffer: bytearray, position: int, end: int, flexible: bool, limit: int) -> tuple[int, int]:
    """The length of an array, -1 for a null one. An element takes a byte at least."""
    if flexible:
        count, position = read_varint(buffer, position, end)
        count -= 1
    else:
        if end - position < 4:
            raise Malformed("an array is cut off")
        (count,) = INT32.unpack_from(buffer, position)
        position += 4
    if count > end - position or count > limit or count < -1:
        raise Malformed(f"an array announces {count} elements with {end - position} bytes left")
    return count, position


def read_text(buffer: bytearray, position: int, end: int, flexible: bool) -> tuple[bytes | None, int]:
    """A nullable string, undecoded."""
    if flexible:
        size, position = read_varint(buffer, position, end)
        size -= 1
    else:
        if end - position < 2:
            raise Malformed("a string is cut off")
        (size,) = INT16.unpack_from(buffer, position)
        position += 2
    if size == -1:
        return None, position
    after = position + size
    if size < 0 or after > end:
        raise Malformed(f"a string announces {size} bytes with {end - position} left")
    return bytes(buffer[position:after]), after


def skip_tags(buffer: bytearray, position: int, end: int) -> int:
    """Step over tagged fields."""
    if position < end and not buffer[position]:
        return position + 1  # as nearly always
    count, position = read_varint(buffer, position, end)
    if count > min(end - position, TAGS_MAX):
        raise Malformed(f"{count} tagged fields with {end - position} bytes left; at most {TAGS_MAX} are read")
    for _ in range(count):
        _, position = read_varint(buffer, position, end)
        size, position = read_varint(buffer, position, end)
        position += size
    if position > end:
        raise Malformed("tagged fields run past the end of the request")
    return position


def write_count(out: bytearray, count: int, flexible: bool) -> None:
    """The length of an array, or of bytes; -1 for a null one."""
    if flexible:
        write_varint(out, count + 1)
    else:
        out += INT32.pack(count)


def write_text(out: bytearray, text: bytes | None, flexible: bool) -> None:
    """A nullable string, encoded."""
    size = -1 if text is None else len(text)
    if flexible:
        write_varint(out, size + 1)
    else:
        out += INT16.pack(size)
    out += text or b""
