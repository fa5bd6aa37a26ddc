"""The client of etcd on the simulated etcd: the same answers, the same honesty about what it does not know."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.simulation.test_etcd import with_etcd

from headrace.cluster.errors import EtcdError, EtcdUnavailable
from headrace.cluster.etcd import Etcd, Refused, Swapped, Unknown

MEMBERS = ("e1", "e2", "e3")


def new_client(*names: str) -> Etcd:
    return Etcd([(name, 2379) for name in names or ("etcd",)])


def test_swaps_leases_and_watches():
    async def main(etcd):
        client = new_client()
        assert await client.read("k") is None
        first = await client.swap("k", 0, b"one")
        assert isinstance(first, Swapped)
        refused = await client.swap("k", 0, b"two")
        assert isinstance(refused, Refused)
        assert refused.current is not None
        assert (refused.current.value, refused.current.revision) == (b"one", first.revision)
        assert isinstance(await client.swap("k", first.revision, None), Swapped)
        assert await client.read("k") is None
        lease = await client.grant(2)
        async with aclosing(client.watch("n/")) as changes:
            await anext(changes)
            assert isinstance(await client.swap("n/1", 0, b"", lease=lease), Swapped)
            await anext(changes)
            assert await client.keep_alive(lease)
            assert set((await client.read_prefix("n/")).entries) == {"n/1"}
            await anext(changes)
        assert not (await client.read_prefix("n/")).entries
        assert not await client.keep_alive(lease)
        await client.revoke(lease)
        assert list(await client.versions()) == ["etcd:2379"]
        await client.close()

    with_etcd(main)


@pytest.mark.parametrize("fault", ["request_lost", "answer_lost", "late"])
def test_a_swap_without_an_answer_is_unknown(fault: str):
    async def main(etcd):
        client = new_client()
        first = await client.swap("k", 0, b"old")
        assert isinstance(first, Swapped)
        etcd.faults.late_s = 300.0
        setattr(etcd.faults, fault, 1.0)
        assert isinstance(await client.swap("k", first.revision, b"new"), Unknown)
        setattr(etcd.faults, fault, 0.0)
        entry = await client.read("k")
        assert entry is not None
        assert entry.value == (b"new" if fault == "answer_lost" else b"old")
        await asyncio.sleep(1000)
        entry = await client.read("k")
        assert entry is not None
        assert entry.value == (b"old" if fault == "request_lost" else b"new")

    with_etcd(main, seed=2)


def test_the_next_member_is_asked_until_none_is_left():
    async def main(etcd):
        world = etcd.world
        client = new_client(*MEMBERS)
        assert isinstance(await client.swap("k", 0, b"v"), Swapped)
        world.machines["e1"].power_cut()
        world.network.cut("client", "e2")
        with pytest.raises(EtcdError):
            await new_client("e1", "e2").read("k")
        entry = await client.read("k")
        assert entry is not None
        world.machines["e3"].kill()
        await asyncio.sleep(5)
        with pytest.raises(EtcdUnavailable):
            await client.swap("k", entry.revision, b"w")

    with_etcd(main, names=MEMBERS)
