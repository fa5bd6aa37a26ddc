"""Messages of all topics, and the life of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served, add_user, basic, serving
from tests.waiting import until

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rules import allow
from headrace.doors.http.api.handlers.lives import TOPICS_MAX
from headrace.format import records

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
DAY_MS = 86_400_000


async def put(
    served: Served, topic: str, key: bytes, value: bytes = b"x", at: int | None = None, trace: bytes = b""
) -> None:
    found = served.broker.log.topics.get(topic) or await served.topic(topic)
    now = served.broker.runtime.clock.now_ms() if at is None else at
    headers: list[tuple[str, bytes | None]] = [("traceparent", trace)] if trace else []
    found.partitions[0].append(records.build([(now, key, value, headers)]))
    await served.settled(found)


async def found(served: Served, query: str) -> list[str]:
    status, answer = await served.ask("GET", f"/v1/search?{query}")
    assert status == 200, answer
    assert answer["next"] is None
    return [each["id"] for each in answer["messages"]]


async def test_messages_are_found_in_all_topics(served: Served):
    now = served.broker.runtime.clock.now_ms()
    await put(served, "orders", b"42", at=now - DAY_MS)
    await put(served, "orders", b"43")
    await put(served, "paid", b"42", trace=PARENT)
    await put(served, "mail", b"42", trace=PARENT.replace(b"4bf9", b"0000"))
    assert await found(served, "key=42") == ["mail/0/0", "orders/0/0", "paid/0/0"]
    assert await found(served, f"key=42&since={now - 1000}") == ["mail/0/0", "paid/0/0"]
    assert await found(served, f"key=42&until={now - 1000}") == ["orders/0/0"]
    assert await found(served, "key=42&topics=*a*") == ["mail/0/0", "paid/0/0"]
    assert await found(served, f"trace={TRACE}") == ["paid/0/0"]
    assert await found(served, f"trace={TRACE}&key=43") == []
    assert await found(served, f"header=traceparent={PARENT.decode()}") == ["paid/0/0"]


async def test_a_search_goes_on_where_it_ended(served: Served):
    for topic in ("a", "b", "c"):
        await served.topic(topic, 30)
    seen: list[str] = []
    after, pages = "", 0
    while True:
        _, answer = await served.ask("GET", f"/v1/search?key=7&limit=2&after={after}")
        seen += [each["id"] for each in answer["messages"]]
        pages += 1
        assert len(answer["messages"]) <= 2
        if answer["next"] is None:
            break
        after = answer["next"]
        if pages == 1:
            # Where a topic is gone meanwhile, the next one follows.
            await served.broker.topics.delete("b")
    assert seen == ["a/0/7", "a/0/17", "a/0/27", "c/0/7", "c/0/17", "c/0/27"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/search", "nothing is searched for"),
        ("/v1/search?trace=nonsense", "32 small hex digits"),
        ("/v1/search?key=1&after=x", "after must be an earlier answer's"),
        ("/v1/search?key=1&limit=1001", "1 to 1000"),
        ("/v1/life?id=nonsense", "neither a message"),
        ("/v1/life?id=a/0/0&topics=" + ",".join(["t"] * (TOPICS_MAX + 1)), f"{TOPICS_MAX} are the most"),
    ],
)
async def test_what_makes_no_sense_is_refused_in_words(served: Served, path: str, words: str):
    status, answer = await served.ask("GET", path)
    assert (status, words in answer["message"]) == (400, True), answer


async def life(served: Served, id: str) -> dict[str, Any]:
    status, answer = await served.ask("GET", f"/v1/life?id={id}")
    assert status == 200, answer
    return dict(answer)


async def test_the_life_of_a_message_across_queues_retries_and_dead_letters(served: Served):
    """Delivered, given back, dead, sent back, and finished; and what else belongs to its trace."""
    await put(served, "orders", b"42", b"boots", trace=PARENT)
    await put(served, "paid", b"42", trace=PARENT)
    await put(served, "other", b"42", b"no part of it")
    broker = served.broker
    queue = await broker.queues.ensure(broker.topics.existing("orders"), "mail")
    await broker.queues.configure(queue, {"deliveries": 1, "max_attempts": 2})
    consumer, sink = await served.consume(queue, 1)
    assert consumer.requeue(0, 0, 1, 1, "no stamps")
    await until(lambda: len(sink.messages) == 2)
    assert consumer.requeue(0, 0, 2, 0, "no stamps")
    await until(lambda: queue.figures().dead == 1)
    status, sent = await served.ask("POST", "/v1/redrive", {"topic": "orders.mail.dead"})
    assert (status, sent["results"][0]["outcome"]) == (200, "redriven")
    await until(lambda: len(sink.messages) == 3)
    assert consumer.finish(0, 1, 1)
    await broker.deliveries.flush()
    await served.settled(broker.topics.existing("__deliveries"))
    told = await life(served, "orders/0/0")
    assert told["trace"] == TRACE
    # Steps of one millisecond may come in any order.
    assert sorted((each["message"], each["what"], each.get("who", "")) for each in told["steps"]) == sorted(
        [
            ("orders/0/0", "published", ""),
            ("paid/0/0", "published", ""),
            ("orders/0/0", "delivered", "mail"),
            ("orders/0/0", "requeued", "mail"),
            ("orders/0/0", "delivered", "mail"),
            ("orders/0/0", "requeued", "mail"),
            ("orders/0/0", "dead", "mail"),
            ("orders/0/0", "put aside", "mail"),
            ("orders/0/1", "sent back", ""),
            ("orders/0/1", "delivered", "mail"),
            ("orders/0/1", "finished", "mail"),
        ]
    )
    assert [each["t"] for each in told["steps"]] == sorted(each["t"] for each in told["steps"])
    assert {each["id"] for each in told["messages"]} == {"orders/0/0", "orders/0/1", "paid/0/0", "orders.mail.dead/0/0"}
    dead = next(each for each in told["steps"] if each["what"] == "put aside")
    assert (dead["error"], dead["at"]) == ("no stamps", "orders.mail.dead/0/0")
    states = {(each["message"], each["name"]): each["state"] for each in told["readers"]}
    assert states["orders/0/1", "mail"] == "finished"
    assert (await life(served, TRACE))["steps"] == told["steps"]


async def test_only_what_may_be_read_is_told(tmp_path: Path):
    async with serving(tmp_path, authorization="on") as served:
        add_user(served.broker, "ann", "secret")
        for topic in ("mine", "secret"):
            await put(served, topic, b"42", trace=PARENT)
        served.headers = basic("ann", "secret")
        assert await found(served, "key=42") == []
        served.broker.security.set_rules([allow("ann", Operation.READ, Resource.TOPIC, "mine")])
        assert await found(served, "key=42") == ["mine/0/0"]
        assert [each["id"] for each in (await life(served, TRACE))["messages"]] == ["mine/0/0"]
        for topic in ("secret", "missing"):
            assert (await served.ask("GET", f"/v1/life?id={topic}/0/0"))[0] == 403
        assert (await life(served, "mine/0/0"))["messages"][0]["value"] == "x"


async def test_masks_hold_and_what_takes_too_long_is_said(tmp_path: Path):
    async with serving(tmp_path, search_ms=1) as served:
        await served.topic("cards", mask="key")
        await put(served, "cards", b"4111", trace=PARENT)
        for number in range(40):
            await served.topic(f"t{number:02}", 2_000, partitions=2)
        told = await life(served, "cards/0/0")
        assert "4111" not in str(told)
        assert any("not all was looked through" in each for each in told["notes"])


async def test_searches_are_bounded(tmp_path: Path):
    async with serving(tmp_path, searches_max=1) as served:
        await put(served, "t", b"1")
        async with served.broker.search.turn(1, 1):
            assert (await served.ask("GET", "/v1/search?key=1"))[0] == 503
            assert (await served.ask("GET", "/v1/life?id=t/0/0"))[0] == 503
