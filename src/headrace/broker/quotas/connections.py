"""Connections: how many there may be from an address and of a user, and how fast new ones may come from an address.

Those that come too fast are accepted and not read for a while, so that a client which connects anew at once gains
nothing; where the while would be longer than any client is held back, and where there are too many, they are closed. A
user's are counted once it is authenticated: one more than may be ends then. A door that authenticates each request
(HTTP) has connections of addresses alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakSet

import structlog

from headrace.broker.quotas.entities import address_name
from headrace.broker.quotas.kinds import EntityType, Kind
from headrace.broker.quotas.table import Limit
from headrace.broker.rate_limit import RateLimit
from headrace.broker.security.session import Session

if TYPE_CHECKING:
    from headrace.broker.quotas.quotas import Quotas

log = structlog.get_logger("headrace.quotas")

# Users with connections that are kept before those are looked for that have none any more.
USERS_KEPT = 1_000


class Connections:
    """The connections of all doors."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._by_address: dict[str, int] = {}
        self._by_user: dict[str, WeakSet[Session]] = {}
        self._log = RateLimit()

    def admit(self, host: str) -> float | None:
        """Count a connection in; the seconds for which it is not read. None: it is refused, and not counted."""
        count = self._by_address.get(host, 0)
        name, table = address_name(host), self._quotas.table
        most = table.of_address(Kind.CONNECTIONS, name)
        if most is not None and count >= most:
            self._refuse(Kind.CONNECTIONS, address=host)
            return None
        rate = table.of_address(Kind.CONNECT, name)
        wait = 0.0
        if rate is not None:
            limit = Limit(rate, ((EntityType.IP, name),), (None, None))
            bucket, now = self._quotas.bucket(Kind.CONNECT, limit), asyncio.get_running_loop().time()
            if bucket.is_exhausted(now):
                self._refuse(Kind.CONNECT, address=host)
                return None
            wait = bucket.charge(1, now)
        self._by_address[host] = count + 1
        return wait

    def forget(self, host: str) -> None:
        """Count one out that was admitted."""
        count = self._by_address.get(host, 0) - 1
        if count > 0:
            self._by_address[host] = count
        else:
            self._by_address.pop(host, None)

    def of_address(self, host: str) -> int:
        """How many there are."""
        return self._by_address.get(host, 0)

    def admit_user(self, session: Session) -> bool:
        """Count the connection of a session that was just authenticated; whether its user may have one more. Where the
        door lets a session end with its request, it is none."""
        if session.on_ended is None:
            return True
        if len(self._by_user) >= USERS_KEPT and session.user not in self._by_user:
            self._by_user = {user: sessions for user, sessions in self._by_user.items() if sessions}
        most = self._quotas.table.of_user(Kind.CONNECTIONS, session.user)
        of_user = self._by_user.setdefault(session.user, WeakSet())
        of_user.add(session)
        if most is None or len(of_user) <= most:
            return True
        # Those that have ended, or have become another user's.
        for each in [each for each in of_user if each.user != session.user]:
            of_user.discard(each)
        if len(of_user) <= most:
            return True
        of_user.discard(session)
        self._refuse(Kind.CONNECTIONS, user=session.user)
        return False

    def _refuse(self, kind: Kind, **whose: str) -> None:
        self._quotas.figures[kind].refused += 1
        if count := self._log.count(asyncio.get_running_loop().time()):
            log.warning("connections are refused by a quota", quota=kind.value, count=count, **whose)
