"""Retry schedules of several steps, kept by each system: after every attempt the step that is its own."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.sdk.in_memory import consumer_config
from tests.sdk.test_putting_aside import Cluster, CountingConsumer
from tests.waiting import SECONDS

from headrace.format.headers import ATTEMPT, RETRY_AT
from headrace.sdk import App, Message
from headrace.sdk.chunk import Block, Chunk
from headrace.sdk.exactly_once import TransactionalReceiver
from headrace.sdk.kafka import KafkaDelivery, KafkaReceiver, KafkaTransport
from headrace.sdk.message import Outgoing
from headrace.sdk.nsq import NsqDelivery, NsqReceiver, NsqTransport
from headrace.sdk.nsq_wire import MESSAGE_HEAD, NsqConnection, Received
from headrace.sdk.puller import Puller, Track
from headrace.sdk.retry_topic import WAITS
from headrace.sdk.system import parse
from headrace.sdk.testing import Harness

LADDER = (2.0, 7.0, 40.0)
EXPECTED = [2.0, 7.0, 40.0, 40.0]


async def test_a_group_of_kafkas_waits_by_the_step_of_the_attempt() -> None:
    cluster = Cluster(0)
    config = consumer_config("orders", "shop", attempts=0, ladder=LADDER)
    receiver = KafkaReceiver(cast(KafkaTransport, cluster), config, lambda found: None)
    puller = CountingConsumer()
    began = time.time()
    for attempt in (1, 2, 3, 4):
        message = Message("orders", b"a", partition=0, offset=attempt, attempt=attempt)
        KafkaDelivery(receiver, cast(Puller, puller), Track(0), message).retry(None, "not yet")
        async with asyncio.timeout(SECONDS):
            while len(cluster.sent) < attempt:
                await asyncio.sleep(0.001)
    took = time.time() - began
    for sent, attempt, step in zip(cluster.sent, (1, 2, 3, 4), EXPECTED, strict=True):
        wait = int(sent.headers[RETRY_AT]) / 1_000 - began
        assert step - 0.001 <= wait <= step + took + 0.001
        assert int(sent.headers[ATTEMPT]) == attempt + 1
        assert WAITS[sent.partition or 0] <= step
    await receiver.close()


async def test_what_is_for_one_instance_alone_waits_by_its_step_too(monkeypatch: pytest.MonkeyPatch) -> None:
    config = consumer_config("orders", "shop", private=True, attempts=0, ladder=LADDER)
    receiver = KafkaReceiver(cast(KafkaTransport, Cluster(0)), config, lambda found: None)
    held: list[float] = []
    monkeypatch.setattr(receiver, "hold", lambda delivery, seconds: held.append(seconds))
    one = KafkaDelivery(
        receiver, cast(Puller, CountingConsumer()), Track(0), Message("orders", b"a", partition=0, offset=7)
    )
    for _ in EXPECTED:
        one.retry(None, "not yet")
    assert held == EXPECTED


async def test_what_is_refused_for_good_exactly_once_is_tried_again_by_its_step() -> None:
    receiver: Any = object.__new__(TransactionalReceiver)
    receiver.config = consumer_config("orders", "shop", attempts=0, ladder=LADDER)
    block = Block([Message("orders", b"a", partition=0, offset=7)], [Outgoing("totals", b"a")])
    for step in EXPECTED:
        before = time.monotonic()
        assert receiver._put_off(cast(Chunk, SimpleNamespace()), block, "invalid record")
        assert before + step <= block.due <= time.monotonic() + step


async def test_a_plain_nsqd_is_told_the_step_of_the_attempt() -> None:
    transport = NsqTransport(parse("nsq://127.0.0.1:1"), "shop")
    receiver = NsqReceiver(
        transport, consumer_config("orders", "shop", attempts=9, ladder=LADDER), "shop", lambda found: None
    )
    told: list[bytes] = []
    connection = cast(NsqConnection, SimpleNamespace(open=True, extended=False, limits={}, tell=told.append))
    for attempt in (1, 2, 3, 4):
        raw = MESSAGE_HEAD.pack(0, attempt, b"%016d" % attempt) + b"x"
        NsqDelivery(receiver, connection, Received(raw)).retry(None, "not yet")
    assert [int(each.split()[2]) for each in told] == [round(step * 1_000) for step in EXPECTED]


async def test_on_a_plain_nsqd_the_last_attempt_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = NsqTransport(parse("nsq://127.0.0.1:1"), "shop")
    receiver = NsqReceiver(
        transport, consumer_config("orders", "shop", attempts=3, ladder=LADDER), "shop", lambda found: None
    )
    told: list[bytes] = []
    buried: list[int] = []
    monkeypatch.setattr(receiver, "bury", lambda delivery, reason: buried.append(delivery.message.attempt))
    connection = cast(NsqConnection, SimpleNamespace(open=True, extended=False, limits={}, tell=told.append))
    for attempt in (1, 2, 3):
        raw = MESSAGE_HEAD.pack(0, attempt, b"%016d" % attempt) + b"x"
        NsqDelivery(receiver, connection, Received(raw)).retry(None, "not yet")
    assert (len(told), buried) == (2, [3])


async def test_in_a_test_the_steps_pass_by_its_clock() -> None:
    shop = App("shop", "memory://unused")
    tried: list[float] = []

    @shop.subscribe("orders", attempts=5, ladder=LADDER)
    async def handle(raw: bytes) -> None:
        tried.append(harness.now)
        raise RuntimeError("again")

    async with Harness(shop) as harness:
        await harness.publish("orders", b"x")
        await harness.advance(200)
    assert [round(after - before, 6) for before, after in pairwise(tried)] == EXPECTED


async def test_headraces_queue_keeps_the_whole_schedule(headrace_broker: Any) -> None:
    import json
    from urllib.request import urlopen

    shop = App("shop", headrace_broker.url, register=False)

    @shop.subscribe("orders", ladder=LADDER)
    async def handle(raw: bytes) -> None: ...

    async with shop:
        url = f"http://{headrace_broker.http}/v1/topics/orders/queues/shop"
        found = await asyncio.to_thread(lambda: json.load(urlopen(url, timeout=SECONDS)))
    assert found["settings"]["backoff_ms"] == [2_000, 7_000, 40_000]
