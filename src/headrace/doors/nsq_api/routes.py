"""The manners of NSQ's HTTP APIs: one table of routes, and answers in its form.

A handler returns what the body shall be: nothing, text, or anything that JSON can say; or a whole response. What it
cannot do it raises as an ApiError, which is answered with its status and `{"message": "..."}`, a word in capitals that
clients look for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping

from headrace.doors.nsq_api.names import is_channel_name, is_topic_name
from headrace.doors.web.messages import Request, Response

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
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


Handler = Callable[[Request, Mapping[str, str]], Awaitable[object]]
"""From a request and the parameters of its query to the body of the answer."""
Routes = Mapping[str, Mapping[str, Handler]]
"""Handlers by path, then by method. A path that ends in `/` is the beginning of many."""


async def answer(routes: Routes, request: Request) -> Response:
    """The response to a request."""
    by_method = routes.get(request.path) or routes.get(request.path[: request.path.rfind("/") + 1])
    if by_method is None:
        return refusal(404)
    handler = by_method.get("GET" if request.method == "HEAD" else request.method)
    if handler is None:
        return refusal(405)
    try:
        if _MALFORMED.search(request.query):
            raise ApiError(400, "INVALID_REQUEST")
        body = await handler(request, request.parameters())
    except ApiError as error:
        return Response(_json({"message": error.message}), JSON, error.status, (VERSION_HEADER,))
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
