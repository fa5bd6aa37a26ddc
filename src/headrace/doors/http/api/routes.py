"""Which handler answers which method and path under `/v1`, and under `/topics`, the short road for publishers.

A route is a path with names in braces, which stand for one segment each. A path that fits a route under another method
is answered with 405 and the methods that there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from headrace.broker.broker import Broker
from headrace.doors.http.api.answers import Refused, response_to
from headrace.doors.http.api.handlers import cluster, half, publish, queues, redrive, timers
from headrace.doors.http.server.listener import BODY_MAX_BYTES
from headrace.doors.http.server.messages import Request, Response
from headrace.errors import HeadraceError

Handler = Callable[[Broker, Request, Mapping[str, str]], Awaitable[Response]]


class Route(NamedTuple):
    """A path and its handlers by method."""

    path: str
    segments: tuple[str, ...]
    handlers: Mapping[str, Handler]
    large: bool
    """Its bodies may carry a message."""

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


def route(path: str, handlers: Mapping[str, Handler], *, large: bool = False) -> Route:
    return Route(path, tuple(path.split("/")), handlers, large)


QUEUE = "/v1/topics/{topic}/queues/{queue}"
ROUTES = (
    route("/v1/cluster", {"GET": cluster.shown}),
    route("/v1/queues", {"GET": queues.listed}),
    route("/v1/topics/{topic}/messages", {"POST": publish.published}, large=True),
    route("/topics/{topic}", {"POST": publish.posted}, large=True),
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
    route("/v1/half", {"GET": half.listed, "POST": half.prepared}, large=True),
    # Before the ids, none of which is that word.
    route("/v1/half/checks", {"GET": half.checks}),
    route("/v1/half/{id}", {"GET": half.shown}),
    route("/v1/half/{id}/commit", {"POST": half.committed}),
    route("/v1/half/{id}/rollback", {"POST": half.rolled_back}),
)


async def answer(broker: Broker, request: Request) -> Response:
    """The response to a request for one of these paths."""
    # HEAD is GET without the body, which the codec leaves out.
    method = "GET" if request.method == "HEAD" else request.method
    try:
        found, names = _route(request.path)
        handler = found.handlers.get(method)
        if handler is None:
            raise _not_allowed(request, found)
        if len(request.body) > BODY_MAX_BYTES and not found.large:
            raise Refused(413, "RequestTooLarge", f"the body has more than the {BODY_MAX_BYTES} bytes that it may have")
    except Refused as error:
        return response_to(error)
    counts = broker.metrics.api("http", f"{method} {found.path}")
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        response = await handler(broker, request, names)
    except (Refused, HeadraceError) as error:
        counts.failed(error.code)
        response = response_to(error)
    counts.requests += 1
    counts.latency.observe(loop.time() - began)
    return response


def _route(path: str) -> tuple[Route, dict[str, str]]:
    segments = path.split("/")
    for each in ROUTES:
        names = each.match(segments)
        if names is not None:
            return each, names
    raise Refused(404, "UnknownPath", f"there is no {path} here; docs/queues-managing.md lists what there is")


def _not_allowed(request: Request, found: Route) -> Refused:
    allowed = [*found.handlers, *(["HEAD"] if "GET" in found.handlers else [])]
    return Refused(
        405,
        "MethodNotAllowed",
        f"{request.path} takes {' and '.join(allowed)}, not {request.method}",
        (("Allow", ", ".join(allowed)),),
    )
