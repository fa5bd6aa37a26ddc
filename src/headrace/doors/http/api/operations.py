"""Operations: what a route declares beside its handler, and what everything that is derived from routes reads.

An `Operation` decorates a handler. Its method and path, the rights that it takes, what it takes, answers and refuses,
and the command that does the same stand there; the router, `/openapi.json` and the table of docs/rest-api.md are made
from that. `routes.py` lists the modules whose endpoints there are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import NamedTuple, Protocol

from headrace.broker.broker import Broker
from headrace.broker.security.rights import Declaration
from headrace.doors.http.api.responses import JSON, Answer, Names
from headrace.doors.http.api.schemas import Schema, Shape
from headrace.doors.http.server.messages import Request
from headrace.errors import HeadraceError


class Handle(Protocol):
    """A handler: a coroutine function."""

    __name__: str
    __module__: str

    def __call__(self, broker: Broker, request: Request, names: Names, /) -> Awaitable[Answer]: ...


class Query(NamedTuple):
    """A parameter of the query."""

    name: str
    schema: Schema
    required: bool = False


class Refusal(NamedTuple):
    """An error of a handler's own; those of `headrace.errors` are declared by their classes."""

    status: int
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one method of one path is. Decorates its handler."""

    method: str = field(kw_only=False)
    path: str = field(kw_only=False)
    summary: str = field(kw_only=False)
    rights: Declaration
    """What the client must be allowed, asked for before the handler runs (`rights.py`)."""
    query: Sequence[Query] = ()
    body: Shape | None = None
    body_type: str = JSON
    answer: Shape
    answer_type: str = JSON
    status: int = 200
    """Of an answer that is no error."""
    errors: Sequence[type[HeadraceError] | Refusal] = ()
    command: str = ""
    """What does the same, without the name of the program."""
    doc: str = ""
    """More than the summary says."""
    is_large: bool = False
    """The body may carry messages, and so have more than `BODY_MAX_BYTES`."""
    reads_messages: bool = False
    """Its answers count as bytes that the client consumes."""
    is_local: bool = False
    """A node that follows answers for itself."""

    def __call__(self, handle: Handle) -> Endpoint:
        return Endpoint(self, handle)


class Endpoint(NamedTuple):
    """An operation and its handler."""

    operation: Operation
    handle: Handle

    @property
    def name(self) -> str:
        """Its id in the OpenAPI document."""
        return self.handle.__name__

    def __call__(self, broker: Broker, request: Request, names: Names) -> Awaitable[Answer]:
        return self.handle(broker, request, names)


def endpoints_of(*modules: ModuleType) -> Iterator[Endpoint]:
    """The endpoints of modules, in the order in which they stand there."""
    for module in modules:
        for each in vars(module).values():
            if isinstance(each, Endpoint) and each.handle.__module__ == module.__name__:
                yield each


def paths_of(endpoints: Iterable[Endpoint]) -> Mapping[str, Mapping[str, Endpoint]]:
    """By path, then by method."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for each in endpoints:
        paths.setdefault(each.operation.path, {})[each.operation.method] = each
    return paths


# --- parameters that several have -------------------------------------------------------------------------------------

PAGE_DEFAULT = 100
PAGE_MAX = 1_000


def limit_query(default: int = PAGE_DEFAULT, most: int = PAGE_MAX) -> Query:
    return Query("limit", {"type": "integer", "minimum": 1, "maximum": most, "default": default})


def text_query(name: str, doc: str, required: bool = False) -> Query:
    return Query(name, {"type": "string", "description": doc}, required)


def after_query() -> Query:
    return text_query("after", "Where an earlier answer ended: its `next`, unchanged.")
