"""Messages that wait for their next try over Kafka's wire: in a topic, for any time, and nobody for anybody else."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.sdk.places import Place
from tests.waiting import until

from headrace.client import Client
from headrace.sdk import App, Message, Retry, consumer_thread, retry_topic
from headrace.sdk.retry_topic import RetryPuller, partition_for


async def test_what_waits_for_long_holds_nobody_up(place: Place) -> None:
    app = App("shop", place.url, register=False)
    tried: list[tuple[bytes, int]] = []

    @app.subscribe("long", credit=10)
    async def handle(raw: bytes, message: Message) -> None:
        tried.append((raw, message.attempt))
        if message.attempt == 1:
            raise Retry("not yet", after=3_600 if raw == b"long" else 0.3)

    async with app:
        await app.publish_batch("long", [b"long"] * 50)
        await until(lambda: len(tried) == 50)
        await app.publish("long", b"short")
        await until(lambda: (b"short", 2) in tried)
    assert (b"long", 2) not in tried


async def test_many_that_fail_are_all_tried_again_in_time(place: Place) -> None:
    app = App("shop", place.url, register=False)
    again: list[float] = []

    @app.subscribe("many", credit=20, ladder=(1.0,))
    async def handle(raw: bytes, message: Message) -> None:
        if message.attempt == 1:
            raise Retry("not yet")
        again.append(time.monotonic())

    async with app:
        began = time.monotonic()
        await app.publish_batch("many", [b"x"] * 1_000)
        await until(lambda: len(again) == 1_000)
    assert again[0] - began >= 1.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits, so that messages go from one to the next."""
    monkeypatch.setattr(retry_topic, "WAITS", (0.0, 0.1, 0.3, 1.0, 3.0, 9.0, 27.0))
    monkeypatch.setattr(retry_topic, "SLACK_SECONDS", 0.05)


@pytest.mark.usefixtures("quick")
async def test_any_time_is_kept_also_by_an_instance_that_comes_later(place: Place) -> None:
    tried: dict[bytes, list[float]] = {}
    times = {b"at once": 0.0, b"soon": 0.05, b"later": 0.45, b"much later": 2.6}

    def reader() -> App:
        app = App("shop", place.url, register=False)

        @app.subscribe("restarted")
        async def handle(raw: bytes, message: Message) -> None:
            tried.setdefault(raw, []).append(time.monotonic())
            assert len(tried[raw]) == message.attempt
            assert message.id.startswith("restarted/0/")
            assert dict(message.headers)["own"] == b"header"
            if message.attempt == 1:
                raise Retry("not yet", after=times[raw])

        return app

    async with reader() as app:
        for raw in times:
            await app.publish("restarted", raw, headers={"own": "header"})
        await until(lambda: sum(map(len, tried.values())) >= 7)
    async with reader():
        await until(lambda: sum(map(len, tried.values())) == 8)
        await asyncio.sleep(0.3)
    waited = {raw: each[1] - each[0] for raw, each in tried.items()}
    assert [len(each) for each in tried.values()] == [2] * 4
    assert all(times[raw] <= seconds < times[raw] + 15.0 for raw, seconds in waited.items())


async def test_a_topic_from_before_is_given_its_partitions(place: Place) -> None:
    async with Client(place.kafka) as client:
        await client.admin.create_topic("old.shop.retry", 1)
    apps = [App("shop", place.url, register=False) for _ in range(2)]
    for app in apps:
        app.subscribe("old")(print)
    async with asyncio.TaskGroup() as starting:
        for app in apps:
            starting.create_task(app.start())
    for app in apps:
        await app.stop()
    async with Client(place.kafka) as client:
        assert len((await client.cluster.topic("old.shop.retry")).partitions) == 7


def test_where_messages_wait() -> None:
    waits = {0.0: 0, 0.3: 0, 0.6: 1, 1.0: 1, 4.4: 1, 4.6: 2, 30.0: 3, 119.0: 3, 120.0: 4, 599.0: 4, 3_600: 6, 1e9: 6}
    assert {seconds: partition_for(seconds, 0, 7) for seconds in waits} == waits
    # With more partitions, those of one wait have them in turn.
    assert [partition_for(5.0, turn, 16) for turn in range(3)] == [2, 9, 2]
    assert [partition_for(1.0, turn, 16) for turn in range(4)] == [1, 8, 15, 1]


class Raw:
    """A message as Kafka's library gives it."""

    def __init__(self, partition: int, offset: int, stamp: float, due: float) -> None:
        self.at = (partition, offset)
        self._stamp = stamp
        self._due = due

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]

    def timestamp(self) -> tuple[int, int]:
        return 1, round(self._stamp * 1_000)

    def headers(self) -> list[tuple[str, bytes]]:
        return [(retry_topic.RETRY_AT, b"%d" % round(self._due * 1_000))]


class Log:
    """A consumer of what lies in partitions."""

    def __init__(self, *raws: Raw) -> None:
        self.raws = raws
        self.next: dict[int, int] = {}
        self.paused: set[int] = set()

    def consume(self, count: int, seconds: float) -> list[Raw]:
        found = [
            each
            for each in self.raws
            if each.partition() not in self.paused and each.offset() >= self.next.get(each.partition(), 0)
        ]
        self.next |= {each.partition(): each.offset() + 1 for each in found}
        return found

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {each.partition for each in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {each.partition for each in places}

    def seek(self, place: TopicPartition) -> None:
        self.next[place.partition] = place.offset


async def test_a_partition_stops_at_the_first_that_is_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(retry_topic, "time", SimpleNamespace(time=lambda: now))
    log = Log(
        *(Raw(2, offset, 995.0 + offset, 1_000.0 + offset) for offset in range(4)),
        # Of an hour, and due in two.
        Raw(6, 0, 1_000.0 - 3_600.0, 1_000.0 + 3_600.0),
        Raw(6, 1, 1_000.0, 1_000.0 + 3_600.0),
        # Of a second, and due before that.
        Raw(1, 0, 999.5, 1_000.3),
    )
    monkeypatch.setattr(consumer_thread, "Consumer", lambda settings: log)
    pulling = RetryPuller({}, "orders.shop.retry", lambda puller, found: None)

    def consumed() -> list[tuple[int, int]]:
        return [each.at for each in pulling._poll(100, 0.1)]

    assert consumed() == [(2, 0), (6, 0)]
    assert log.paused == {1, 2, 6}
    now = 1_000.4
    assert consumed() == [(1, 0)]
    # All is read on after a pause of the application: what was not due is not lost.
    log.paused.clear()
    assert consumed() == []
    now = 1_001.0
    assert consumed() == [(2, 1)]
    now = 1_003.0
    assert consumed() == [(2, 2), (2, 3)]
    # A partition that was taken away begins anew, wherever that is.
    places = [TopicPartition("orders.shop.retry", 6)]
    pulling._on_revoked(cast(Consumer, log), places)
    now = 5_000.0
    log.next[6] = 0
    log.paused.discard(6)
    assert consumed() == [(6, 0), (6, 1)]
