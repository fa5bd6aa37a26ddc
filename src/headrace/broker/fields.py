"""The primitives of Kafka's stored records, as the broker writes and reads them in its internal topics."""

from __future__ import annotations

import struct
from struct import Struct
from uuid import UUID

from headrace.errors import HeadraceError
from headrace.format.varint import read_varint, varint

INT8 = Struct(">b")
INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")


class UnreadableRecord(HeadraceError):
    """A record of an internal topic that does not follow its format."""


def string(text: str | None) -> bytes:
    """A string behind its length in 16 bits."""
    if text is None:
        return INT16.pack(-1)
    raw = text.encode()
    return INT16.pack(len(raw)) + raw


def sized_bytes(raw: bytes) -> bytes:
    """Bytes behind their length in 32 bits."""
    return INT32.pack(len(raw)) + raw


def compact_string(text: str) -> bytes:
    """A string of a flexible version."""
    raw = text.encode()
    return varint(len(raw) + 1) + raw


def nullable_compact_string(text: str | None) -> bytes:
    """A string of a flexible version, or none."""
    return b"\0" if text is None else compact_string(text)


class Reader:
    """Takes one field after the other, and raises UnreadableRecord where the bytes end too soon."""

    __slots__ = ("_position", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._position = 0

    def version(self, newest: int) -> int:
        version = self.int16()
        if not 0 <= version <= newest:
            raise UnreadableRecord(f"a value of version {version}; this broker reads 0 to {newest}")
        return version

    def int16(self) -> int:
        return self._unpack(INT16)

    def int32(self) -> int:
        return self._unpack(INT32)

    def int64(self) -> int:
        return self._unpack(INT64)

    def count(self) -> int:
        count = self.int32()
        if not 0 <= count <= len(self._raw):
            raise UnreadableRecord(f"an array of {count} elements in a record of {len(self._raw)} bytes")
        return count

    def nullable_count(self) -> int:
        """Elements of an array; none where it is null."""
        start = self._position
        if self.int32() == -1:
            return 0
        self._position = start
        return self.count()

    def compact_count(self) -> int:
        """Elements of an array of a flexible version; -1 where it is null."""
        count = self.varint() - 1
        if count > len(self._raw):
            raise UnreadableRecord(f"an array of {count} elements in a record of {len(self._raw)} bytes")
        return count

    def int8(self) -> int:
        return self._unpack(INT8)

    def string(self) -> str:
        return self._text(self.int16())

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length == -1 else self._text(length)

    def compact_string(self) -> str:
        return self._text(self.varint() - 1)

    def nullable_compact_string(self) -> str | None:
        length = self.varint() - 1
        return None if length == -1 else self._text(length)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def sized_bytes(self) -> bytes:
        return self._take(self.int32())

    def varint(self) -> int:
        try:
            value, self._position = read_varint(self._raw, self._position)
        except ValueError as error:
            raise UnreadableRecord(f"a record of {len(self._raw)} bytes cannot be read: {error}") from None
        return value

    def tagged(self) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible structure, by their tags."""
        return {self.varint(): self._take(self.varint()) for _ in range(self.varint())}

    def _unpack(self, kind: Struct) -> int:
        try:
            (value,) = kind.unpack_from(self._raw, self._position)
        except struct.error:
            raise UnreadableRecord(f"a record of {len(self._raw)} bytes ends within a field") from None
        self._position += kind.size
        return int(value)

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise UnreadableRecord("a string that is not UTF-8") from None

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._raw):
            raise UnreadableRecord(f"a field of {length} bytes in a record of {len(self._raw)}")
        taken = self._raw[self._position : end]
        self._position = end
        return taken
