"""All of HTTP/1.1 without I/O, by h11: for the requests that `codec.py` does not take, and to report what is wrong.

What is added to h11 are the bounds: a request is handed out only when it is whole, and neither its head nor its body
can be larger than a fixed size, so a connection's memory is bounded whatever the peer sends.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from urllib.parse import unquote

import h11

from headrace.doors.http.server.messages import HEAD_MAX_BYTES, HttpError, Request, Response

# Where a head ends, and a line of it that goes on in the next, as h11 reads them: a line may end without a CR.
_HEAD_END = re.compile(rb"\n\r?\n")
_FOLDED = re.compile(rb"\n[ \t]")


class Grammar:
    """What is left of a connection, on the server's side."""

    def __init__(self, body_max_bytes: int) -> None:
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX_BYTES)
        self._body_max_bytes = body_max_bytes
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
            if self._connection.their_state is h11.IDLE:
                self._refuse_folded()
            try:
                event = self._connection.next_event()
            except h11.RemoteProtocolError as error:
                raise HttpError(error.error_status_hint, "", f"not HTTP/1.1: {error}") from None
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._body_max_bytes:
                    raise self._too_large()
            elif isinstance(event, h11.EndOfMessage):
                return self._whole()
            else:
                return None

    def continues(self) -> bytes:
        """The bytes that let a waiting client send its body; empty where none waits."""
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
        if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
            connection.start_next_cycle()
        return out

    @property
    def _cut(self) -> bool:
        """The request is answered before all of it came, so what follows on the wire cannot be a new one."""
        return self._connection.their_state not in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

    def _refuse_folded(self) -> None:
        """h11 would unfold a header where a proxy in front may have read two: one of them would be fooled."""
        data = self._connection.trailing_data[0]
        end = _HEAD_END.search(data)
        if _FOLDED.search(data, 0, end.start() if end else len(data)):
            raise HttpError(400, "", "not HTTP/1.1: a header goes on in a second line. Send it in one")

    def _begin(self, head: h11.Request) -> None:
        self._head = head
        if not head.target.startswith(b"/"):
            # As clients ask a proxy, whose answers would be of hosts of their choice.
            raise HttpError(400, "", "not a path: a request here begins with GET /..., not with a URL or *")
        names = {name for name, _ in head.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or head.http_version == b"1.0"):
            # Who reads the one and who reads the other would not agree where the request ends.
            raise HttpError(
                400,
                "",
                "not HTTP/1.1: Transfer-Encoding stands beside Content-Length, or in HTTP/1.0. Send one of them",
            )
        for name, value in head.headers:
            if name == b"content-length" and int(value) > self._body_max_bytes:
                raise self._too_large()

    def _too_large(self) -> HttpError:
        return HttpError(413, "", f"the body is larger than {self._body_max_bytes} bytes", path=self._target()[0])

    def _whole(self) -> Request:
        assert self._head is not None
        path, query = self._target()
        headers: dict[str, str] = {}
        for raw_name, raw_value in self._head.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        body, self._body = bytes(self._body), bytearray()
        return Request(self._head.method.decode("ascii"), path, query, body, headers)

    def _target(self) -> tuple[str, str]:
        assert self._head is not None
        path, _, query = self._head.target.decode("ascii", "replace").partition("?")
        return unquote(path), query
