"""What a client may do, asked of an HTTP server as nsqd asks it.

`GET /auth?secret=...&remote_ip=...&tls=...&common_name=...` is answered with JSON: for how long it holds (`ttl`, in
seconds), who the client is, and a list of topics, channels (regular expressions) and permissions. After the ttl the
next command that needs it asks again. With several servers the next is asked when one does not answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import structlog

from headrace.doors.http.server.client import HttpFailed, get
from headrace.doors.nsq.errors import CommandError
from headrace.errors import ConfigError
from headrace.redaction import redact_url

if TYPE_CHECKING:
    from headrace.doors.nsq.nsqd.connection import Connection

log = structlog.get_logger("headrace.nsq")

ANSWER_SECONDS = 5.0
ANSWER_MAX = 1_048_576
# Questions at once: each needs a descriptor.
ASKING_MAX = 16
PERMISSIONS = ("subscribe", "publish")
# Decisions that are remembered of one client.
DECISIONS_MAX = 1_000


class AuthFailed(Exception):
    """No server gave an answer that can be used."""


@dataclass(frozen=True, slots=True)
class Permission:
    """What is allowed on the topics and channels that match."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    allowed: frozenset[str]

    def covers(self, topic: str, channel: str) -> bool:
        """Whether it allows to subscribe to the channel, or (without one) to publish to the topic."""
        return (
            ("subscribe" if channel else "publish") in self.allowed
            and self.topic.search(topic) is not None
            and any(each.search(channel) for each in self.channels)
        )


class Authorization:
    """What one client was granted."""

    def __init__(
        self, secret: bytes, expires: float, identity: str, identity_url: str, permissions: tuple[Permission, ...]
    ) -> None:
        self.secret = secret
        self.expires = expires
        """On the loop's clock."""
        self.identity = identity
        self.identity_url = identity_url
        self.permissions = permissions
        self._decisions: dict[tuple[str, str], bool] = {}

    def allows(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe to the channel, or (without one) publish to the topic."""
        decision = self._decisions.get((topic, channel))
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = any(each.covers(topic, channel) for each in self.permissions)
            self._decisions[topic, channel] = decision
        return decision


class Authority:
    """The servers that are asked."""

    def __init__(self, addresses: str) -> None:
        self._asking = asyncio.Semaphore(ASKING_MAX)
        self._places = [place_of(each.strip()) for each in addresses.split(",") if each.strip()]

    async def ask(self, connection: Connection, secret: bytes) -> Authorization:
        """What a client with this secret may do. Raises AuthFailed."""
        query = {
            "remote_ip": connection.address[0],
            "tls": "true" if connection.encrypted else "false",
            "secret": secret.decode("utf-8", "surrogateescape"),
            "common_name": connection.common_name,
        }
        words = urlencode(query, errors="surrogateescape")
        failure = "no server is named"
        for place in self._places:
            # A path may be a secret too.
            server = urlsplit(place).netloc.rpartition("@")[2]
            try:
                async with self._asking:
                    answer = await get(f"{place}?{words}", timeout=ANSWER_SECONDS, body_max_bytes=ANSWER_MAX)
                if answer.status == 200:
                    return _authorization(secret, answer.body, connection.door.loop.time())
                failure = f"{server} answered {answer.status}"
            except HttpFailed:
                # Its own words would repeat the secret.
                failure = f"{server} did not answer"
            except AuthFailed as error:
                failure = f"{server}: {error}"
        raise AuthFailed(failure)

    async def renew(self, connection: Connection) -> None:
        """Ask again for a client whose authorization has run out. Raises CommandError."""
        held = connection.authorization
        assert held is not None
        try:
            connection.authorize(await self.ask(connection, held.secret))
        except AuthFailed as error:
            raise reject(connection, error) from None


def reject(connection: Connection, error: AuthFailed) -> CommandError:
    """The error for the client, which does not name the servers."""
    log.warning("AUTH failed", client=connection.name, reason=str(error))
    return CommandError("E_AUTH_FAILED", "AUTH failed")


def place_of(text: str) -> str:
    """The URL to ask, from HOST:PORT or a URL. Raises ConfigError."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        fits = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        fits = fits and not parts.query and not parts.fragment
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(f"auth_http: {redact_url(text)!r} is neither HOST:PORT nor an http or https URL")
    # Without a path of its own, it is where nsqd asks.
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/auth'}"


def _authorization(secret: bytes, body: bytes, now: float) -> Authorization:
    """Read an answer. Raises AuthFailed."""
    try:
        given = json.loads(body)
        ttl = given["ttl"]
        permissions = []
        for each in given.get("authorizations") or []:
            allowed = frozenset(each.get("permissions") or [])
            if not allowed <= set(PERMISSIONS):
                raise AuthFailed(f"unknown permission {sorted(allowed - set(PERMISSIONS))[0]}")
            channels = tuple(re.compile(pattern) for pattern in each.get("channels") or [])
            permissions.append(Permission(re.compile(each.get("topic") or ""), channels, allowed))
        identity, url = str(given.get("identity") or ""), str(given.get("identity_url") or "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, re.error) as error:
        raise AuthFailed(f"the answer is invalid: {error!r}") from None
    if type(ttl) is not int or ttl <= 0:
        raise AuthFailed(f"a ttl of {ttl!r} seconds")
    return Authorization(secret, now + ttl, identity, url, tuple(permissions))
