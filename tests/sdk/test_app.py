"""Applications: declared, started, called, stopped; over a transport in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.sdk.in_memory import Held, InMemory, app, wire
from tests.waiting import SECONDS

from headrace.sdk import Ack, App, Message, PublishFailed, Reject, Retry, Unsuited
from headrace.sdk.handler import Handler

__all__ = ["wire"]


@dataclass
class Order:
    id: int
    item: str = "tea"


class Placed(msgspec.Struct):
    id: int


class Database: ...


class Clock: ...


async def settled(*held: Held, seconds: float = 20.0) -> list[Any]:
    """What became of messages, once something has."""
    async with asyncio.timeout(seconds):
        while not all(each.settled for each in held):
            await asyncio.sleep(0.001)
    return [each.settled[0] if len(each.settled) == 1 else each.settled for each in held]


async def test_what_a_handler_says_becomes_of_the_message(wire: InMemory) -> None:
    shop = app()
    seen = []

    @shop.subscribe("orders")
    async def handle(order: Order, message: Message) -> Any:
        seen.append((order, message.topic))
        match order.id:
            case 1:
                return None
            case 2:
                return Ack
            case 3:
                return Retry("later", after=2.5)
            case 4:
                raise Retry("soon")
            case 5:
                raise Reject("hopeless")
            case 6:
                raise KeyError("tea")
            case _:
                return "a value"

    async with shop:
        held = wire.receivers[0].bring(*(b'{"id": %d}' % number for number in range(1, 8)), b"no json", b'{"id": "x"}')
        said = await settled(*held)
    assert said[:7] == [
        ("ack",),
        ("ack",),
        ("retry", 2.5, "later"),
        ("retry", None, "soon"),
        ("reject", "hopeless"),
        ("retry", None, "KeyError: 'tea'"),
        ("ack",),
    ]
    assert [each[0] for each in said[7:]] == ["reject", "reject"]
    assert "not a Order" in said[7][1]
    assert seen[0] == (Order(1), "orders")


@pytest.mark.parametrize(
    ("wanted", "raw", "value"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, b"tea", "tea"),
        (dict, b'{"a": [1]}', {"a": [1]}),
        (Order, b'{"id": 1}', Order(1)),
        (Placed, b'{"id": 1}', Placed(1)),
        (list[int], b"", None),
    ],
)
async def test_payloads_are_what_the_annotation_says(wire: InMemory, wanted: Any, raw: bytes, value: Any) -> None:
    shop = app()
    seen = []

    async def handle(payload: Any) -> None:
        seen.append(payload)

    if wanted == list[int]:
        # A list asks for a batch, of what is in it.
        handle.__annotations__["payload"] = list[int]
        raw, value = b"7", [7]
    else:
        handle.__annotations__["payload"] = wanted
    shop.subscribe("orders", batch_wait=0.0)(handle)
    async with shop:
        assert await settled(*wire.receivers[0].bring(raw)) == [("ack",)]
    assert seen == [value]


async def test_batches(wire: InMemory) -> None:
    shop = app()
    sizes = []

    @shop.subscribe("orders", scenario="stream", batch=10, batch_wait=0.05)
    async def handle(orders: list[Order], messages: list[Message]) -> Any:
        assert [order.id for order in orders] == [int(message.value[6:-1]) for message in messages]
        sizes.append(len(orders))
        return Retry("all of them") if orders[0].id == 20 else None

    async with shop:
        held = wire.receivers[0].bring(*(b'{"id":%d}' % number for number in range(25)), b"bad")
        said = await settled(*held)
    assert sizes == [10, 10, 5]
    assert said == [("ack",)] * 20 + [("retry", None, "all of them")] * 5 + [said[-1]]
    assert said[-1][0] == "reject"


async def test_sync_handlers_run_in_threads_and_side_by_side(wire: InMemory) -> None:
    shop = app()
    together = threading.Barrier(4, timeout=20)

    @shop.subscribe("orders", workers=4)
    def handle(raw: bytes) -> None:
        assert threading.current_thread() is not threading.main_thread()
        together.wait()

    async with shop:
        assert await settled(*wire.receivers[0].bring(*[b"x"] * 4)) == [("ack",)] * 4


async def test_a_sync_handler_sees_the_context_it_was_called_in() -> None:
    held: ContextVar[str] = ContextVar("held")
    seen = []

    def handle(raw: bytes) -> None:
        seen.append(held.get("nothing"))
        held.set("of the thread")

    with ThreadPoolExecutor(1) as threads:
        handler = Handler(handle, [])
        for name in ("one", "two"):
            held.set(name)
            await handler.call([Message("orders", b"x")], [b"x"], {}, threads)
    assert seen == ["one", "two"]
    assert held.get() == "two"


@pytest.mark.parametrize("orders", [True, False])
async def test_messages_of_a_key_are_handled_one_after_the_other(wire: InMemory, orders: bool) -> None:
    wire.orders = orders
    shop = app()
    running: dict[int, int] = {}
    seen: dict[int, list[int]] = {}
    most = 0

    @shop.subscribe("orders", scenario="ordered", ordered_by="id", workers=8, ladder=(0.0,))
    async def handle(event: dict[str, int]) -> Any:
        nonlocal most
        key = event["id"]
        running[key] = running.get(key, 0) + 1
        assert running[key] == 1
        most = max(most, sum(running.values()))
        await asyncio.sleep(0.001)
        running[key] -= 1
        seen.setdefault(key, []).append(event["n"])
        if event["n"] == 3 and seen[key].count(3) < 3:
            raise RuntimeError("not yet")

    async with shop:
        held = wire.receivers[0].bring(*(b'{"id":%d,"n":%d}' % (n % 5, n // 5) for n in range(50)))
        said = await settled(*held)
    assert most > 1
    if orders:
        # The system brings it again, and holds back the others of its key until then.
        assert [each[0] for each in said].count("retry") == 5
        assert all(each == list(range(10)) for each in seen.values())
    else:
        assert said == [("ack",)] * 50
        assert all(each == [0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9] for each in seen.values())


async def test_in_place_too_there_is_an_end_of_trying(wire: InMemory) -> None:
    shop = app()
    tried = 0

    @shop.subscribe("orders", scenario="ordered", ladder=(0.0,), attempts=3)
    async def handle(raw: bytes) -> None:
        nonlocal tried
        tried += 1
        raise RuntimeError("never")

    async with shop:
        [said] = await settled(*wire.receivers[0].bring(Message("orders", b"x", key=b"k")))
    assert (said, tried) == (("reject", "tried 3 times: RuntimeError: never"), 3)


async def test_at_most_once_is_settled_first(wire: InMemory) -> None:
    shop = app()
    seen = []

    @shop.subscribe("orders", at_most_once=True)
    async def handle(raw: bytes) -> None:
        seen.append(list(held[0].settled))
        raise RuntimeError("lost")

    async with shop:
        held: list[Held] = []
        receiver = wire.receivers[0]
        held += [Held(Message("orders", b"x"))]
        receiver.deliver(held)
        async with asyncio.timeout(SECONDS):
            while not seen:
                await asyncio.sleep(0.001)
    assert seen == [[("ack",)]]
    assert held[0].settled == [("ack",)]


async def test_a_rate_is_kept(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders", scenario="burst", rate=100.0)
    async def handle(raw: bytes) -> None: ...

    async with shop:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await settled(*wire.receivers[0].bring(*[b"x"] * 21))
        assert loop.time() - began >= 0.19


async def test_handlers_that_never_wait_do_not_hold_up_the_loop(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders", workers=1)
    async def handle(raw: bytes) -> None:
        time.sleep(0.001)  # noqa: ASYNC251

    async with shop:
        held = wire.receivers[0].bring(*[b"x"] * 200)
        turns = 0
        while not held[-1].settled:
            await asyncio.sleep(0)
            turns += 1
    assert turns > 5


async def test_what_handlers_ask_for_is_provided_and_ended(wire: InMemory) -> None:
    shop = app()
    life = []

    async def database() -> AsyncIterator[Database]:
        life.append("open")
        yield Database()
        life.append("closed")

    shop.provide(Database, database)
    shop.provide(Clock, Clock)

    @shop.subscribe("orders")
    async def handle(raw: bytes, database: Database, clock: Clock, message: Message, extra: int = 7) -> None:
        assert isinstance(database, Database)
        assert isinstance(clock, Clock)
        assert (message.value, extra) == (raw, 7)

    async with shop:
        assert await settled(*wire.receivers[0].bring(b"x")) == [("ack",)]
        assert life == ["open"]
    assert life == ["open", "closed"]


async def test_what_nothing_provides_is_said_at_the_start(wire: InMemory) -> None:
    shop = app()

    @shop.subscribe("orders")
    async def handle(raw: bytes, other: int) -> None: ...

    with pytest.raises(TypeError, match="nothing provides"):
        await shop.start()


async def test_a_stop_lets_handlers_finish(wire: InMemory) -> None:
    shop = app()
    go = asyncio.Event()

    @shop.subscribe("orders", workers=1)
    async def handle(raw: bytes) -> None:
        await go.wait()

    await shop.start()
    receiver = wire.receivers[0]
    held = receiver.bring(b"a", b"b")
    stopping = asyncio.create_task(shop.stop())
    while not receiver.drained:
        await asyncio.sleep(0.001)
    assert not receiver.closed
    go.set()
    await stopping
    assert receiver.closed
    assert [each.settled for each in held] == [[("ack",)]] * 2


async def test_a_stop_does_not_wait_for_ever(wire: InMemory) -> None:
    shop = app(grace=0.05)

    @shop.subscribe("orders", workers=1)
    async def handle(raw: bytes) -> None:
        await asyncio.Event().wait()

    await shop.start()
    held = wire.receivers[0].bring(b"a", b"b")
    await shop.stop()
    # Nobody has settled them: others will get them.
    assert [each.settled for each in held] == [[], []]


async def test_more_and_fewer_workers_while_it_runs(wire: InMemory) -> None:
    shop = app()
    running = most = 0

    @shop.subscribe("orders", workers=1)
    async def handle(raw: bytes) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    async with shop:
        [subscription] = shop.running
        for workers in (1, 6, 2):
            subscription.change(subscription.tuning.changed({"workers": workers, "credit": 10 * workers}))
            # What was taken on before may be at work still.
            await settled(*wire.receivers[0].bring(*[b"x"] * 10))
            most = 0
            await settled(*wire.receivers[0].bring(*[b"x"] * 30))
            assert most == workers
        assert wire.receivers[0].credits == [10, 60, 20]


async def test_sending(wire: InMemory) -> None:
    shop = app(traces=0)
    shop.topic("orders", key="id")
    shop.topic("spread", select=lambda payload, key, count: payload["id"] % count)
    async with shop:
        await shop.publish("orders", Order(7), headers={"trace": "t"})
        await shop.publish("orders", b"raw", key="k")
        await shop.publish("spread", {"id": 6})
        await shop.publish("later", "text", delay=5)
        with pytest.raises(ValueError, match="delay must be 0 or more"):
            await shop.publish("later", "text", delay=-1)
        with pytest.raises(TypeError, match="cannot be sent"):
            await shop.publish("orders", object())
    first, second, third, fourth = wire.sent
    assert (first.value, first.key, first.headers) == (b'{"id":7,"item":"tea"}', b"7", {"trace": b"t"})
    assert (second.value, second.key) == (b"raw", b"k")
    assert third.partition == 2
    assert (fourth.value, fourth.delay) == (b"text", 5)


async def test_what_is_sent_together_goes_out_together(wire: InMemory) -> None:
    shop = app()
    async with shop:
        futures = [await shop.send("orders", b"%d" % number) for number in range(2_500)]
        await shop.flush()
        assert all(each.done() for each in futures)
    assert wire.calls == [1_000, 1_000, 500]


async def test_a_send_that_fails_says_so(wire: InMemory) -> None:
    shop = app()
    wire.fails = PublishFailed("no broker")
    async with shop:
        with pytest.raises(PublishFailed, match="no broker"):
            await shop.publish("orders", b"x")
        await shop.send("orders", b"nobody waits for this one")


def test_what_cannot_be_declared() -> None:
    shop = app()
    with pytest.raises(ValueError, match="there is no scenario 'chaos'"):
        shop.subscribe("orders", scenario="chaos")
    with pytest.raises(TypeError, match="no speed"):
        shop.subscribe("orders", speed=3)
    with pytest.raises(ValueError, match=r"workers must be 1 or more \(got 0\)"):
        shop.subscribe("orders", workers=0)
    with pytest.raises(ValueError, match="needs a name"):
        App("")
    for url in ("http://x", "headrace://", "kafka://x?nsq=y"):
        with pytest.raises(ValueError, match=r"headrace://|no host|no option"):
            App("a", url)


async def test_a_scenario_that_the_system_cannot_serve_is_refused_at_the_start(wire: InMemory) -> None:
    for scenario in ("ordered", "stream"):
        shop = app(url="nsq://127.0.0.1")

        @shop.subscribe("orders", scenario=scenario)
        async def handle(raw: bytes) -> None: ...

        with pytest.raises(Unsuited, match="NSQ has no"):
            await shop.start()
    assert not wire.receivers
