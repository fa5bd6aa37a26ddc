"""Pages of the HTTP door, for GET (and HEAD) only.

`/healthz`: the process turns its loop. `/readyz`: every door accepts (503 while starting or stopping). `/metrics`:
Prometheus's text form, with single partitions by `?partitions=1`. `/`: what this is, for a browser.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from headrace.broker.broker import Broker
from headrace.broker.queue_metrics import ages
from headrace.broker.scrape import render
from headrace.broker.security import Operation
from headrace.broker.security.rights import Declaration, Open
from headrace.doors.http.api.rights import on_cluster
from headrace.doors.http.server import rights
from headrace.doors.http.server.authentication import refused
from headrace.doors.http.server.messages import Request, Response, write_plain
from headrace.errors import NotAuthorized
from headrace.version import VERSION

INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Headrace</title>
<h1>Headrace {version}</h1>
<p>A message queue: one durable log with several front doors. This is the HTTP door of node {node} of cluster
<code>{cluster}</code>, which keeps {topics} topics.</p>
<ul>
<li><a href="/metrics">/metrics</a>: figures for Prometheus
(<a href="/metrics?partitions=1">with single partitions</a>)</li>
<li><a href="/v1/queues">/v1/queues</a>: queues, in JSON</li>
<li><a href="/v1/half">/v1/half</a>: half messages that are undecided, in JSON</li>
<li><a href="/healthz">/healthz</a>: alive</li>
<li><a href="/readyz">/readyz</a>: ready for clients</li>
</ul>
</html>
"""


@dataclass(frozen=True, slots=True)
class Context:
    """What a page shows."""

    broker: Broker
    is_ready: Callable[[], bool]


Page = Callable[[Context, Request], Awaitable[Response]]


async def answer(context: Context, request: Request) -> Response:
    """The response to a request for a page."""
    declaration, page = PAGES.get(request.path, (None, None))
    if declaration is None or page is None:
        return Response(f"there is no {request.path} here; / lists what there is\n".encode(), status=404)
    if request.method not in ("GET", "HEAD"):
        return Response(
            f"{request.path} can be read with GET, not {request.method}\n".encode(),
            status=405,
            headers=(("Allow", "GET, HEAD"),),
        )
    try:
        rights.check(context.broker.security, request.session, declaration, str)
    except NotAuthorized as error:
        return write_plain(refused(request, error))
    return await page(context, request)


async def healthz(context: Context, request: Request) -> Response:
    return Response(b"ok\n")


async def readyz(context: Context, request: Request) -> Response:
    if context.is_ready():
        return Response(b"ready\n")
    return Response(b"not ready: starting or stopping\n", status=503)


async def metrics(context: Context, request: Request) -> Response:
    wanted = parse_qs(request.query).get("partitions", ["0"])[-1] not in ("0", "false", "")
    text = await render(context.broker, partitions=wanted, queue_ages=await ages(context.broker))
    return Response(text, "text/plain; version=0.0.4; charset=utf-8")


async def index(context: Context, request: Request) -> Response:
    # Not at the start, which would wait for its table of 2,231 names.
    import html

    broker = context.broker
    text = INDEX.format(
        version=VERSION,
        node=broker.node_id,
        cluster=html.escape(broker.cluster_id),
        topics=len(broker.log.topics),
    )
    return Response(text.encode(), "text/html; charset=utf-8")


PROBE: Declaration = Open("load balancers and supervisors ask, and learn only whether the broker is well")
PAGES: dict[str, tuple[Declaration, Page]] = {
    "/": (on_cluster(Operation.DESCRIBE), index),
    "/healthz": (PROBE, healthz),
    "/readyz": (PROBE, readyz),
    "/metrics": (on_cluster(Operation.DESCRIBE), metrics),
}
