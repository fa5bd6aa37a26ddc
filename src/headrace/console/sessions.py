"""Who is logged in: sessions on the server, found by a cookie that says nothing.

A session holds the credentials with which the broker is called as that person. It ends when it is not used for an hour
or after twelve, when the person logs out, and with the console. There are at most so many; the one unused for longest
makes room.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from headrace.console.client.transport import NOBODY, Credentials

COOKIE = "headrace_console"
IDLE_SECONDS = 3600.0
LIFE_SECONDS = 12 * 3600.0
SESSIONS_MAX = 1_000
ATTEMPTS_MAX = 10
"""Failed logins from one address in a minute."""


class Role(IntEnum):
    """What the console offers. Where the broker knows identities its rights decide, and all is offered."""

    VIEWER = 1
    READER = 2
    """And reads messages."""
    OPERATOR = 3
    ADMIN = 4


@dataclass(slots=True)
class Session:
    """A person who is logged in; or nobody, where the console is open."""

    id: str = ""
    user: str = ""
    role: Role = Role.ADMIN
    credentials: Credentials = NOBODY
    began: float = 0.0
    used: float = 0.0


@dataclass(slots=True)
class Sessions:
    """All of them."""

    idle_seconds: float = IDLE_SECONDS
    most: int = SESSIONS_MAX
    clock: Callable[[], float] = time.time
    _by_id: dict[str, Session] = field(default_factory=dict)
    _failures: dict[str, list[float]] = field(default_factory=dict)

    def begin(self, user: str, role: Role, credentials: Credentials = NOBODY) -> Session:
        self._expire()
        if len(self._by_id) >= self.most:
            del self._by_id[min(self._by_id.values(), key=lambda each: each.used).id]
        now = self.clock()
        session = Session(secrets.token_urlsafe(32), user, role, credentials, now, now)
        self._by_id[session.id] = session
        return session

    def find(self, id: str | None) -> Session | None:
        """The session of a cookie, if it goes on."""
        session = self._by_id.get(id or "")
        if session is None or not self._is_alive(session):
            self._by_id.pop(id or "", None)
            return None
        session.used = self.clock()
        return session

    def end(self, id: str | None) -> None:
        self._by_id.pop(id or "", None)

    def is_alive(self, session: Session) -> bool:
        """Whether a session, or that there is none, still holds."""
        return not session.id or (session.id in self._by_id and self._is_alive(session))

    def may_try(self, address: str) -> bool:
        """Whether an address may try another password."""
        now = self.clock()
        recent = [at for at in self._failures.get(address, []) if now - at < 60]
        if recent:
            self._failures[address] = recent
        else:
            self._failures.pop(address, None)
        return len(recent) < ATTEMPTS_MAX

    def failed(self, address: str) -> None:
        if len(self._failures) >= self.most:
            self._failures.pop(next(iter(self._failures)))
        self._failures.setdefault(address, []).append(self.clock())

    def _is_alive(self, session: Session) -> bool:
        now = self.clock()
        return now - session.used < self.idle_seconds and now - session.began < LIFE_SECONDS

    def _expire(self) -> None:
        for each in [each for each in self._by_id.values() if not self._is_alive(each)]:
            del self._by_id[each.id]
