"""Handlers that take longer than the visibility timeout: their messages are handled once, and nobody else gets them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Hashable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.sdk.in_memory import Held, InMemory, app, wire
from tests.serve_process import ServeProcess
from tests.waiting import until

from headrace.client import EARLIEST, Client
from headrace.sdk import App, Message, Retry
from headrace.sdk.testing import Harness

__all__ = ["wire"]

# The shortest visibility timeout that NSQ's wire knows.
TIMEOUT = 1.0
SLOW = 2.5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    data: Path = tmp_path_factory.mktemp("slow") / "data"
    with ServeProcess(data, "--nsq", "127.0.0.1:0", "--http", "127.0.0.1:0") as serving:
        yield serving


def url_of(broker: ServeProcess, kind: str) -> str:
    if kind == "nsq":
        return f"nsq://{broker.addresses['nsq']}"
    if kind == "kafka":
        return f"kafka://{broker.kafka}"
    if kind == "memory":
        return "memory://slow"
    return f"headrace://{broker.kafka}?nsq={broker.addresses['nsq']}&http={broker.addresses['http']}"


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> str:
    return "t" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


class Calls:
    """What handlers did."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.at_once = 0
        self.most = 0
        self.ended = 0

    def begin(self, attempt: int) -> None:
        self.attempts.append(attempt)
        self.at_once += 1
        self.most = max(self.most, self.at_once)

    def end(self) -> None:
        self.at_once -= 1
        self.ended += 1


def late(shop: App) -> int:
    return int(
        next(
            sample.value
            for metric in shop.metrics.collect()
            for sample in metric.samples
            if sample.name == "headrace_sdk_late_settlements_total"
        )
    )


async def is_dead(broker: ServeProcess, topic: str, group: str) -> bool:
    async with Client(broker.kafka) as client:
        if f"{topic}.{group}.dead" not in await client.cluster.refresh(None):
            return False
        async with client.consumer() as consumer:
            await consumer.assign({(f"{topic}.{group}.dead", 0): EARLIEST})
            return any(consumer_end for consumer_end in (await consumer.end_offsets()).values())


@pytest.mark.parametrize("kind", ["headrace", "nsq", "kafka", "memory"])
@pytest.mark.parametrize("form", ["async", "thread", "batch"])
async def test_a_slow_handler_has_its_message_until_it_is_done(
    broker: ServeProcess, fresh: str, kind: str, form: str
) -> None:
    shop = App("shop", url_of(broker, kind))
    calls = Calls()
    options: Any = {"timeout": TIMEOUT, "attempts": 2, "ladder": (0.05,), "workers": 4}

    if form == "async":

        @shop.subscribe(fresh, **options)
        async def handle(raw: bytes, message: Message) -> None:
            calls.begin(message.attempt)
            await asyncio.sleep(SLOW)
            calls.end()

    elif form == "thread":

        @shop.subscribe(fresh, **options)
        def handle_in_thread(raw: bytes, message: Message) -> None:
            calls.begin(message.attempt)
            time.sleep(SLOW)
            calls.end()

    else:

        @shop.subscribe(fresh, **{**options, "batch": 10})
        async def handle_batch(raws: list[bytes], messages: list[Message]) -> None:
            calls.begin(messages[0].attempt)
            await asyncio.sleep(SLOW)
            calls.end()

    async with shop:
        await shop.publish(fresh, b"x")
        await until(lambda: calls.ended)
        # Long enough for a message that had timed out to come again.
        await asyncio.sleep(TIMEOUT)
        assert (calls.attempts, calls.most, late(shop)) == ([1], 1, 0)
    assert not await is_dead(broker, fresh, "shop")


