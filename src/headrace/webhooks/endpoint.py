"""One URL: a POST, and what its answer means.

2xx: taken. 410: it wants nothing any more. Other 4xx: it will never take this message. 5xx, and no answer in time: it
failed, perhaps because of this message. What is never because of a message is the endpoint being out of reach: no
connection, no TLS, 502, 503, 504, 429, and a redirect, which is not followed, because a secret goes to the
configured URL and nowhere else.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import Enum, auto

import aiohttp
from aiohttp.abc import AbstractResolver

from headrace.redaction import redact_url
from headrace.version import VERSION

# Of the body of an answer: what is kept as the reason, and what is read so that the connection can be used again.
REASON_BYTES = 1_024
DRAIN_BYTES = 65_536
REASON_CHARACTERS = 300
RETRY_AFTER_MAX = 3_600.0
CONNECT_SECONDS = 10.0
# A part of the time for an answer, so that it is known which of the two took too long.
CONNECT_SHARE = 0.8
GONE = 410
OUT_OF_REACH = frozenset((429, 502, 503, 504))
FAILED = frozenset((408, 425))
HEADERS = {"User-Agent": f"headrace/{VERSION}", "Accept-Encoding": "identity"}


class Verdict(Enum):
    """What an answer means for the message."""

    TAKEN = auto()
    REFUSED = auto()
    """This endpoint will never take it."""
    FAILING = auto()
    """It failed, and the message may be why."""
    DOWN = auto()
    """It failed, and no message is why."""
    GONE = auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request."""

    verdict: Verdict
    status: int
    """0 where there was no answer."""
    reason: str = ""
    pause: float | None = None
    """Seconds that the endpoint asks for."""
    seconds: float = 0.0


def verdict_of(status: int) -> Verdict:
    """What a status means."""
    if 200 <= status < 300:
        return Verdict.TAKEN
    if status == GONE:
        return Verdict.GONE
    if status in OUT_OF_REACH or 300 <= status < 400:
        return Verdict.DOWN
    if 400 <= status < 500 and status not in FAILED:
        return Verdict.REFUSED
    return Verdict.FAILING


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds, from a header that gives them or a date; None where it cannot be parsed."""
    if not value:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), RETRY_AFTER_MAX)
    try:
        return min(max(parsedate_to_datetime(text).timestamp() - now, 0.0), RETRY_AFTER_MAX)
    except (ValueError, TypeError, OverflowError):
        return None


class Endpoint:
    """Connections to one URL, kept for the next request."""

    def __init__(
        self,
        url: str,
        timeout: float,
        parallel: int,
        tls: ssl.SSLContext | bool = True,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """Names are looked up by a `resolver`; without one, wherever they lead is taken."""
        self.shown = redact_url(url)
        self._url = url
        self._parallel = parallel
        self._resolver = resolver
        self._tls = tls
        self._seconds = timeout
        self._timeout = aiohttp.ClientTimeout(
            total=timeout, sock_connect=min(CONNECT_SECONDS, timeout * CONNECT_SHARE), ceil_threshold=timeout + 1
        )
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Endpoint:
        connector = aiohttp.TCPConnector(limit=self._parallel, ssl=self._tls, resolver=self._resolver)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers=HEADERS,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a request; never raises but when it is cancelled."""
        began = time.perf_counter()
        answer = await self._try(headers, body, again=True)
        return replace(answer, seconds=time.perf_counter() - began)

    async def _try(self, headers: Mapping[str, str], body: bytes, *, again: bool) -> Answer:
        try:
            return await self._post(headers, body)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            # Most likely it closed a connection that was kept, just when the request was on its way.
            if again and _is_cut(error):
                return await self._try(headers, body, again=False)
            return self._failure(error)

    async def _post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        assert self._session is not None
        async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
            status = response.status
            verdict = verdict_of(status)
            # The status is the answer, whatever becomes of the rest.
            body_start = b""
            try:
                body_start = await _read_beginning(response)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
                response.close()
            pause = retry_after(response.headers.get("Retry-After"), time.time()) if verdict is Verdict.DOWN else None
            where = response.headers.get("Location", "") if 300 <= status < 400 else ""
            return Answer(verdict, status, _reason(status, response.reason or "", body_start, where), pause)

    def _failure(self, error: Exception) -> Answer:
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | ssl.SSLError):
            return Answer(Verdict.DOWN, 0, f"no connection: {error}")
        if isinstance(error, TimeoutError):
            return Answer(Verdict.FAILING, 0, f"no answer within {self._seconds:g} seconds")
        return Answer(Verdict.FAILING, 0, f"no answer: {type(error).__name__}: {error}")


def _is_cut(error: Exception) -> bool:
    """Whether a connection that there was ended without an answer."""
    if isinstance(error, aiohttp.ClientConnectorError | TimeoutError):
        return False
    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)


async def _read_beginning(response: aiohttp.ClientResponse) -> bytes:
    """The beginning of a body. What is longer than can be read in passing costs the connection."""
    kept = bytearray()
    read = 0
    async for piece in response.content.iter_chunked(16_384):
        kept += piece[: REASON_BYTES - len(kept)]
        read += len(piece)
        if read > DRAIN_BYTES:
            response.close()
            break
        await asyncio.sleep(0)
    return bytes(kept)


def _reason(status: int, phrase: str, body: bytes, location: str) -> str:
    text = f"HTTP {status} {phrase}".rstrip()
    if location:
        text += f" to {_printable(location)}"
    detail = _printable(body.decode(errors="replace"))
    return f"{text}: {detail}" if detail else text


def _printable(text: str) -> str:
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= REASON_CHARACTERS else line[:REASON_CHARACTERS] + "..."
