"""The groups that a connection's client is a member of, which it leaves when it may not read them any more.

A member asks for little while it reads: a heartbeat every few seconds. So its right is watched, and a member that loses
it leaves at once: what it read goes to the others, and its connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from headrace.broker.groups import Leaver
from headrace.broker.groups.consumer.heartbeat import Heartbeat
from headrace.broker.security import Operation, Resource
from headrace.broker.security.watches import Watch
from headrace.errors import HeadraceError, NotAuthorized

if TYPE_CHECKING:
    from headrace.doors.kafka.connection import Connection

log = structlog.get_logger("headrace.kafka")

# Groups of one connection that are watched; those who have more are refused with their next heartbeat.
GROUPS_MAX = 1_000
# The epoch by which a member of the consumer protocol leaves.
LEAVES = -1

_leaving: set[asyncio.Task[None]] = set()


class Memberships:
    """Those of one connection."""

    __slots__ = ("_connection", "_watches")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # By group and member.
        self._watches: dict[tuple[str, str], Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def joined(self, group_id: str, member_id: str, instance_id: str | None) -> None:
        """The client is, or is about to be, a classic member."""
        groups = self._connection.door.broker.groups
        self._watch(group_id, member_id, lambda: groups.leave(group_id, [Leaver(member_id, instance_id)]))

    def beats(self, group_id: str, member_id: str, instance_id: str | None) -> None:
        """The client is a member by the consumer protocol."""
        consumers = self._connection.door.broker.groups.consumers
        leaving = Heartbeat(member_id=member_id, epoch=LEAVES, instance_id=instance_id)
        self._watch(group_id, member_id, lambda: consumers.heartbeat(group_id, leaving))

    def left(self, group_id: str, member_id: str) -> None:
        """It is no longer."""
        watch = self._watches.pop((group_id, member_id), None)
        if watch is not None:
            watch.end()

    def end(self) -> None:
        """The client has gone."""
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()

    def _watch(self, group_id: str, member_id: str, leave: Callable[[], Coroutine[Any, Any, object]]) -> None:
        connection = self._connection
        security = connection.door.broker.security
        key = group_id, member_id
        if key in self._watches or not security.is_enforced or len(self._watches) >= GROUPS_MAX:
            return

        def on_revoked(error: NotAuthorized) -> None:
            log.info("a member lost its right", group=group_id, member=member_id, client=connection.name)
            self._watches.pop(key, None)
            task = connection.door.loop.create_task(_leave(leave))
            _leaving.add(task)
            task.add_done_callback(_leaving.discard)
            connection.close()

        with suppress(NotAuthorized):
            watch = security.watch(connection.session, Operation.READ, Resource.GROUP, group_id, on_revoked)
            self._watches[key] = watch


async def _leave(leave: Callable[[], Coroutine[Any, Any, object]]) -> None:
    # The member may be gone by now, or another node leads.
    with suppress(HeadraceError, OSError):
        await leave()
