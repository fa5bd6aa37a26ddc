"""Work off the loop comes back later: lanes in order, others in any, the same for the same seed."""

from __future__ import annotations

import asyncio

import pytest

from simulation.faults import Plan
from simulation.world import Ending, World


def size_of(disk, path):
    return disk.open(path).size()


def in_world(main, seed=1, plan=None):
    world = World(seed)
    return world.run(main, plan)


def test_a_serial_executor_keeps_its_order_and_reports_errors():
    async def main(runtime):
        executor = runtime.offload.serial_executor("journal")
        order: list[object] = []
        finished = asyncio.get_running_loop().create_future()

        def failing():
            raise OSError(5, "broken")

        for number in range(20):
            executor.submit(
                lambda number=number: order.append(number), lambda error, number=number: order.append(-number)
            )
        executor.submit(failing, finished.set_result)
        assert order == []
        assert isinstance(await finished, OSError)
        assert [number for number in order if number > 0] == list(range(1, 20))
        assert [-number for number in order if number < 0] == list(range(1, 20))

    assert in_world(main) is Ending.DONE


def test_closing_a_serial_executor_finishes_its_jobs():
    async def main(runtime):
        executor = runtime.offload.serial_executor("journal")
        done: list[object] = []
        for _ in range(3):
            executor.submit(lambda: None, done.append)
        executor.close()
        assert done == [None, None, None]
        runtime.offload.close()

    assert in_world(main) is Ending.DONE


def test_runs_overtake_each_other():
    orders = set()

    async def main(runtime):
        order: list[int] = []
        await asyncio.gather(*(runtime.offload.run(order.append, number) for number in range(4)))
        orders.add(tuple(order))

    for seed in range(30):
        in_world(main, seed)
    assert len(orders) > 5


def test_work_gets_the_disk_and_must_pickle():
    async def main(runtime):
        runtime.disk.open("a", write=True, create=True).write(0, [b"four"])
        assert await runtime.offload.work(size_of, "a") == 4
        with pytest.raises(FileNotFoundError):
            await runtime.offload.work(size_of, "b")
        with pytest.raises(Exception, match="pickle"):
            await runtime.offload.work(lambda disk: None)

    assert in_world(main) is Ending.DONE


def test_a_crash_inside_a_job_ends_the_process():
    async def main(runtime):
        await runtime.offload.run(lambda: runtime.disk.mkdir("d"))

    assert in_world(main, plan=Plan(crash_at=1)) is Ending.POWER_CUT
    assert in_world(main, plan=Plan(crash_at=1, kill=True)) is Ending.KILLED
