"""Leadership that moves on purpose, on nodes of the simulator."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.cluster.simulated import SimulatedGroup

from headrace.cluster.handover import Steps
from headrace.cluster.node import Node
from headrace.errors import NotLeading, TransferFailed


def transfer_to(number: int | None):  # type: ignore[no-untyped-def]
    async def work(node: Node) -> None:
        await node.transfers.transfer(number)

    return work


async def retire(node: Node) -> None:
    await node.retire()


def test_another_node_leads_without_waiting_for_a_lease() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        assert await group.leader() == "a"
        committed = await group.append("a")
        began = group.time()
        assert await group.on("a", transfer_to(1)) is None
        assert await group.leader() == "b"
        assert group.time() - began < 0.5
        assert (group.record.epoch, group.record.leader.node, group.record.transfer_to) == (2, 1, None)
        assert await group.append("b") > committed
        assert isinstance(await group.append("a"), NotLeading)
        assert len(group.record.isr) == 3

    group.play(scenario)


def test_a_request_in_etcd_is_carried_out() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        store, record = group.etcd.store, group.record
        key = b"/headrace/simulated/groups/g"
        asked = replace(record, version=record.version + 1, transfer_to=2)
        store.put(store.revision + 1, key, asked.encode(), 0)
        store.commit()
        await group.until(lambda: group.nodes["c"].serves, 3)

    group.play(scenario)


def test_a_transfer_that_cannot_be_is_reported_and_appends_go_on() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        group.world.network.cut("a", "b")
        error = await group.on("a", transfer_to(1))
        assert isinstance(error, TransferFailed)
        assert await group.leader(2) == "a"
        assert isinstance(await group.append("a"), int)
        assert group.record.transfer_to is None
        assert "is not a replica" in str(await group.on("a", transfer_to(7)))
        assert "does not lead" in str(await group.on("b", transfer_to(1)))

    group.play(scenario)


def test_what_the_broker_flushes_is_there_before_another_leads() -> None:
    group = SimulatedGroup()
    events: list[str] = []

    async def scenario() -> None:
        await group.leader()
        node = group.nodes["a"]

        async def prepare() -> None:
            events.append(f"flushed at {await node.append(b'state', 1)}")

        node.transfers.steps = Steps(prepare, lambda: events.append("resumed"))
        end = node.journal.last.sequence
        assert await group.on("a", transfer_to(1)) is None
        assert events == [f"flushed at {end + 1}"]
        await group.leader()
        assert group.nodes["b"].journal.last.sequence == end + 2

    group.play(scenario)


def test_the_preferred_node_asks_to_lead_once_it_could_for_a_while() -> None:
    group = SimulatedGroup(preferred_after_s=5.0)

    async def scenario() -> None:
        await group.leader()
        group.world.machines["a"].kill()
        successor = await group.leader(2)
        assert successor != "a"
        group.start("a")
        await group.leader(3)
        back = group.time()
        await group.until(lambda: group.nodes["a"].serves)
        assert 4.0 < group.time() - back < 8.0

    group.play(scenario)


def test_a_leader_that_stops_hands_over_and_waits_for_no_lease() -> None:
    group = SimulatedGroup()

    async def scenario() -> None:
        await group.leader()
        began = group.time()
        stopping = asyncio.ensure_future(group.on("a", retire))
        await group.until(lambda: group.nodes["b"].serves)
        assert isinstance(await group.append("b"), int)
        assert group.time() - began < 0.5
        # It leaves once its successor has shown that it leads.
        await stopping
        assert len(group.record.isr) == 2
        assert isinstance(await group.append("b"), int)

    group.play(scenario)


def test_a_leader_without_a_successor_resigns_and_a_follower_leaves() -> None:
    group = SimulatedGroup(min_isr=1)

    async def scenario() -> None:
        await group.leader()
        await group.on("b", retire)
        await group.until(lambda: len(group.record.isr) == 2)
        await group.append("a")
        group.world.machines["c"].pause()
        await group.on("a", retire)
        assert group.record.leader is None
        group.world.machines["c"].resume()
        assert await group.leader(1) == "c"
        await asyncio.sleep(0)

    group.play(scenario)
