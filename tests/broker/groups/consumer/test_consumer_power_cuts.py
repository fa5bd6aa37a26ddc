"""Members of the consumer protocol through power cuts: what they were told still holds, and nothing is with two.

Each seed is a machine whose power goes several times while members of one group come, go and follow. A member obeys
what it was told, also when the power goes behind the answer; one whose heartbeat got no answer says the same again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from tests.longer import seeds

from headrace.broker import store
from headrace.broker.groups import GroupCoordinator, Problem
from headrace.broker.groups.consumer.heartbeat import LEAVING, Heartbeat
from headrace.broker.groups.consumer.places import NOWHERE, Places, meet
from headrace.broker.topics import Topics
from headrace.config import Config
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.faults import Plan
from simulation.world import Ending, World

NAMES = "abcd"


@dataclass
class Member:
    name: str
    epoch: int = 0
    has: Places = field(default_factory=dict)
    leaves: bool = False
    """It has said that it goes, and does not know whether it was heard."""


class Life:
    """One life of the broker under members that outlive it."""

    def __init__(self, runtime: Runtime, members: dict[str, Member], counts: dict[str, int]) -> None:
        self.members, self.counts = members, counts
        self.random = runtime.random
        config = Config(offsets_partitions=2, group_consumer_session_timeout_ms=1_000_000)
        self.log = NativeLog(runtime, config)
        self.topics = Topics(self.log, config)
        self.groups = GroupCoordinator(runtime, self.log, self.topics, config)

    async def run(self) -> None:
        await self.log.start()
        await self.groups.start()
        if self.log.topics.get("t") is None:
            await self.topics.create("t", 8)
        await asyncio.gather(*(self.live(name) for name in NAMES))

    async def live(self, name: str) -> None:
        while True:
            await asyncio.sleep(0.001 * (1 + self.chance(8)))
            member = self.members.get(name)
            if member is None:
                member = self.members[name] = Member(name)
            elif self.chance(12) == 0:
                member.leaves = True
            if member.leaves:
                await self.leave(member)
            else:
                await self.beat(member)

    async def leave(self, member: Member) -> None:
        member.has = NOWHERE
        answer = await self.groups.consumers.heartbeat("g", Heartbeat(member_id=member.name, epoch=LEAVING))
        assert answer.problem in (Problem.NONE, Problem.UNKNOWN_MEMBER_ID, Problem.GROUP_ID_NOT_FOUND)
        del self.members[member.name]

    async def beat(self, member: Member) -> None:
        joining = member.epoch == 0
        beat = Heartbeat(member_id=member.name, epoch=member.epoch, owned=member.has)
        if joining:
            beat = replace(beat, topics=("t",), rebalance_timeout_ms=1_000_000)
        answer = await self.groups.consumers.heartbeat("g", beat)
        assert answer.problem is Problem.NONE, f"{member} was told what the group no longer knows: {answer}"
        member.epoch = answer.epoch
        if answer.assignment is not None:
            member.has = answer.assignment
            self.counts["told"] += 1
        for other in self.members.values():
            assert other is member or not meet(other.has, member.has), f"{other} and {member}"

    def chance(self, of: int) -> int:
        return self.random.bytes(1)[0] % of


@pytest.mark.parametrize("seed", seeds(6, 20))
@pytest.mark.parametrize("batch_bytes", [store.BATCH_BYTES, 80])
def test_what_members_were_told_holds(seed: int, batch_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where every change takes batches of its own."""
    monkeypatch.setattr(store, "BATCH_BYTES", batch_bytes)
    world = World(seed)
    members: dict[str, Member] = {}
    counts = {"told": 0}
    rng = world.stream("lives")
    for _ in range(6):

        async def live(runtime: Runtime) -> None:
            await Life(runtime, members, counts).run()

        assert world.run(live, Plan(crash_after=rng.uniform(0.01, 0.4))) is Ending.POWER_CUT
    assert counts["told"] > 10, "the test never got going"
