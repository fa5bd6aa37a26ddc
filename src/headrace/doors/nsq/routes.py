"""The manners of NSQ's HTTP APIs: what a handler returns becomes a body, what it raises a word in capitals.

A handler returns nothing, text, or anything that JSON has; or a whole response. An error is answered with its status
and `{"message": "..."}`, whose first word clients look for.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping

from headrace.broker.broker import Broker
from headrace.broker.quotas.kinds import Kind
from headrace.broker.quotas.steps import timed
from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME, Declaration, Requires
from headrace.doors.http.server import rights
from headrace.doors.http.server.messages import HttpError, Request, Response, retry_after
from headrace.doors.http.server.routing import Route, Router, Routes
from headrace.doors.nsq.names import is_channel_name, is_topic_name, log_name
from headrace.errors import (
    BatchTooLarge,
    HeadraceError,
    InvalidQueue,
    InvalidTopic,
    QuotaExceeded,
    UnknownQueue,
    UnknownTopic,
)

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
# By this header clients know the API from that before 1.0.
VERSION_HEADER = ("X-NSQ-Content-Type", "nsq; version=1.0")
# What Go's parser of queries does not take.
_MALFORMED = re.compile(r"%(?![0-9a-fA-F]{2})|;")
# The names of NSQ's errors for those that the server meets before any handler.
_WORDS = {
    400: "INVALID_REQUEST",
    401: "UNAUTHENTICATED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    413: "BODY_TOO_BIG",
    500: "INTERNAL_ERROR",
}
# And for those of the broker.
_ERRORS: dict[type[HeadraceError], tuple[int, str]] = {
    InvalidTopic: (400, "INVALID_TOPIC"),
    UnknownTopic: (404, "TOPIC_NOT_FOUND"),
    InvalidQueue: (400, "INVALID_ARG_CHANNEL"),
    UnknownQueue: (404, "CHANNEL_NOT_FOUND"),
    BatchTooLarge: (413, "MSG_TOO_BIG"),
}
_PUBLISHING = ("/pub", "/mpub")
# A probe learns whether the broker is well, whatever else asks from there.
_UNMETERED = ("/ping",)


class Api(Router):
    """An API whose requests are counted by route. A handler's arguments are the parameters of the query."""

    def __init__(self, door: str, routes: Routes, broker: Broker, declarations: Mapping[str, Declaration]) -> None:
        """With the rights that each method and path asks for."""
        super().__init__(door, routes, broker.metrics)
        self._security = broker.security
        self._quotas = broker.quotas
        self._seconds = broker.runtime.clock.boot_seconds
        self._declarations = declarations

    async def answer(self, request: Request) -> Response:
        bucket = self._quotas.loop_time(request.session) if request.path not in _UNMETERED else None
        if bucket is not None and (wait := bucket.take(0, asyncio.get_running_loop().time())):
            return self.write_error(self.translate(QuotaExceeded(Kind.REQUEST, wait), request))
        return await timed(super().answer(request), bucket, self._seconds)

    def label(self, route: Route | None, method: str) -> str:
        return route.path.partition("{")[0].strip("/") if route is not None else "other"

    def arguments(self, request: Request, route: Route, names: dict[str, str]) -> Mapping[str, str]:
        if _MALFORMED.search(request.query):
            raise HttpError(400, "INVALID_REQUEST")
        given = request.parameters() | names
        # First: nothing else of the answer may tell whether what is named exists.
        method = "GET" if request.method == "HEAD" else request.method
        resources = {**given, "topic": log_name(given.get("topic", ""))}
        declaration = self._declarations[f"{method} {route.path}"]
        rights.check(self._security, request.session, declaration, lambda name: resources.get(name, ""))
        return given

    def reject(self, request: Request, route: Route | None) -> Response:
        if route is None:
            raise HttpError(404, "NOT_FOUND")
        allow = (("Allow", ", ".join(sorted([*route.methods, "OPTIONS"]))),)
        if request.method == "OPTIONS":
            return Response(b"", TEXT, headers=allow)
        raise HttpError(405, "METHOD_NOT_ALLOWED", headers=allow)

    def write(self, value: object) -> Response:
        if isinstance(value, Response):
            return value
        if value is None or isinstance(value, str):
            return Response((value or "").encode(), TEXT, headers=(VERSION_HEADER,))
        return write_json(value)

    def translate(self, error: HeadraceError, request: Request) -> HttpError:
        for kind, (status, word) in _ERRORS.items():
            if isinstance(error, kind):
                return HttpError(status, word)
        if isinstance(error, QuotaExceeded):
            return HttpError(429, "TOO_MANY_REQUESTS", str(error), retry_after(error.seconds))
        if request.path in _PUBLISHING:
            return HttpError(503, "PUB_FAILED", str(error))
        raise error

    @staticmethod
    def write_error(error: HttpError) -> Response:
        message = f"{error.code} {error}".strip() if error.code else _WORDS.get(error.status, str(error))
        if error.path == "/pub":
            message = "MSG_TOO_BIG"
        return write_json({"message": message}, error.status, error.headers)


def on_topic(operation: Operation) -> tuple[Requires, ...]:
    """A right on the topic that a request names."""
    return (Requires(operation, Resource.TOPIC, "{topic}"),)


def on_queue(operation: Operation) -> tuple[Requires, ...]:
    """A right on the channel that a request names."""
    return (Requires(operation, Resource.QUEUE, "{topic}/{channel}"),)


def on_cluster(operation: Operation) -> tuple[Requires, ...]:
    """A right on the broker."""
    return (Requires(operation, Resource.CLUSTER, CLUSTER_NAME),)


def write_json(value: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A body in JSON, as NSQ writes it."""
    return Response(json.dumps(value, separators=(",", ":")).encode(), JSON, status, (VERSION_HEADER, *headers))


def required(parameters: Mapping[str, str], name: str) -> str:
    """A parameter that must be there."""
    if name not in parameters:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return parameters[name]


def topic_name(parameters: Mapping[str, str], word: str = "INVALID_ARG_TOPIC") -> str:
    """The name of the topic that a request is for."""
    name = required(parameters, "topic")
    if not is_topic_name(name):
        raise HttpError(400, word)
    return name


def topic_and_channel(parameters: Mapping[str, str]) -> tuple[str, str]:
    """The names of a topic and of a channel, both of which must be there and be names."""
    topic = topic_name(parameters)
    channel = required(parameters, "channel")
    if not is_channel_name(channel):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic, channel
