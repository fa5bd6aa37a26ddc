"""HTTP/1.1 without I/O: bytes in, requests out; responses in, bytes out.

Nearly all requests are plain: a path, some headers, a body of a given length. These are read here by one regular
expression, in a tenth of the time that the whole grammar takes. Whatever else comes (chunks, Expect, HEAD, HTTP/1.0, a
header that is out of the ordinary, a body that is too large, nonsense) is handed with all bytes to `grammar.py`, which
is loaded only then, and what follows it too. What is taken here, the grammar would take the same: a test compares them.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

from headrace.doors.http.server.messages import HEAD_MAX_BYTES, Request, Response

if TYPE_CHECKING:
    from headrace.doors.http.server.grammar import Grammar

HEAD_END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_VALUE = rb"[\t\x20-\x7e\x80-\xff]*"
_PLAIN = re.compile(
    rb"(GET|POST|PUT|DELETE) (/[\x21-\x7e]*) HTTP/1\.1\r\n((?:" + _TOKEN + rb":" + _VALUE + rb"\r\n)*)\r\n"
)
_LENGTH = re.compile(r"[0-9]{1,18}\Z")
# Headers that change how a request is read, or whether another follows.
_UNUSUAL = frozenset(("transfer-encoding", "expect", "upgrade", "te", "trailer"))
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Codec:
    """One connection's worth of HTTP/1.1, on the server's side."""

    __slots__ = (
        "_body_max_bytes",
        "_buffer",
        "_closing",
        "_ended",
        "_grammar",
        "_head",
        "_searched",
        "_size",
        "_whole",
    )

    def __init__(self, body_max_bytes: int) -> None:
        self._body_max_bytes = body_max_bytes
        self._buffer = bytearray()
        # How far the end of the head was looked for.
        self._searched = 0
        # A head that was read, and the bytes of it and its body.
        self._head: tuple[str, str, dict[str, str], int] | None = None
        self._size = 0
        # A request was handed out and is not answered yet.
        self._whole = False
        self._ended = False
        self._closing = False
        self._grammar: Grammar | None = None

    @property
    def idle(self) -> bool:
        """Nothing of a next request has come yet."""
        if self._grammar is not None:
            return self._grammar.idle
        return not self._whole and not self._buffer

    @property
    def closing(self) -> bool:
        """No further request can come on this connection."""
        return self._grammar.closing if self._grammar is not None else self._closing

    def feed(self, data: bytes) -> None:
        """Take bytes from the wire; empty at the end of the stream."""
        if self._grammar is not None:
            self._grammar.feed(data)
        elif data:
            self._buffer += data
        else:
            self._ended = True

    def next_request(self) -> Request | None:
        """The next whole request, once it is there. Each must be answered before the next is asked for. Raises
        HttpError."""
        if self._grammar is None:
            if self._head is None and not self._read_head():
                return None
            if self._grammar is None:
                return self._read_body()
        return self._grammar.next_request()

    def continues(self) -> bytes:
        """The bytes that let a waiting client send its body; empty where none waits."""
        return self._grammar.continues() if self._grammar is not None else b""

    def respond(self, response: Response) -> bytes:
        """The bytes of the answer to the last request, or to what was refused."""
        if self._grammar is not None:
            return self._grammar.respond(response)
        # Before all of a request came, what follows on the wire cannot be a new one.
        closing = self._closing or not self._whole
        lines = [
            f"HTTP/1.1 {response.status} {_REASONS[response.status]}",
            f"Content-Type: {response.content_type}",
            f"Content-Length: {len(response.body)}",
            "Cache-Control: no-store",
            *(f"{name}: {value}" for name, value in response.headers),
        ]
        if closing:
            lines.append("Connection: close")
        if not all(map(str.isprintable, lines)):
            raise ValueError(f"a header of {lines} cannot be sent")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self._closing, self._whole = closing, False
        return head + response.body

    def _read_head(self) -> bool:
        """Whether there is more to do: a head was read, or the whole grammar must."""
        buffer = self._buffer
        end = buffer.find(HEAD_END, max(0, self._searched - len(HEAD_END)))
        if end < 0:
            self._searched = len(buffer)
            # No request begins so. A client of another protocol waits for an answer, and sends no end of a head.
            foreign = buffer and buffer[0] <= 0x20 and buffer[0] not in b"\r\n"
            if len(buffer) <= HEAD_MAX_BYTES and not (self._ended and buffer) and not foreign:
                return False
            self._hand_over()
            return True
        self._searched = 0
        matched = _PLAIN.match(buffer, 0, end + len(HEAD_END))
        if matched is None or not self._take(matched):
            self._hand_over()
        return True

    def _take(self, matched: re.Match[bytes]) -> bool:
        """Take a head if it is plain in all its headers."""
        headers: dict[str, str] = {}
        for line in matched[3].decode("latin-1").split("\r\n")[:-1]:
            name, _, value = line.partition(":")
            name = name.lower()
            value = value.strip(" \t")
            if name in headers:
                if name in ("host", "content-length", "connection"):
                    return False
                value = f"{headers[name]}, {value}"
            headers[name] = value
        length = headers.get("content-length", "0")
        connection = headers.get("connection", "keep-alive").lower()
        if (
            not headers.get("host")
            or not _LENGTH.match(length)
            or int(length) > self._body_max_bytes
            or connection not in ("keep-alive", "close")
            or not _UNUSUAL.isdisjoint(headers)
        ):
            return False
        self._closing = connection == "close"
        self._head = (matched[1].decode("ascii"), matched[2].decode("ascii"), headers, matched.end())
        self._size = matched.end() + int(length)
        return True

    def _read_body(self) -> Request | None:
        assert self._head is not None
        if len(self._buffer) < self._size:
            if self._ended:
                self._hand_over()
                assert self._grammar is not None
                return self._grammar.next_request()
            return None
        method, target, headers, start = self._head
        with memoryview(self._buffer) as view:
            body = bytes(view[start : self._size])
        del self._buffer[: self._size]
        self._head = None
        self._whole = True
        path, _, query = target.partition("?")
        return Request(method, unquote(path), query, body, headers)

    def _hand_over(self) -> None:
        from headrace.doors.http.server.grammar import Grammar

        self._grammar = Grammar(self._body_max_bytes)
        self._head = None
        if self._buffer:
            self._grammar.feed(bytes(self._buffer))
        if self._ended:
            self._grammar.feed(b"")
        self._buffer = bytearray()
