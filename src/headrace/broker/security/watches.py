"""Rights that last: whoever was let in because of a right, and is still there, is told when it goes.

A subscription, a fetch session, a web socket asks once and then runs. Its door watches the right that it asked for:
when rules or roles change, the user is deleted, its token is revoked or its identity expires, the right is asked for
again within moments, and what has lost it is called back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from headrace.broker.security.rights import Operation, Resource
from headrace.broker.security.session import Session
from headrace.errors import NotAuthorized

if TYPE_CHECKING:
    from headrace.broker.security.security import Security

# Rights that are asked for again between two turns of the loop: about half a millisecond.
STEP_WATCHES = 128

ChangedUsers = Collection[str] | None
"""Of users whose rights have changed, the names that their sessions have; None: any may be one."""
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
        # Whose rights may have changed: all sessions of these users, of any (None), and single ones.
        self._users: frozenset[str] | None = frozenset()
        self._due: dict[Session, None] = {}
        self._looking: Iterator[None] | None = None
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

    def _on_changed(self, users: ChangedUsers) -> None:
        if self._by_session:
            self._users = None if users is None or self._users is None else frozenset(users) | self._users
            self._schedule()

    def _ask_later(self, session: Session) -> None:
        if session in self._by_session:
            self._due[session] = None
            self._schedule()

    def _schedule(self) -> None:
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        """Look at some of the sessions and their rights."""
        self._handle = None
        looking = self._looking if self._looking is not None else self._look()
        taken = sum(1 for _ in islice(looking, STEP_WATCHES))
        self._looking = looking if taken == STEP_WATCHES else None
        if self._looking is not None or self._has_changed:
            self._schedule()

    @property
    def _has_changed(self) -> bool:
        return bool(self._due) or self._users is None or bool(self._users)

    def _look(self) -> Iterator[None]:
        """Ask for all rights again that may have gone. After each session and each right there may be a pause."""
        while self._has_changed:
            users, self._users = self._users, frozenset()
            due, self._due = self._due, {}
            for session in due:
                yield from self._ask(session)
            for session in list(self._by_session) if users is None or users else ():
                if users is None or session.user in users:
                    yield from self._ask(session)
                yield

    def _ask(self, session: Session) -> Iterator[None]:
        for watch in list(self._by_session.get(session, ())):
            if not watch.is_over and not self._security.allows(session, watch.operation, watch.resource, watch.name):
                watch.end()
                error = NotAuthorized(watch.operation.name, watch.resource.name, watch.name)
                asyncio.get_running_loop().call_soon(watch.on_revoked, error)
            yield
