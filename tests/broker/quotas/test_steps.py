"""Timing the steps of a coroutine: what it returns, raises and is told passes through, and waiting does not count."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.quotas.steps import Steps


class Ticks:
    """A clock that goes forward when a step works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_only_steps_count() -> None:
    clock = Ticks()

    async def work() -> str:
        clock.now += 1
        await asyncio.sleep(0)
        clock.now += 2
        return "done"

    async def elsewhere() -> None:
        clock.now += 100

    steps = Steps(work(), clock)
    other = asyncio.ensure_future(elsewhere())
    assert await steps == "done"
    await other
    assert steps.taken == 3


async def test_errors_pass_both_ways() -> None:
    clock = Ticks()
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            clock.now += 5
            seen.append("cancelled")
            raise ValueError("ended") from None

    steps = Steps(work(), clock)

    async def run() -> None:
        await steps

    task = asyncio.ensure_future(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ValueError, match="ended"):
        await task
    assert seen == ["cancelled"]
    assert steps.taken == 5
