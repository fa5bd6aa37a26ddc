"""Rights that last: whoever was let in because of a right, and is still there, is told when it goes.

A subscription, a fetch session, a web socket asks once and then runs. Its door watches the right that it asked for:
when rules or roles change, the user is deleted, its token is revoked or its identity expires, the right is asked for
again within moments, and what has lost it is called back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.broker.security.rights import Operation, Resource
from headrace.broker.security.session import Session
from headrace.errors import NotAuthorized

if TYPE_CHECKING:
    from headrace.broker.security.security import Security

# Rights that are asked for again between two turns of the loop: about half a millisecond.
STEP_WATCHES = 128

OnRevoked = Callable[[NotAuthorized], None]


class Watch:
    """One right that one session goes on using."""

    __slots__ = ("_watches", "name", "on_revoked", "operation", "resource", "session")

    def __init__(
        self,
        watches: Watches | None,
        session: Session,
        operation: Operation,
        resource: Resource,
        name: str,
        on_revoked: OnRevoked,
    ) -> None:
        self.session = session
        self.operation = operation
        self.resource = resource
        self.name = name
        self.on_revoked = on_revoked
        self._watches = watches

    @property
    def is_over(self) -> bool:
        return self._watches is None

    def end(self) -> None:
        """The right is not used any more. Safe to call twice."""
        if self._watches is not None:
            self._watches.discard(self)
            self._watches = None


class Watches:
    """All of them."""

    def __init__(self, security: Security) -> None:
        self._security = security
        # By session, because a session's user changes.
        self._by_session: dict[Session, set[Watch]] = {}
        # Sessions whose rights may have changed.
        self._due: dict[Session, None] = {}
        self._handle: asyncio.Handle | None = None
        security.on_changed.append(self._on_changed)
        security.on_authenticated.append(self._ask_later)

    def add(
        self, session: Session, operation: Operation, resource: Resource, name: str, on_revoked: OnRevoked
    ) -> Watch:
        """Watch a right that the session has."""
        watch = Watch(self, session, operation, resource, name, on_revoked)
        self._by_session.setdefault(session, set()).add(watch)
        return watch

    def discard(self, watch: Watch) -> None:
        watches = self._by_session[watch.session]
        watches.discard(watch)
        if not watches:
            del self._by_session[watch.session]

    def _on_changed(self, user: str | None) -> None:
        for session in self._by_session:
            if user in (None, session.user):
                self._ask_later(session)

    def _ask_later(self, session: Session) -> None:
        if session not in self._by_session:
            return
        self._due[session] = None
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._ask)

    def _ask(self) -> None:
        """Ask for some of the rights again."""
        self._handle = None
        asked = 0
        while self._due and asked < STEP_WATCHES:
            session = next(iter(self._due))
            del self._due[session]
            for watch in list(self._by_session.get(session, ())):
                asked += 1
                if watch.is_over or self._security.allows(session, watch.operation, watch.resource, watch.name):
                    continue
                watch.end()
                watch.on_revoked(NotAuthorized(watch.operation.name, watch.resource.name, watch.name))
        if self._due:
            self._handle = asyncio.get_running_loop().call_soon(self._ask)
