"""The manners of NSQ's HTTP APIs: one table of routes, and answers in its form.

A handler returns what the body shall be: nothing, text, or anything that JSON can say; or a whole response. What it
cannot do it raises as an ApiError, which is answered with its status and `{"message": "..."}`, a word in capitals that
clients look for.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping

from headrace.broker.metrics import Metrics
from headrace.doors.http.server.messages import Request, Response
from headrace.doors.nsq.names import is_channel_name, is_topic_name

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
# By this header clients tell the API's version from that before 1.0.
VERSION_HEADER = ("X-NSQ-Content-Type", "nsq; version=1.0")
# What Go's parser of queries does not take.
_MALFORMED = re.compile(r"%(?![0-9a-fA-F]{2})|;")
# The names of NSQ's errors for those that are met before any handler.
_WORDS = {
    400: "INVALID_REQUEST",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    413: "BODY_TOO_BIG",
    500: "INTERNAL_ERROR",
}


class ApiError(Exception):
    """A request that is answered with an error: NSQ's word for it, and where that has none, more words."""

    def __init__(self, status: int, word: str, more: str = "", *, allow: str = "") -> None:
        super().__init__(f"{word} {more}" if more else word)
        self.status = status
        self.word = word
        self.headers = (VERSION_HEADER, ("Allow", allow)) if allow else (VERSION_HEADER,)


Handler = Callable[[Request, Mapping[str, str]], Awaitable[object]]
"""From a request and the parameters of its query to the body of the answer."""
Routes = Mapping[str, Mapping[str, Handler]]
"""Handlers by path, then by method. A path that ends in `/` is the beginning of many."""


class Api:
    """An API by its routes, whose requests are counted by route under the name of its door."""

    def __init__(self, door: str, routes: Routes, metrics: Metrics) -> None:
        self._door = door
        self._routes = routes
        self._metrics = metrics

    async def answer(self, request: Request) -> Response:
        """The response to a request."""
        route = request.path
        if route not in self._routes:
            route = route[: route.rfind("/") + 1]
        by_method = self._routes.get(route)
        # Never a client's own words.
        counter = self._metrics.api(self._door, route.strip("/") if by_method is not None else "other")
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            if by_method is None:
                raise ApiError(404, "NOT_FOUND")
            response = await self._answer(by_method, request)
        except ApiError as error:
            counter.failed(error.word)
            response = Response(_json({"message": str(error)}), JSON, error.status, error.headers)
        counter.requests += 1
        counter.latency.observe(clock() - started)
        return response

    @staticmethod
    async def _answer(by_method: Mapping[str, Handler], request: Request) -> Response:
        handler = by_method.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            allow = ", ".join(sorted({*by_method, *(("HEAD",) if "GET" in by_method else ()), "OPTIONS"}))
            if request.method == "OPTIONS":
                return Response(b"", TEXT, headers=(("Allow", allow),))
            raise ApiError(405, "METHOD_NOT_ALLOWED", allow=allow)
        if _MALFORMED.search(request.query):
            raise ApiError(400, "INVALID_REQUEST")
        return _response(await handler(request, request.parameters()))


def _response(body: object) -> Response:
    if isinstance(body, Response):
        return body
    if body is None:
        body = b""
    elif isinstance(body, str):
        body = body.encode()
    if isinstance(body, bytes):
        return Response(body, TEXT, headers=(VERSION_HEADER,))
    return Response(_json(body), JSON, headers=(VERSION_HEADER,))


def refusal(status: int, reason: str = "") -> Response:
    """The response to what reaches no handler; NSQ's word for it stands for the reason."""
    message = _WORDS.get(status) or reason
    return Response(_json({"message": message}), JSON, status, (VERSION_HEADER,))


def wanted(parameters: Mapping[str, str], name: str) -> str:
    """A parameter that must be there."""
    if name not in parameters:
        raise ApiError(400, f"MISSING_ARG_{name.upper()}")
    return parameters[name]


def topic_and_channel(parameters: Mapping[str, str]) -> tuple[str, str]:
    """The names of a topic and of a channel, both of which must be there and be names."""
    topic = wanted(parameters, "topic")
    if not is_topic_name(topic):
        raise ApiError(400, "INVALID_ARG_TOPIC")
    channel = wanted(parameters, "channel")
    if not is_channel_name(channel):
        raise ApiError(400, "INVALID_ARG_CHANNEL")
    return topic, channel


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
