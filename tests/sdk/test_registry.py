"""What is registered, what is set, and how an application in this process takes it up."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.waiting import SECONDS, until

import headrace
from headrace.client import EARLIEST, Client
from headrace.client.consumer import Record
from headrace.sdk import App, Message
from headrace.sdk.http_door import HttpDoor
from headrace.sdk.registry import (
    APP,
    INSTANCE,
    LIVE,
    PLACE,
    TOPIC,
    Directory,
    Instance,
    Registry,
    Setting,
    read_key,
    write_key,
)
from headrace.sdk.system import parse as parse_url


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[headrace.Broker]:
    with headrace.Broker(tmp_path_factory.mktemp("data"), http="127.0.0.1:0") as running:
        yield running


@pytest.fixture(params=["headrace", "kafka", pytest.param("apache", marks=pytest.mark.java)])
def url(request: pytest.FixtureRequest, broker: headrace.Broker) -> str:
    if request.param == "apache":
        return f"kafka://{request.getfixturevalue('apache')}"
    return broker.url if request.param == "headrace" else f"kafka://{broker.kafka}"


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> str:
    """A name of the test's own, for its application and its topic."""
    return "t" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


class Desk:
    """From which applications are looked at and set."""

    def __init__(self, registry: Registry, app: str) -> None:
        self.registry = registry
        self.app = app

    @property
    def directory(self) -> Directory:
        return self.registry.directory

    @property
    def instances(self) -> list[Instance]:
        return list(self.directory.instances.get(self.app, {}).values())

    async def set(self, subscription: str = "", **values: Any) -> None:
        """Set values, or (None) set them back, and wait until all instances follow."""
        settings = {name: None if value is None else Setting(value) for name, value in values.items()}
        offset = await self.registry.write(
            {(LIVE, self.app, subscription, name): each for name, each in settings.items()}
        )
        await self.until(lambda: all(each.applied > offset for each in self.instances))

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not true():
                await self.registry.next()


@pytest.fixture
async def desk(request: pytest.FixtureRequest, broker: headrace.Broker, fresh: str) -> AsyncIterator[Desk]:
    url = request.getfixturevalue("url") if "url" in request.fixturenames else broker.url
    async with Client(parse_url(url).kafka) as client:
        registry = Registry(client)
        await registry.open()
        yield Desk(registry, fresh)
        await registry.close()


async def records(broker: headrace.Broker) -> list[Record]:
    """All that the topic holds."""
    async with Client(broker.kafka) as client, client.consumer() as consumer:
        await consumer.assign({PLACE: EARLIEST})
        return [record async for record in consumer.records(await consumer.end_offsets())]


# --- registering ------------------------------------------------------------------------------------------------------


