from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests import brokers
from tests.doors.nsq.nsqd.test_subscribe import publish
from tests.doors.nsq.nsqd.wired import Wire, open_door
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.doors.nsq import known_channels
from headrace.doors.nsq.known_channels import KnownChannels
from headrace.errors import StorageFailed


class Service:
    """A look-up service that answers when it is let."""

    def __init__(self, **channels: list[str]) -> None:
        self.channels = channels
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked: list[str] = []

    async def __call__(self, topic: str) -> list[str]:
        self.asked.append(topic)
        await self.answers.wait()
        return self.channels.get(topic, [])


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with brokers.running(tmp_path, durability="async") as broker:
        yield broker


async def test_the_channels_that_any_service_knows_are_made_with_the_topic(broker: Broker) -> None:
    known = KnownChannels(broker)
    known.services += [Service(t=["mail", "bill"]), Service(t=["mail", "gone#ephemeral", "no name"])]
    topic = await broker.topics.create("t", 2)
    assert sorted(broker.queues.of("t")) == ["bill", "mail"]
    assert await broker.topics.ensure("t") is topic
    await broker.topics.ensure("other")
    assert broker.queues.of("other") == {}


async def test_a_topic_that_nsq_cannot_name_is_not_asked_for(broker: Broker) -> None:
    service = Service()
    KnownChannels(broker).services.append(service)
    await broker.topics.create("x" * 65)
    await broker.topics.create("x.ephemeral", config={"durability": "memory"})
    # The first queue brings the broker's own topic.
    await broker.queues.ensure(await broker.topics.create("t"), "c")
    assert service.asked == ["x#ephemeral", "t"]


async def test_no_more_channels_than_may_be(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_channels, "CHANNELS_MAX", 2)
    KnownChannels(broker).services.append(Service(t=["c", "b", "a"]))
    await broker.topics.create("t")
    assert sorted(broker.queues.of("t")) == ["a", "b"]


async def test_clients_that_name_the_topic_meanwhile_see_it_with_its_channels(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        service = Service(t=["known", "too"])
        KnownChannels(door.broker).services.append(service)
        service.answers.clear()
        waiting = [asyncio.ensure_future(publish(door, "t", body)) for body in (b"one", b"two")]
        async with await Wire.open(door) as later:
            later.send(b"SUB t later\n")
            await until(lambda: service.asked)
            assert door.topics.get("t") is None
            service.answers.set()
            await asyncio.gather(*waiting)
            assert (await later.frame())[1] == b"OK"
        assert service.asked == ["t"]
        for channel in ("known", "too"):
            async with await Wire.subscribed(door, "t", channel) as wire:
                assert {(await wire.message()).body for _ in range(2)} == {b"one", b"two"}


async def test_a_channel_that_cannot_be_made_does_not_stop_the_topic(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    KnownChannels(broker).services.append(Service(t=["known"]))

    async def fail(*_: object) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(broker.queues, "ensure", fail)
    assert await broker.topics.create("t") is broker.topics.get("t")
