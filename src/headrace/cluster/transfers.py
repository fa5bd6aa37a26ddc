"""Leadership that moves on purpose: asked for by an operator, by the preferred leader, or by a node that is to stop.

Whoever asks writes `transfer_to` into the group's record, and the leader carries it out (`handover.py`). A node that is
to stop needs no record for that: it leads, and names its successor itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from headrace.cluster import changes
from headrace.cluster.errors import ChangeRefused
from headrace.cluster.handover import PAUSE_SECONDS, STOP_PAUSE_SECONDS, Steps, hand_over
from headrace.cluster.leadership import Leadership
from headrace.cluster.metadata import Metadata
from headrace.cluster.records import Group, Incarnation
from headrace.errors import TransferFailed
from headrace.log.replicated_journal import ReplicatedJournal

logger = structlog.get_logger("headrace.cluster")


class Transfers:
    """Those of one node."""

    def __init__(
        self,
        metadata: Metadata,
        journal: ReplicatedJournal,
        me: Incarnation,
        preferred_after_s: float,
        leadership: Callable[[], Leadership | None],
    ) -> None:
        """A preferred leader asks to lead once it could for `preferred_after_s`; 0: never."""
        self._metadata = metadata
        self._journal = journal
        self._me = me
        self._preferred_after_s = preferred_after_s
        self._leadership = leadership
        self._loop = asyncio.get_running_loop()
        self.steps = Steps()
        self._running: asyncio.Task[str] | None = None
        # The epoch in which this node could lead instead of the leader, and since when.
        self._preferred: tuple[int, float] | None = None

    @property
    def is_running(self) -> bool:
        """Whether this node is handing over."""
        return self._running is not None

    async def transfer(self, to: int | None) -> None:
        """Have the node `to` lead, or the preferred one; returns once it does. Raises TransferFailed."""
        group = self._metadata.group
        if group is None or self._leadership() is None:
            raise TransferFailed("this node does not lead its group")
        node = self.preferred(group) if to is None else to
        if node == self._me.node:
            return
        directory = self._directory_of(group, node)
        try:
            asked = await self._metadata.change(partial(changes.request_transfer, node=node, directory_id=directory))
        except ChangeRefused as error:
            raise TransferFailed(str(error)) from None
        if asked is None:
            raise TransferFailed("etcd does not take the request for a transfer")
        if problem := await asyncio.shield(self.begin(asked, node)):
            raise TransferFailed(problem)

    def begin(self, group: Group, node: int) -> asyncio.Task[str]:
        """Hand over to a node, unless that is under way; what went wrong comes of it, or nothing."""
        if self._running is None:
            self._running = self._loop.create_task(self._run(group, node, PAUSE_SECONDS))
        return self._running

    async def hand_over_and_stop(self, group: Group) -> None:
        """Hand over to the first in the order of preference that can, as this node is about to stop."""
        if self._running is not None:
            await asyncio.shield(self._running)
        living = [each for each in group.replicas if each != self._me.node and self._directory_of(group, each)]
        if living and self._leadership() is not None:
            self._running = self._loop.create_task(self._run(group, living[0], STOP_PAUSE_SECONDS))
            await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Do nothing more."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self, group: Group, node: int, pause_s: float) -> str:
        leadership, directory = self._leadership(), self._directory_of(group, node)
        me = self._me
        problem = ""

        async def swap(successor: Incarnation) -> bool:
            try:
                return await self._metadata.change(lambda group: changes.hand_over(group, me, successor)) is not None
            except ChangeRefused as error:
                raise TransferFailed(str(error)) from None

        try:
            if leadership is None or directory is None:
                raise TransferFailed(f"node {node} is not in sync")
            logger.info("hands over", to=node, epoch=leadership.epoch)
            await hand_over(leadership, self._journal, directory, self.steps, group.lag_ms / 1000, pause_s, swap)
        except TransferFailed as error:
            problem = str(error)
            logger.warning("the leadership was not handed over", to=node, reason=problem)
            await self._forget()
        finally:
            self._running = None
        return problem

    async def _forget(self) -> None:
        """Take the request back."""
        group = self._metadata.group
        if self._leadership() is not None and group is not None and group.transfer_to is not None:
            try:
                await self._metadata.change(lambda group: changes.end_transfer(group, self._me))
            except ChangeRefused:
                pass  # another leads

    # --- the preferred leader ---

    def preferred(self, group: Group) -> int:
        """The node that leads if nothing is wrong: the first in the order of preference that lives and is in sync."""
        return next(
            (each for each in group.replicas if each == self._me.node or self._directory_of(group, each)), self._me.node
        )

    def _directory_of(self, group: Group, node: int) -> str | None:
        """The directory of a node that lives and is in sync, and does not leave."""
        if node in group.removing:
            return None
        alive = self._metadata.alive
        return next(
            (
                each
                for each, number in self._metadata.numbers.items()
                if number == node and each in alive and each in group.isr
            ),
            None,
        )

    async def ask(self, group: Group) -> None:
        """Ask the leader to hand over, if this node should lead, and has been able to for a while."""
        is_mine = (
            self._me.directory_id in group.isr
            and self._me.node not in group.removing
            and self.preferred(group) == self._me.node
            and group.transfer_to is None
        )
        if not is_mine or not self._preferred_after_s:
            self._preferred = None
            return
        now = self._loop.time()
        if self._preferred is None or self._preferred[0] != group.epoch:
            self._preferred = group.epoch, now
        elif now - self._preferred[1] >= self._preferred_after_s:
            self._preferred = None
            logger.info("asks to lead, as the preferred leader", epoch=group.epoch)
            await self._metadata.change(
                partial(changes.request_transfer, node=self._me.node, directory_id=self._me.directory_id)
            )
