"""The sessions that have an identity, found by user and token, and ended some at a time.

A user may have 10,000 connections, and closing one takes long for the loop: those that are to end do so in steps
between which the loop does other work, all within moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from weakref import WeakSet

from headrace.broker.security.identity import Identity
from headrace.broker.security.session import Session

# Sessions that are ended between two turns of the loop: a few milliseconds.
STEP_SESSIONS = 64


class Sessions:
    """All of them."""

    def __init__(self, end: Callable[[Session, str], None]) -> None:
        self._end = end
        # By user, then by the token that they came with; empty for none.
        self._by_user: dict[str, dict[str, WeakSet[Session]]] = {}
        # With the identity that is to end, and why: a session may have another one by then.
        self._ending: dict[Session, tuple[Identity, str]] = {}
        self._handle: asyncio.Handle | None = None

    def __iter__(self) -> Iterator[Session]:
        return (each for of_user in self._by_user.values() for found in of_user.values() for each in found)

    def add(self, session: Session, identity: Identity) -> None:
        """It has this identity from now on."""
        of_user = self._by_user.setdefault(identity.user, {})
        of_user.setdefault(identity.token_id, WeakSet()).add(session)

    def discard(self, session: Session) -> None:
        """It has none any more."""
        self._ending.pop(session, None)
        identity = session.identity
        of_user = None if identity is None else self._by_user.get(identity.user)
        if identity is None or of_user is None or (found := of_user.get(identity.token_id)) is None:
            return
        found.discard(session)
        if not found:
            del of_user[identity.token_id]
            if not of_user:
                del self._by_user[identity.user]

    def end(self, user: str, reason: str, token_id: str | None = None) -> None:
        """End all of a user, or those of one of its tokens: the first at once, the others in the next turns."""
        of_user = self._by_user.get(user, {})
        some = list(of_user.values()) if token_id is None else [of_user.get(token_id, WeakSet[Session]())]
        for found in some:
            for session in list(found):
                if session.identity is not None:
                    self._ending.setdefault(session, (session.identity, reason))
        if self._handle is None:
            self._step()

    def _step(self) -> None:
        self._handle = None
        for session in list(self._ending)[:STEP_SESSIONS]:
            identity, reason = self._ending.pop(session, (None, ""))
            if identity is not None and session.identity is identity:
                self._end(session, reason)
        if self._ending and self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._step)
