"""The same handlers on every system: a Headrace with both wires, its Kafka wire alone, one in memory, and a real Apache
Kafka (marker java)."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from tests.waiting import SECONDS, until

import headrace
from headrace.client import EARLIEST, Client
from headrace.sdk import App, Message, PublishFailed, Reject, Retry, Unsuited, consumer_thread, puller
from headrace.sdk.memory import get_broker


@dataclass(frozen=True)
class Place:
    """A system to run on."""

    url: str
    kafka: str
    queues: bool


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[headrace.Broker]:
    with headrace.Broker(tmp_path_factory.mktemp("data"), http="127.0.0.1:0") as running:
        yield running


@pytest.fixture(scope="module", params=["headrace", "kafka", "memory", pytest.param("apache", marks=pytest.mark.java)])
def place(request: pytest.FixtureRequest, broker: headrace.Broker) -> Place:
    if request.param == "memory":
        return Place("memory://handlers", "", queues=True)
    if request.param == "apache":
        kafka = request.getfixturevalue("apache")
        return Place(f"kafka://{kafka}", kafka, queues=False)
    if request.param == "headrace":
        return Place(broker.url, broker.kafka, queues=True)
    return Place(f"kafka://{broker.kafka}", broker.kafka, queues=False)


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return "t" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


async def letters(place: Place, topic: str, count: int) -> list[Any]:
    """The first records of a topic."""
    found: list[Any] = []
    if not place.kafka:
        await until(lambda: len(get_broker("handlers").messages(topic)) >= count)
        return [message for message, _ in get_broker("handlers").messages(topic)]
    async with asyncio.timeout(SECONDS), Client(place.kafka) as client:
        while len(found) < count:
            found = []
            try:
                async with client.consumer() as consumer:
                    await consumer.assign({(topic, 0): EARLIEST})
                    async for record in consumer.records(await consumer.end_offsets()):
                        found.append(record)
            except Exception:
                await asyncio.sleep(0.05)
    return found


async def test_tasks_are_done_tried_again_and_put_aside(place: Place, fresh: str) -> None:
    shop = App("shop.tasks", place.url)
    tried: dict[bytes, list[Message]] = {}

    @shop.subscribe(fresh, attempts=3, ladder=(0.05,))
    async def handle(raw: bytes, message: Message) -> Any:
        tried.setdefault(raw, []).append(message)
        if raw == b"later" and message.attempt == 1:
            return Retry("not now", after=0.05)
        if raw == b"hopeless":
            raise Reject("of no use")
        if raw == b"fails":
            raise RuntimeError("always")

    async with shop:
        for payload in (b"good", b"later", b"hopeless", b"fails"):
            await shop.publish(fresh, payload, key=b"k", headers={"trace": "t1"})
        found = await letters(place, f"{fresh}.shop.tasks.dead", 2)
    assert {payload: len(each) for payload, each in tried.items()} == {
        b"good": 1,
        b"later": 2,
        b"hopeless": 1,
        b"fails": 3,
    }
    message = tried[b"good"][0]
    assert (message.key, message.headers["trace"], message.attempt) == (b"k", b"t1", 1)
    assert message.id == f"{fresh}/0/0"
    said = {record.value: dict(record.headers)["headrace-error"] for record in found}
    assert said == {b"hopeless": b"of no use", b"fails": b"RuntimeError: always"}


async def test_delays(place: Place, fresh: str) -> None:
    if not place.queues:
        async with App("shop.delays", place.url) as shop:
            with pytest.raises(PublishFailed, match="no delayed messages"):
                await shop.publish(fresh, b"x", delay=0.3)
        return
    shop = App("shop.delays", place.url)
    loop = asyncio.get_running_loop()
    came: list[float] = []

    @shop.subscribe(fresh)
    async def handle(raw: bytes) -> None:
        came.append(loop.time())

    async with shop:
        began = loop.time()
        await shop.publish(fresh, b"x", delay=0.3)
        await until(lambda: came)
        assert came[0] - began >= 0.29


async def test_events_of_one_thing_come_in_order_though_some_fail(place: Place, fresh: str) -> None:
    shop = App("shop.ordered", place.url)
    seen: dict[int, list[int]] = {}
    at_work: set[int] = set()
    failed: set[tuple[int, int]] = set()

    @shop.subscribe(fresh, scenario="ordered", ordered_by="question", workers=8, ladder=(0.02,))
    async def handle(event: dict[str, int]) -> None:
        question, number = event["question"], event["number"]
        assert question not in at_work
        at_work.add(question)
        await asyncio.sleep(0.001)
        at_work.discard(question)
        if number % 3 == 1 and (question, number) not in failed:
            failed.add((question, number))
            raise RuntimeError("the first time it fails")
        seen.setdefault(question, []).append(number)

    async with shop:
        for number in range(10):
            for question in range(20):
                await shop.send(fresh, {"question": question, "number": number})
        await shop.flush()
        await until(lambda: sum(map(len, seen.values())) == 200)
    assert all(each == list(range(10)) for each in seen.values())


async def test_every_instance_gets_what_is_fanned_out(place: Place, fresh: str) -> None:
    seen: list[list[bytes]] = [[], []]

    @asynccontextmanager
    async def instance(number: int) -> AsyncIterator[App]:
        shop = App("shop.fanout", place.url)

        @shop.subscribe(fresh, scenario="fanout")
        async def handle(raw: bytes) -> None:
            seen[number].append(raw)

        async with shop:
            yield shop

    async with instance(0) as one, instance(1):
        for number in range(5):
            await one.publish(fresh, b"%d" % number)
        await until(lambda: len(seen[0]) == len(seen[1]) == 5)
    assert seen[0] == seen[1]


async def test_what_is_fanned_out_is_tried_as_often_as_is_said(place: Place, fresh: str) -> None:
    shop = App("shop.fanout.fails", place.url)
    tried: list[bytes] = []

    @shop.subscribe(fresh, scenario="fanout", workers=1)
    async def handle(raw: bytes) -> None:
        tried.append(raw)
        if raw == b"fails":
            raise RuntimeError("it was for this instance alone, and once")

    async with shop:
        await shop.publish(fresh, b"fails")
        for number in range(5):
            # Whatever is brought again at once comes before the next.
            await shop.publish(fresh, b"%d" % number)
            await until(lambda: b"%d" % number in tried)  # noqa: B023
    assert tried == [b"fails", b"0", b"1", b"2", b"3", b"4"]


async def test_a_message_does_not_wait_for_others(place: Place, fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller, "POLL_SECONDS", 1.0)
    shop = App("shop.soon", place.url)
    took: list[float] = []
    came = asyncio.Event()

    @shop.subscribe(fresh)
    async def handle(raw: bytes) -> None:
        came.set()

    async with shop:
        for _ in range(15):
            came.clear()
            await shop.publish(fresh, b"x")
            began = time.monotonic()
            await asyncio.wait_for(came.wait(), SECONDS)
            took.append(time.monotonic() - began)
    # A buffer that is sent when its time is over would take a quarter of a second, a poll that waits for more a whole:
    # each of them would. A busy machine is late now and then.
    assert min(took) < 0.2


async def test_two_instances_share_a_group(place: Place, fresh: str) -> None:
    seen: list[list[bytes]] = [[], []]
    apps = [App("shop.shared", place.url) for _ in range(2)]
    for number, shop in enumerate(apps):

        @shop.subscribe(fresh, workers=2, credit=4)
        async def handle(raw: bytes, number: int = number) -> None:
            seen[number].append(raw)
            await asyncio.sleep(0.002)

    async with apps[0], apps[1]:
        for number in range(200):
            await apps[0].send(fresh, b"%d" % number)
        await until(lambda: len(set(seen[0] + seen[1])) == 200)
    if place.queues:
        assert len(seen[0] + seen[1]) == 200
        assert min(map(len, seen)) > 20


async def test_bad_payloads_are_put_aside_with_the_reason(place: Place, fresh: str) -> None:
    shop = App("shop.bad", place.url)
    seen = []

    @shop.subscribe(fresh)
    async def handle(event: dict[str, int]) -> None:
        seen.append(event)

    async with shop:
        await shop.publish(fresh, b"no json")
        await shop.publish(fresh, b'{"a": 1}')
        [letter] = await letters(place, f"{fresh}.shop.bad.dead", 1)
        await until(lambda: seen)
    assert letter.value == b"no json"
    assert b"not a dict" in dict(letter.headers)["headrace-error"]


@pytest.mark.parametrize("wire", ["headrace", "kafka", "nsq"])
async def test_a_broker_that_comes_back_is_found_again(tmp_path: Path, wire: str) -> None:
    first = headrace.Broker(tmp_path, http="127.0.0.1:0")
    await asyncio.to_thread(first.start)
    doors = {"kafka": first.kafka, "nsq": first.nsq, "http": first.http}
    urls = {"headrace": first.url, "kafka": f"kafka://{first.kafka}", "nsq": f"nsq://{first.nsq}"}
    shop = App("shop.again", urls[wire])
    seen: set[bytes] = set()

    @shop.subscribe("again")
    async def handle(raw: bytes) -> None:
        seen.add(raw)

    async with shop:
        await shop.publish("again", b"before")
        await until(lambda: b"before" in seen)
        await asyncio.to_thread(first.stop)
        meanwhile = asyncio.create_task(shop.publish("again", b"meanwhile"))
        await asyncio.sleep(0.1)
        second = headrace.Broker(tmp_path, **doors)
        await asyncio.to_thread(second.start)
        try:
            await meanwhile
            await shop.publish("again", b"after")
            await until(lambda: {b"meanwhile", b"after"} <= seen)
        finally:
            await shop.stop()
            await asyncio.to_thread(second.stop)


async def test_what_does_not_answer_is_named(broker: headrace.Broker) -> None:
    shop = App("shop.lost", f"headrace://{broker.kafka}?nsq={broker.nsq}&http=127.0.0.1:1")

    @shop.subscribe("lost")
    async def handle(raw: bytes) -> None: ...

    with pytest.raises(Unsuited, match=r"127\.0\.0\.1:1 does not answer"):
        await shop.start()


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The consumers that are made. One that is told to break does."""
    made: list[Any] = []

    class FailingConsumer(Consumer):
        broken = False

        def consume(self, *arguments: Any) -> list[Any]:
            if self.broken:
                raise KafkaException(KafkaError(KafkaError._FATAL))
            return super().consume(*arguments)

    def make(settings: dict[str, Any]) -> Consumer:
        made.append(FailingConsumer(settings))
        return made[-1]

    monkeypatch.setattr(consumer_thread, "Consumer", make)
    monkeypatch.setattr(consumer_thread.ConsumerThread, "again_seconds", 0.01)
    return made


