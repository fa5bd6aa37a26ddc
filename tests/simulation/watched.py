"""A simulated group whose clients are watched: what a scenario promised them must hold in the end, on every node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.cluster.simulated import NAMES, SimulatedGroup

from headrace.errors import HeadraceError
from headrace.log.group_frames import parse, payload_of
from headrace.log.replicated_journal import FramesGone
from simulation.etcd.faults import EtcdFaults
from simulation.group.campaign import read_log
from simulation.group.history import GroupHistory
from simulation.history import Violation, require

WELL_S = 20.0
"""So soon after its last fault a group serves, and has every living node in sync."""
READ_S = 0.05


class WatchedGroup(SimulatedGroup):
    """Producers and readers of three nodes, and a history of what they were told."""

    def __init__(self, min_isr: int = 2, **settings: Any) -> None:
        super().__init__(min_isr=min_isr, **settings)
        self.history = GroupHistory()

    def start(self, name: str) -> None:
        super().start(name)
        self._jobs[name] = [lambda: self._read(name)]

    def check(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Play a scenario, let everything heal, and see whether it is as it was promised. Raises Violation."""

        async def all_of_it() -> None:
            await scenario()
            await self._finish()

        self.play(all_of_it)

    # --- what scenarios do ---

    def send(self, name: str, count: int = 1) -> None:
        """Let a producer append on a node, and go on."""
        machine, history = self.world.machines[name], self.history

        async def produce() -> None:
            node = self.nodes[name]
            for _ in range(count):
                value = history.next_value()

                def done(committed: asyncio.Future[int], value: bytes = value) -> None:
                    if machine.alive and not committed.cancelled() and committed.exception() is None:
                        history.acknowledge(committed.result(), value)

                node.append(value, 1).add_done_callback(done)

        async def job() -> None:
            try:
                await produce()
            except HeadraceError:
                history.counts["refused"] += 1

        self._jobs[name].append(job)

    @property
    def acknowledged(self) -> int:
        return self.history.counts["acknowledged"]

    def stop(self, *names: str) -> None:
        """The power of machines goes."""
        for name in names:
            self.world.machines[name].power_cut()

    def runs(self, name: str) -> bool:
        process = self.world.machines[name].process
        return process is not None and process.ending is None

    def in_sync(self) -> str:
        """The machines that etcd has in sync."""
        return self._names(self.record.isr)

    def eligible(self) -> str:
        """The machines that etcd has in the ELR."""
        return self._names(self.record.elr)

    def _names(self, directories: tuple[str, ...]) -> str:
        return "".join(sorted(name for name in NAMES if self.directory(name) in directories))

    def directory(self, name: str) -> str | None:
        node = self.nodes.get(name)
        return None if node is None else node.me

    def cut(self, name: str, *others: str) -> None:
        for other in others:
            self.world.network.cut(name, other)

    def heal(self, name: str, *others: str) -> None:
        for other in others:
            self.world.network.heal(name, other)

    # --- what is checked ---

    async def _read(self, name: str) -> None:
        """A reader that reads everything again and again."""
        node, machine = self.nodes[name], self.world.machines[name]
        journal = node.journal
        while True:
            await asyncio.sleep(READ_S)
            if node.leadership is not None:
                self.history.lead(name, node.leadership.epoch)
            position = journal.first
            while position <= min(journal.committed, journal.flushed):
                try:
                    found = await journal.read(position)
                except FramesGone:
                    break
                for data in found:
                    frame = parse(data)
                    if frame.sequence <= journal.committed and machine.alive:
                        self.history.read(name, frame, payload_of(data))
                position += len(found)

    async def _finish(self) -> None:
        self.etcd.faults = EtcdFaults()
        self.world.end_faults()
        self.etcd.start()
        for name in NAMES:
            if not self.runs(name):
                self.start(name)
        try:
            leader = await self.leader(1, WELL_S)
        except TimeoutError:
            raise Violation("no node leads, although nothing is wrong any more") from None
        # First what was promised: a node that lacks something may keep others from following it.
        self.history.check(leader, read_log(self.world.machines[leader]))
        try:
            await self.leader(3, WELL_S)
        except TimeoutError:
            raise Violation(f"in sync is {self.in_sync()} alone") from None
        await self.serves_within(WELL_S)
        for name in NAMES:
            self.history.check(name, read_log(self.world.machines[name]))

    async def serves_within(self, seconds: float) -> None:
        """A producer that asks again and again is acknowledged. Raises Violation."""
        before, end = self.acknowledged, self.time() + seconds
        while self.acknowledged == before:
            require(self.time() < end, f"nothing is acknowledged within {seconds} s")
            for name, node in self.nodes.items():
                if self.runs(name) and node.serves:
                    self.send(name)
            await asyncio.sleep(0.25)
        await asyncio.sleep(2 * READ_S)
