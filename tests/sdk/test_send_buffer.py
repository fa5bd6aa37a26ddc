"""Messages that go out together, and of which some fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.sdk.in_memory import InMemory, app, wire
from tests.waiting import SECONDS

import headrace
from headrace.client import EARLIEST, Client
from headrace.sdk import App, PublishFailed, Receipt, UnsupportedPublish
from headrace.sdk.message import Outgoing
from headrace.sdk.send_buffer import SendBuffer

__all__ = ["wire"]


async def test_what_is_there_has_not_failed_with_what_went_out_beside_it(tmp_path: Path) -> None:
    with headrace.Broker(tmp_path) as broker:
        async with App("shop", broker.url, register=False) as shop:
            await shop.publish("small", b"first")
            sent = await asyncio.gather(
                shop.publish("small", b"second"),
                shop.publish("large", bytes(3_000_000)),
                shop.publish("of no name!", b"x"),
                shop.publish_batch("small", [b"third", b"fourth"]),
                return_exceptions=True,
            )
        async with Client(broker.kafka) as client, client.consumer() as consumer:
            await consumer.assign({("small", 0): EARLIEST})
            found = [each.value async for each in consumer.records(await consumer.end_offsets())]
    assert found == [b"first", b"second", b"third", b"fourth"]
    assert isinstance(sent[0], Receipt)
    assert isinstance(sent[1], PublishFailed)
    assert isinstance(sent[2], PublishFailed)
    assert sent[3] is None


@pytest.mark.parametrize("url", ["kafka://127.0.0.1", "nsq://127.0.0.1?envelope=1"])
async def test_what_cannot_be_carried_is_refused_alone(wire: InMemory, url: str) -> None:
    async with app(url=url) as shop:
        bad = (
            shop.publish("orders", b"a", delay=1.0)
            if url.startswith("kafka")
            else shop.publish("orders", b"a", partition=1)
        )
        sent = await asyncio.gather(bad, shop.publish("orders", b"b"), return_exceptions=True)
    assert isinstance(sent[0], UnsupportedPublish)
    assert isinstance(sent[1], Receipt)
    assert [each.value for each in wire.sent] == [b"b"]


async def test_receipts_go_to_those_whose_messages_they_are() -> None:
    """Also where some that went out beside them were sent as one, and get none."""

    async def publish(messages: Sequence[Outgoing], *, receipts: bool = False) -> Sequence[Receipt]:
        assert receipts
        return [Receipt(each.topic, 0, int(each.value)) for each in messages]

    sender = SendBuffer(publish, lambda *_: None)
    first = await sender.send(Outgoing("t", b"0"))
    together = sender._put([Outgoing("t", b"%d" % each) for each in (1, 2, 3)], 3)
    last = await sender.send(Outgoing("t", b"4"))
    await asyncio.wait_for(sender.flush(), SECONDS)
    assert [(await each).offset for each in (first, last)] == [0, 4]
    assert await together is None