async def test_a_consumer_that_breaks_is_replaced(broker: headrace.Broker, breaking: list[Any]) -> None:
    shop = App("shop.breaks", f"kafka://{broker.kafka}")
    seen: set[bytes] = set()

    @shop.subscribe("breaks", scenario="ordered")
    async def handle(raw: bytes) -> None:
        seen.add(raw)

    async with shop:
        await shop.publish("breaks", b"before")
        await until(lambda: seen)
        breaking[0].broken = True
        await until(lambda: len(breaking) == 2)
        await shop.publish("breaks", b"after")
        await until(lambda: seen == {b"before", b"after"})


@pytest.mark.parametrize("chosen", [{"scenario": "fanout"}, {"scenario": "stream", "partitions": [0, 1]}])
async def test_one_that_reads_partitions_by_itself_goes_on_where_it_was(
    broker: headrace.Broker, breaking: list[Any], chosen: dict[str, Any]
) -> None:
    topic = f"breaks-{chosen['scenario']}"
    async with Client(broker.kafka) as client:
        await client.admin.create_topic(topic, 2)
    shop = App("shop.breaks", f"kafka://{broker.kafka}")
    seen: list[bytes] = []
    go = asyncio.Event()

    @shop.subscribe(topic, workers=1, **chosen)
    async def handle(raw: bytes) -> None:
        seen.append(raw)
        await go.wait()

    async with shop:
        for raw in (b"done", b"being handled", b"waiting"):
            await shop.publish(topic, raw, partition=0)
        await until(lambda: seen)
        go.set()
        await until(lambda: len(seen) == 3)
        go.clear()
        for raw in (b"held", b"behind it"):
            await shop.publish(topic, raw, partition=0)
        await until(lambda: seen[3:] and shop.running[0].waiting == 2)
        breaking[0].broken = True
        await until(lambda: len(breaking) == 2)
        await shop.publish(topic, b"after", partition=1)
        go.set()
        await until(lambda: b"after" in seen and b"behind it" in seen)
        breaking[1].broken = True
        await until(lambda: len(breaking) == 3)
        await shop.publish(topic, b"last", partition=1)
        await until(lambda: b"last" in seen)
    assert sorted(seen) == sorted([b"done", b"being handled", b"waiting", b"held", b"behind it", b"after", b"last"])


