"""Disks that are wiped or put back to an earlier state, and machines that never return, as far as a group can live with
that."""

from __future__ import annotations

import asyncio

from headrace.cluster.records import Group, parse_group, parse_member
from simulation.group.replica import GROUP, KEYS
from simulation.machine import Machine
from simulation.nemesis import USUAL, Nemesis

# Swaps are few: requests that come late are many, so that some of them are swaps.
FAULTS = {
    **USUAL,
    "delay_requests": 5,
    "wipe_disk": 1.5,
    "restore_disk": 1.5,
    "lose_machine": 0.5,
    "cut_power_before_sync": 1,
    "lose_removal": 1,
    "lose_joining": 1,
}
# Longer than a follower may lag, and than a lease.
LONG_S = 4.5
# Shorter than a process takes to hear that an answer was lost.
STEP_S = 0.02


class DiskNemesis(Nemesis):
    """A nemesis that leaves the last replica alone that has everything."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, faults=FAULTS, **options)  # type: ignore[arg-type]
        self.gone: set[str] = set()
        """Directories that were taken away."""

    def _lose(self, node: Machine) -> None:
        if (directory := self._directory_of(node.name)) is not None:
            self.gone.add(directory)

    def is_hopeless(self) -> bool:
        """Whether nothing is left that has everything by etcd's record. A swap that came late, from a leader that died
        since, may have said so only after a disk was taken."""
        group = self._group()
        return group is not None and bool(group.isr) and {*group.isr, *group.elr} <= self.gone

    def _expendable(self) -> Machine | None:
        """A node without which another has everything that is committed."""
        node, group = self._node(), self._group()
        if node is None or group is None:
            return None
        for other in self._nodes:
            directory = self._directory_of(other)
            if other != node.name and directory in group.isr and directory not in self.gone:
                return node
        return None

    def _group(self) -> Group | None:
        found = self._etcd.store.range(KEYS.group(GROUP).encode(), b"")
        return parse_group(found[0].value, GROUP) if found else None

    def _directory_of(self, name: str) -> str | None:
        key = KEYS.member(list(self._nodes).index(name))
        found = self._etcd.store.range(key.encode(), b"")
        return parse_member(found[0].value, key).directory_id if found else None

    # Faults that aim at one moment, which others would seldom meet.

    async def _cut_power_before_sync(self) -> None:
        """Power goes while a follower's device hangs, and the leader is cut off as it comes back: the follower may lead
        next, with what its device had."""
        if (found := self._leader_and_follower()) is None:
            return
        leader, follower = found
        follower.hang_disk()
        await asyncio.sleep(self._rng.choice((0.1, 0.5)))
        self._world.counts["power cut before a sync"] += 1
        for node in found:
            if node.process is not None and node.process.ending is None:
                node.power_cut()
        follower.repair_disk()
        await self._cut_for(LONG_S, [(leader.name, other) for other in self._places if other != leader.name])

    async def _lose_removal(self) -> None:
        """A follower is cut off, the leader's swaps that remove it are lost, and then the leader is. The follower has
        everything, as etcd names it in sync still."""
        if (found := self._leader_and_follower()) is None:
            return
        leader, follower = found
        faults = self._etcd.faults
        self._world.counts["lost removal"] += 1
        link = (leader.name, follower.name)
        self._network.cut(*link)
        faults.only_transactions, faults.request_lost = True, 1.0
        await asyncio.sleep(LONG_S)
        if leader.process is not None and leader.process.ending is None:
            leader.power_cut()
        faults.request_lost = 0.0
        self._network.heal(*link)
        await self._cut_for(LONG_S, [(leader.name, other) for other in self._places if other != leader.name])

    async def _lose_joining(self) -> None:
        """A follower joins the ISR, and the leader does not hear that it has: both are cut off from each other, and the
        leader from etcd, at once. The follower, which may lead next, has everything that was committed meanwhile."""
        loop = asyncio.get_running_loop()
        faults, end = self._etcd.faults, loop.time() + LONG_S
        before = self._group()
        faults.only_transactions, faults.answer_lost = True, 1.0
        while loop.time() < end:
            await asyncio.sleep(STEP_S)
            group = self._group()
            if before is not None and group is not None and group.leader is not None and group.epoch == before.epoch:
                joined = [each for each in group.isr if each not in before.isr]
                names = {self._directory_of(name): name for name in self._nodes}
                leader = names.get(group.leader.directory_id)
                if joined and leader is not None:
                    self._world.counts["lost joining"] += 1
                    faults.answer_lost = 0.0
                    others = [names[each] for each in joined if each in names]
                    await self._cut_for(LONG_S, [(leader, each) for each in (*others, *self._etcd.names)])
                    return
            before = group
        faults.answer_lost = 0.0

    def _leader_and_follower(self) -> tuple[Machine, Machine] | None:
        """The node that leads by etcd's record, and another that is in sync; both run."""
        group = self._group()
        if group is None or group.leader is None:
            return None
        running = {self._directory_of(each.name): each for each in self._running()}
        leader = running.get(group.leader.directory_id)
        followers = [running[each] for each in group.isr if each in running and each != group.leader.directory_id]
        return None if leader is None or not followers else (leader, self._rng.choice(followers))
