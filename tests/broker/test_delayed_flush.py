"""A flush some time after the first request: one for many requests, never two at once, and none is forgotten."""

from __future__ import annotations

import asyncio

from headrace.broker.delayed_flush import DelayedFlush


class Gatherer:
    """Gathers words; each flush waits until the test lets it go on."""

    def __init__(self, seconds: float) -> None:
        self.waiting: list[str] = []
        self.written: list[list[str]] = []
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.later = DelayedFlush(seconds, self.flush, lambda: bool(self.waiting))

    def add(self, word: str) -> None:
        self.waiting.append(word)
        self.later.request()

    async def flush(self) -> None:
        taken, self.waiting = self.waiting, []
        self.begun.set()
        await self.may_end.wait()
        self.written.append(taken)


async def test_what_comes_during_a_flush_is_in_the_next():
    gatherer = Gatherer(0.01)
    gatherer.add("a")
    gatherer.add("b")
    assert not gatherer.begun.is_set()
    await gatherer.begun.wait()
    gatherer.begun.clear()
    gatherer.add("c")
    await asyncio.sleep(0.05)
    assert not gatherer.begun.is_set(), "a second flush began beside the first"
    gatherer.may_end.set()
    await gatherer.begun.wait()
    await gatherer.later.stop()
    assert gatherer.written == [["a", "b"], ["c"], []]


async def test_a_stop_does_not_wait_for_the_time():
    gatherer = Gatherer(3600)
    gatherer.may_end.set()
    gatherer.add("a")
    await gatherer.later.stop()
    assert gatherer.written == [["a"]]


async def test_a_stop_waits_for_the_flush_under_way():
    gatherer = Gatherer(0)
    gatherer.add("a")
    await gatherer.begun.wait()
    gatherer.waiting.append("b")
    stopping = asyncio.create_task(gatherer.later.stop())
    await asyncio.sleep(0.01)
    assert gatherer.written == []
    gatherer.may_end.set()
    await stopping
    assert gatherer.written == [["a"], ["b"]]
