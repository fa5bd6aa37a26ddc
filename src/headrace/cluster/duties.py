"""What a leader owes beside its sessions: it keeps the group's record true, and leads only while it can and may."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from headrace.cluster import changes
from headrace.cluster.admission import Admissions
from headrace.cluster.leadership import Leadership
from headrace.cluster.records import Group
from headrace.cluster.removal import may_join, next_removal

if TYPE_CHECKING:
    from headrace.cluster.node import Node, NodeSettings

logger = structlog.get_logger("headrace.cluster")

# Between the calendars of leader and followers: beyond it nothing expires.
CLOCK_MAX_MS = 10_000


class Duties:
    """Of one node, whenever it leads."""

    def __init__(self, node: Node, settings: NodeSettings) -> None:
        self._node = node
        self._settings = settings
        self._admissions = Admissions(settings.admission_max_s)
        self.trusts_clock = True
        """Whether this node's calendar is near that of any follower."""

    async def keep_record(self, leadership: Leadership, group: Group) -> None:
        """Bring the record in etcd to what the sessions say, and hand over if that is asked for."""
        node, me, now = self._node, self._settings.me, asyncio.get_running_loop().time()
        change = node.metadata.change
        if not leadership.commitment.isr.is_settled:
            # A swap may still be carried out. Once another has changed the record, it cannot.
            await change(changes.touch)
        elif lagging := leadership.lagging(group.lag_ms / 1000):
            if await change(lambda group: changes.remove_from_isr(group, me, lagging)) is not None:
                logger.warning("replicas lag, and are not in sync any more", nodes=self._named(lagging))
                for each in lagging:
                    self._admissions.removed(each, now)
        elif leaving := next_removal(group, me.node, node.numbers):
            if await change(lambda group: changes.drop_replica(group, me, *leaving)) is not None:
                logger.info("a node was removed from the group", node=leaving[0])
        elif joined := leadership.caught_up(
            self._settings.lease_s,
            lambda each: self._admissions.allows(each, now) and may_join(group, node.numbers.get(each)),
        ):
            if await change(lambda group: changes.add_to_isr(group, me, joined)) is not None:
                logger.info("a replica is in sync", node=joined.node)
        elif group.transfer_to is not None and leadership.serves and not node.transfers.is_running:
            node.transfers.begin(group, group.transfer_to)

    def _named(self, directories: frozenset[str]) -> list[int | str]:
        return sorted((self._node.numbers.get(each, each) for each in directories), key=str)

    def check(self, leadership: Leadership, slept_s: float) -> None:
        """Lead on only where this node can, and may believe that it does."""
        node, lease_s = self._node, self._settings.lease_s
        if slept_s:
            node.step_down(f"it did not run for {slept_s:.1f} s, and another may lead")
        elif leadership.has_peers and min(leadership.silent_s, node.metadata.silent_s) > lease_s:
            node.step_down("neither etcd nor another replica has been heard for a lease")
        elif leadership.age_of(node.journal.flushed + 1) > lease_s:
            node.give_up("its device does not answer")
        else:
            leadership.beat(int(node.metadata.silent_s * 1000))
            self._judge_clock(leadership.clock_differs_ms)

    def _judge_clock(self, differs_ms: int) -> None:
        is_trusted = differs_ms <= CLOCK_MAX_MS
        if self.trusts_clock and not is_trusted:
            logger.error("this node's clock differs from its followers': nothing expires meanwhile", ms=differs_ms)
        elif is_trusted and not self.trusts_clock:
            logger.info("this node's clock agrees with a follower's again", ms=differs_ms)
        self.trusts_clock = is_trusted
