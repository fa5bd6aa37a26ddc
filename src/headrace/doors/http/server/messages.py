"""What a handler gets and gives: a whole request, a whole response.

They stand apart from the codec, so that the handlers of a door can be imported without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from urllib.parse import parse_qsl

from headrace.broker.security import Session

HEAD_MAX_BYTES = 16 * 1024

Headers = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Request:
    """A whole request."""

    method: str
    path: str
    """Unquoted, without the query."""
    query: str
    """As it was sent, still quoted."""
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By names in lower case; the values of a repeated header are joined by commas."""
    session: Session = field(default_factory=Session, compare=False)
    """Who asks, once the listener has found that out."""

    @property
    def media_type(self) -> str:
        """That of the body, in lower case and without its parameters; empty where none is given."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def parameters(self) -> dict[str, str]:
        """The query's parameters; of one that is repeated, the first."""
        parameters: dict[str, str] = {}
        for name, value in parse_qsl(self.query, keep_blank_values=True):
            parameters.setdefault(name, value)
        return parameters


@dataclass(frozen=True, slots=True)
class Response:
    """What a handler answers."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Headers = ()


class HttpError(Exception):
    """A request that is answered with an error: a code for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str = "", headers: Headers = (), *, path: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """Empty for what the server refuses by itself: the status stands for it."""
        self.headers = headers
        self.path = path
        """Of a request whose body is too large; empty otherwise."""


def retry_after(seconds: float) -> Headers:
    """The header that says when it is worth asking again."""
    return (("Retry-After", str(max(1, ceil(seconds)))),)


Answer = Callable[[Request], Awaitable[Response]]
WriteError = Callable[[HttpError], Response]


def write_plain(error: HttpError) -> Response:
    """The sentence itself, as text."""
    return Response(f"{error}\n".encode(), status=error.status, headers=error.headers)
