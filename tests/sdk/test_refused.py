"""Exactly once, when a broker refuses for good what was sent for a message: that one ends, and holds nobody up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.sdk.places import Place
from tests.sdk.test_exactly_once import committed, make, seen
from tests.waiting import SECONDS

import headrace
from headrace.client import Client
from headrace.sdk import App, Message, exactly_once
from headrace.sdk.limits import UNKNOWN, Limits


@pytest.fixture(scope="module", params=["headrace", pytest.param("apache", marks=pytest.mark.java)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "apache":
        kafka = request.getfixturevalue("apache")
        yield Place(f"kafka://{kafka}", kafka)
        return
    with headrace.Broker(tmp_path_factory.mktemp("data"), auto_create_topics=False) as running:
        yield Place(running.url, running.kafka)


async def compacted(broker: Place, topic: str) -> None:
    """A topic that refuses what has no key."""
    async with Client(broker.kafka) as client:
        await client.admin.create_topic(topic, 1, {"cleanup.policy": "compact"})


async def letters(broker: Place, topic: str, count: int) -> list[bytes]:
    return sorted(await seen(broker, topic, count))


async def test_only_the_message_for_which_it_was_sent_is_put_aside(broker: Place) -> None:
    await make(broker, "refused-in", "refused-out")
    await compacted(broker, "refused-keyed")
    app = App("shop.refuses", broker.url)
    handled: Counter[bytes] = Counter()

    @app.subscribe("refused-in", scenario="exactly-once", attempts=3, ladder=(0.01,), replay=True)
    async def handle(raw: bytes) -> None:
        handled[raw] += 1
        await app.publish("refused-out", raw)
        await app.publish("refused-keyed", raw, key=None if raw in bad else raw)

    sent = [b"%d" % each for each in range(100)]
    bad = [b"0", b"33", b"34", b"99"]
    async with App("source", broker.url) as source:
        await source.publish_batch("refused-in", sent, keys=sent)
    async with app:
        assert await letters(broker, "refused-in.shop.refuses.dead", len(bad)) == sorted(bad)
        good = sorted(set(sent) - set(bad))
        # Those who were refused have sent nothing at all, not even where it would have been taken.
        assert await letters(broker, "refused-out", len(good)) == good
        assert sorted(await committed(broker, "refused-keyed")) == good
        # And it goes on.
        await app.publish("refused-in", b"later", key=b"33")
        assert b"later" in await seen(broker, "refused-out", len(good) + 1)
    assert set(handled.values()) == {1}
    headers = await dead_headers(broker, "refused-in.shop.refuses.dead")
    assert {each["headrace-attempts"] for each in headers} == {b"3"}
    assert all(b"refused-keyed" in each["headrace-error"] for each in headers)


async def dead_headers(broker: Place, topic: str) -> list[dict[str, bytes]]:
    found = []
    async with Client(broker.kafka) as client, client.consumer(committed=True) as consumer:
        count = len((await client.cluster.topic(topic)).partitions)
        await consumer.assign({(topic, index): -2 for index in range(count)})
        async for record in consumer.records(await consumer.end_offsets()):
            found.append({name: value or b"" for name, value in record.headers})
    return found


async def test_a_batch_of_a_handler_is_put_aside_as_a_whole(broker: Place) -> None:
    await make(broker, "lists-in", "lists-out")
    await compacted(broker, "lists-keyed")
    app = App("shop.lists", broker.url)
    batches: list[list[bytes]] = []

    @app.subscribe("lists-in", scenario="exactly-once", attempts=1, ladder=(0.01,), batch=5, workers=3, replay=True)
    async def handle(raws: list[bytes]) -> None:
        batches.append(list(raws))
        for raw in raws:
            await app.publish("lists-out", raw)
        if b"42" in raws:
            await app.publish("lists-keyed", b"no key")

    sent = [b"%d" % each for each in range(100)]
    async with App("source", broker.url) as source:
        await source.publish_batch("lists-in", sent, keys=sent)
    async with app:
        async with asyncio.timeout(60):
            while not any(b"42" in each for each in batches):
                await asyncio.sleep(0.05)
        (bad,) = [each for each in batches if b"42" in each]
        dead = await letters(broker, "lists-in.shop.lists.dead", len(bad))
        found = await letters(broker, "lists-out", len(sent) - len(dead))
    assert set(bad) <= set(dead)
    assert sorted(found + dead) == sorted(sent)


async def test_a_topic_that_is_gone_when_the_transaction_comes(broker: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if broker.url.startswith("kafka://"):
        pytest.skip("this cluster makes a topic when a producer asks for it")
    # The library looks for the topic for as long as that.
    monkeypatch.setattr(exactly_once, "TRANSACTION_SECONDS", 2)
    await make(broker, "gone-in", "gone-out", "gone-target")
    app = App("shop.gone", broker.url)
    go = asyncio.Event()
    reached = asyncio.Event()

    @app.subscribe("gone-in", scenario="exactly-once", attempts=1, ladder=(0.01,), replay=True)
    async def handle(raw: bytes, message: Message) -> None:
        await app.publish("gone-target" if raw == b"bad" else "gone-out", raw)
        if raw == b"bad":
            reached.set()
            await go.wait()

    async with App("source", broker.url) as source:
        await source.publish_batch("gone-in", [b"bad", b"good"], keys=[b"a", b"b"])
    async with app:
        await asyncio.wait_for(reached.wait(), SECONDS)
        async with Client(broker.kafka) as client:
            await client.admin.delete_topic("gone-target")
        go.set()
        assert await seen(broker, "gone-out", 1) == [b"good"]
        assert await letters(broker, "gone-in.shop.gone.dead", 1) == [b"bad"]


async def test_what_is_too_large_for_a_topic_that_may_not_be_asked(
    broker: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_allowed(self: Limits, topic: str) -> int:
        self._known[topic] = UNKNOWN
        return UNKNOWN

    monkeypatch.setattr(Limits, "renew", not_allowed)
    await make(broker, "large-in", "large-out")
    async with Client(broker.kafka) as client:
        await client.admin.create_topic("large-target", 1, {"max.message.bytes": "1000"})
    app = App("shop.large", broker.url)

    @app.subscribe("large-in", scenario="exactly-once", attempts=2, ladder=(0.01,), replay=True)
    async def handle(raw: bytes) -> None:
        await app.publish("large-out", raw)
        await app.publish("large-target", raw * (10_000 if raw == b"bad" else 1))

    async with App("source", broker.url) as source:
        await source.publish_batch("large-in", [b"one", b"bad", b"two"], keys=[b"one", b"bad", b"two"])
    async with app:
        assert await letters(broker, "large-in.shop.large.dead", 1) == [b"bad"]
        assert await letters(broker, "large-out", 2) == [b"one", b"two"]
    assert sorted(await committed(broker, "large-target")) == [b"one", b"two"]


async def test_partitions_can_go_to_another_while_one_is_tried_for_ever(broker: Place) -> None:
    await make(broker, "moves-in", "moves-out")
    await compacted(broker, "moves-keyed")

    def instance() -> App:
        app = App("shop.moves", broker.url)

        @app.subscribe("moves-in", scenario="exactly-once", attempts=0, ladder=(0.1,), replay=True)
        async def handle(raw: bytes) -> None:
            await app.publish("moves-out", raw)
            if raw == b"bad":
                await app.publish("moves-keyed", raw)

        return app

    async with App("source", broker.url) as source:
        await source.publish("moves-in", b"bad", partition=0)
        async with instance(), instance():
            # One of them has nothing but that to do before long; the other has two partitions.
            for number in range(60):
                await source.publish("moves-in", b"%d" % number, partition=1 + number % 3)
            found = await seen(broker, "moves-out", 40)
    assert b"bad" not in found
