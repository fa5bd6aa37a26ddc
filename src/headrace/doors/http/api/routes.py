"""The routes under `/v1`, and under `/topics`, the short road for publishers. They speak JSON.

Each is declared beside its handler (`operations.py`). `/openapi.json` describes them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import cast

from headrace.broker.broker import Broker
from headrace.broker.quotas.steps import Steps
from headrace.broker.security.rights import Declaration, Open
from headrace.doors.http.api import errors
from headrace.doors.http.api.handlers import (
    acls,
    alerts,
    apps,
    audit,
    browse,
    clients,
    cluster,
    dead_letters,
    figures,
    groups,
    half,
    lives,
    pipeline,
    publish,
    queue_messages,
    queues,
    quotas,
    redrive,
    registrations,
    search,
    timers,
    topic_settings,
    topics,
    transactions,
    users,
    whoami,
)
from headrace.doors.http.api.openapi import document
from headrace.doors.http.api.operations import endpoints_of, paths_of
from headrace.doors.http.api.responses import JSON, Names, json_response
from headrace.doors.http.server import rights
from headrace.doors.http.server.listener import BODY_MAX_BYTES
from headrace.doors.http.server.messages import HttpError, Request, Response
from headrace.doors.http.server.routing import Handler, Route, Router
from headrace.errors import HeadraceError, NotEnoughReplicas, NotLeading, QuotaExceeded

DOCUMENT = "/openapi.json"
# Whatever has endpoints, in the order of the documentation.
MODULES = (
    *(publish, browse, search, lives),
    *(topics, topic_settings),
    *(groups, queues, queue_messages, dead_letters, redrive, timers, half, transactions),
    *(quotas, figures, clients, cluster, whoami),
    *(apps, alerts, registrations, pipeline),
    *(users, acls, audit),
)
ENDPOINTS = tuple(endpoints_of(*MODULES))
# What a node that follows answers for itself.
LOCAL = frozenset((DOCUMENT, *(each.operation.path for each in ENDPOINTS if each.operation.is_local)))

# What says how the broker is, and sets the quotas themselves, takes none.
UNMETERED = frozenset((DOCUMENT, "/v1/quotas", "/v1/cluster"))

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
        paths = paths_of(ENDPOINTS)
        routes: dict[str, dict[str, Handler]] = {
            path: {method: partial(endpoint.handle, broker) for method, endpoint in endpoints.items()}
            for path, endpoints in paths.items()
        }
        routes[DOCUMENT] = {"GET": self._describe}
        super().__init__("http", routes, broker.metrics)
        self._group = broker.membership
        self._quotas = broker.quotas
        self._seconds = broker.runtime.clock.boot_seconds
        self._reading = {
            (each.operation.method, each.operation.path) for each in ENDPOINTS if each.operation.reads_messages
        }
        self._security = broker.security
        self._rights: dict[tuple[str, str], Declaration] = {
            ("GET", DOCUMENT): Open("the document is the same for all"),
            **{(each.operation.method, each.operation.path): each.operation.rights for each in ENDPOINTS},
        }
        self._tls = tls
        self._large = {each.operation.path for each in ENDPOINTS if each.operation.is_large}
        self._any_media = {each.operation.path for each in ENDPOINTS if each.operation.body_type != JSON}
        # Of those that do not look at their parameters themselves.
        self._parameters = {
            (each.operation.method, each.operation.path): [query.name for query in each.operation.query]
            for each in ENDPOINTS
            if not each.operation.is_large
        }
        self._document = b""

    async def answer(self, request: Request) -> Response:
        meter = self._quotas.meter(request.session) if self._quotas.is_active else None
        if meter is None or request.path in UNMETERED:
            return await super().answer(request)
        loop = asyncio.get_running_loop()
        route, _ = self._find(request.path)
        is_reading = route is not None and (request.method, route.path) in self._reading
        try:
            if is_reading:
                meter.take_consume(loop.time())
            else:
                meter.take_request(loop.time())
        except QuotaExceeded as error:
            return self.write_error(errors.translate(error))
        steps = Steps(super().answer(request), self._seconds)
        try:
            response = await steps
        finally:
            if meter.request is not None:
                meter.request.count(steps.taken, loop.time())
        if is_reading:
            meter.consumed(len(response.body), loop.time())
        return response

    async def _describe(self, request: Request, names: Names) -> Response:
        self._document = self._document or await document(ENDPOINTS)
        return Response(self._document, JSON)

    def label(self, route: Route | None, method: str) -> str:
        return f"{method} {route.path}" if route is not None and method in route.handlers else ""

    def arguments(self, request: Request, route: Route, names: dict[str, str]) -> Mapping[str, str]:
        # First: nothing else of the answer may tell whether what is named exists.
        method = "GET" if request.method == "HEAD" else request.method
        parameters = request.parameters() if request.query else {}
        rights.check(
            self._security,
            request.session,
            self._rights[method, route.path],
            lambda name: names.get(name, parameters.get(name, "")),
        )
        if len(request.body) > BODY_MAX_BYTES and route.path not in self._large:
            message = f"the body has more than the {BODY_MAX_BYTES} bytes that it may have"
            raise HttpError(413, "RequestTooLarge", message)
        if request.method not in ("GET", "HEAD") and route.path not in self._any_media:
            check_json(request)
        known = self._parameters.get((request.method, route.path))
        if request.query and known is not None:
            for name in request.parameters():
                if name not in known:
                    listed = ", ".join(known) or "none"
                    raise errors.bad_request(f"there is no parameter {name!r}. Known parameters: {listed}")
        return names

    def reject(self, request: Request, route: Route | None) -> Response:
        if route is None:
            message = f"there is no {request.path} here; {DOCUMENT} lists what there is"
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
