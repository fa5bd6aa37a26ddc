"""The client in the simulator: virtual time, and a network that splits, delays and cuts."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.cluster.scripted import SILENT, Scripted, header

from headrace.cluster.errors import EtcdError
from headrace.cluster.etcd import Etcd, Swapped, Unknown
from headrace.runtime import Runtime
from simulation.world import Ending, World


def test_swaps_on_a_network_that_cuts_are_told_from_those_that_may_have_happened() -> None:
    outcomes: list[object] = []
    for seed in range(5):
        world = World(seed)

        async def main(runtime: Runtime, world: World = world) -> None:
            applied = 0

            def answer(path: str, body: dict[str, Any]) -> object:
                nonlocal applied
                applied += 1
                return {"header": header(applied), "succeeded": True}

            server = Scripted(answer)
            await server.start()
            etcd = Etcd([server.address])
            world.network.cut_chance = 0.1
            for _ in range(30):
                before = applied
                try:
                    outcomes.append(await etcd.swap("k", 1, b"x"))
                except EtcdError as error:
                    outcomes.append(error)
                    assert applied == before
                else:
                    assert isinstance(outcomes[-1], Swapped | Unknown)
                    assert isinstance(outcomes[-1], Unknown) or applied == before + 1
            await etcd.close()
            server.stop()

        assert world.run(main) is Ending.DONE
    assert {Swapped, Unknown} <= {type(outcome) for outcome in outcomes}


def test_silence_is_left_in_virtual_time() -> None:
    world = World(1)

    async def main(runtime: Runtime) -> None:
        silent, other = Scripted(lambda *_: SILENT), Scripted(lambda *_: {"header": header(3)})
        await silent.start()
        await other.start()
        etcd = Etcd([silent.address, other.address], attempt_seconds=100)
        begun = asyncio.get_running_loop().time()
        assert (await etcd.read_prefix("k")).revision == 3
        assert 100 <= asyncio.get_running_loop().time() - begun < 110
        # The swap may have happened: no other member hears of it.
        etcd = Etcd([silent.address, other.address], attempt_seconds=100)
        assert isinstance(await etcd.swap("k", 1, b"x"), Unknown)
        assert 200 <= asyncio.get_running_loop().time() - begun < 220
        assert silent.paths() == ["/v3/kv/range", "/v3/kv/txn"]
        assert other.paths() == ["/v3/kv/range"]
        await etcd.close()
        silent.stop()
        other.stop()

    assert world.run(main) is Ending.DONE


def test_a_member_that_says_nothing_from_the_start_was_sent_nothing() -> None:
    world = World(1)

    async def main(runtime: Runtime) -> None:
        mute, other = Scripted(lambda *_: SILENT), Scripted(lambda *_: {"header": header(3), "succeeded": True})
        mute.is_mute = True
        await mute.start()
        await other.start()
        etcd = Etcd([mute.address, other.address], attempt_seconds=100)
        assert await etcd.swap("k", 1, b"x") == Swapped(3)
        versions = await etcd.versions()
        assert [each for each in versions.values() if each == "3.5.9"]
        assert [each for each in versions.values() if "did not answer within 100 s" in each]
        await etcd.close()
        mute.stop()
        other.stop()

    assert world.run(main) is Ending.DONE
