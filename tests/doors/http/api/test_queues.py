from __future__ import annotations

import json
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served
from tests.waiting import until

from headrace.broker.queues.delivery import Look
from headrace.doors.http.api.responses import PAGE_BYTES
from headrace.format import compression, records

ORDERS = "/v1/topics/orders/queues"
MAIL = ORDERS + "/mail"


async def test_a_queue_from_its_making_to_its_end(served: Served):
    await served.topic("orders", 5)
    status, made = await served.ask("PUT", MAIL, {"settings": {"timeout_ms": 5_000, "backoff_ms": [1, 2]}})
    assert status == 201
    assert (made["topic"], made["queue"], made["paused"], made["depth"]) == ("orders", "mail", False, 5)
    assert made["settings"]["timeout_ms"] == 5_000
    assert made["settings"]["backoff_ms"] == [1, 2]
    assert made["dead_letter_topic"] == "orders.mail.dead"
    assert made["partitions"] == [{"partition": 0, "settled_below": 0, "end": 5}]
    assert made["age_ms"] >= 0

    status, shown = await served.ask("GET", MAIL)
    assert (status, {**shown, "age_ms": 0}) == (200, {**made, "age_ms": 0})
    status, listed = await served.ask("GET", "/v1/queues")
    assert status == 200
    assert [(each["topic"], each["queue"], each["depth"]) for each in listed["queues"]] == [("orders", "mail", 5)]
    assert (await served.ask("GET", ORDERS))[1]["queues"][0]["queue"] == "mail"

    status, changed = await served.ask("PATCH", MAIL, {"settings": {"max_attempts": 3, "order_by_key": True}})
    assert status == 200
    assert changed["settings"]["max_attempts"] == 3
    assert changed["settings"]["timeout_ms"] == 5_000

    status, gone = await served.ask("DELETE", MAIL)
    assert (status, gone) == (200, {"topic": "orders", "queue": "mail", "deleted": True})
    assert (await served.ask("GET", MAIL))[0] == 404


async def test_queues_are_searched_sorted_and_in_pages(served: Served):
    for number in range(12):
        topic = await served.topic(f"t{number:02}", number)
        await served.broker.queues.ensure(topic, "mail" if number % 2 else "audit")

    async def names(query: str) -> tuple[list[str], int]:
        status, answer = await served.ask("GET", f"/v1/queues{query}")
        assert status == 200, answer
        return [f"{each['topic']}/{each['queue']}" for each in answer["queues"]], answer["total"]

    every, total = await names("")
    assert (len(every), total) == (12, 12), "all of them, where no limit is given"
    assert every == sorted(every)
    assert await names("?search=mail&limit=2&offset=1") == (["t03/mail", "t05/mail"], 6)
    assert await names("?search=t1*&sort=queue") == (["t10/audit", "t11/mail"], 2)
    assert await names("?sort=depth&order=desc&limit=3") == (["t11/mail", "t10/audit", "t09/mail"], 12)
    status, refused = await served.ask("GET", "/v1/queues?limit=10001")
    assert (status, refused["error"]) == (400, "BadRequest")


async def test_figures_and_subscriptions(served: Served):
    topic = await served.topic("orders", 5)
    queue = await served.broker.queues.ensure(topic, "mail")
    consumer, sink = await served.consume(queue, 3, credit=3)
    for lane, (offset, attempt, *_) in sink.messages[:1]:
        assert consumer.finish(lane, offset, attempt)
    await until(lambda: len(sink.messages) == 4)
    assert consumer.requeue(0, 1, 1, 60_000, "no stamps")
    await until(lambda: len(sink.messages) == 5)
    _, shown = await served.ask("GET", MAIL)
    assert (shown["depth"], shown["in_flight"], shown["deferred"], shown["consumers"]) == (0, 3, 1, 1)
    assert (shown["delivered"], shown["finished"], shown["requeued"]) == (5, 1, 1)
    (subscription,) = shown["subscriptions"]
    assert subscription["label"] == "tester"
    assert (subscription["credit"], subscription["in_flight"], subscription["finished"]) == (3, 3, 1)
    assert shown["partitions"][0]["settled_below"] == 1