async def test_a_stream_in_batches_and_from_its_beginning_for_another_group(place: Place, fresh: str) -> None:
    groups: dict[str, list[int]] = {"one": [], "two": []}
    sizes: list[int] = []
    for group, seen in groups.items():
        shop = App("shop.stream", place.url)

        @shop.subscribe(fresh, scenario="stream", group=group, batch=100)
        async def handle(numbers: list[int], messages: list[Message], seen: list[int] = seen) -> None:
            sizes.append(len(numbers))
            seen += numbers

        async with shop:
            if group == "one":
                for number in range(1_000):
                    await shop.send(fresh, number)
                await shop.flush()
            await until(lambda seen=seen: len(seen) >= 1_000)
        assert seen == list(range(1_000))
    assert max(sizes) == 100


async def test_a_group_goes_on_where_it_was(place: Place, fresh: str) -> None:
    seen: list[int] = []
    for round_ in range(3):
        shop = App("shop.goes.on", place.url)

        @shop.subscribe(fresh, scenario="stream")
        async def handle(number: int) -> None:
            seen.append(number)

        async with shop:
            for number in range(round_ * 10, round_ * 10 + 10):
                await shop.publish(fresh, number)
            await until(lambda: len(seen) >= round_ * 10 + 10)  # noqa: B023
    assert seen == list(range(30))


