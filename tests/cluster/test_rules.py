"""What a node does about a machine that sleeps, a clock that is wrong, a disk that fails, an etcd that is away or went
back: on nodes of the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tests.cluster.simulated import SimulatedGroup

from headrace.cluster import identity
from headrace.cluster.admission import Admissions
from headrace.cluster.node import Node
from headrace.errors import NotLeading
from simulation.faults import Plan

LEASE_S = 3.0


def test_a_leader_that_slept_answers_nothing_before_etcd_has_confirmed_it() -> None:
    group = SimulatedGroup()
    answers: list[object] = []

    async def scenario() -> None:
        await group.leader()
        await group.append("a")
        machine = group.world.machines["a"]

        # What a client has sent meanwhile is the first thing that the process finds.
        async def append(node: Node) -> int:
            return await node.append(b"late", 1)

        machine.pause()
        late = asyncio.ensure_future(group.on("a", append))
        # Less than a lease: no other leads.
        await asyncio.sleep(0.6 * LEASE_S)
        machine.resume()
        answers.append(await late)
        await group.leader()

    group.play(scenario)
    assert isinstance(answers[0], NotLeading)
    assert group.record.epoch == 2


def test_a_leader_that_hears_nobody_for_a_lease_leads_no_more() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        for other in ("b", "c", "etcd"):
            group.world.network.cut("a", other)
        await group.until(lambda: group.nodes["a"].leadership is None, 2 * LEASE_S)
        group.world.network.heal_all()
        await group.leader()

    group.play(scenario)


def test_a_leader_goes_on_while_etcd_is_away() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        group.etcd.kill()
        for _ in range(10):
            await asyncio.sleep(1)
            assert isinstance(await group.append("a"), int)
        assert not group.nodes["a"].reaches_etcd

    group.play(scenario)
    assert group.record.epoch == 1


def test_nothing_expires_by_a_clock_that_differs_from_all_others() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        node = group.nodes["a"]
        group.world.machines["b"].jump_clock(60)
        await asyncio.sleep(1)
        assert node.duties.trusts_clock
        group.world.machines["c"].jump_clock(-30)
        await group.until(lambda: not node.duties.trusts_clock, 2)
        group.world.machines["c"].jump_clock(25)
        await group.until(lambda: node.duties.trusts_clock, 2)

    group.play(scenario)


def test_a_leader_whose_disk_hangs_resigns_and_does_not_stand_until_it_answers() -> None:
    check_disk(lambda group: group.world.machines["a"].hang_disk())


def test_a_leader_whose_disk_fails_resigns() -> None:
    check_disk(lambda group: group.world.machines["a"].fail_syncs(1.0))


def test_a_leader_whose_disk_is_full_resigns() -> None:
    check_disk(lambda group: group.world.machines["a"].fill_disk(0))


def check_disk(fault: Callable[[SimulatedGroup], None]) -> None:
    group = SimulatedGroup(admission_max_s=2.0)

    async def scenario() -> None:
        await group.leader()
        fault(group)
        asked = asyncio.ensure_future(group.append("a", b"v" * 30_000))
        await group.until(lambda: group.nodes["b"].serves or group.nodes["c"].serves, 3 * LEASE_S)
        successor = await group.leader(2)
        assert isinstance(await asked, NotLeading)
        await asyncio.sleep(10)
        assert await group.leader(2) == successor
        group.world.machines["a"].repair_disk()
        assert await group.leader(3) == successor

    group.play(scenario)


def test_a_node_alone_leads_again_once_its_disk_answers() -> None:
    group = SimulatedGroup(min_isr=1)

    async def scenario() -> None:
        await group.leader()
        for other in ("b", "c"):
            group.world.machines[other].kill()
        await group.until(lambda: len(group.record.isr) == 1)
        group.world.machines["a"].hang_disk()
        asked = asyncio.ensure_future(group.append("a"))
        await group.until(lambda: group.record.leader is None)
        assert isinstance(await asked, NotLeading)
        epoch = group.record.epoch
        await asyncio.sleep(5)
        assert group.record.epoch == epoch
        group.world.machines["a"].repair_disk()
        await group.leader(1)

    group.play(scenario)


def test_a_leader_whose_disk_fails_does_not_leave_the_isr_to_one_that_is_gone() -> None:
    group = SimulatedGroup(min_isr=1)

    async def scenario() -> None:
        await group.leader()
        group.world.machines["c"].kill()
        await group.until(lambda: len(group.record.isr) == 2)
        group.world.machines["b"].kill()
        group.world.machines["a"].fail_syncs(1.0)
        assert isinstance(await group.append("a"), NotLeading)
        await group.until(lambda: group.record.leader is None)
        assert group.nodes["a"].me in group.record.isr
        group.world.machines["a"].repair_disk()
        await group.leader(1)

    group.play(scenario)


def test_a_follower_without_power_does_not_join_though_nothing_was_committed_since() -> None:
    group = SimulatedGroup()
    joined: list[object] = []

    async def scenario() -> None:
        await group.leader()
        for other in ("b", "c"):
            group.world.machines[other].power_cut()
        # It waits for a second replica for as long as this takes.
        waits = asyncio.ensure_future(group.append("a"))
        await group.until(lambda: len(group.record.isr) == 1)
        end = group.time() + 10
        while group.time() < end:
            await asyncio.sleep(0.01)
            joined.extend(group.record.isr[1:])
        assert len(group.record.elr) == 2
        group.start("b")
        await waits

    group.play(scenario)
    assert joined == []


def test_the_newest_record_is_kept_while_the_node_runs() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        await asyncio.sleep(1)

    group.play(scenario)
    for name in ("a", "b", "c"):
        found = identity.load(group.world.machines[name].new_disk(Plan()))
        assert found is not None
        assert found.seen == group.record


def test_an_etcd_that_went_back_is_reported_once_and_not_believed() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        backup = group.etcd.backup()
        await group.on("a", lambda node: node.transfers.transfer(1))
        await group.leader()
        known = group.record
        group.etcd.restore(backup)
        node = group.nodes["b"]
        await group.until(lambda: "went back" in node.metadata.problem)
        assert node.group == known
        assert isinstance(await group.append("b"), int)
        # A record that is newer than all that was seen is believed again.
        store = group.etcd.store
        newer = replace(known, version=known.version + 5, epoch=known.epoch + 2, leader=None)
        store.put(store.revision + 1, b"/headrace/simulated/groups/g", newer.encode(), 0)
        store.commit()
        await group.until(lambda: group.record.epoch > newer.epoch)
        await group.leader()

    group.play(scenario)


def test_a_follower_that_lags_again_and_again_waits_longer_each_time() -> None:
    admissions = Admissions(60.0)
    now = 100.0
    waits = []
    for _ in range(9):
        admissions.removed("b", now)
        waits.append(next(wait for wait in (1, 2, 4, 8, 16, 32, 60) if admissions.allows("b", now + wait)))
        now += waits[-1] + 1
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert admissions.allows("c", now)
    # After a long time in sync.
    admissions.removed("b", now + 2_000)
    assert admissions.allows("b", now + 2_001)
