"""Who made which topics and queues, so that there may be so many of one user's making.

What a user makes is counted from when it begins to be made; who made it is written down behind that, with users and
rules, so a crash in between leaves it nobody's. What is there no more is found out when it matters. Clients that are
not authenticated own nothing, and have no bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import structlog

from headrace.broker.queues import Queues
from headrace.broker.quotas.kinds import Kind
from headrace.broker.quotas.quotas import Quotas
from headrace.broker.security.session import Session
from headrace.broker.security.store import Json, Key, RecordKind, SecurityStore
from headrace.broker.topics import Topics
from headrace.errors import BoundReached, HeadraceError
from headrace.log.interface import Log

log = structlog.get_logger("headrace.quotas")

# Beyond twice as many as there were when it was last looked, and these, what is gone is forgotten.
KEPT_GONE = 64


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that made something."""

    user: str


class Owners:
    """What users have made of one kind: topics, or queues."""

    def __init__(self, kind: Kind, store: SecurityStore, quotas: Quotas, exists: Callable[[Key], bool]) -> None:
        """`exists`: whether there still is what a key names."""
        self._kind = kind
        self._store = store
        self._quotas = quotas
        self._exists = exists
        self._table = store.table(
            RecordKind(f"owner-{kind.value}", _write, lambda _, stored: Owner(str(stored["user"]))), self._on_change
        )
        self._by_user: dict[str, set[Key]] = {}
        self._looked: dict[str, int] = {}
        # Those that are being made, by user.
        self._making: dict[str, int] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def _on_change(self, key: Key, before: Owner | None, now: Owner | None) -> None:
        if before is not None:
            self._by_user.get(before.user, set()).discard(key)
        if now is not None:
            self._by_user.setdefault(now.user, set()).add(key)

    def count(self, user: str) -> int:
        """How many there are of a user's making."""
        return sum(map(self._exists, self._by_user.get(user, ())))

    @contextmanager
    def making(self, session: Session | None) -> Iterator[None]:
        """Around the making of one more. Raises BoundReached."""
        user = "" if session is None or session.is_own else session.user
        if not user:
            yield
            return
        most = self._quotas.table.of_user(self._kind, user)
        made, making = self._by_user.get(user, ()), self._making.get(user, 0)
        if most is not None and len(made) + making >= most and self.count(user) + making >= most:
            self._quotas.figures[self._kind].refused += 1
            what = self._kind.value.removesuffix("_max")
            raise BoundReached(
                f"the user '{user}' has {most:g} {what}, the maximum that it may own ({self._kind.value}). Delete "
                "some, or have the bound raised."
            )
        self._making[user] = making + 1
        try:
            yield
        finally:
            self._making[user] -= 1
            if not self._making[user]:
                del self._making[user]

    def add(self, session: Session | None, key: Key) -> None:
        """It is made. Written down soon."""
        user = "" if session is None or session.is_own else session.user
        if user:
            self._by_user.setdefault(user, set()).add(key)
            task = asyncio.get_running_loop().create_task(self._record(user, key))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def settle(self) -> None:
        """Wait until everything is written down, as far as it can be."""
        await asyncio.gather(*self._tasks)

    async def _record(self, user: str, key: Key) -> None:
        made = self._by_user.setdefault(user, set())
        gone: list[Key] = []
        if len(made) > 2 * self._looked.get(user, 0) + KEPT_GONE:
            gone = [each for each in made if not self._exists(each)]
            self._looked[user] = len(made) - len(gone)
        try:
            async with self._store.changing():
                known = [each for each in gone if each in self._table.values]
                await self._store.write([self._table.put(key, Owner(user)), *map(self._table.drop, known)])
        except (HeadraceError, OSError) as error:
            log.warning("who made something is not written down", user=user, made=list(key), error=str(error))


def _write(owner: Owner) -> Json:
    return {"user": owner.user}


def own_topics(store: SecurityStore, quotas: Quotas, topics: Topics, log: Log) -> Owners:
    """The owners of topics."""
    owners = Owners(Kind.TOPICS, store, quotas, lambda key: UUID(key[0]) in log.topics.by_id)
    topics.making = owners.making

    def on_managed(session: Session | None, action: str, name: str, _: str) -> None:
        topic = topics.get(name)
        if action == "create" and topic is not None:
            owners.add(session, (str(topic.id),))

    topics.on_managed.append(on_managed)
    return owners


def own_queues(store: SecurityStore, quotas: Quotas, queues: Queues, log: Log) -> Owners:
    """The owners of queues."""

    def exists(key: Key) -> bool:
        topic = log.topics.by_id.get(UUID(key[0]))
        return topic is not None and queues.get(topic.name, key[1]) is not None

    owners = Owners(Kind.QUEUES, store, quotas, exists)
    queues.making = owners.making

    def on_managed(session: Session | None, action: str, name: str, _: str) -> None:
        # No name of a topic has a slash.
        of, _, queue = name.partition("/")
        topic = log.topics.get(of)
        if action == "create" and topic is not None:
            owners.add(session, (str(topic.id), queue))

    queues.on_managed.append(on_managed)
    return owners
