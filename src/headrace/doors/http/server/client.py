"""One HTTP GET, for doors that must ask other services: bounded in time and in size.

The connection is closed after the answer; a door asks rarely. A user and password in the URL go into an Authorization
header, and never into an error.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes, urlsplit

from headrace.redaction import redact_url

READ_BYTES = 65_536
BODY_MAX_BYTES = 4 * 1024 * 1024


class HttpFailed(Exception):
    """The other side could not be asked, or did not answer in HTTP, in time and within bounds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes


async def get(
    url: str,
    *,
    timeout: float,
    headers: tuple[tuple[str, str], ...] = (),
    tls: ssl.SSLContext | None = None,
    body_max_bytes: int = BODY_MAX_BYTES,
) -> Answer:
    """The answer to a GET of `url`; `timeout` seconds are for all of it. Raises HttpFailed."""
    try:
        async with asyncio.timeout(timeout):
            return await _get(url, headers, tls, body_max_bytes)
    except TimeoutError:
        raise HttpFailed(f"{redact_url(url)} did not answer within {timeout:g} seconds") from None
    except (OSError, ValueError) as error:
        raise HttpFailed(f"{redact_url(url)} cannot be asked: {error}") from None


async def _get(
    url: str, headers: tuple[tuple[str, str], ...], tls: ssl.SSLContext | None, body_max_bytes: int
) -> Answer:
    import h11

    place = urlsplit(url)
    secure = place.scheme == "https"
    if place.scheme not in ("http", "https") or not place.hostname:
        raise HttpFailed(f"{redact_url(url)!r} is not http://HOST:PORT/PATH")
    context = (tls or ssl.create_default_context()) if secure else None
    reader, writer = await asyncio.open_connection(place.hostname, place.port or (443 if secure else 80), ssl=context)
    try:
        connection = h11.Connection(h11.CLIENT)
        target = (place.path or "/") + (f"?{place.query}" if place.query else "")
        user, _, host = place.netloc.rpartition("@")
        if user:
            headers = (*headers, ("Authorization", f"Basic {b64encode(unquote_to_bytes(user)).decode()}"))
        asked = h11.Request(method="GET", target=target, headers=[("Host", host), *headers, ("Connection", "close")])
        writer.write((connection.send(asked) or b"") + (connection.send(h11.EndOfMessage()) or b""))
        status = 0
        body = bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > body_max_bytes:
                    raise HttpFailed(f"{redact_url(url)} answered with more than {body_max_bytes} bytes")
            elif not isinstance(event, h11.InformationalResponse):
                return Answer(status, bytes(body))
    except h11.ProtocolError as error:
        raise HttpFailed(f"{redact_url(url)} did not answer in HTTP: {error}") from None
    finally:
        writer.close()
