"""What a handler sends, and that its message is done, become known together or not at all."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from tests.longer import LONGER
from tests.sdk.places import Place
from tests.waiting import SECONDS

import headrace
from headrace.client import EARLIEST, LATEST, Client
from headrace.sdk import App, Message, PublishFailed, Reject, Retry, Unsuited, consumer_thread, exactly_once

COPYING = Path(__file__).with_name("copying.py")


@pytest.fixture(scope="module", params=["headrace", pytest.param("apache", marks=pytest.mark.java)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "apache":
        kafka = request.getfixturevalue("apache")
        yield Place(f"kafka://{kafka}", kafka)
        return
    with headrace.Broker(tmp_path_factory.mktemp("data"), http="127.0.0.1:0") as running:
        yield Place(running.url, running.kafka)


async def make(broker: Place, *topics: str) -> None:
    """Topics of several partitions, so that instances share them."""
    async with Client(broker.kafka) as client:
        for topic in topics:
            await client.admin.create_topic(topic, 4)


async def committed(broker: Place, topic: str) -> list[bytes]:
    """What readers of committed messages see of a topic."""
    found: list[bytes] = []
    async with Client(broker.kafka) as client, client.consumer(committed=True) as consumer:
        count = len((await client.cluster.topic(topic)).partitions)
        await consumer.assign({(topic, index): EARLIEST for index in range(count)})
        async for record in consumer.records(await consumer.end_offsets()):
            found.append(record.value or b"")
    return found


async def seen(broker: Place, topic: str, count: int, seconds: float = 60.0) -> list[bytes]:
    """The same, once there are so many; within that time there must be more and more."""
    found: list[bytes] = []
    clock = asyncio.get_running_loop()
    while (before := len(found)) < count:
        async with asyncio.timeout(seconds):
            while len(found) <= before:
                began = clock.time()
                try:
                    found = await committed(broker, topic)
                except Exception:
                    found = []
                # All of it is read each time, and those who write want to get on.
                await asyncio.sleep(max(0.05, 3 * (clock.time() - began)))
    return found


async def test_what_is_sent_goes_with_what_is_done(broker: Place) -> None:
    app = App("shop.once", broker.url)
    tried: Counter[bytes] = Counter()

    @app.subscribe("once-in", scenario="exactly-once", attempts=3, ladder=(0.01,))
    async def handle(raw: bytes, message: Message) -> Any:
        tried[raw] += 1
        await app.publish("once-out", raw + b" begun", key=message.key)
        if raw == b"later" and tried[raw] == 1:
            return Retry("not now")
        if raw == b"hopeless":
            raise Reject("of no use")
        if raw == b"fails":
            raise RuntimeError("always")
        await app.publish("once-out", raw + b" done", key=message.key)

    async with app:
        for raw in (b"good", b"later", b"hopeless", b"fails"):
            await app.publish("once-in", raw, key=raw)
        dead = await seen(broker, "once-in.shop.once.dead", 2)
        found = await seen(broker, "once-out", 4)
    # What a try sent that failed was never sent.
    assert sorted(found) == [b"good begun", b"good done", b"later begun", b"later done"]
    assert sorted(dead) == [b"fails", b"hopeless"]
    assert tried == {b"good": 1, b"later": 2, b"hopeless": 1, b"fails": 3}


async def test_nothing_is_sent_before_the_message_is_done(broker: Place) -> None:
    app = App("shop.held", broker.url)
    running, go = asyncio.Event(), asyncio.Event()

    @app.subscribe("held-in", scenario="exactly-once")
    async def handle(raw: bytes) -> None:
        await app.publish("held-out", raw)
        running.set()
        await go.wait()

    async with app:
        await app.publish("held-in", b"x")
        await asyncio.wait_for(running.wait(), SECONDS)
        assert await committed(broker, "held-out") == []
        go.set()
        assert await seen(broker, "held-out", 1) == [b"x"]


async def test_batches_and_threads_send_exactly_once_too(broker: Place) -> None:
    await make(broker, "batches-in", "batches-out")
    app = App("shop.batches", broker.url)
    sizes: list[int] = []

    @app.subscribe("batches-in", scenario="exactly-once", batch_wait=0.2)
    async def handle(raws: list[bytes]) -> None:
        sizes.append(len(raws))
        for raw in raws:
            await app.publish("batches-out", raw)

    async with app:
        sent = [b"%d" % each for each in range(1_000)]
        for raw in sent:
            await app.send("batches-in", raw, key=raw)
        await app.flush()
        assert sorted(await seen(broker, "batches-out", 1_000)) == sorted(sent)
    assert max(sizes) > 1


async def test_a_delay_and_an_nsq_are_refused(broker: Place) -> None:
    app = App("shop.refused", broker.url)
    refused: list[str] = []

    @app.subscribe("delays-in", scenario="exactly-once")
    async def handle(raw: bytes) -> None:
        try:
            await app.publish("delays-out", raw, delay=5)
        except PublishFailed as error:
            refused.append(str(error))

    async with app:
        await app.publish("delays-in", b"x")
        async with asyncio.timeout(SECONDS):
            while not refused:
                await asyncio.sleep(0.01)
    assert "delay" in refused[0]

    plain = App("shop.plain", "nsq://127.0.0.1:1")
    plain.subscribe("t", scenario="exactly-once")(handle)
    with pytest.raises(Unsuited, match="no transactions"):
        await plain.start()


async def test_a_consumer_that_breaks_is_replaced(broker: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class FailingConsumer(Consumer):
        def consume(self, *arguments: Any) -> list[Any]:
            if len(made) == 1 and seen_by_handler:
                raise KafkaException(KafkaError(KafkaError._FATAL))
            return super().consume(*arguments)

    def making(settings: dict[str, Any]) -> Consumer:
        made.append(FailingConsumer(settings))
        return made[-1]

    monkeypatch.setattr(consumer_thread, "Consumer", making)
    app = App("shop.breaks", broker.url)
    seen_by_handler: list[bytes] = []

    @app.subscribe("breaks-in", scenario="exactly-once")
    async def handle(raw: bytes) -> None:
        seen_by_handler.append(raw)
        await app.publish("breaks-out", raw)

    async with app:
        await app.publish("breaks-in", b"before")
        assert await seen(broker, "breaks-out", 1) == [b"before"]
        async with asyncio.timeout(SECONDS):
            while len(made) < 2:
                await asyncio.sleep(0.01)
        await app.publish("breaks-in", b"after")
        assert await seen(broker, "breaks-out", 2) == [b"before", b"after"]


@asynccontextmanager
async def copier(broker: Place, group: str, origin: str, target: str) -> AsyncIterator[Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(COPYING), broker.url, group, origin, target, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def kills(broker: Place, name: str, messages: int, rounds: int) -> None:
    """Of two instances one is killed and replaced, again and again, while messages flow; each is in the end copied
    once."""
    origin, target = f"{name}-in", f"{name}-out"
    await make(broker, origin, target)
    sent: list[bytes] = []
    enough = False
    draw = random.Random(7)
    async with App(f"{name}.source", broker.url) as source, AsyncExitStack() as life, asyncio.TaskGroup() as beside:

        async def produce() -> None:
            while len(sent) < messages or not enough:
                some = [b"m%d" % each for each in range(len(sent), len(sent) + 50)]
                await source.publish_batch(origin, some, keys=some)
                sent.extend(some)
                await asyncio.sleep(0.02)

        producing = beside.create_task(produce())
        running = [await life.enter_async_context(AsyncExitStack()) for _ in range(2)]
        for one in running:
            await one.enter_async_context(copier(broker, name, origin, target))
        for _, one in zip(range(rounds), cycle(running), strict=False):
            await further(broker, target)
            await asyncio.sleep(draw.uniform(0.0, 0.5))
            await one.aclose()
            await one.enter_async_context(copier(broker, name, origin, target))
        enough = True
        await producing
        found = await seen(broker, target, len(sent))
    assert Counter(found) == Counter(raw.upper() for raw in sent)


async def further(broker: Place, topic: str, seconds: float = 60.0) -> None:
    """Wait until more is written. A group takes 10 s to miss a member that was killed."""
    async with Client(broker.kafka) as client, asyncio.timeout(seconds):

        async def written() -> int:
            ends = await client.admin.list_offsets({(topic, index): LATEST for index in range(4)})
            return sum(end.offset for end in ends.values())

        before = await written()
        while await written() < before + 100:
            await asyncio.sleep(0.05)


async def test_a_commit_whose_answer_is_lost_is_not_made_twice(broker: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[bool] = []

    class Lossy(Producer):
        def commit_transaction(self, *timeout: float) -> None:
            super().commit_transaction(*timeout)
            if not lost:
                lost.append(True)
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", False, True, False))

    monkeypatch.setattr(exactly_once, "Producer", Lossy)
    await make(broker, "unsure-in", "unsure-out")
    app = App("shop.unsure", broker.url)

    @app.subscribe("unsure-in", scenario="exactly-once")
    async def handle(raw: bytes) -> None:
        await app.publish("unsure-out", raw)

    async with app:
        await app.publish("unsure-in", b"first", key="a")
        await seen(broker, "unsure-out", 1)
        # Of the same partition: when this is through, what was to be sent before it is too.
        await app.publish("unsure-in", b"second", key="a")
        async with asyncio.timeout(SECONDS):
            while b"second" not in (found := await committed(broker, "unsure-out")):
                await asyncio.sleep(0.05)
    assert lost
    assert sorted(found) == [b"first", b"second"]


async def test_killed_under_load(broker: Place) -> None:
    await kills(broker, "killed", 5_000, 1)


@pytest.mark.long
@pytest.mark.timeout(900 * LONGER)
async def test_killed_under_load_for_long(broker: Place) -> None:
    await kills(broker, "killed-long", 20_000 * LONGER, 12 * LONGER)
