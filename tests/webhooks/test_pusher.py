"""Pushing to a real receiver, from a broker with both wires, from its Kafka wire alone, and from one in memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.waiting import SECONDS, until
from tests.webhooks.receiver import Got, Receiver, receiving

import headrace
from headrace.client import EARLIEST, Client
from headrace.sdk import App, Message, Reject, Retry, Unsuited
from headrace.webhooks import breaker, verify
from headrace.webhooks.endpoint import Answer, Verdict
from headrace.webhooks.hook import Hook, Secrets
from headrace.webhooks.pusher import Pusher, Webhooks

SECRET = "whsec_" + "c2VjcmV0" * 6


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "PAUSE_FIRST", 0.05)
    monkeypatch.setattr(breaker, "PAUSE_MAX", 0.1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[headrace.Broker]:
    with headrace.Broker(tmp_path_factory.mktemp("data"), http="127.0.0.1:0") as running:
        yield running


@pytest.fixture(params=["headrace", "kafka", "memory"])
def url(request: pytest.FixtureRequest, broker: headrace.Broker) -> str:
    return {"headrace": broker.url, "kafka": f"kafka://{broker.kafka}", "memory": "memory://hooks"}[request.param]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "t" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


def hook(receiver: Receiver, **settings: Any) -> Hook:
    return Hook(receiver.url, **{"group": "g", "ladder": (0.05,), "secrets": Secrets([SECRET]), **settings})


@asynccontextmanager
async def pushing(url: str, topic: str, *hooks: Hook, **settings: Any) -> AsyncIterator[Webhooks]:
    started = asyncio.Event()
    webhooks = Webhooks(topic, hooks, url, grace=5.0, **settings)
    task = asyncio.create_task(webhooks.run(started.set))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    if not started.is_set():
        waiting.cancel()
        await task
    try:
        yield webhooks
    finally:
        webhooks.stop()
        await asyncio.wait_for(task, SECONDS)


async def send(url: str, topic: str, *values: str | bytes, **settings: Any) -> None:
    async with App("sender", url, register=False) as app:
        for value in values:
            await app.publish(topic, value, **settings)


def read_back(got: Got) -> str:
    verify(got.body, got.headers, SECRET)
    return got.body.decode()


async def letters(broker: headrace.Broker, topic: str, count: int = 0) -> list[tuple[bytes, str]]:
    """Value and reason of the dead letters of a queue, once there are so many."""
    async with asyncio.timeout(40), Client(broker.kafka) as client:
        while True:
            found = []
            if (f"{topic}.g.dead", 0) in await client.admin.sizes():
                async with client.consumer() as consumer:
                    await consumer.assign({(f"{topic}.g.dead", 0): EARLIEST})
                    async for record in consumer.records(await consumer.end_offsets()):
                        reason = dict(record.headers)["headrace-error"]
                        found.append((record.value or b"", (reason or b"").decode()))
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)


async def test_messages_are_pushed_signed(url: str, topic: str):
    async with receiving() as receiver:
        await send(url, topic, "before", key="k", headers={"colour": "red"})
        async with pushing(url, topic, hook(receiver)):
            await until(lambda: len(receiver.taken) == 1)
            await send(url, topic, *map(str, range(50)))
            await until(lambda: len(receiver.taken) == 51)
    assert sorted(map(read_back, receiver.taken)) == sorted(["before", *map(str, range(50))])
    first = receiver.taken[0].headers
    assert (first["ce-subject"], first["headrace-header-colour"]) == ("k", "red")
    assert first["ce-id"] == first["webhook-id"]
    assert first["ce-id"].startswith(topic + "/")
    assert len({got.id for got in receiver.taken}) == 51


async def test_from_now_on(broker: headrace.Broker, topic: str):
    url = broker.url
    async with receiving() as receiver:
        await send(url, topic, "before")
        async with pushing(url, topic, hook(receiver, from_now=True)):
            await send(url, topic, "after")
            await until(lambda: receiver.taken)
    assert [read_back(got) for got in receiver.got] == ["after"]


async def test_what_fails_comes_again(url: str, topic: str):
    tried: Counter[str] = Counter()

    def behave(got: Got) -> int:
        tried[read_back(got)] += 1
        return 500 if got.body == b"bad" and tried["bad"] < 4 else 200

    async with receiving(behave) as receiver, pushing(url, topic, hook(receiver)):
        await send(url, topic, "a", "bad", "b")
        await until(lambda: len(receiver.taken) == 3)
    assert tried == {"a": 1, "b": 1, "bad": 4}
    bad = [got for got in receiver.got if got.body == b"bad"]
    assert len({got.id for got in bad}) == 1
    assert [got.headers["headrace-attempt"] for got in bad] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("wire", ["headrace", "kafka"])
async def test_dead_letters_and_redrive(broker: headrace.Broker, topic: str, wire: str):
    url = broker.url if wire == "headrace" else f"kafka://{broker.kafka}"
    good = False

    def behave(got: Got) -> web.Response:
        if good or got.body == b"fine":
            return web.Response()
        return web.Response(status=422 if got.body == b"wrong" else 500, text="because")

    async with receiving(behave) as receiver, pushing(url, topic, hook(receiver, attempts=3)):
        # What is fine all the while says that the endpoint is.
        for _ in range(20):
            await send(url, topic, "fine")
        await send(url, topic, "wrong", "failing", "fine")
        await until(lambda: len(receiver.taken) == 21)
        await until(lambda: Counter(got.body for got in receiver.got)[b"failing"] == 3)
        dead = await letters(broker, topic, 2)
        assert sorted(dead) == [
            (b"failing", "tried 3 times: HTTP 500 Internal Server Error: because"),
            (b"wrong", "HTTP 422 Unprocessable Entity: because"),
        ]
        assert Counter(got.body for got in receiver.got)[b"wrong"] == 1
        if wire == "headrace":
            good = True
            path = f"http://{broker.http}/v1/redrive"
            request = urllib.request.Request(path, json.dumps({"topic": f"{topic}.g.dead"}).encode())
            step = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(request, timeout=SECONDS)))
            assert [each["outcome"] for each in step["results"]] == ["redriven"] * 2
            await until(lambda: len(receiver.taken) == 23)


@pytest.mark.parametrize("how", ["closed", "failing", "busy"])
async def test_nobody_is_given_up_because_the_endpoint_is_down(broker: headrace.Broker, topic: str, how: str):
    """More failures than attempts, and nothing dies, nothing is lost."""
    healthy = False

    def behave(got: Got) -> web.Response:
        if healthy:
            return web.Response()
        return web.Response(status=500) if how == "failing" else web.Response(status=503)

    async with receiving(behave) as receiver:
        one = hook(receiver, attempts=3, workers=4)
        if how == "closed":
            await receiver.stop()
        # All there from the beginning: one that comes alone may be tried three times before others have failed too.
        await send(broker.url, topic, *map(str, range(6)))
        async with pushing(broker.url, topic, one) as webhooks:
            [pusher] = webhooks.pushers
            await until(lambda: pusher.breaker.open)
            failed = pusher.figures.messages
            await until(lambda: sum(failed.values()) > 30)
            assert pusher.figures.waits
            # They wait in hand: nothing more is taken from the queue than was before.
            await send(broker.url, topic, *map(str, range(6, 30)))
            assert webhooks.app.running[0].waiting <= 8
            healthy = True
            if how == "closed":
                await receiver.start()
            await until(lambda: len({got.id for got in receiver.taken}) == 30)
            assert not pusher.breaker.open
            assert not pusher.figures.waits
    assert not await letters(broker, topic)


@pytest.mark.parametrize("status", [0, 302, 429, 502, 503, 504])
async def test_one_message_alone_and_an_endpoint_that_is_down(broker: headrace.Broker, topic: str, status: int):
    async with receiving(lambda got: status) as receiver:
        if not status:
            await receiver.stop()
        async with pushing(broker.url, topic, hook(receiver, attempts=2)) as webhooks:
            figures = webhooks.pushers[0].figures
            await send(broker.url, topic, "alone")
            await until(lambda: sum(figures.messages.values()) > 8)
            receiver.behave = lambda got: 200
            if not status:
                await receiver.start()
            await until(lambda: receiver.taken)
    assert not await letters(broker, topic)


async def test_the_bad_do_not_hold_up_the_good(broker: headrace.Broker, topic: str):
    """More bad ones than there are workers, all together: they look like an endpoint that is down, until a good one
    shows that it is not."""
    async with receiving(lambda got: 500 if got.body.startswith(b"bad") else 200) as receiver:
        bad = [f"bad {number}" for number in range(12)]
        async with pushing(broker.url, topic, hook(receiver, attempts=2, workers=2)):
            await send(broker.url, topic, *bad, *map(str, range(20)))
            await until(lambda: len({got.id for got in receiver.taken}) == 20, seconds=40)
            dead = await letters(broker, topic, 12)
    assert sorted(value.decode() for value, _ in dead) == sorted(bad)


async def test_an_endpoint_that_asks_for_time(url: str, topic: str):
    asked = False

    def behave(got: Got) -> web.Response:
        nonlocal asked
        if not asked:
            asked = True
            return web.Response(status=429, headers={"Retry-After": "1"})
        return web.Response()

    ordered = not url.startswith("kafka")
    async with receiving(behave) as receiver, pushing(url, topic, hook(receiver, workers=1, ordered=ordered)):
        await send(url, topic, "a", "b", "c")
        await until(lambda: len(receiver.taken) == 3)
    first, second, *_ = receiver.got
    assert second.at - first.at > 0.99
    # It was tried again where it was, without another delivery.
    assert [got.headers["headrace-attempt"] for got in receiver.got] == ["1"] * 4


async def test_gone(broker: headrace.Broker, topic: str):
    async with receiving(lambda got: 410) as gone, receiving() as other:
        hooks = [hook(gone), hook(other, group="other")]
        async with pushing(broker.url, topic, *hooks) as webhooks:
            await send(broker.url, topic, "a", "b")
            await until(lambda: len(other.taken) == 2)
            await until(lambda: webhooks.pushers[0].gone)
            count = len(gone.got)
            assert count <= 2
            await send(broker.url, topic, "c")
            await until(lambda: len(other.taken) == 3)
            assert len(gone.got) == count
            assert not webhooks.gone
    # Nothing was given up: whoever comes next gets it.
    assert not await letters(broker, topic)
    path = f"http://{broker.http}/v1/topics/{topic}/queues/g"
    shown = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(path, timeout=SECONDS)))
    assert (shown["finished"], shown["depth"] + shown["deferred"]) == (0, 3)


async def test_the_last_one_gone_is_the_end(topic: str):
    async with receiving(lambda got: 410) as receiver:
        webhooks = Webhooks(topic, [hook(receiver)], "memory://gone")
        task = asyncio.create_task(webhooks.run())
        await send("memory://gone", topic, "a")
        await asyncio.wait_for(task, SECONDS)
        assert webhooks.gone


async def test_batches(url: str, topic: str):
    async with receiving() as receiver:
        await send(url, topic, *map(str, range(100)))
        async with pushing(url, topic, hook(receiver, batch=20, workers=2, batch_wait=0.2)):
            await until(lambda: sum(len(json.loads(got.body)) for got in receiver.taken) == 100)
    events = [event for got in receiver.got for event in json.loads(read_back(got))]
    assert sorted(event["data"] for event in events) == list(range(100))
    assert len(receiver.got) < 30
    assert {got.headers["content-type"] for got in receiver.got} == {"application/cloudevents-batch+json"}


async def test_a_batch_with_a_bad_one_is_taken_apart(broker: headrace.Broker, topic: str):
    def behave(got: Got) -> web.Response:
        bad = any(event["data"] == 7 for event in json.loads(got.body))
        return web.Response(status=400, text="seven") if bad else web.Response()

    async with receiving(behave) as receiver:
        await send(broker.url, topic, *map(str, range(16)))
        async with pushing(broker.url, topic, hook(receiver, batch=16, workers=1, batch_wait=0.2)):
            await until(lambda: sum(len(json.loads(got.body)) for got in receiver.taken) >= 15)
            dead = await letters(broker, topic, 1)
    taken = [event["data"] for got in receiver.taken for event in json.loads(got.body)]
    assert sorted(taken) == [number for number in range(16) if number != 7]
    assert dead == [(b"7", "HTTP 400 Bad Request: seven")]


async def test_in_order(url: str, topic: str):
    """Of each key, whatever fails."""
    tried: Counter[bytes] = Counter()

    def behave(got: Got) -> int:
        tried[got.body] += 1
        return 500 if int(got.body) % 7 == 3 and tried[got.body] < 3 else 200

    async with receiving(behave) as receiver:
        async with App("sender", url, register=False) as app:
            for number in range(60):
                await app.publish(topic, str(number), key=str(number % 5))
        async with pushing(url, topic, hook(receiver, ordered=True, attempts=0)):
            await until(lambda: len(receiver.taken) >= 60, seconds=40)
    by_key: dict[str, list[int]] = {}
    for got in receiver.taken:
        by_key.setdefault(got.headers["ce-subject"], []).append(int(got.body))
    assert by_key == {str(key): list(range(key, 60, 5)) for key in range(5)}


async def test_in_order_there_is_an_end_of_trying_too(url: str, topic: str):
    one = {"ordered": True, "attempts": 3}
    async with receiving(lambda got: 500 if got.body == b"bad" else 200) as it, pushing(url, topic, hook(it, **one)):
        await send(url, topic, "bad", "good", key="k")
        await until(lambda: it.taken)
    assert Counter(got.body for got in it.got) == {b"bad": 3, b"good": 1}


async def test_a_filter(broker: headrace.Broker, topic: str):
    async with receiving() as receiver:
        async with pushing(broker.url, topic, hook(receiver, filter="region = eu")):
            await send(broker.url, topic, "us", headers={"region": "us"})
            await send(broker.url, topic, "eu", headers={"region": "eu"})
            await until(lambda: receiver.taken)
        async with pushing(broker.url, topic, hook(receiver, filter="region = us")):
            await send(broker.url, topic, "us 2", headers={"region": "us"})
            await until(lambda: len(receiver.taken) == 2)
    assert [got.body for got in receiver.got] == [b"eu", b"us 2"]
    with pytest.raises(Unsuited, match="filter"):
        async with pushing(f"kafka://{broker.kafka}", topic, hook(receiver, filter="region = eu")):
            pass
    with pytest.raises(Unsuited, match="filter"):
        async with pushing(broker.url, topic, hook(receiver, filter="region ~ eu")):
            pass


async def test_a_stop_lets_requests_finish_and_gives_back_what_waits(broker: headrace.Broker, topic: str):
    go = asyncio.Event()

    async def slow(got: Got) -> int:
        await go.wait()
        return 200

    async with receiving(slow) as receiver:
        one = hook(receiver, workers=2)
        webhooks = Webhooks(topic, [one], broker.url, grace=10.0)
        started = asyncio.Event()
        task = asyncio.create_task(webhooks.run(started.set))
        await started.wait()
        await send(broker.url, topic, *"abcdef")
        await until(lambda: len(receiver.got) == 2)
        webhooks.stop()
        await asyncio.sleep(0.1)
        assert not task.done()
        go.set()
        await asyncio.wait_for(task, SECONDS)
        taken = len(receiver.taken)
        assert taken >= 2

        # Another time, while the endpoint is down: nothing waits for its time.
        await receiver.stop()
        async with pushing(broker.url, topic, replace(one, ladder=(30.0,))) as webhooks:
            await send(broker.url, topic, *"ghij")
            await until(lambda: webhooks.pushers[0].breaker.open)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 20
        await receiver.start()
        async with pushing(broker.url, topic, replace(one, workers=8)):
            # Three of them failed before it was clear that the endpoint is down; they come after half a minute.
            await until(lambda: len({got.id for got in receiver.taken}) >= 7)


async def test_secrets_are_replaced_while_it_runs(topic: str, tmp_path: Path):
    file = tmp_path / "secrets"
    file.write_text(f"# one\n{SECRET}\n\n")
    url, secrets = "memory://secrets", Secrets(file=file)
    async with receiving() as receiver, pushing(url, topic, hook(receiver, secrets=secrets)):
        await send(url, topic, "a")
        await until(lambda: len(receiver.taken) == 1)
        file.write_text(f"{SECRET}\nanother secret of enough bytes\n")
        await send(url, topic, "b")
        await until(lambda: len(receiver.taken) == 2)
        file.unlink()
        await send(url, topic, "c")
        await until(lambda: len(receiver.taken) == 3)
    _, second, third = receiver.taken
    assert [len(got.headers["webhook-signature"].split()) for got in receiver.taken] == [1, 2, 2]
    for got in (second, third):
        assert verify(got.body, got.headers, "another secret of enough bytes")


async def test_what_is_seen_from_outside(topic: str):
    async with receiving(lambda got: 400 if got.body == b"b" else 200) as receiver:
        hooks = [hook(receiver), hook(receiver, group="h", headers={"Authorization": "Bearer x"}, secrets=None)]
        async with pushing("memory://seen", topic, *hooks, metrics="127.0.0.1:0") as webhooks:
            await send("memory://seen", topic, "a", "b")
            await until(lambda: len(receiver.got) == 4)
            path = f"http://{webhooks.metrics_address}/metrics"

            def look() -> str:
                return str(urllib.request.urlopen(path, timeout=SECONDS).read().decode())

            async with asyncio.timeout(SECONDS):
                while 'headrace_webhook_messages_total{messaging_consumer_group_name="h",result="refused"} 1.0' not in (
                    text := await asyncio.to_thread(look)
                ):
                    await asyncio.sleep(0.01)
    assert 'headrace_webhook_messages_total{messaging_consumer_group_name="g",result="taken"} 1.0' in text
    assert 'headrace_webhook_waiting{messaging_consumer_group_name="g"} 0.0' in text
    assert 'http_response_status_code="400"' in text
    assert "headrace_sdk_settled_messages_total" in text
    unsigned = [got for got in receiver.got if got.headers.get("authorization") == "Bearer x"]
    assert len(unsigned) == 2
    assert all("webhook-signature" not in got.headers and got.id for got in unsigned)


async def test_what_waits_too_long_goes_back_and_comes_again(broker: headrace.Broker, topic: str):
    async with receiving() as receiver:
        await receiver.stop()
        async with pushing(broker.url, topic, hook(receiver, attempts=2), hold=0.3) as webhooks:
            await send(broker.url, topic, *"abcd")
            path = f"http://{broker.http}/v1/topics/{topic}/queues/g"
            async with asyncio.timeout(SECONDS):
                while (await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(path, timeout=SECONDS))))[
                    "requeued"
                ] < 12:
                    await asyncio.sleep(0.05)
            assert webhooks.pushers[0].breaker.open
            await receiver.start()
            await until(lambda: len({got.id for got in receiver.taken}) == 4)
    assert max(int(got.headers["headrace-attempt"]) for got in receiver.taken) > 2
    assert not await letters(broker, topic)


async def test_a_header_of_ones_own_is_sent_once(topic: str):
    async with receiving() as receiver:
        own = hook(receiver, headers={"content-TYPE": "text/x"})
        async with pushing("memory://own", topic, own):
            await send("memory://own", topic, "a")
            await until(lambda: receiver.taken)
    assert receiver.taken[0].headers["content-type"] == "text/x"


async def test_two_urls_need_two_queues(topic: str):
    async with receiving() as receiver:
        with pytest.raises(ValueError, match="each needs its own"):
            Webhooks(topic, [hook(receiver), hook(receiver)], "memory://two")


@pytest.mark.parametrize("in_place", [False, True])
async def test_the_last_attempt_is_the_one_that_is_configured(in_place: bool):
    """By the count of the system, or by one's own where a message is tried again in its place."""
    pusher = Pusher(Hook("http://127.0.0.1:1/", group="g", attempts=3), in_place=in_place)
    failing = Answer(Verdict.FAILING, 500, "it broke")
    outcomes = []
    for attempt in (1, 2, 3):
        message = Message("orders", b"x", partition=0, offset=7, attempt=1 if in_place else attempt)
        outcomes.append(pusher._outcome(failing, message))
    assert [type(each) for each in outcomes] == [Retry, Retry, Reject]
    assert str(outcomes[2]) == "tried 3 times: it broke"
