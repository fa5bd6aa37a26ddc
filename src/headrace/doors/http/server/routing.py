"""Which handler answers which method and path of an HTTP API.

A path may have names in braces, each of which stands for one segment. An API inherits `Router` and writes values and
errors in its own form; to find a handler, to count and to time its requests is the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from headrace.broker.metrics import ApiMetrics, Metrics
from headrace.doors.http.server.authentication import refused
from headrace.doors.http.server.messages import HttpError, Request, Response
from headrace.errors import HeadraceError, NotAuthorized

Handler = Callable[[Request, Mapping[str, str]], Awaitable[object]]
"""From a request and its arguments to a value that the API can write, or a whole response."""
Routes = Mapping[str, Mapping[str, Handler]]
"""Handlers by path, then by method."""


class Route(NamedTuple):
    """A path and its handlers by method."""

    path: str
    segments: list[str]
    handlers: Mapping[str, Handler]

    @property
    def methods(self) -> list[str]:
        """What it can be asked by. HEAD is GET without the body, which the codec leaves out."""
        return [*self.handlers, *(["HEAD"] if "GET" in self.handlers else [])]

    def names(self, segments: list[str]) -> dict[str, str]:
        """What the names in braces stand for in a path that fits."""
        return {
            expected[1:-1]: given
            for expected, given in zip(self.segments, segments, strict=True)
            if expected.startswith("{")
        }


class Branch:
    """The routes that begin with the same segments."""

    __slots__ = ("by_word", "named", "route")

    def __init__(self) -> None:
        self.by_word: dict[str, Branch] = {}
        self.named: Branch | None = None
        """Where the next segment is a name in braces."""
        self.route: Route | None = None
        """The one that ends here."""

    def grow(self, segment: str) -> Branch:
        """The branch for a next segment."""
        if not segment.startswith("{"):
            return self.by_word.setdefault(segment, Branch())
        self.named = self.named or Branch()
        return self.named

    def find(self, segments: list[str], depth: int = 0) -> Route | None:
        """The route of a path, from its segment of that number on."""
        if depth == len(segments):
            return self.route
        below = self.by_word.get(segments[depth])
        found = None if below is None else below.find(segments, depth + 1)
        if found is None and self.named is not None:
            found = self.named.find(segments, depth + 1)
        return found


class Router:
    """An API by its routes. Where several fit a path, a word counts before a name in braces."""

    def __init__(self, door: str, routes: Routes, metrics: Metrics) -> None:
        self.routes = [Route(path, path.split("/"), handlers) for path, handlers in routes.items()]
        self._tree = Branch()
        for route in self.routes:
            branch = self._tree
            for segment in route.segments:
                branch = branch.grow(segment)
            branch.route = route
        self._door = door
        self._metrics = metrics

    async def answer(self, request: Request) -> Response:
        """The response to a request."""
        clock = asyncio.get_running_loop().time
        started = clock()
        method = "GET" if request.method == "HEAD" else request.method
        route, names = self._find(request.path)
        handler = route.handlers.get(method) if route is not None else None
        label = self.label(route, method)
        counts = self._metrics.api(self._door, label) if label else ApiMetrics("")
        try:
            if route is None or handler is None:
                response = self.reject(request, route)
            else:
                response = self.write(await handler(request, self.arguments(request, route, names)))
        except (HttpError, HeadraceError) as raised:
            if isinstance(raised, NotAuthorized):
                error = refused(request, raised)
            else:
                error = raised if isinstance(raised, HttpError) else self.translate(raised, request)
            counts.failed(error.code)
            response = self.write_error(error)
        counts.requests += 1
        counts.latency.observe(clock() - started)
        return response

    def _find(self, path: str) -> tuple[Route | None, dict[str, str]]:
        segments = path.split("/")
        route = self._tree.find(segments)
        return route, {} if route is None else route.names(segments)

    # --- what an API overrides ----------------------------------------------------------------------------------------

    def label(self, route: Route | None, method: str) -> str:
        """What a request is counted under, never in the client's own words; empty: it is not counted."""
        raise NotImplementedError

    def arguments(self, request: Request, route: Route, names: dict[str, str]) -> Mapping[str, str]:
        """What a handler is called with, from the names in its path. Raises HttpError for a request that the handler
        must not see."""
        return names

    def reject(self, request: Request, route: Route | None) -> Response:
        """Answer a path that there is not, or a method that its route does not have."""
        raise NotImplementedError

    def write(self, value: object) -> Response:
        """The response for what a handler returned."""
        raise NotImplementedError

    def translate(self, error: HeadraceError, request: Request) -> HttpError:
        """What the broker refused, as the API reports it; raises what the API has no answer for."""
        raise NotImplementedError

    @staticmethod
    def write_error(error: HttpError) -> Response:
        """The response for an error, which may come from the server before any route is looked for."""
        raise NotImplementedError
