"""The routes under `/v1`, and under `/topics`, the short road for publishers. They speak JSON."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

from headrace.broker.broker import Broker
from headrace.doors.http.api import errors
from headrace.doors.http.api.handlers import cluster, half, publish, queues, redrive, search, timers
from headrace.doors.http.api.responses import json_response
from headrace.doors.http.server.listener import BODY_MAX_BYTES
from headrace.doors.http.server.messages import HttpError, Request, Response
from headrace.doors.http.server.routing import Route, Router
from headrace.errors import HeadraceError, NotEnoughReplicas, NotLeading

QUEUE = "/v1/topics/{topic}/queues/{queue}"
ROUTES = {
    cluster.PATH: {"GET": cluster.show_cluster},
    "/v1/queues": {"GET": queues.list_queues},
    "/v1/topics/{topic}/messages": {"POST": publish.publish_json},
    "/topics/{topic}": {"POST": publish.publish_body},
    "/v1/topics/{topic}/search": {"GET": search.search},
    "/v1/topics/{topic}/queues": {"GET": queues.list_queues_of_topic},
    QUEUE: {
        "GET": queues.show_queue,
        "PUT": queues.create_queue,
        "PATCH": queues.change_queue,
        "DELETE": queues.delete_queue,
    },
    QUEUE + "/pause": {"POST": queues.pause_queue},
    QUEUE + "/unpause": {"POST": queues.pause_queue},
    QUEUE + "/empty": {"POST": queues.empty_queue},
    QUEUE + "/peek": {"GET": queues.peek_queue},
    "/v1/timers": {"GET": timers.list_timers},
    "/v1/timers/{id}": {"DELETE": timers.cancel_timer},
    "/v1/redrive": {"POST": redrive.redrive},
    "/v1/half": {"GET": half.list_half, "POST": half.prepare},
    # Before the ids, none of which is that word.
    "/v1/half/checks": {"GET": half.poll_checks},
    "/v1/half/{id}": {"GET": half.show_half},
    "/v1/half/{id}/commit": {"POST": half.commit},
    "/v1/half/{id}/rollback": {"POST": half.roll_back},
}
# Their bodies may carry a message.
LARGE = ("/v1/topics/{topic}/messages", "/topics/{topic}", "/v1/half")

# Their bodies may be anything.
ANY_MEDIA = ("/topics/{topic}",)
FORM = "application/x-www-form-urlencoded"


def check_json(request: Request) -> None:
    """Refuse what is called anything but JSON, the forms of web pages above all. curl calls every body a form that is
    given without a type; one that a browser has written has no braces. Raises HttpError."""
    media = request.media_type
    if media in ("", "application/json") or media.endswith("+json"):
        return
    if media != FORM or request.body.lstrip()[:1] not in (b"{", b"["):
        message = f"{request.path} takes JSON, not {media}. Send it with Content-Type: application/json"
        raise HttpError(415, "UnsupportedMediaType", message)


class RestApi(Router):
    """The routes over a broker."""

    def __init__(self, broker: Broker, *, tls: bool = False) -> None:
        routes = {
            path: {method: partial(handler, broker) for method, handler in handlers.items()}
            for path, handlers in ROUTES.items()
        }
        super().__init__("http", routes, broker.metrics)
        self._group = broker.membership
        self._tls = tls

    def label(self, route: Route | None, method: str) -> str:
        return f"{method} {route.path}" if route is not None and method in route.handlers else ""

    def arguments(self, request: Request, route: Route, names: dict[str, str]) -> Mapping[str, str]:
        if len(request.body) > BODY_MAX_BYTES and route.path not in LARGE:
            message = f"the body has more than the {BODY_MAX_BYTES} bytes that it may have"
            raise HttpError(413, "RequestTooLarge", message)
        if request.method not in ("GET", "HEAD") and route.path not in ANY_MEDIA:
            check_json(request)
        return names

    def reject(self, request: Request, route: Route | None) -> Response:
        if route is None:
            message = f"there is no {request.path} here; docs/queues-managing.md lists what there is"
            raise HttpError(404, "UnknownPath", message)
        message = f"{request.path} takes {' and '.join(route.methods)}, not {request.method}"
        raise HttpError(405, "MethodNotAllowed", message, (("Allow", ", ".join(route.methods)),))

    def write(self, value: object) -> Response:
        return value if isinstance(value, Response) else json_response(cast(Mapping[str, object], value))

    def translate(self, error: HeadraceError, request: Request) -> HttpError:
        if isinstance(error, NotLeading | NotEnoughReplicas):
            return HttpError(503, error.code, str(error), cluster.headers_of_refusal(self._group, tls=self._tls))
        return errors.translate(error)

    write_error = staticmethod(errors.write_error)
