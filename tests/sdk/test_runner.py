"""A subscription at work, and changed while it works; over a transport in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.sdk.in_memory import Held, InMemory, app, wire
from tests.waiting import SECONDS, until

from headrace.sdk import Message, Tuning, Unsuited

__all__ = ["wire"]


class Timed(Held):
    """A delivery whose time can be up."""

    lost = False
    touched = 0

    def touch(self) -> bool:
        self.touched += 1
        return not self.lost


async def turns() -> None:
    """Let everything happen that can happen now."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_pause_stops_calls_at_once_and_its_end_begins_them_again(wire: InMemory) -> None:
    shop = app()
    seen: list[bytes] = []
    go = asyncio.Event()

    @shop.subscribe("orders", workers=1, credit=30)
    async def handle(raw: bytes) -> None:
        seen.append(raw)
        await go.wait()

    async with shop:
        [running], [receiver] = shop.running, wire.receivers
        held = receiver.bring(b"a", b"b", b"c")
        await until(lambda: seen)
        running.change(running.tuning, paused=True)
        assert receiver.credits == [0]
        go.set()
        await until(lambda: held[0].settled)
        receiver.bring(b"d")
        await turns()
        # What was begun is finished; the others wait.
        assert (seen, running.waiting) == ([b"a"], 3)
        running.change(running.tuning)
        assert receiver.credits == [0, 30]
        await until(lambda: len(seen) == 4)
    assert seen == [b"a", b"b", b"c", b"d"]


async def test_a_pause_also_holds_what_waits_for_the_rate(wire: InMemory) -> None:
    shop = app()
    seen: list[bytes] = []

    @shop.subscribe("orders", workers=4, rate=20.0)
    async def handle(raw: bytes) -> None:
        seen.append(raw)

    async with shop:
        [running] = shop.running
        wire.receivers[0].bring(*(b"%d" % number for number in range(10)))
        await until(lambda: seen)
        running.change(running.tuning, paused=True)
        begun = list(seen)
        await asyncio.sleep(0.15)
        assert seen == begun
        assert running.waiting == 10 - len(begun)
        running.change(running.tuning.changed({"rate": 0.0}))
        await until(lambda: running.waiting == 0)
    assert sorted(seen) == [b"%d" % number for number in range(10)]


async def test_a_pause_also_holds_what_is_tried_again_in_its_place(wire: InMemory) -> None:
    shop = app()
    seen: list[bytes] = []

    @shop.subscribe("events", scenario="ordered", ladder=(0.02,))
    async def handle(raw: bytes) -> None:
        seen.append(raw)
        raise RuntimeError("again")

    async with shop:
        [running] = shop.running
        wire.receivers[0].bring(Message("events", b"x", key=b"k"))
        await until(lambda: seen)
        running.change(running.tuning, paused=True)
        tried = len(seen)
        await asyncio.sleep(0.1)
        assert len(seen) == tried
        running.change(running.tuning)
        await until(lambda: len(seen) > tried)
        # It would never end, and the stop not wait for less.
        running.change(running.tuning, paused=True)


async def test_a_stop_in_a_pause_waits_for_nothing_that_was_not_begun(wire: InMemory) -> None:
    shop = app(grace=60.0)
    seen: list[bytes] = []

    @shop.subscribe("orders", workers=1, rate=5.0)
    async def handle(raw: bytes) -> None:
        seen.append(raw)

    @shop.subscribe("events", scenario="ordered", ladder=(0.001,))
    async def fail(raw: bytes) -> None:
        seen.append(raw)
        raise RuntimeError("again")

    async with asyncio.timeout(SECONDS):
        await shop.start()
        held = []
        for running, receiver in zip(shop.running, wire.receivers, strict=True):
            held += receiver.bring(*(Message(receiver.config.topic, b"%d" % number, key=b"k") for number in range(10)))
            await until(lambda: seen)
            seen.clear()
            running.change(running.tuning, paused=True)
        await shop.stop()
    assert sum(bool(each.settled) for each in held) <= 1


async def test_another_rate_holds_for_those_that_wait_by_the_old_one(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders", workers=4, rate=0.01)
    async def handle(raw: bytes) -> None: ...

    async with shop:
        [running] = shop.running
        held = wire.receivers[0].bring(*[b"x"] * 8)
        await until(lambda: held[0].settled)
        running.change(running.tuning.changed({"rate": 1_000.0}))
        await until(lambda: all(each.settled for each in held))


async def test_other_values_do_not_let_a_stop_begin_anew(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders")
    async def handle(raw: bytes) -> None: ...

    async with shop:
        [running] = shop.running
        await running.drain()
        running.change(running.tuning.changed({"credit": 9}))
        assert wire.receivers[0].credits == []


async def test_what_waits_is_touched_and_what_is_lost_is_dropped(wire: InMemory) -> None:
    shop = app()
    seen: list[bytes] = []

    @shop.subscribe("orders", workers=1, timeout=0.06)
    async def handle(raw: bytes) -> None:
        seen.append(raw)

    async with shop:
        [running] = shop.running
        running.change(running.tuning, paused=True)
        kept, lost = Timed(Message("orders", b"kept")), Timed(Message("orders", b"lost"))
        lost.lost = True
        running.deliver([lost, kept])
        await until(lambda: kept.touched > 2)
        assert lost.touched == 1
        running.change(running.tuning)
        await until(lambda: kept.settled)
    assert (seen, lost.settled) == ([b"kept"], [])


async def test_retries_are_told_once_and_again_where_that_failed(
    wire: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    async def set_retries(tuning: Tuning) -> None:
        told.append((tuning.attempts, tuning.ladder))
        if len(told) == 1:
            raise Unsuited("not now")

    shop = app()

    @shop.subscribe("orders", attempts=5, ladder=(1.0,))
    async def handle(raw: bytes) -> None: ...

    async with shop:
        [running] = shop.running
        monkeypatch.setattr(wire.receivers[0], "set_retries", set_retries)
        await running.match_retries()
        running.change(running.tuning.changed({"workers": 3}))
        await running.match_retries()
        assert told == []
        running.change(running.tuning.changed({"attempts": 7}))
        with pytest.raises(Unsuited):
            await running.match_retries()
        await running.match_retries()
        await running.match_retries()
    assert told == [(7, (1.0,))] * 2
