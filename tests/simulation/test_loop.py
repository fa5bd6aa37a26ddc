"""Virtual time: timers jump, order is kept, a deadlock is said, a crash leaves at once."""

from __future__ import annotations

import asyncio

import pytest

from simulation.faults import Plan, PowerCut
from simulation.loop import Deadlock, SimulatorLoop
from simulation.machine import UnhandledError
from simulation.world import Ending, World


def run(coroutine):
    loop = SimulatorLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.abandon()
        loop.close()


def test_time_jumps_to_the_next_timer():
    async def main():
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.sleep(30 * 24 * 3600)
        return loop.time() - before

    assert run(main()) == 30 * 24 * 3600


def test_timers_of_one_instant_keep_their_order():
    async def main():
        loop = asyncio.get_running_loop()
        order: list[int] = []
        for number in range(100):
            loop.call_at(5.0, order.append, number)
        await asyncio.sleep(6)
        return order

    assert run(main()) == list(range(100))


def test_timeouts_cancel_and_tasks_run_as_on_any_loop():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(2)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3)
        done = await asyncio.gather(*(asyncio.sleep(n, n) for n in (3, 1, 2)))
        return done, asyncio.get_running_loop().time()

    assert run(main()) == ([3, 1, 2], 7.0)


def test_a_deadlock_is_reported():
    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="no task will set"):
        run(main())


def test_executors_are_refused():
    async def main():
        with pytest.raises(RuntimeError, match="Offload"):
            await asyncio.to_thread(print)

    run(main())


def test_a_crash_leaves_at_once_and_runs_nothing_more():
    after: list[str] = []
    world = World(1)

    async def main(runtime):
        async def other():
            try:
                await asyncio.sleep(10)
            finally:
                runtime.disk.open("x", write=True, create=True)

        async def dies():
            loop = asyncio.get_running_loop()
            loop.call_soon(after.append, "ran")
            world.machine.disk.die(PowerCut("here"))

        task = asyncio.ensure_future(other())
        await asyncio.sleep(0)
        await asyncio.gather(task, dies())

    assert world.run(main) is Ending.POWER_CUT
    assert world.machine.crash_point == "here"
    assert after == []
    assert list(world.machine.storage.files()) == []


def test_an_error_that_nobody_looks_at_fails_the_run():
    async def main(runtime):
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="ZeroDivisionError"):
        World(1).run(main)


def test_time_goes_on_from_life_to_life():
    world = World(1)
    times: list[int] = []

    async def main(runtime):
        times.append(runtime.clock.now_ms())
        await asyncio.sleep(5)

    world.run(main, Plan(crash_after=2))
    world.run(main)
    assert times[1] - times[0] == 3000


def test_tasks_that_await_in_their_end_are_dropped_too():
    world = World(1)
    ends: list[int] = []

    async def main(runtime):
        async def stubborn():
            try:
                await asyncio.sleep(100)
            finally:
                for number in range(3):
                    try:
                        await asyncio.sleep(1)
                    finally:
                        ends.append(number)

        task = asyncio.ensure_future(stubborn())
        await asyncio.sleep(0)
        world.machine.disk.die(PowerCut("here"))
        await task

    assert world.run(main) is Ending.POWER_CUT
    assert ends == [0]