def test_the_sync_face(place: Place, fresh: str) -> None:
    shop = App("shop.sync", place.url)
    came = threading.Event()

    @shop.subscribe(fresh)
    def handle(text: str) -> None:
        assert text == "hello"
        came.set()

    with shop.blocking() as sync:
        sync.publish(fresh, "hello")
        sync.flush()
        assert came.wait(20)


async def test_partitions_by_hand(place: Place, fresh: str) -> None:
    if place.kafka:
        async with Client(place.kafka) as client:
            await client.admin.create_topic(fresh, 3)
    else:
        get_broker("handlers").topic(fresh, 3)
    seen: list[tuple[int, bytes, int]] = []

    def reader() -> App:
        shop = App("shop.by-hand", place.url)

        @shop.subscribe(fresh, scenario="stream", partitions=[0, 2], ladder=(0.01,))
        async def handle(raw: bytes, message: Message) -> None:
            seen.append((message.partition, raw, message.offset))
            if raw == b"fails" and len([each for each in seen if each[1] == raw]) == 1:
                raise RuntimeError("once")

        return shop

    async with reader() as shop:
        for index in range(3):
            await shop.publish(fresh, b"%d" % index, partition=index)
        await shop.publish(fresh, b"fails", partition=2)
        await until(lambda: len(seen) == 4)
    assert sorted(seen) == [(0, b"0", 0), (2, b"2", 0), (2, b"fails", 1), (2, b"fails", 1)]
    # The group knows how far it is, though it has no members.
    async with reader() as shop:
        await shop.publish(fresh, b"next", partition=0)
        await until(lambda: len(seen) == 5)
    assert seen[4] == (0, b"next", 1)

    shop = App("shop.by-hand", place.url)
    shop.subscribe(fresh, scenario="stream", partitions=[3])(print)
    with pytest.raises(Unsuited, match="has 3 partitions, and not 3"):
        await shop.start()


async def test_batches_are_sent_as_one(place: Place, fresh: str) -> None:
    shop = App("shop.sent.batches", place.url)
    seen: list[Message] = []

    @shop.subscribe(fresh, scenario="stream", batch=100)
    async def handle(messages: list[Message]) -> None:
        seen.extend(messages)

    async with shop:
        keys = [f"k{number % 3}" for number in range(2_500)]
        await shop.publish_batch(fresh, list(range(2_500)), keys=keys, headers={"from": "here"})
        await shop.publish_batch(fresh, [b"last"])
        await until(lambda: len(seen) == 2_501)
        with pytest.raises(ValueError, match="2 payloads have 1 keys"):
            await shop.publish_batch(fresh, [1, 2], keys=["k"])
    assert [each.value for each in seen] == [*(b"%d" % number for number in range(2_500)), b"last"]
    assert [each.key for each in seen[:3]] == [b"k0", b"k1", b"k2"]
    assert {each.headers["from"] for each in seen[:2_500]} == {b"here"}
    # One trace for what is sent together.
    assert len({each.headers["traceparent"] for each in seen}) == 2


async def test_of_a_batch_only_what_is_bad_is_put_aside(place: Place, fresh: str) -> None:
    shop = App("shop.bad.batches", place.url)
    seen: list[int] = []
    failed: list[int] = []

    @shop.subscribe(fresh, scenario="stream", batch=10, attempts=3, ladder=(0.01,))
    async def handle(numbers: list[int]) -> None:
        if 55 in numbers and not failed:
            failed.extend(numbers)
            raise RuntimeError("the first time it fails")
        seen.extend(numbers)

    async with shop:
        await shop.publish_batch(fresh, [b"bad" if number == 33 else b"%d" % number for number in range(100)])
        [letter] = await letters(place, f"{fresh}.shop.bad.batches.dead", 1)
        await until(lambda: len(seen) == 99)
    assert letter.value == b"bad"
    assert sorted(seen) == [number for number in range(100) if number != 33]
    assert seen != sorted(seen)