async def test_pause_stops_deliveries_and_unpause_starts_them(served: Served):
    topic = await served.topic("orders", 5)
    queue = await served.broker.queues.ensure(topic, "mail")
    assert (await served.ask("POST", MAIL + "/pause"))[1]["paused"] is True
    _, sink = await served.consume(queue, 0)
    assert (await served.ask("GET", MAIL))[1]["depth"] == 5
    assert sink.messages == []
    assert (await served.ask("POST", MAIL + "/unpause"))[1]["paused"] is False
    await until(lambda: len(sink.messages) == 5)


async def test_empty_settles_what_is_there(served: Served):
    topic = await served.topic("orders", 5)
    queue = await served.broker.queues.ensure(topic, "mail")
    await served.consume(queue, 2, credit=2)
    status, emptied = await served.ask("POST", MAIL + "/empty")
    assert status == 200
    assert (emptied["depth"], emptied["in_flight"], emptied["age_ms"]) == (0, 0, 0)
    assert topic.partitions[0].start == 0


async def test_deleting_cuts_consumers_off(served: Served):
    topic = await served.topic("orders", 1)
    queue = await served.broker.queues.ensure(topic, "mail")
    _, sink = await served.consume(queue, 1)
    assert (await served.ask("DELETE", MAIL))[0] == 200
    assert sink.reason


async def test_peek_touches_nothing(served: Served):
    topic = await served.topic("orders", 20)
    odd = (served.broker.runtime.clock.now_ms(), None, b"\xff\x00", [("h", b"1"), ("b", b"\xfe"), ("n", None)])
    topic.partitions[0].append(records.build([odd]))
    await served.settled(topic)
    await served.ask("PUT", MAIL)
    for _ in range(2):
        _, peeked = await served.ask("GET", MAIL + "/peek?limit=2")
        assert [(each["partition"], each["offset"], each["attempts"]) for each in peeked["messages"]] == [
            (0, 0, 0),
            (0, 1, 0),
        ]
        assert [(each["key"], each["value"]) for each in peeked["messages"]] == [("0", "0"), ("1", "1")]
    assert len((await served.ask("GET", MAIL + "/peek"))[1]["messages"]) == 10
    last = (await served.ask("GET", MAIL + "/peek?limit=1000"))[1]["messages"][-1]
    assert last["key"] is None
    assert last["value_base64"] == "/wA="
    assert last["headers"] == [
        {"name": "h", "value": "1"},
        {"name": "b", "value_base64": "/g=="},
        {"name": "n", "value": None},
    ]
    assert (await served.ask("GET", MAIL))[1]["depth"] == 21


@pytest.mark.parametrize(
    ("start", "depth"), [("earliest", 5), ("latest", 0), (3, 2), (99, 0), ({"time_ms": 0}, 5), (None, 0)]
)
async def test_where_a_queue_begins(served: Served, start: object, depth: int):
    await served.topic("orders", 5)
    await served.ask("PUT", ORDERS + "/first")
    status, made = await served.ask("PUT", MAIL, {"from": start})
    assert status == 201
    assert made["depth"] == depth


