"""Headrace's HTTP door, by which queues are configured and timers cancelled.

Its address stands in the URL, or the broker reports it (IDENTIFY, docs/nsq.md). Before the first request it must report
the same cluster id as the other doors: what is meant for one broker must never be configured on another.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from headrace.addresses import is_loopback
from headrace.client.errors import AuthenticationError
from headrace.sdk.login import Login
from headrace.sdk.system import OFF, Unsuited

SECONDS = 10.0
HTTPS = "https://"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
NOT_FOUND = 404
REDIRECT = 307
REDIRECTS_MAX = 3


class HttpDoor:
    def __init__(
        self, address: str, cluster_id: str, login: Login | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """`address`: HOST:PORT, with https:// before it for TLS, or `off`. `cluster_id`: of the broker that its other
        doors lead to."""
        self._url = address if address.startswith(HTTPS) else f"http://{address}"
        self._login = login
        self._tls = tls
        self._address = address
        self._cluster_id = cluster_id
        self._checked = False

    async def check(self) -> None:
        """Raises Unsuited where there is no door, nothing answers, or another broker does."""
        if self._checked:
            return
        if self._address == OFF:
            raise Unsuited("queues are configured over the HTTP door, which is off. Open it: --http, Broker(http=...)")
        status, answer = await self._ask("GET", "/v1/cluster")
        found = answer.get("cluster_id") if status == 200 and isinstance(answer, dict) else None
        if found != self._cluster_id:
            what = f"the broker {found}" if found else "no Headrace"
            raise Unsuited(
                f"the HTTP door at {self._address} belongs to {what}, the other doors to the broker "
                f"{self._cluster_id}. Give the right one in the URL: ?http=HOST:PORT"
            )
        self._checked = True

    async def make_queue(self, topic: str, queue: str, settings: Mapping[str, Any], *, replay: bool) -> None:
        """A queue on a topic, with some settings; one that exists is given them. Raises Unsuited."""
        await self.check()
        begin = "earliest" if replay else "latest"
        status, _ = await self._ask("PUT", _path(topic, queue), {"from": begin, "settings": settings})
        if status >= 300:
            await self.set_queue(topic, queue, settings)

    async def set_queue(self, topic: str, queue: str, settings: Mapping[str, Any]) -> None:
        """Change a queue that exists. Raises Unsuited."""
        await self.check()
        status, answer = await self._ask("PATCH", _path(topic, queue), {"settings": settings})
        if status >= 300:
            raise Unsuited(f"the queue {queue!r} of {topic!r} cannot be set: {_reason(answer)}")

    async def cancel(self, timer: str) -> bool:
        """Cancel a delayed message; false where it is not waiting any more. Raises Unsuited."""
        await self.check()
        status, answer = await self._ask("DELETE", f"/v1/timers/{quote(timer, safe='')}")
        if status >= 300 and status != NOT_FOUND:
            raise Unsuited(f"the timer {timer} cannot be cancelled: {_reason(answer)}")
        return status != NOT_FOUND

    async def _ask(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        try:
            return await asyncio.to_thread(self._ask_now, method, path, content)
        except OSError as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise Unsuited(
                f"queues are configured over Headrace's HTTP door, and {self._address} does not answer "
                f"({reason}). Give it in the URL: ?http=HOST:PORT"
            ) from None

    def _ask_now(self, method: str, path: str, content: Mapping[str, Any] | None) -> tuple[int, Any]:
        headers = {}
        if self._login is not None and _is_private(self._url):
            try:
                headers["Authorization"] = self._login.header()
            except AuthenticationError as error:
                raise Unsuited(str(error)) from None
        return ask(method, self._url + path, SECONDS, content, headers, self._tls)


def ask(
    method: str,
    url: str,
    seconds: float,
    content: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, Any]:
    """Status and answer, parsed where it is JSON. A node of a group that follows sends to the one that leads. Raises
    OSError where nothing answers."""
    status, answer, location = _ask_once(method, url, seconds, content, headers, tls)
    for _ in range(REDIRECTS_MAX):
        if status != REDIRECT or not location:
            break
        if headers and not _is_private(location):
            break
        status, answer, location = _ask_once(method, location, seconds, content, headers, tls)
    return status, answer


class _Stay(HTTPRedirectHandler):
    """Leaves redirects to `ask`: Python would show who asks wherever one leads, and follows none but for GET."""

    def redirect_request(self, *_: object) -> None:
        return None


def _ask_once(
    method: str,
    url: str,
    seconds: float,
    content: Mapping[str, Any] | None,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None,
) -> tuple[int, Any, str]:
    body = None if content is None else json.dumps(content).encode()
    try:
        request = Request(url, body, {"Content-Type": "application/json", **headers}, method=method)
        with build_opener(_Stay(), HTTPSHandler(context=tls)).open(request, timeout=seconds) as answer:
            return answer.status, _read(answer.read()), ""
    except HTTPError as error:
        return error.code, _read(error.read()), error.headers.get("Location", "")


def _is_private(url: str) -> bool:
    """Whether nobody reads on the way who asks: what shows that is not sent anywhere else."""
    return url.startswith(HTTPS) or is_loopback(urlsplit(url).hostname or "")


def _path(topic: str, queue: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}/queues/{quote(queue, safe='')}"


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _reason(answer: Any) -> str:
    """The door's own sentence, without what is around it."""
    return str(answer.get("message", answer)) if isinstance(answer, dict) else str(answer)