async def test_beyond_the_bound_a_message_comes_again_and_gets_the_outcome_of_the_handler_that_has_it(
    broker: ServeProcess, fresh: str
) -> None:
    shop = App("shop", url_of(broker, "headrace"))
    calls = Calls()
    go = asyncio.Event()
    came: list[int] = []

    @shop.subscribe(fresh, timeout=TIMEOUT, timeout_max=0.1, attempts=0, ladder=(0.05,), workers=4)
    async def handle(raw: bytes, message: Message) -> None:
        calls.begin(message.attempt)
        await go.wait()
        calls.end()

    async with shop:
        [running] = shop.running
        deliver, running._leases.take = (
            running._leases.take,
            lambda each: (  # type: ignore[method-assign]
                came.append(each.message.attempt),
                deliver(each),
            )[1],
        )
        await shop.publish(fresh, b"x")
        await until(lambda: 2 in came)
        go.set()
        await until(lambda: calls.ended)
        await asyncio.sleep(2 * TIMEOUT)
    assert (calls.attempts, calls.most, late(shop)) == ([1], 1, 0)


@pytest.mark.parametrize("form", ["async", "thread"])
async def test_a_handler_can_ask_for_more_time(broker: ServeProcess, fresh: str, form: str) -> None:
    shop = App("shop", url_of(broker, "headrace"))
    calls = Calls()
    answers: list[bool] = []
    options: Any = {"timeout": TIMEOUT, "timeout_max": 0.1, "attempts": 2, "ladder": (0.05,), "workers": 2}

    if form == "async":

        @shop.subscribe(fresh, **options)
        async def handle(raw: bytes, message: Message) -> None:
            calls.begin(message.attempt)
            answers.append(await message.extend(timedelta(minutes=1)))
            answers.append(await message.extend(timedelta(days=2)))
            await asyncio.sleep(SLOW)
            calls.end()

    else:

        @shop.subscribe(fresh, **options)
        def handle_in_thread(raw: bytes, message: Message) -> None:
            calls.begin(message.attempt)
            answers.append(message.extend_blocking(60))
            answers.append(message.extend_blocking(2 * 86_400))
            time.sleep(SLOW)
            calls.end()

    async with shop:
        await shop.publish(fresh, b"x")
        await until(lambda: calls.ended)
        await asyncio.sleep(TIMEOUT)
    # A day is the most that a queue allows.
    assert answers == [True, False]
    assert (calls.attempts, late(shop)) == ([1], 0)


