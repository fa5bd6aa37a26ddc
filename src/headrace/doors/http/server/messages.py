"""What a handler gets and gives: a whole request, a whole response.

They stand apart from the codec, so that the handlers of a door can be imported without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

HEAD_MAX_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
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
    headers: tuple[tuple[str, str], ...] = ()


class RequestRefused(Exception):
    """The peer's bytes are not a request that is served here; answer with `status` and close."""

    def __init__(self, status: int, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.path = path
        """Of a request whose body is too large; empty otherwise."""


Answer = Callable[[Request], Awaitable[Response]]
Refusal = Callable[[int, str], Response]
"""The response to what never reached a handler or failed in one: its status, and a sentence that says why."""


def plain_refusal(status: int, reason: str) -> Response:
    """The sentence itself, as text."""
    return Response(f"{reason}\n".encode(), status=status)
