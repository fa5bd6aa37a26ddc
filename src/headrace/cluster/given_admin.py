"""The administrator that a group is given in etcd, until its leader has taken it (`headrace cluster init --admin`).

The record has SCRAM credentials, and no password. It is removed as soon as the leader has made it durable in the group;
a leader that dies in between leaves it to the next one, which finds that it was taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from headrace.cluster.errors import EtcdError, RecordInvalid
from headrace.cluster.etcd import Entry, Etcd, Swapped
from headrace.cluster.records import AdminRecord, parse_admin
from headrace.errors import HeadraceError, InvalidCredentials, TooManyIdentities

logger = structlog.get_logger("headrace.cluster")

# How often the leader looks at what it has read from etcd anyway.
SECONDS = 0.5

Take = Callable[[AdminRecord], Awaitable[bool]]


class AdminIntake:
    """What the leader does about it, as long as it leads."""

    def __init__(self, etcd: Etcd, find: Callable[[], Entry | None], take: Take) -> None:
        """`find` gives the record as last seen; `take` makes it durable, and says whether that was new."""
        self.has_looked = asyncio.Event()
        """Whatever was there at the start was dealt with, or could not be."""
        self._etcd = etcd
        self._find = find
        self._take = take
        # The revision of a record that was dealt with: what was read last may still have it.
        self._done = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look now, and from time to time."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """The node leads no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except (HeadraceError, OSError) as error:
                logger.warning("the administrator that etcd has could not be taken", error=str(error))
            self.has_looked.set()
            await asyncio.sleep(SECONDS)

    async def look(self) -> None:
        """Take what is there, and remove it. Raises a HeadraceError: for a record that is of no use once, otherwise
        each time."""
        entry = self._find()
        if entry is None or entry.revision <= self._done:
            return
        try:
            record = parse_admin(entry.value, entry.key)
            is_new = await self._take(record)
        except (RecordInvalid, InvalidCredentials, TooManyIdentities):
            self._done = entry.revision
            raise
        if is_new:
            logger.info("took an administrator from etcd", user=record.user)
        try:
            outcome = await self._etcd.swap(entry.key, entry.revision, None)
        except EtcdError as error:
            logger.debug("etcd does not remove the administrator that was taken", error=str(error))
            return
        if isinstance(outcome, Swapped):
            self._done = entry.revision
