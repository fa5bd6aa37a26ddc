"""HTTP/1.1 without I/O: bytes in, requests out; responses in, bytes out.

The grammar is h11's. What is added here are the bounds: a request is handed out only when it is whole, and neither its
head nor its body can be larger than a fixed size, so a connection's memory is bounded whatever the peer sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

import h11

HEAD_MAX_BYTES = 16 * 1024
BODY_MAX_BYTES = 64 * 1024


class RequestRefused(Exception):
    """The peer's bytes are not a request that is served here; answer with `status` and close."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request."""

    method: str
    path: str
    """Unquoted, without the query."""
    query: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """What a handler answers."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Codec:
    """One connection's worth of HTTP/1.1, on the server's side."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX_BYTES)
        self._head: h11.Request | None = None
        self._body = bytearray()

    @property
    def idle(self) -> bool:
        """Nothing of a next request has come yet."""
        return self._head is None and not self._connection.trailing_data[0]

    @property
    def closing(self) -> bool:
        """No further request can come on this connection."""
        return self._connection.our_state is not h11.IDLE

    def feed(self, data: bytes) -> None:
        """Take bytes from the wire; empty at the end of the stream."""
        if not self._connection.trailing_data[1]:
            self._connection.receive_data(data)

    def next_request(self) -> Request | None:
        """The next whole request, once it is there. Each must be answered before the next is asked for."""
        while True:
            try:
                event = self._connection.next_event()
            except h11.RemoteProtocolError as error:
                raise RequestRefused(error.error_status_hint, f"not HTTP/1.1: {error}") from None
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > BODY_MAX_BYTES:
                    raise RequestRefused(413, f"the body is larger than {BODY_MAX_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return self._whole()
            else:
                return None

    def continues(self) -> bytes:
        """The bytes that tell a waiting client to go on and send its body; empty where none waits."""
        if not self._connection.they_are_waiting_for_100_continue:
            return b""
        return self._connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b""

    def respond(self, response: Response) -> bytes:
        """The bytes of the answer to the last request, or to what was refused."""
        connection = self._connection
        head = h11.Response(
            status_code=response.status,
            reason=HTTPStatus(response.status).phrase.encode(),
            headers=[
                ("Content-Type", response.content_type),
                ("Content-Length", str(len(response.body))),
                ("Cache-Control", "no-store"),
                *response.headers,
                *([("Connection", "close")] if connection.their_state is h11.ERROR or self._cut else []),
            ],
        )
        is_head = self._head is not None and self._head.method == b"HEAD"
        out = connection.send(head) or b""
        if not is_head:
            out += connection.send(h11.Data(data=response.body)) or b""
        out += connection.send(h11.EndOfMessage()) or b""
        self._head = None
        self._body = bytearray()
        if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
            connection.start_next_cycle()
        return out

    @property
    def _cut(self) -> bool:
        """The request is answered before all of it came, so what follows on the wire cannot be a new one."""
        return self._connection.their_state not in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

    def _begin(self, head: h11.Request) -> None:
        self._head = head
        for name, value in head.headers:
            if name == b"content-length" and int(value) > BODY_MAX_BYTES:
                raise RequestRefused(413, f"the body is larger than {BODY_MAX_BYTES} bytes")

    def _whole(self) -> Request:
        assert self._head is not None
        path, _, query = self._head.target.decode("ascii", "replace").partition("?")
        return Request(self._head.method.decode("ascii"), unquote(path), query, bytes(self._body))
