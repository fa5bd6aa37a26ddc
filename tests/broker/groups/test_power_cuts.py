"""Groups through power cuts: what was acknowledged is there in the next life, member ids and generations too.

Each seed is a machine whose power goes several times while twelve groups commit rising numbers. A group must find a
number between the last one that was acknowledged and the last one that was sent, and a member whose sync was answered
must still be known.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from tests.broker.groups.stage import join_request
from tests.longer import seeds

from headrace.broker.groups import Commit, Committer, GroupCoordinator, Problem, SyncRequest
from headrace.broker.topics import Topics
from headrace.config import Config
from headrace.format import records as kernel
from headrace.log.interface import Topic
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.faults import Plan
from simulation.world import Ending, World

RECORDS = 2_000
GROUPS = [f"group-{number}" for number in range(12)]


@dataclass
class Promises:
    """What clients know."""

    sent: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    members: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Groups whose member was told its assignment, by id and generation."""


class Life:
    """One life of the broker and its clients."""

    def __init__(self, runtime: Runtime, promises: Promises) -> None:
        self.promises = promises
        config = Config(offsets_partitions=3)
        self.log = NativeLog(runtime, config)
        self.topics = Topics(self.log, config)
        self.groups = GroupCoordinator(runtime, self.log, self.topics, config)

    async def check(self) -> None:
        for group in GROUPS:
            problem, found = await self.groups.committed(group, {"t": [0]})
            assert problem is Problem.NONE
            committed = found["t"][0]
            offset = -1 if committed is None else committed.offset
            assert offset >= self.promises.acknowledged.get(group, -1), f"{group} lost an acknowledged commit"
            assert offset <= self.promises.sent.get(group, -1)
        for group, (member_id, generation) in self.promises.members.items():
            assert await self.groups.heartbeat(group, member_id, None, generation) is Problem.NONE

    async def commit(self, group: str) -> None:
        promises = self.promises
        topic = self.log.topics["t"]
        member_id, generation = promises.members.get(group, ("", -1))
        if not member_id and group.endswith(("1", "2")):
            joined = await self.groups.join(group, join_request(session_timeout_ms=1_000_000))
            if joined.problem is not Problem.NONE:
                return  # a join of the last life, whose answer was lost, is still in the way
            member_id, generation = joined.member_id, joined.generation
            request = SyncRequest(member_id=member_id, generation=generation, assignments=((member_id, b"all"),))
            if (await self.groups.sync(group, request)).problem is Problem.NONE:
                promises.members[group] = (member_id, generation)
        while True:
            offset = promises.sent[group] = promises.sent.get(group, -1) + 1
            (problem,) = await self.groups.commit(
                group, [Commit("t", topic.id, 0, offset)], Committer(member_id, generation=generation)
            )
            assert problem is Problem.NONE
            promises.acknowledged[group] = offset
            await asyncio.sleep(0.002)

    async def fill(self, topic: Topic) -> None:
        """Records to commit: an offset beyond the end would rightly be cut back after a power cut."""
        (partition,) = topic.partitions
        await partition.load()
        if partition.end == 0:
            durable = asyncio.get_running_loop().create_future()
            partition.append(kernel.build([(0, None, b"x", [])] * RECORDS), durable.set_result)
            assert await durable is None

    async def run(self) -> None:
        await self.log.start()
        await self.groups.start()
        await self.fill(await self.topics.ensure("t"))
        await self.check()
        await asyncio.gather(*(self.commit(group) for group in GROUPS))


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_acknowledged_commits_survive_power_cuts(seed: int) -> None:
    world = World(seed)
    promises = Promises()
    rng = world.stream("lives")
    for _ in range(4):

        async def live(runtime: Runtime) -> None:
            await Life(runtime, promises).run()

        assert world.run(live, Plan(crash_after=rng.uniform(0.01, 0.4))) is Ending.POWER_CUT
    assert max(promises.acknowledged.values(), default=0) > 0, "the test never got going"
