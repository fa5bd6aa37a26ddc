"""The messages of a queue by state, and what an operator does with single ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served, add_user, basic, serving
from tests.waiting import until

from headrace.broker.audit import AUDIT
from headrace.broker.queues import Queue, Wanted, intervention
from headrace.doors.http.api.handlers.queue_messages import LIMIT_MAX, SELECTED_MAX
from headrace.format import records

MAIL = "/v1/topics/orders/queues/mail"
MESSAGES = MAIL + "/messages"


async def queue_of(served: Served, count: int, **settings: object) -> Queue:
    topic = await served.topic("orders", count)
    queue = await served.broker.queues.ensure(topic, "mail")
    await served.broker.queues.configure(queue, settings)
    return queue


async def listed(served: Served, state: str, query: str = "") -> list[dict[str, Any]]:
    status, answer = await served.ask("GET", f"{MESSAGES}?state={state}{query}")
    assert status == 200, answer
    return list(answer["messages"])


async def offsets(served: Served, state: str) -> list[int]:
    return [each["offset"] for each in await listed(served, state)]


async def act(served: Served, way: str, *given: int, **more: object) -> list[tuple[str, str]]:
    body = {"messages": [{"partition": 0, "offset": offset} for offset in given], **more}
    status, answer = await served.ask("POST", f"{MESSAGES}/{way}", body)
    assert status == 200, answer
    return [(each["outcome"], each.get("reason", "")) for each in answer["results"]]


async def test_each_state_shows_its_messages_and_nothing_changes(served: Served):
    queue = await queue_of(served, 8, order_by_key=True)
    topic = served.broker.topics.existing("orders")
    now = served.broker.runtime.clock.now_ms()
    # It has the key of message 0, which is in flight.
    topic.partitions[0].append(records.build([(now, b"0", b"again", [])]))
    await served.settled(topic)
    consumer, sink = await served.consume(queue, 3, credit=3)
    assert consumer.requeue(0, 1, 1, 60_000, "no stamps")
    await until(lambda: len(sink.messages) == 4)
    (lease,) = await queue.leases.receive(Wanted(1, 30_000), 0)
    consumer.ready(0)
    assert consumer.finish(0, 3, 1)
    before = (await served.ask("GET", MAIL))[1]
    flying = await listed(served, "in_flight")
    assert [(each["offset"], each["consumer"], each["attempts"], each["value"]) for each in flying] == [
        (0, "tester", 1, "0"),
        (2, "tester", 1, "2"),
        (lease.record[0], "lease", 1, "4"),
    ]
    assert all(now < each["deadline_ms"] <= now + 70_000 for each in flying)
    (deferred,) = await listed(served, "deferred")
    assert (deferred["offset"], deferred["error"], deferred["key"]) == (1, "no stamps", "1")
    assert now + 50_000 < deferred["due_ms"] <= now + 70_000
    assert await offsets(served, "ready") == [5, 6, 7]
    assert await offsets(served, "blocked") == []
    # The cursor passes it once somebody asks for more than is free.
    consumer.ready(10)
    await until(lambda: queue.figures().blocked == 1)
    assert await offsets(served, "blocked") == [8]
    assert await offsets(served, "dead") == []
    again = (await served.ask("GET", MAIL))[1]
    assert (again["deferred"], again["finished"]) == (before["deferred"], before["finished"])


async def test_looking_disturbs_no_delivery(served: Served):
    queue = await queue_of(served, 200)
    for state in ("ready", "in_flight", "deferred", "blocked", "dead"):
        await listed(served, state)
    _, sink = await served.consume(queue, 200)
    assert [(offset, attempt) for _, (offset, attempt, *_) in sink.messages] == [(each, 1) for each in range(200)]


@pytest.mark.parametrize("state", ["ready", "in_flight"])
async def test_pages_go_on_where_the_last_one_ended(served: Served, state: str):
    queue = await queue_of(served, 230)
    if state == "in_flight":
        await served.consume(queue, 230)
    found, after, pages = [], "", 0
    while True:
        _, answer = await served.ask("GET", f"{MESSAGES}?state={state}&limit=100&value_max=1&after={after}")
        found += [each["offset"] for each in answer["messages"]]
        pages += 1
        if not answer["next"]:
            break
        after = answer["next"]
    assert found == list(range(230))
    assert pages == 3


async def test_large_values_are_cut_and_masked_fields_hidden(served: Served):
    queue = await queue_of(served, 0)
    topic = served.broker.topics.existing("orders")
    await served.ask("PATCH", "/v1/topics/orders/settings", {"settings": {"mask": "card"}})
    value = json.dumps({"card": "4111", "note": "x" * 9_000}).encode()
    topic.partitions[0].append(records.build([(1, b"k", value, [("h", b"1")])]))
    await served.settled(topic)
    await served.consume(queue, 1)
    (shown,) = await listed(served, "in_flight", "&value_max=40")
    assert "4111" not in shown["value"]
    assert len(shown["value"]) == 40
    assert shown["value_bytes"] > 9_000
    assert shown["headers"] == [{"name": "h", "value": "1"}]


@pytest.mark.parametrize(
    ("method", "target", "body", "words"),
    [
        ("GET", "?state=sleeping", None, "state is 'sleeping'"),
        ("GET", f"?limit={LIMIT_MAX + 1}", None, f"1 to {LIMIT_MAX}"),
        ("GET", "?after=x", None, "after must be an earlier answer's"),
        ("POST", "/settle", {}, f"1 to {SELECTED_MAX}"),
        ("POST", "/settle", {"messages": [{"partition": 0, "offset": 0}] * (SELECTED_MAX + 1)}, f"1 to {SELECTED_MAX}"),
        ("POST", "/settle", {"messages": [{"partition": 0}]}, "the offset is missing"),
        ("POST", "/settle", {"messages": [7]}, "an object"),
        ("POST", "/settle", {"messages": [{"partition": 0, "offset": 0}], "delay_ms": 1}, "delay_ms"),
        ("POST", "/requeue", {"messages": [{"partition": 0, "offset": 0}], "delay_ms": -1}, "delay_ms"),
        ("POST", "/reject", {"messages": [{"partition": 0, "offset": 0}], "error": "x" * 1025}, "1024"),
    ],
)
async def test_what_makes_no_sense_is_refused_in_words(served: Served, method: str, target: str, body: Any, words: str):
    await queue_of(served, 1)
    status, answer = await served.ask(method, MESSAGES + target, body)
    assert status == 400
    assert words in answer["message"]


async def test_settling_takes_a_message_from_whoever_has_it(served: Served):
    queue = await queue_of(served, 10)
    consumer, sink = await served.consume(queue, 3, credit=3)
    assert consumer.requeue(0, 1, 1, 60_000)
    await until(lambda: len(sink.messages) == 4)
    consumer.ready(0)
    # In flight, deferred, ready and not delivered yet; settled before; not there.
    assert await act(served, "settle", 0, 1, 7) == [("done", "")] * 3
    again = await act(served, "settle", 0, 99)
    assert [outcome for outcome, _ in again] == ["refused", "refused"]
    assert "settled before" in again[0][1]
    assert not consumer.finish(0, 0, 1), "it comes too late"
    assert consumer.in_flight == 2
    assert await offsets(served, "ready") == [4, 5, 6, 8, 9]
    consumer.ready(100)
    await until(lambda: len(sink.messages) == 9)
    assert [offset for _, (offset, *_) in sink.messages[4:]] == [4, 5, 6, 8, 9]
    assert consumer.finish(0, 2, 1)
    assert (await served.ask("GET", MAIL))[1]["partitions"][0]["settled_below"] == 3


async def test_what_was_settled_stays_so_after_a_restart(served: Served):
    await queue_of(served, 10)
    assert await act(served, "settle", 0, 5) == [("done", "")] * 2
    await served.restart()
    assert await offsets(served, "ready") == [1, 2, 3, 4, 6, 7, 8, 9]


async def test_requeueing_delivers_again_at_once_or_later(served: Served):
    queue = await queue_of(served, 3, max_attempts=1)
    consumer, sink = await served.consume(queue, 3)
    # It was its last attempt; whoever gives it back by hand gives it one more.
    assert await act(served, "requeue", 0) == [("done", "")]
    await until(lambda: len(sink.messages) == 4)
    lane, (offset, attempt, *_) = sink.messages[3]
    assert (lane, offset, attempt) == (0, 0, 2)
    assert await act(served, "requeue", 1, delay_ms=60_000) == [("done", "")]
    (deferred,) = await listed(served, "deferred")
    assert (deferred["offset"], deferred["attempts"]) == (1, 1)
    assert await act(served, "requeue", 1) == [("done", "")]
    await until(lambda: len(sink.messages) == 5)
    assert consumer.in_flight == 3


async def test_a_lease_that_is_requeued_is_stale(served: Served):
    queue = await queue_of(served, 1)
    (lease,) = await queue.leases.receive(Wanted(1, 30_000), 0)
    assert await act(served, "requeue", 0) == [("done", "")]
    assert queue.leases.finish_many([lease.handle]) == [0]
    (again,) = await queue.leases.receive(Wanted(1, 30_000), 0)
    assert again.handle.attempt == 2


async def test_rejecting_sends_to_the_dead_letters(served: Served):
    queue = await queue_of(served, 10)
    consumer, sink = await served.consume(queue, 2, credit=2)
    assert consumer.requeue(0, 1, 1, 60_000)
    await until(lambda: len(sink.messages) == 3)
    consumer.ready(0)
    assert await act(served, "reject", 0, 1, 5, error="poison") == [("done", "")] * 3
    await until(lambda: queue.figures().dead == 3)
    _, letters = await served.ask("GET", "/v1/dead-letters/orders.mail.dead/messages")
    assert {(each["origin"]["offset"], each["error"]) for each in letters["messages"]} == {
        (0, "poison"),
        (1, "poison"),
        (5, "poison"),
    }
    assert consumer.in_flight == 1
    assert await offsets(served, "ready") == [3, 4, 6, 7, 8, 9]


async def test_order_by_key_is_kept(served: Served):
    """Messages 0, 10 and 20 have one key: what the cursor passes waits, and the next goes when the first is settled."""
    queue = await queue_of(served, 30, order_by_key=True)
    assert await act(served, "settle", 25) == [("done", "")]
    assert await offsets(served, "blocked") == [*range(10, 25)]
    ((outcome, reason),) = await act(served, "requeue", 10)
    assert outcome == "refused"
    assert "another message of its key" in reason
    assert await act(served, "settle", 0, 10) == [("done", "")] * 2
    _, sink = await served.consume(queue, 1, credit=100)
    await until(lambda: len(sink.messages) == 10)
    assert sorted(offset for _, (offset, *_) in sink.messages) == [*range(1, 10), 20]


async def test_a_filter_holds_for_what_the_cursor_passes(served: Served):
    queue = await queue_of(served, 12, filter="$key = 7")
    ((outcome, reason),) = await act(served, "settle", 5)
    assert outcome == "refused"
    assert "does not take it" in reason
    assert await act(served, "requeue", 7) == [("done", "")]
    _, sink = await served.consume(queue, 1)
    assert [offset for _, (offset, *_) in sink.messages] == [7]


async def test_what_lies_far_ahead_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intervention, "REACH_MAX", 50)
    await queue_of(served, 60)
    ((outcome, reason),) = await act(served, "settle", 50)
    assert outcome == "refused"
    assert "50 messages of its partition come before it" in reason
    assert await act(served, "settle", 49) == [("done", "")]


async def test_who_did_it_is_in_the_audit_and_among_the_events(tmp_path: Path):
    async with serving(tmp_path, audit="on", authorization="log-only") as served:
        add_user(served.broker, "ann", "secret")
        queue = await queue_of(served, 3, deliveries=1)
        served.headers = basic("ann", "secret")
        await act(served, "settle", 0, 1)
        await act(served, "requeue", 2)
        await served.broker.audit.flush()
        _, audit = await served.ask("GET", "/v1/audit?action=queue.settle")
        (entry,) = audit["entries"]
        assert (entry["user"], entry["name"], entry["detail"]) == ("ann", "orders/mail", "0/0 0/1")
        assert served.broker.topics.existing(AUDIT)
        await served.broker.deliveries.flush()
        topic = served.broker.topics.existing("__deliveries")
        await served.settled(topic)
        _, events = await served.ask("GET", "/v1/topics/__deliveries/messages")
        told = [json.loads(each["value"]) for each in events["messages"]]
        assert [(each["event"], each["consumer"]) for each in told] == [
            ("emptied", "operator ann"),
            ("requeued", "operator ann"),
        ]
        assert queue.figures().depth == 1