async def test_a_settlement_that_comes_too_late_is_logged_and_counted(broker: ServeProcess, fresh: str) -> None:
    shop = App("shop", url_of(broker, "headrace"))
    attempts: list[int] = []

    @shop.subscribe(fresh, timeout=TIMEOUT, attempts=3, ladder=(0.05,))
    async def handle(raw: bytes, message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            # It holds up the loop, on which nothing can be extended meanwhile.
            time.sleep(2 * TIMEOUT)  # noqa: ASYNC251

    with structlog.testing.capture_logs() as lines:
        async with shop:
            await shop.publish(fresh, b"x")
            await until(lambda: 2 in attempts and late(shop))
    # On a busy machine the second attempt may be late, too.
    assert attempts[:2] == [1, 2]
    line = next(each for each in lines if each["event"] == "settled too late")
    assert (line["log_level"], line["id"], line["result"]) == ("warning", f"{fresh}/0/0", "ack")


async def test_a_connection_that_is_lost_makes_no_message_run_twice_at_once(broker: ServeProcess, fresh: str) -> None:
    shop = App("shop", url_of(broker, "headrace"))
    calls = Calls()
    go = asyncio.Event()

    @shop.subscribe(fresh, timeout=60, workers=4)
    async def handle(raw: bytes, message: Message) -> None:
        calls.begin(message.attempt)
        await go.wait()
        calls.end()

    async with shop:
        [running] = shop.running
        await shop.publish(fresh, b"x")
        await until(lambda: calls.at_once)
        receiver: Any = running._receiver
        receiver._connection._writer.transport.abort()
        [lease] = running._leases._held.values()
        await until(lambda: lease.delivery.message.attempt == 2)
        go.set()
        await until(lambda: calls.ended)
        await until(lambda: not running.waiting)
    assert (calls.attempts, late(shop)) == ([1], 0)


async def test_a_settlement_without_a_connection_is_too_late(broker: ServeProcess, fresh: str) -> None:
    shop = App("shop", url_of(broker, "headrace"))
    begun, go, settled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @shop.subscribe(fresh, timeout=60)
    async def handle(raw: bytes, message: Message) -> None:
        if message.attempt == 1:
            begun.set()
            await go.wait()

    async with shop:
        await shop.publish(fresh, b"x")
        await begun.wait()
        receiver: Any = shop.running[0]._receiver
        connect, receiver._connect = receiver._connect, settled.wait
        receiver._connection._writer.transport.abort()
        await until(lambda: receiver._connection is None)
        go.set()
        await until(lambda: late(shop) == 1)
        receiver._connect = connect
        settled.set()


async def test_in_a_test_time_is_the_tests_and_the_lease_is_extended_by_it() -> None:
    shop = App("shop", "memory://unused", grace=1.0)
    go = asyncio.Event()
    tried: list[int] = []
    extended: list[bool] = []

    @shop.subscribe("orders", timeout=10, timeout_max=100, attempts=1)
    async def handle(raw: bytes, message: Message) -> None:
        tried.append(message.attempt)
        extended.append(await message.extend(1_000))
        await go.wait()

    async with Harness(shop) as harness:
        await harness.publish("orders", b"x")
        await until(lambda: extended)
        await harness.advance(999, settle=False)
        go.set()
        await harness.settled()
        assert [each.outcome for each in harness.handled] == ["ack"]
        assert harness.dead("orders") == []
    assert (tried, extended, late(shop)) == ([1], [True], 0)


async def test_what_ended_too_late_in_a_test_is_counted_too() -> None:
    shop = App("shop", "memory://unused", grace=1.0)
    begun, go = asyncio.Event(), asyncio.Event()

    @shop.subscribe("orders", timeout=10, timeout_max=5, attempts=1)
    async def handle(raw: bytes) -> None:
        begun.set()
        await go.wait()

    async with Harness(shop) as harness:
        await harness.publish("orders", b"x")
        await begun.wait()
        await harness.advance(20, settle=False)
        assert [each.reason for each in harness.dead("orders")] == ["not settled after 1 attempts"]
        go.set()
        await until(lambda: late(shop) == 1)


def test_outside_of_a_handler_there_is_nothing_to_extend() -> None:
    message = Message("orders", b"x")
    with pytest.raises(RuntimeError, match="by the handler that has it"):
        message.extend_blocking(1)
    with pytest.raises(RuntimeError, match="by the handler that has it"):
        asyncio.run(message.extend(1))


# --- by a transport in the test ---------------------------------------------------------------------------------------


class Leased(Held):
    """A delivery with a lease."""

    leased = True
    lost = False
    touched = 0

    @property
    def identity(self) -> Hashable:
        return self.message.topic, self.message.partition, self.message.offset

    def touch(self) -> bool:
        self.touched += 1
        return not self.lost


def delivery(offset: int, attempt: int = 1, key: bytes | None = None) -> Leased:
    return Leased(Message("orders", b"%d" % offset, key, partition=0, offset=offset, attempt=attempt))


@pytest.mark.parametrize("outcome", ["ack", "retry"])
async def test_the_newest_delivery_is_settled(wire: InMemory, outcome: str) -> None:
    shop = app()
    calls = Calls()
    go = asyncio.Event()

    @shop.subscribe("orders", workers=4)
    async def handle(raw: bytes, message: Message) -> None:
        calls.begin(message.attempt)
        await go.wait()
        calls.end()
        if outcome == "retry":
            raise Retry("later", after=7)

    async with shop:
        [receiver] = wire.receivers
        first, second, third = (delivery(0, attempt) for attempt in (1, 2, 3))
        receiver.deliver([first])
        await until(lambda: calls.at_once)
        receiver.deliver([second])
        receiver.deliver([third])
        # One that was overtaken on its way changes nothing.
        receiver.deliver([delivery(0, 2)])
        go.set()
        await until(lambda: third.settled)
    assert third.settled == ([("ack",)] if outcome == "ack" else [("retry", 7, "later")])
    assert (first.settled, second.settled, calls.attempts) == ([], [], [1])


async def test_what_waits_twice_is_handled_once(wire: InMemory) -> None:
    shop = app()
    calls = Calls()
    go = asyncio.Event()

    @shop.subscribe("orders", workers=4)
    async def handle(raw: bytes, message: Message) -> None:
        calls.begin(message.attempt)
        await go.wait()
        calls.end()

    async with shop:
        [receiver] = wire.receivers
        first, second = delivery(0, 1), delivery(0, 2)
        receiver.deliver([first, second])
        await until(lambda: calls.at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        go.set()
        await until(lambda: second.settled)
    assert (calls.attempts, first.settled) == ([1], [])


async def test_the_order_of_a_key_survives_a_delivery_that_comes_again(wire: InMemory) -> None:
    shop = app()
    seen: list[bytes] = []
    go = asyncio.Event()

    @shop.subscribe("orders", scenario="ordered", workers=4)
    async def handle(raw: bytes) -> None:
        seen.append(raw)
        await go.wait()

    async with shop:
        [receiver] = wire.receivers
        first, behind, again = delivery(0, 1, b"k"), delivery(1, 1, b"k"), delivery(0, 2, b"k")
        receiver.deliver([first, behind])
        await until(lambda: seen)
        receiver.deliver([again])
        go.set()
        await until(lambda: behind.settled)
    assert (seen, again.settled, first.settled) == ([b"0", b"1"], [("ack",)], [])


async def test_with_exactly_once_what_comes_again_is_handled_after_and_not_beside(wire: InMemory) -> None:
    shop = app()
    calls = Calls()
    go = asyncio.Event()

    @shop.subscribe("orders", scenario="exactly-once", workers=4)
    async def handle(raw: bytes, message: Message) -> None:
        calls.begin(message.attempt)
        await go.wait()
        await shop.publish("totals", raw)
        calls.end()

    async with shop:
        [receiver] = wire.receivers
        first, again = delivery(0), delivery(0)
        receiver.deliver([first])
        await until(lambda: calls.at_once)
        receiver.deliver([again])
        go.set()
        await until(lambda: again.settled)
    assert (calls.most, calls.ended) == (1, 2)
    # What was sent goes with each: that of the first was given up with its chunk.
    assert [len(each.settled[0]) for each in (first, again)] == [2, 2]


async def test_handlers_are_touched_until_they_end_and_the_loss_of_a_lease_is_logged_once(wire: InMemory) -> None:
    shop = app()
    begun, go = asyncio.Event(), asyncio.Event()

    @shop.subscribe("orders", timeout=0.03)
    async def handle(raw: bytes) -> None:
        begun.set()
        await go.wait()

    with structlog.testing.capture_logs() as lines:
        async with shop:
            [receiver] = wire.receivers
            one = delivery(0)
            receiver.deliver([one])
            await until(lambda: one.touched > 3)
            one.lost = True
            before = one.touched
            await until(lambda: [each for each in lines if "not leased any more" in each["event"]])
            await asyncio.sleep(0.1)
            assert one.touched <= before + 1
            go.set()
            await until(lambda: one.settled)
    assert len([each for each in lines if "not leased any more" in each["event"]]) == 1


async def test_a_handler_beyond_its_bound_is_named_once_and_not_touched(wire: InMemory) -> None:
    shop = app()
    go = asyncio.Event()

    @shop.subscribe("orders", timeout=0.03, timeout_max=0.0)
    async def handle(raw: bytes) -> None:
        await go.wait()

    with structlog.testing.capture_logs() as lines:
        async with shop:
            one = delivery(0)
            wire.receivers[0].deliver([one])
            await until(lambda: [each for each in lines if "timeout_max" in each["event"]])
            await asyncio.sleep(0.1)
            assert one.touched == 0
            go.set()
            await until(lambda: one.settled)
    assert len([each for each in lines if "timeout_max" in each["event"]]) == 1