async def test_an_ephemeral_queue_by_its_name_in_the_path(served: Served):
    await served.topic("orders", 5)
    assert (await served.ask("PUT", ORDERS + "/tail%23ephemeral"))[1]["queue"] == "tail#ephemeral"
    assert (await served.ask("GET", ORDERS + "/tail%23ephemeral"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "word"),
    [
        ("GET", "/v1/topics/none/queues", None, 404, "UnknownTopic", "none"),
        ("GET", "/v1/topics/none/queues/mail", None, 404, "UnknownTopic", "none"),
        ("GET", ORDERS + "/none", None, 404, "UnknownQueue", "none"),
        ("PUT", "/v1/topics/none/queues/mail", None, 404, "UnknownTopic", "none"),
        ("PUT", MAIL, None, 409, "QueueExists", "mail"),
        ("PUT", ORDERS + "/a%20b", None, 400, "InvalidQueue", "a b"),
        ("PUT", ORDERS + "/" + "n" * 256, None, 400, "InvalidQueue", "255"),
        ("PUT", ORDERS + "/new", {"from": "soon"}, 400, "BadRequest", "soon"),
        ("PUT", ORDERS + "/new", {"from": -3}, 400, "BadRequest", "-3"),
        ("PUT", ORDERS + "/new", {"from": True}, 400, "BadRequest", "True"),
        ("PUT", ORDERS + "/new", {"from": {"time_ms": "x"}}, 400, "BadRequest", "time_ms"),
        ("PUT", ORDERS + "/new", {"form": 1}, 400, "BadRequest", "form"),
        ("PUT", ORDERS + "/new", {"settings": {"timeout_ms": -1}}, 400, "InvalidQueueSetting", "timeout_ms"),
        ("PUT", ORDERS + "/new", {"settings": {"nonsense": 1}}, 400, "InvalidQueueSetting", "nonsense"),
        ("PUT", ORDERS + "/new", {"settings": {"timeout_max_ms": 1}}, 400, "InvalidQueueSetting", "timeout_max_ms"),
        ("PUT", "/v1/topics/__queues/queues/mail", None, 400, "InvalidTopic", "__queues"),
        ("PUT", ORDERS + "/new", b"{", 400, "BadRequest", "JSON"),
        ("PUT", ORDERS + "/new", b"[1]", 400, "BadRequest", "array"),
        ("PUT", ORDERS + "/new", b"\xff\xfe", 400, "BadRequest", "JSON"),
        ("PUT", ORDERS + "/new", b"[" * 60_000, 400, "BadRequest", "JSON"),
        ("PUT", ORDERS + "/new", b"x" * 70_000, 413, "RequestTooLarge", "65536"),
        ("PATCH", MAIL, {"settings": {"timeout_ms": "soon"}}, 400, "InvalidQueueSetting", "timeout_ms"),
        ("PATCH", MAIL, {"settings": {"filter": "a ="}}, 400, "InvalidQueueSetting", "filter"),
        ("PATCH", MAIL, {"settings": [1]}, 400, "BadRequest", "settings"),
        ("PATCH", ORDERS + "/none", {"settings": {}}, 404, "UnknownQueue", "none"),
        ("DELETE", ORDERS + "/none", None, 404, "UnknownQueue", "none"),
        ("POST", ORDERS + "/none/pause", None, 404, "UnknownQueue", "none"),
        ("POST", MAIL, None, 405, "MethodNotAllowed", "PATCH"),
        ("GET", MAIL + "/empty", None, 405, "MethodNotAllowed", "POST"),
        ("GET", MAIL + "/peek?limit=0", None, 400, "BadRequest", "limit"),
        ("GET", MAIL + "/peek?limit=x", None, 400, "BadRequest", "limit"),
        ("GET", MAIL + "/peek?limt=1", None, 400, "BadRequest", "limt"),
        ("GET", "/v1/queues?topic=orders", None, 400, "BadRequest", "topic"),
        ("GET", "/v1/nothing", None, 404, "UnknownPath", "/v1/nothing"),
        ("GET", "/v1/", None, 404, "UnknownPath", "/v1/"),
    ],
)
async def test_what_goes_wrong(served: Served, method: str, path: str, body: object, status: int, code: str, word: str):
    await served.topic("orders", 1)
    await served.ask("PUT", MAIL)
    answered, error = await served.ask(method, path, body)
    assert (answered, error["error"]) == (status, code)
    assert word in error["message"]
    assert [queue.name for queue in served.broker.queues.all()] == ["mail"]


async def test_pages_of_other_sites_change_nothing(served: Served):
    await served.topic("orders", 1)
    await served.ask("PUT", MAIL)
    status, error = await served.ask("POST", MAIL + "/empty", Origin="http://evil.example")
    assert (status, error["error"]) == (403, "ForeignOrigin")
    assert (await served.ask("GET", MAIL))[1]["depth"] == 1
    own = "http://" + served.server.addresses["http"]
    assert (await served.ask("POST", MAIL + "/empty", Origin=own))[0] == 200
    assert (await served.ask("GET", MAIL, Origin="http://evil.example"))[0] == 403


