"""How far ahead of the workers a Kafka consumer's thread is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from tests.sdk.in_memory import InMemory, Receiver, app, wire
from tests.waiting import until

from headrace.sdk import Message, consumer_thread, puller
from headrace.sdk.fetched_batch import FetchedBatch, join_parts
from headrace.sdk.puller import Puller
from headrace.sdk.transport import ConsumerConfig, Deliver

__all__ = ["wire"]


class Raw:
    """A message as the library gives it."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


class Endless:
    """A consumer that always has messages, unless it is paused."""

    def __init__(self, settings: Any) -> None:
        self._offsets = count()
        self.paused = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: []

    def pause(self, _: Any) -> None:
        self.paused = True

    def resume(self, _: Any) -> None:
        self.paused = False

    def consume(self, size: int, seconds: float) -> list[Raw]:
        return [] if self.paused else [Raw(next(self._offsets)) for _ in range(size)]


class Pulled:
    """A consumer, and what came from it."""

    def __init__(self) -> None:
        self.lots: list[FetchedBatch] = []
        self.waiting = 0
        self.puller = Puller({}, "t", self._came)
        self.puller.backlog = lambda: self.waiting

    def _came(self, puller: Puller, found: list[Any]) -> None:
        self.lots.append(FetchedBatch(puller, found, lambda *_: pytest.fail("nobody looks at them one by one")))
        self.waiting += len(found)

    @property
    def fetched(self) -> int:
        return sum(map(len, self.lots))

    async def stopped(self) -> int:
        """How many had come when the thread stopped for want of room."""
        await until(lambda: self.puller._full)
        return self.puller._fetched


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_thread, "Consumer", Endless)
    monkeypatch.setattr(puller, "POLL_SECONDS", 60.0)


async def test_what_no_worker_is_near_stays_with_the_library() -> None:
    pulled = Pulled()
    pulled.puller.start(10_000, 500)
    try:
        assert await pulled.stopped() == 500
        await until(lambda: pulled.fetched == 500)
        pulled.waiting = 250
        pulled.puller.check_room()
        # Not for each that is taken.
        assert not pulled.puller._room.is_set()
        pulled.waiting = 249
        pulled.puller.check_room()
        await until(lambda: pulled.fetched == 1_000)
        assert await pulled.stopped() == 1_000
    finally:
        await pulled.puller.close()


async def test_small_lots_come_until_enough_wait() -> None:
    pulled = Pulled()
    pulled.puller.start(10_000, 10)
    try:
        assert await pulled.stopped() == puller.AHEAD_MESSAGES
    finally:
        await pulled.puller.close()


async def test_more_comes_in_time_and_never_more_than_may_be_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller, "POLL_SECONDS", 0.01)
    pulled = Pulled()
    pulled.puller.start(1_800, 500)
    try:
        await until(lambda: pulled.puller._paused)
        assert pulled.puller._fetched == 1_800
        await until(lambda: pulled.fetched == 1_800)
        all_of_it = join_parts(list(pulled.lots))
        assert isinstance(all_of_it, FetchedBatch)
        pulled.waiting = 0
        all_of_it.ack()
        await until(lambda: pulled.fetched > 1_800)
    finally:
        await pulled.puller.close()


@pytest.mark.parametrize("credit", [1, 2, 3])
async def test_room_for_one_is_room_where_none_waits(credit: int) -> None:
    pulled = Pulled()
    pulled.puller.start(credit, 1)
    try:
        for _ in range(20):
            await until(lambda: pulled.lots)
            pulled.waiting = 0
            pulled.puller.check_room()
            pulled.lots.pop(0).ack()
            assert pulled.puller._fetched - pulled.puller._through <= credit
    finally:
        await pulled.puller.close()


class Watched(Receiver):
    """Remembers how many waited each time it was told that they are fewer."""

    def __init__(self, config: ConsumerConfig, deliver: Deliver) -> None:
        super().__init__(config, deliver)
        self.left: list[int] = []

    def check_room(self) -> None:
        self.left.append(self.backlog())


@pytest.mark.parametrize("ordered", [False, True])
async def test_workers_tell_what_they_took(wire: InMemory, monkeypatch: pytest.MonkeyPatch, ordered: bool) -> None:
    async def subscribe(config: ConsumerConfig, deliver: Deliver) -> Watched:
        receiver = Watched(config, deliver)
        wire.receivers.append(receiver)
        return receiver

    monkeypatch.setattr(wire, "subscribe", subscribe)
    shop = app()
    done: list[bytes] = []

    @shop.subscribe("orders", workers=1, ordered=ordered)
    async def handle(raw: bytes) -> None:
        done.append(raw)

    async with shop:
        [receiver] = wire.receivers
        assert isinstance(receiver, Watched)
        receiver.bring(*[Message("orders", b"%d" % at, b"key", offset=at) for at in range(3)])
        await until(lambda: len(done) == 3)
        # Of one key only one at a time could be taken, however many are behind it.
        assert receiver.left == ([0, 0, 0] if ordered else [2, 1, 0])
