"""nsqlookupd's protocol V1 without I/O: bytes in, commands out; answers in, bytes out.

A connection begins with `  V1`. A command is a line of words; IDENTIFY is followed by a body behind its length. An
answer is bytes behind their length. Line and body are bounded, so a connection holds little whatever its peer sends.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from headrace.doors.nsq.errors import CommandError

MAGIC = b"  V1"
LINE_MAX_BYTES = 1024
BODY_MAX_BYTES = 64 * 1024
LENGTH = Struct(">i")


class Command(NamedTuple):
    """One command."""

    name: str
    words: list[str]
    """What follows the name on its line."""
    body: bytes = b""


class Codec:
    """One connection's worth of the protocol, on the server's side."""

    __slots__ = ("_begun", "_buffer", "_identify")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begun = False
        # IDENTIFY, whose body has not come yet.
        self._identify: list[str] | None = None

    def feed(self, data: bytes | bytearray) -> None:
        """Take bytes from the wire."""
        self._buffer += data

    def next_command(self) -> Command | None:
        """The next command, once it is whole. Raises CommandError, after which nothing more can be read."""
        if not self._begun:
            if len(self._buffer) < len(MAGIC):
                return None
            if not self._buffer.startswith(MAGIC):
                raise CommandError("E_BAD_PROTOCOL")
            del self._buffer[: len(MAGIC)]
            self._begun = True
        if self._identify is None:
            words = self._line()
            if words is None:
                return None
            if words[0] != "IDENTIFY":
                return Command(words[0], words[1:])
            self._identify = words[1:]
        return self._body(self._identify)

    def _line(self) -> list[str] | None:
        end = self._buffer.find(b"\n", 0, LINE_MAX_BYTES)
        if end < 0:
            if len(self._buffer) >= LINE_MAX_BYTES:
                raise CommandError("E_INVALID", f"a line has at most {LINE_MAX_BYTES} bytes")
            return None
        line = self._buffer[:end].decode("utf-8", "replace").strip()
        del self._buffer[: end + 1]
        return line.split(" ")

    def _body(self, words: list[str]) -> Command | None:
        if len(self._buffer) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._buffer)
        if not 0 <= size <= BODY_MAX_BYTES:
            raise CommandError("E_BAD_BODY", f"IDENTIFY body of {size} bytes is not between 0 and {BODY_MAX_BYTES}")
        end = LENGTH.size + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[LENGTH.size : end])
        del self._buffer[:end]
        self._identify = None
        return Command("IDENTIFY", words, body)


def answer(data: bytes) -> bytes:
    """The bytes of an answer."""
    return LENGTH.pack(len(data)) + data
