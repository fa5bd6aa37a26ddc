"""Which handler answers which method and path under `/v1`.

A route is a path with names in braces, which stand for one segment each. A path that fits a route under another method
is answered with 405 and the methods that there are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from headrace.broker.broker import Broker
from headrace.doors.http import queues, redrive, timers
from headrace.doors.http.answers import Refused, response_to
from headrace.doors.web.messages import Request, Response
from headrace.errors import HeadraceError

Handler = Callable[[Broker, Request, Mapping[str, str]], Awaitable[Response]]


class Route(NamedTuple):
    """A path and its handlers by method."""

    segments: tuple[str, ...]
    handlers: Mapping[str, Handler]

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """What the names in braces stand for in a path; None where it does not fit."""
        if len(segments) != len(self.segments):
            return None
        names = {}
        for wanted, given in zip(self.segments, segments, strict=True):
            if wanted.startswith("{"):
                names[wanted[1:-1]] = given
            elif wanted != given:
                return None
        return names


def route(path: str, handlers: Mapping[str, Handler]) -> Route:
    return Route(tuple(path.split("/")), handlers)


QUEUE = "/v1/topics/{topic}/queues/{queue}"
ROUTES = (
    route("/v1/queues", {"GET": queues.listed}),
    route("/v1/topics/{topic}/queues", {"GET": queues.of_topic}),
    route(
        QUEUE,
        {"GET": queues.shown, "PUT": queues.created, "PATCH": queues.changed, "DELETE": queues.deleted},
    ),
    route(QUEUE + "/pause", {"POST": queues.paused}),
    route(QUEUE + "/unpause", {"POST": queues.unpaused}),
    route(QUEUE + "/empty", {"POST": queues.emptied}),
    route(QUEUE + "/peek", {"GET": queues.peeked}),
    route("/v1/timers", {"GET": timers.listed}),
    route("/v1/timers/{id}", {"DELETE": timers.cancelled}),
    route("/v1/redrive", {"POST": redrive.step}),
)


async def answer(broker: Broker, request: Request) -> Response:
    """The response to a request for a path under `/v1`."""
    try:
        handler, names = _handler(request)
        if request.method not in ("GET", "HEAD"):
            _refuse_other_sites(request)
        return await handler(broker, request, names)
    except (Refused, HeadraceError) as error:
        return response_to(error)


def _handler(request: Request) -> tuple[Handler, dict[str, str]]:
    segments = request.path.split("/")
    for each in ROUTES:
        names = each.match(segments)
        if names is None:
            continue
        # HEAD is GET without the body, which the codec leaves out.
        handler = each.handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            allowed = [*each.handlers, *(["HEAD"] if "GET" in each.handlers else [])]
            raise Refused(
                405,
                "MethodNotAllowed",
                f"{request.path} takes {' and '.join(allowed)}, not {request.method}",
                (("Allow", ", ".join(allowed)),),
            )
        return handler, names
    raise Refused(404, "UnknownPath", f"there is no {request.path} here; docs/queues-managing.md lists what there is")


def _refuse_other_sites(request: Request) -> None:
    """A browser on this machine can reach the door too, and any page that it shows can have it send requests: it then
    says which page that was."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise Refused(403, "ForeignOrigin", f"a page of {origin} must not change anything here")
