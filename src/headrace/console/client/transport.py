"""Requests to one broker over HTTP: bounded answers, errors in words, and the leader of a group found by itself."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from headrace.errors import HeadraceError

T = TypeVar("T")

ANSWER_SECONDS = 40.0
CONNECT_SECONDS = 3.0
# More than any answer of the REST API, whose bound is `http_answer_max_bytes`; downloads of values have none.
ANSWER_MAX_BYTES = 64 << 20
HOPS = 3

Query = Mapping[str, str | int | float | bool | None]


class ApiError(HeadraceError):
    """The broker answered with an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error = code

    @property
    def is_missing_route(self) -> bool:
        """An older broker, which does not have this part of the API."""
        return self.error in ("UnknownPath", "MethodNotAllowed")


class BrokerAway(HeadraceError):
    """The broker cannot be reached."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who calls: a user with a password, or a token. Shown nowhere."""

    user: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"

    @property
    def header(self) -> str:
        """The request header Authorization."""
        if self.token:
            return f"Bearer {self.token}"
        if not self.user:
            return ""
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()


NOBODY = Credentials()


class _Refusal(msgspec.Struct):
    error: str = ""
    message: str = ""


class Transport:
    """Connections to the nodes of one broker."""

    def __init__(self, urls: Sequence[str], connections: int = 32, ca: str = "") -> None:
        self._ca = ca
        self._urls = [url.rstrip("/") for url in urls]
        self._connections = connections
        self._session: ClientSession | None = None

    @property
    def url(self) -> str:
        """Of the node that answered last."""
        return self._urls[0]

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        credentials: Credentials = NOBODY,
        query: Query | None = None,
        body: object = None,
    ) -> T:
        """The answer as a value of this kind. Raises ApiError, or BrokerAway."""
        content = await self.read(method, path, credentials, query, None if body is None else msgspec.json.encode(body))
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise ApiError(502, "UnexpectedAnswer", f"{self.url}{path} answered something else: {error}.") from None

    async def read(
        self, method: str, path: str, credentials: Credentials, query: Query | None = None, content: bytes | None = None
    ) -> bytes:
        """The answer's body."""
        target = path + _query(query)
        for _ in range(len(self._urls)):
            try:
                return await self._send(method, self.url + target, credentials, content)
            except (TimeoutError, ClientError, OSError) as error:
                failed = error
                if method != "GET" and not isinstance(error, ConnectionRefusedError | OSError):
                    break
                self._urls.append(self._urls.pop(0))
        reason = getattr(failed, "strerror", None) or str(failed) or "no answer in time"
        raise BrokerAway(f"cannot reach the broker at {self.url}: {reason}. Is it running?") from None

    async def _send(self, method: str, url: str, credentials: Credentials, content: bytes | None) -> bytes:
        headers = {"Authorization": credentials.header} if credentials.header else {}
        if method != "GET":
            # Also without a body: aiohttp would name another type.
            headers["Content-Type"] = "application/json"
        for _ in range(HOPS):
            request = self._open().request(method, url, data=content, headers=headers, allow_redirects=False)
            async with request as response:
                location = urlsplit(response.headers.get("Location", ""))
                if response.status == 307 and location.scheme in ("http", "https"):
                    # A node that follows names the one that leads.
                    url = location.geturl()
                    self._prefer(f"{location.scheme}://{location.netloc}")
                    continue
                answer = await _bounded(response.content)
                if response.status >= 300:
                    raise _refusal(response.status, answer, url)
                return answer
        raise ApiError(503, "NotLeading", "the nodes of the group refer to each other: there is no leader yet")

    def _prefer(self, url: str) -> None:
        if url in self._urls:
            self._urls.remove(url)
        self._urls.insert(0, url)

    def _open(self) -> ClientSession:
        if self._session is None:
            timeout = ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
            trust = ssl.create_default_context(cafile=self._ca or None)
            self._session = ClientSession(connector=TCPConnector(limit=self._connections, ssl=trust), timeout=timeout)
        return self._session


async def _bounded(content: asyncio.StreamReader | object) -> bytes:
    parts, size = [], 0
    async for part in content.iter_chunked(1 << 16):  # type: ignore[union-attr]
        size += len(part)
        if size > ANSWER_MAX_BYTES:
            raise ApiError(502, "AnswerTooLarge", f"the broker's answer has more than {ANSWER_MAX_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _refusal(status: int, content: bytes, url: str) -> ApiError:
    try:
        refusal = msgspec.json.decode(content, type=_Refusal)
    except msgspec.MsgspecError:
        refusal = _Refusal()
    return ApiError(status, refusal.error, refusal.message or f"{urlsplit(url).path} was answered with status {status}")


def _query(query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
    return "?" + urlencode(words) if words else ""