async def test_an_application_is_registered_and_its_instances_are_seen(url: str, fresh: str, desk: Desk) -> None:
    shop = App(fresh, url, owner="team-a", description="sells", contacts=["a@example.org"])
    shop.topic("declared", key="id", owner="team-b", description="of others", contacts=["b@example.org"])

    @shop.subscribe(fresh, scenario="ordered", ordered_by="id", workers=3, description="orders")
    async def handle(raw: bytes) -> None:
        await shop.publish(f"{fresh}.sent", raw)

    async with shop:
        await shop.publish(fresh, {"id": 1})
        await desk.until(lambda: len(desk.directory.sends.get(fresh, ())) == 2 and desk.instances)
        found = desk.directory.apps[fresh]
        [instance] = desk.instances
        assert instance.alive(time.time_ns() // 1_000_000)
        assert (instance.refused, instance.pid > 0, instance.host != "") == ({}, True, True)
    assert (found.owner, found.description, found.contacts) == ("team-a", "sells", ("a@example.org",))
    [reads] = found.subscriptions
    assert (reads.topic, reads.group, reads.scenario, reads.ordered_by) == (fresh, fresh, "ordered", "id")
    assert reads.handler.endswith("handle")
    assert (reads.description, reads.tuning) == ("orders", shop.subscriptions[0].tuning)
    assert [(each.name, each.owner, each.key) for each in found.topics] == [("declared", "team-b", "id")]
    assert found.version == headrace.__version__
    assert desk.directory.sends[fresh] == {fresh, f"{fresh}.sent"}
    await desk.until(lambda: not desk.instances)


async def test_a_registration_is_written_when_it_differs(broker: headrace.Broker, fresh: str) -> None:
    async def written() -> int:
        return sum(read_key(record.key) == (APP, fresh) for record in await records(broker))

    for description, times in (("one", 1), ("one", 1), ("two", 2), ("two", 2)):
        async with App(fresh, broker.url, description=description):
            assert await written() == times


async def test_the_topic_is_compacted_and_on_the_brokers_clock(broker: headrace.Broker, desk: Desk) -> None:
    async with Client(broker.kafka) as client:
        found = {each.name: each.value for each in await client.admin.topic_config(TOPIC)}
        state = await client.cluster.topic(TOPIC)
    assert (found["cleanup.policy"], found["message.timestamp.type"]) == ("compact", "LogAppendTime")
    assert len(state.partitions) == 1


async def test_who_does_not_want_to_be_registered_is_not(broker: headrace.Broker, fresh: str, desk: Desk) -> None:
    async with App(fresh, broker.url, register=False), App(fresh + "x", broker.url):
        await desk.until(lambda: fresh + "x" in desk.directory.apps)
    assert fresh not in desk.directory.apps


async def test_those_that_were_killed_are_swept_out_by_the_next_that_starts(
    broker: headrace.Broker, fresh: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.registry.write({(INSTANCE, fresh, "dead"): Instance(fresh, "dead", "host", 1, 0)})
    async with App(fresh, broker.url):
        await desk.until(lambda: len(desk.instances) == 2)
    await desk.until(lambda: len(desk.instances) == 1)
    monkeypatch.setattr("headrace.sdk.registry.EXPIRY_SECONDS", 0.0)
    async with App(fresh, broker.url):
        await desk.until(lambda: "dead" not in desk.directory.instances[fresh])


async def test_on_a_plain_nsq_there_is_no_registry_and_that_is_said(broker: headrace.Broker, fresh: str) -> None:
    shop = App(fresh, f"nsq://{broker.nsq}")
    seen: list[bytes] = []

    @shop.subscribe(fresh)
    async def handle(raw: bytes) -> None:
        seen.append(raw)

    with structlog.testing.capture_logs() as said:
        async with shop:
            await shop.publish(fresh, b"x")
            await until(lambda: seen)
    assert sum("keeps no registry" in each["event"] for each in said) == 1


# --- setting ----------------------------------------------------------------------------------------------------------


async def test_what_is_set_holds_at_once_and_can_be_set_back(url: str, fresh: str, desk: Desk) -> None:
    shop = App(fresh, url, log_level="warning", log_sample=0.5)
    for topic in ("one", "two"):

        @shop.subscribe(f"{fresh}.{topic}", workers=2, rate=5.0)
        async def handle(raw: bytes) -> None: ...

    async with shop:
        await desk.until(lambda: desk.instances)
        one, two = shop.running
        await desk.set(workers=5, ladder=[1, 2.5], log_level="debug", log_sample=0)
        await desk.set(f"{fresh}.two/{fresh}", workers=7, batch_wait=0.5, pause=True)
        assert (one.tuning.workers, two.tuning.workers, one.tuning.ladder) == (5, 7, (1.0, 2.5))
        assert (one.paused, two.paused, two.tuning.batch_wait) == (False, True, 0.5)
        assert (shop.logs.level, shop.logs.sample) == ("debug", 0)
        await desk.set(workers=None, ladder=None, log_level=None, log_sample=None)
        assert (one.tuning, two.tuning.workers) == (shop.subscriptions[0].tuning, 7)
        assert (shop.logs.level, shop.logs.sample) == ("warning", 0.5)
        await desk.set(f"{fresh}.two/{fresh}", workers=None, batch_wait=None, pause=None)
        assert (two.tuning, two.paused) == (shop.subscriptions[1].tuning, False)


async def test_who_starts_later_works_by_it_from_the_first_message_on(url: str, fresh: str, desk: Desk) -> None:
    seen: list[bytes] = []
    shop = App(fresh, url)

    @shop.subscribe(fresh)
    async def handle(raw: bytes) -> None:
        seen.append(raw)

    await desk.set(pause=True, workers=3)
    async with App("shop.other", url, register=False) as other:
        for number in range(10):
            await other.publish(fresh, b"%d" % number)
    async with shop:
        assert (shop.running[0].paused, shop.running[0].tuning.workers) == (True, 3)
        await desk.until(lambda: desk.instances)
        # Time enough for a group to come together, which a message that was not held back would not outlast.
        await asyncio.sleep(1.0)
        # Not even fetched; one may be on its way when Kafka's library hears of its partitions.
        assert (seen, shop.running[0].waiting <= 1) == ([], True)
        await desk.set(pause=None)
        await until(lambda: len(seen) == 10)


async def test_a_setting_that_is_not_understood_leaves_the_old_value(
    broker: headrace.Broker, fresh: str, desk: Desk
) -> None:
    shop = App(fresh, broker.url)

    @shop.subscribe(fresh, workers=2)
    async def handle(raw: bytes) -> None: ...

    with structlog.testing.capture_logs() as said:
        async with shop:
            await desk.until(lambda: desk.instances)
            await desk.set(workers=4)
            await desk.set(workers="many", speed=3)
            await desk.set(rate=10.0)
            assert (shop.running[0].tuning.workers, shop.running[0].tuning.rate) == (4, 10.0)
            [instance] = desk.instances
            assert set(instance.refused) == {"* workers", "* speed"}
            assert "there is no setting 'speed'" in instance.refused["* speed"]
            await desk.set(workers=6, speed=None)
            assert shop.running[0].tuning.workers == 6
            assert desk.instances[0].refused == {}
    refused = [each for each in said if "not understood" in each["event"]]
    # Each of them once, however often others are set.
    assert len(refused) == 2


async def test_other_retries_reach_whoever_keeps_to_them(url: str, fresh: str, desk: Desk) -> None:
    tried: dict[bytes, list[int]] = {}
    shop = App(fresh, url)

    @shop.subscribe(fresh, attempts=0, ladder=(0.05,))
    async def handle(raw: bytes, message: Message) -> None:
        tried.setdefault(raw, []).append(message.attempt)
        raise RuntimeError("always")

    async with shop:
        await desk.until(lambda: desk.instances)
        await shop.publish(fresh, b"first")
        await until(lambda: len(tried.get(b"first", ())) > 3)
        # It has had more than these already.
        await desk.set(attempts=2, ladder=[0.01])
        await shop.publish(fresh, b"second")
        dead = f"{fresh}.{fresh}.dead"
        async with asyncio.timeout(SECONDS), Client(shop._system.address.kafka) as client:
            found: list[Record] = []
            while len(found) < 2:
                await asyncio.sleep(0.05)
                if dead in {each.name for each in await client.cluster.topics()}:
                    async with client.consumer() as consumer:
                        await consumer.assign({(dead, 0): EARLIEST})
                        found = [each async for each in consumer.records(await consumer.end_offsets())]
    assert tried[b"second"] == [1, 2]
    assert {record.value for record in found} == {b"first", b"second"}


async def test_a_queue_that_cannot_be_told_is_reported_and_told_later(
    broker: headrace.Broker, fresh: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = App(fresh, broker.url)

    @shop.subscribe(fresh)
    async def handle(raw: bytes) -> None: ...

    async with shop:
        await desk.until(lambda: desk.instances)
        transport: Any = await shop._system.transport("nsq")
        monkeypatch.setattr("headrace.sdk.live.AGAIN_SECONDS", 0.05)
        # The same door's address, where nobody listens.
        right, transport.http = transport.http, HttpDoor("127.0.0.1:1", "")
        offset = await desk.registry.write(
            {(LIVE, fresh, "", "attempts"): Setting(9), (LIVE, fresh, "", "workers"): Setting(2)}
        )
        await desk.until(lambda: desk.instances[0].refused)
        assert "does not answer" in desk.instances[0].refused[f"{fresh}/{fresh} retries"]
        assert desk.instances[0].applied <= offset
        assert shop.running[0].tuning.workers == 2
        transport.http = right
        await desk.until(lambda: desk.instances[0].applied > offset)
        assert desk.instances[0].refused == {}


async def test_a_broker_that_comes_back_is_followed_again(tmp_path: Path) -> None:
    first = headrace.Broker(tmp_path, http="127.0.0.1:0")
    await asyncio.to_thread(first.start)
    doors = {"kafka": first.kafka, "nsq": first.nsq, "http": first.http}
    shop = App("shop.again", first.url)

    @shop.subscribe("again")
    async def handle(raw: bytes) -> None: ...

    async with shop:
        await asyncio.to_thread(first.stop)
        second = headrace.Broker(tmp_path, **doors)
        await asyncio.to_thread(second.start)
        try:
            async with Client(second.kafka) as client:
                registry = Registry(client)
                await registry.open()
                await registry.write({(LIVE, "shop.again", "", "workers"): Setting(13)})
                await until(lambda: shop.running[0].tuning.workers == 13)
                await registry.close()
        finally:
            await shop.stop()
            await asyncio.to_thread(second.stop)


async def test_an_application_starts_where_the_registry_cannot_be_made(
    broker: headrace.Broker, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sdk.registry.TOPIC_CONFIG", {"cleanup.policy": "nonsense"})
    monkeypatch.setattr("headrace.sdk.registry.TOPIC", "headrace-apps-refused")
    seen: list[bytes] = []
    shop = App(fresh, broker.url)

    @shop.subscribe(fresh)
    async def handle(raw: bytes) -> None:
        seen.append(raw)

    with structlog.testing.capture_logs() as said:
        async with shop:
            await shop.publish(fresh, b"x")
            await until(lambda: seen)
    assert any("the registry cannot be read" in each["event"] for each in said)


# --- records ----------------------------------------------------------------------------------------------------------


def test_keys_are_told_from_what_is_none_of_ours() -> None:
    for key in ((APP, "a/b"), (LIVE, "a", "t/g", "workers"), (INSTANCE, 'a"]', "1")):
        assert read_key(write_key(key)) == key
    for raw in (None, b"", b"x", b"[]", b'["app"]', b'["app","a","b"]', b'["other","a"]', b"[1,2]", b'{"app":1}'):
        assert read_key(raw) is None


def test_records_that_cannot_be_read_are_passed_over() -> None:
    directory = Directory()
    assert directory.take(Record(TOPIC, 0, 1, 5, write_key((APP, "a")), b'{"app": 3}', [])) is None
    assert directory.take(Record(TOPIC, 0, 2, 5, write_key((APP, "a")), b'{"app": "a", "later": 1}', [])) == (APP, "a")
    assert directory.take(Record(TOPIC, 0, 3, 5, b"theirs", b"{}", [])) is None
    assert list(directory.keys("a")) == [(APP, "a")]
    directory.take(Record(TOPIC, 0, 4, 5, write_key((APP, "a")), None, []))
    assert list(directory.keys("a")) == []
