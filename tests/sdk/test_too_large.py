"""Topics that take only small messages: what fits goes through, and what does not is the error of that one message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.sdk.places import Place
from tests.waiting import SECONDS

from headrace.client import EARLIEST, Client, ClientError
from headrace.sdk import App, PublishFailed, Reject, Retry

LIMIT = 20_000


async def make(place: Place, topic: str, limit: int = LIMIT) -> None:
    async with Client(place.kafka) as client:
        await client.admin.create_topic(topic, 1, {"max.message.bytes": str(limit)})


async def limit(place: Place, topic: str, most: int) -> None:
    async with Client(place.kafka) as client:
        await client.admin.alter_topic_config(topic, {"max.message.bytes": str(most)})


async def seen(place: Place, topic: str, count: int) -> list[Any]:
    """Committed records of a topic, once there are so many."""
    found: list[Any] = []
    async with asyncio.timeout(SECONDS), Client(place.kafka) as client:
        while len(found) < count:
            try:
                await client.cluster.topic(topic)
                async with client.consumer(committed=True) as consumer:
                    await consumer.assign({(topic, 0): EARLIEST})
                    found = [each async for each in consumer.records(await consumer.end_offsets())]
            except ClientError:
                found = []
            await asyncio.sleep(0.05)
    return found


async def test_exactly_once_sends_no_more_at_once_than_the_topic_takes(place: Place) -> None:
    await make(place, "large.once-small")
    app = App("once", place.url, register=False)

    @app.subscribe("large.once-in", scenario="exactly-once")
    async def handle(raw: bytes) -> None:
        await app.publish("large.once-small", raw * 1_000)

    async with app:
        await app.publish_batch("large.once-in", [b"%02d" % each for each in range(90)])
        found = await seen(place, "large.once-small", 90)
    assert sorted(each.value for each in found) == [b"%02d" % each * 1_000 for each in range(90)]


async def test_what_is_too_large_in_itself_fails_alone(place: Place) -> None:
    await make(place, "large.alone-small")
    app = App("alone", place.url, register=False)

    @app.subscribe("large.alone-in", scenario="exactly-once", attempts=2, ladder=(0.01,))
    async def handle(raw: bytes) -> None:
        await app.publish("large.alone-small", bytes(LIMIT) if raw == b"bad" else raw)

    async with app:
        await app.publish_batch("large.alone-in", [b"a", b"bad", b"b"])
        [letter] = await seen(place, "large.alone-in.alone.dead", 1)
        found = await seen(place, "large.alone-small", 2)
    assert sorted(each.value for each in found) == [b"a", b"b"]
    assert letter.value == b"bad"
    said = dict(letter.headers)["headrace-error"].decode()
    assert "alone-small takes messages of up to 20000 bytes (max.message.bytes)" in said


async def test_a_limit_that_is_lowered_meanwhile(place: Place) -> None:
    await make(place, "large.lowered-out")
    app = App("lowered", place.url, register=False)

    @app.subscribe("large.lowered-in", scenario="exactly-once", attempts=2, ladder=(0.01,))
    async def handle(raw: bytes) -> None:
        await app.publish("large.lowered-out", raw * 100)
        if raw == b"large":
            await app.publish("large.lowered-out", bytes(9_000))

    async with app:
        await app.publish("large.lowered-in", b"before")
        await seen(place, "large.lowered-out", 1)
        await limit(place, "large.lowered-out", 5_000)
        await app.publish_batch("large.lowered-in", [*(b"%02d" % each for each in range(40)), b"large"])
        [letter] = await seen(place, "large.lowered-in.lowered.dead", 1)
        assert len(await seen(place, "large.lowered-out", 41)) == 41
    assert letter.value == b"large"


async def test_what_is_sent_together_fits_too(place: Place) -> None:
    await make(place, "large.sent-small")
    async with App("sender", place.url, register=False) as app:
        small = [b"%02d" % each * 1_000 for each in range(50)]
        await app.publish_batch("large.sent-small", small)
        outcomes = await asyncio.gather(
            app.publish("large.sent-small", b"before"),
            app.publish("large.sent-small", bytes(LIMIT)),
            app.publish("large.sent-small", b"after", headers={"a": "b"}),
            return_exceptions=True,
        )
        assert [each.value for each in await seen(place, "large.sent-small", 52)] == [*small, b"before", b"after"]
    assert not isinstance(outcomes[0], Exception)
    assert not isinstance(outcomes[2], Exception)
    assert isinstance(outcomes[1], PublishFailed)
    assert "sent-small takes messages of up to 20000 bytes (max.message.bytes)" in str(outcomes[1])


async def test_of_a_limit_that_is_lowered_senders_hear_once(place: Place) -> None:
    await make(place, "large.twice-small")
    async with App("sender", place.url, register=False) as app:
        small = [b"%02d" % each * 1_000 for each in range(9)]
        await app.publish_batch("large.twice-small", small)
        await limit(place, "large.twice-small", 5_000)
        with pytest.raises(PublishFailed):
            await app.publish_batch("large.twice-small", small)
        await app.publish_batch("large.twice-small", small)
        assert len(await seen(place, "large.twice-small", 18)) == 18


async def test_a_limit_that_is_raised_holds_at_once(place: Place) -> None:
    await make(place, "large.raised")
    async with App("sender", place.url, register=False) as app:
        with pytest.raises(PublishFailed):
            await app.publish("large.raised", bytes(LIMIT))
        await limit(place, "large.raised", 3 * LIMIT)
        await app.publish("large.raised", bytes(LIMIT))


@pytest.mark.parametrize("scenario", ["task", "exactly-once"])
async def test_what_is_put_aside_fits_there(place: Place, scenario: str) -> None:
    name = f"large.aside-{scenario}"
    # From when the messages were small.
    await make(place, f"{name}.app.retry", 1_000)
    await make(place, f"{name}.app.dead", 1_000)
    app = App("app", place.url, register=False)
    tried: list[int] = []

    @app.subscribe(name, scenario=scenario, attempts=3, ladder=(0.01,))
    async def handle(raw: bytes) -> None:
        tried.append(len(raw))
        if len(tried) > 1:
            raise Reject("no")
        raise Retry("not yet")

    async with app:
        await app.publish(name, bytes(5_000))
        [letter] = await seen(place, f"{name}.app.dead", 1)
    assert tried == [5_000, 5_000]
    assert letter.value == bytes(5_000)