async def test_figures_are_right_after_a_restart(served: Served):
    topic = await served.topic("orders", 5)
    await served.ask("PUT", ORDERS + "/second", {"from": "earliest"})
    await served.ask("PUT", MAIL, {"from": "earliest", "settings": {"timeout_ms": 1_234}})
    queue = served.broker.queues.get(topic.name, "mail")
    assert queue is not None
    consumer, _ = await served.consume(queue, 2, credit=2)
    consumer.ready(0)
    assert consumer.finish(0, 1, 1)
    assert consumer.requeue(0, 0, 1, 3_600_000)
    await served.ask("POST", MAIL + "/pause")
    await served.restart()
    _, listed = await served.ask("GET", "/v1/queues")
    figures = [(each["queue"], each["depth"], each["deferred"], each["paused"]) for each in listed["queues"]]
    assert figures == [("mail", 3, 1, True), ("second", 5, 0, False)]
    assert all(each["age_ms"] > 0 for each in listed["queues"])
    await served.restart()
    _, shown = await served.ask("GET", MAIL)
    assert (shown["depth"], shown["deferred"], shown["settings"]["timeout_ms"]) == (3, 1, 1_234)
    await served.restart()
    _, peeked = await served.ask("GET", MAIL + "/peek")
    assert [each["offset"] for each in peeked["messages"]] == [2, 3, 4]


async def append(served: Served, *values: bytes, compression: int = 0) -> None:
    """Append a batch to the topic `orders`."""
    topic = served.broker.topics.all["orders"]
    now = served.broker.runtime.clock.now_ms()
    topic.partitions[0].append(records.build([(now, None, each, []) for each in values], compression=compression))
    await served.settled(topic)


async def pages(served: Served) -> list[list[dict[str, Any]]]:
    """All that peeks show, one going on where the other ended."""
    found = []
    behind = ""
    while True:
        status, answer = await served.ask("GET", f"{MAIL}/peek?limit=1000{behind}")
        assert status == 200
        assert len(json.dumps(answer["messages"], ensure_ascii=False)) <= PAGE_BYTES + 10_000
        assert answer["truncated"] == (answer["next"] is not None)
        found.append(answer["messages"])
        if answer["next"] is None:
            return found
        behind = f"&from={answer['next']}"


async def test_a_peek_at_large_messages_is_cut_and_goes_on(served: Served):
    await served.topic("orders")
    for _ in range(20):
        # Six bytes of JSON for each.
        await append(served, bytes(300_000))
    await served.ask("PUT", MAIL)
    found = await pages(served)
    assert [len(page) for page in found] == [2] * 10
    assert [each["offset"] for page in found for each in page] == list(range(20))
    # A limit is no cut, and says where to go on too.
    status, answer = await served.ask("GET", MAIL + "/peek?limit=1")
    assert (status, answer["truncated"], answer["next"]) == (200, False, "0:1")
    assert (await served.ask("GET", MAIL + "/peek?from=here"))[0] == 400


async def test_a_message_that_is_larger_than_an_answer_is_shown_without_its_bytes(served: Served):
    await served.topic("orders")
    await append(served, b"before")
    await append(served, bytes(900_000))
    await append(served, b"behind")
    await served.ask("PUT", MAIL)
    (first, large, last) = [each for page in await pages(served) for each in page]
    assert (first["value"], last["value"]) == ("before", "behind")
    assert (large["offset"], large["cut"], large["value_bytes"], large["key_bytes"]) == (1, True, 900_000, None)
    assert large["value"] is None


@pytest.mark.parametrize("codec", [compression.GZIP, compression.ZSTD])
async def test_a_peek_at_what_unpacks_to_much_stays_small_and_off_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch, codec: int
):
    await served.topic("orders")
    for _ in range(3):
        # Twenty megabytes in a few kilobytes.
        await append(served, *[b"x" * 100_000] * 200, compression=codec)
    await served.ask("PUT", MAIL)
    run, unpacked = served.broker.runtime.offload.run, []

    def watch(function: Any, *args: Any) -> Any:
        unpacked.append(function)
        return run(function, *args)

    monkeypatch.setattr(served.broker.runtime.offload, "run", watch)
    status, answer = await served.ask("GET", MAIL + "/peek?limit=1000")
    assert (status, answer["truncated"], answer["next"]) == (200, True, "0:41")
    assert len(answer["messages"]) == 41
    assert unpacked.count(Look) == 1


async def test_requests_are_counted_by_their_route(served: Served):
    await served.topic("orders", 1)
    for status in (201, 409):
        assert (await served.ask("PUT", MAIL))[0] == status
    await served.ask("GET", "/v1/nothing")
    counts = served.broker.metrics.api("http", "PUT /v1/topics/{topic}/queues/{queue}")
    assert (counts.requests, counts.errors) == (2, {"QueueExists": 1})
    assert sum(counts.latency.counts) == 2
    assert [api for door, api in served.broker.metrics.apis if door == "http"] == [counts.name]
