"""Who waits while an endpoint takes nothing, and who tries."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace.webhooks import breaker as module
from headrace.webhooks.breaker import Breaker, Entry, Failure


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_FIRST", 0.05)
    monkeypatch.setattr(module, "PAUSE_MAX", 0.2)


def down(message: str = "a", pause: float | None = None) -> Failure:
    return Failure(message, True, pause)


def failing(message: str) -> Failure:
    return Failure(message, False)


async def test_out_of_reach():
    breaker = Breaker()
    for _ in range(2):
        assert not breaker.record_failure(down(), Entry.FREE)
        assert await breaker.enter(0) is Entry.FREE
    assert breaker.record_failure(down(), Entry.FREE)
    assert breaker.open
    assert not breaker.record_failure(down(), Entry.FREE)


async def test_a_success_between():
    breaker = Breaker()
    for _ in range(10):
        breaker.record_failure(down(), Entry.FREE)
        breaker.record_failure(failing("b"), Entry.FREE)
        assert not breaker.record_success()
    assert not breaker.open


async def test_one_message_that_cannot_be_digested_is_no_reason_to_wait():
    breaker = Breaker()
    for number in range(20):
        assert not breaker.record_failure(failing("ab"[number % 2]), Entry.FREE)
    assert breaker.record_failure(failing("c"), Entry.FREE)


async def test_they_try_in_turn_and_the_first_success_lets_all_through():
    breaker = Breaker()
    for _ in range(3):
        breaker.record_failure(down(), Entry.FREE)
    loop = asyncio.get_running_loop()
    began = loop.time()
    order: list[int] = []
    pauses = [breaker.remaining]

    async def wait(number: int) -> None:
        while (entry := await breaker.enter(5)) is Entry.PROBE:
            order.append(number)
            await asyncio.sleep(0.001)
            if len(order) < 5:
                breaker.record_failure(down(), entry)
                pauses.append(breaker.remaining)
            else:
                breaker.record_success()
        assert entry is Entry.FREE

    await asyncio.wait_for(asyncio.gather(*(wait(number) for number in range(3))), 20)
    assert order == [0, 1, 2, 0, 1]
    # Each a fifth more or less.
    assert all(pause <= 1.2 * most for pause, most in zip(pauses, (0.05, 0.1, 0.2, 0.2, 0.2), strict=True))
    assert loop.time() - began > 0.8 * 0.75
    assert not breaker.open


async def test_what_the_endpoint_asks_for_is_kept():
    breaker = Breaker()
    assert breaker.record_failure(down(pause=0.4), Entry.FREE)
    began = asyncio.get_running_loop().time()
    # A shorter config of another does not make it earlier.
    breaker.record_failure(down(pause=0.1), Entry.FREE)
    assert breaker.remaining <= 0.4
    assert await breaker.enter(5) is Entry.PROBE
    assert asyncio.get_running_loop().time() - began > 0.39


async def test_patience_and_the_end():
    breaker = Breaker()
    breaker.record_failure(down(pause=60), Entry.FREE)
    assert await breaker.enter(0.01) is Entry.NO
    assert 59 < breaker.remaining <= 60
    waiting = asyncio.create_task(breaker.enter(60))
    await asyncio.sleep(0)
    breaker.stop()
    assert await waiting is Entry.NO
    assert await breaker.enter(60) is Entry.NO


async def test_who_tries_and_goes_leaves_it_to_the_next():
    breaker = Breaker()
    breaker.record_failure(down(pause=0.0), Entry.FREE)
    first = await breaker.enter(5)
    assert first is Entry.PROBE
    second = asyncio.create_task(breaker.enter(5))
    await asyncio.sleep(0.02)
    assert not second.done()
    breaker.abandon(first)
    assert await second is Entry.PROBE


def let_both_be_due(breaker: Breaker) -> None:
    """Keep the loop until the next try is due, and what comes soon after it: both happen in one turn."""
    time.sleep(breaker.remaining + 0.02)


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(3):
        breaker.record_failure(down(), Entry.FREE)
    return breaker


async def test_who_is_let_in_as_its_patience_ends_tries():
    breaker = opened()
    waiting = asyncio.create_task(breaker.enter(breaker.remaining + 0.01))
    await asyncio.sleep(0)
    let_both_be_due(breaker)
    assert await waiting is Entry.PROBE
    breaker.record_failure(down(), Entry.PROBE)
    assert await breaker.enter(10) is Entry.PROBE


async def test_who_is_let_in_and_is_called_off_leaves_it_to_the_next():
    breaker = opened()
    waiting = asyncio.create_task(breaker.enter(10))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(breaker.remaining + 0.01, waiting.cancel)
    let_both_be_due(breaker)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await breaker.enter(10) is Entry.PROBE


async def test_it_opens_at_its_bounds_and_not_before() -> None:
    """By failures in a row, of several messages, or by an endpoint that could not be reached so often."""
    broken, away = Breaker(), Breaker()
    for number in range(module.FAILING_FAILURES - 1):
        assert not broken.record_failure(failing(str(number)), Entry.FREE)
    assert broken.record_failure(failing("last"), Entry.FREE)
    for _ in range(module.DOWN_FAILURES - 1):
        assert not away.record_failure(down(), Entry.FREE)
    assert away.record_failure(down(), Entry.FREE)
    broken.stop()
    away.stop()
