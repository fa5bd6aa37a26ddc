"""Publishing over HTTP: one message and many, keys and partitions, ids that were there before."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served
from tests.waiting import until

from headrace.broker.reading import bytes_now
from headrace.broker.scrape import render
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.format.partitioning import partition_of
from headrace.log.interface import Topic

PATH = "/v1/topics/t/messages"


def stored(topic: Topic, partition: int = 0) -> list[tuple[int, bytes | None, bytes | None, Any]]:
    """Offset, key, value and headers of what a partition holds."""
    place = topic.partitions[partition]
    found = []
    position = place.start
    while position < place.high_watermark:
        raw = bytes_now(place.read(position, 1 << 25))
        assert raw is not None
        for at, header in batches_in(raw):
            if header.last_offset >= position:
                rows = records.parse(raw[at : at + header.size], 1 << 24)
                found += [(offset, key, value, headers) for offset, _, key, value, headers in rows]
                position = header.last_offset + 1
    return found


async def test_one_message(served: Served):
    topic = await served.topic("t")
    message = {"key": "k", "value": "grün", "headers": [{"name": "a", "value": "1"}, {"name": "b"}]}
    answer = {"topic": "t", "partition": 0, "offset": 0, "duplicate": False}
    assert await served.ask("POST", PATH, message) == (200, answer)
    packed = {"key_base64": b64encode(b"\xff").decode(), "value_base64": b64encode(b"\0\xfe").decode()}
    assert await served.ask("POST", PATH, packed) == (200, {**answer, "offset": 1})
    assert await served.ask("POST", PATH, {"key": "k"}) == (200, {**answer, "offset": 2})
    assert stored(topic) == [
        (0, b"k", "grün".encode(), [("a", b"1"), ("b", None)]),
        (1, b"\xff", b"\0\xfe", []),
        (2, b"k", None, []),
    ]


async def test_many_messages(served: Served):
    topic = await served.topic("t", partitions=4)
    keyed = [{"key": str(number), "value": str(number)} for number in range(20)]
    status, answer = await served.ask("POST", PATH, {"messages": [*keyed, {"value": "there", "partition": 3}]})
    assert status == 200
    assert len(answer["messages"]) == 21
    for number, each in enumerate(answer["messages"]):
        value = b"%d" % number if number < 20 else b"there"
        wanted = partition_of(value, 4) if number < 20 else 3
        assert each["partition"] == wanted
        assert (each["offset"], value) in [(row[0], row[2]) for row in stored(topic, wanted)]
    # Without a key they stay together.
    _, answer = await served.ask("POST", PATH, {"messages": [{"value": str(number)} for number in range(9)]})
    places = [(each["partition"], each["offset"]) for each in answer["messages"]]
    assert places == [(places[0][0], places[0][1] + number) for number in range(9)]


async def test_all_or_none(served: Served):
    topic = await served.topic("t", partitions=2, **{"max.message.bytes": "1000"})
    messages = [{"value": "small", "partition": 0}, {"value": "x" * 2_000, "partition": 1}]
    status, error = await served.ask("POST", PATH, {"messages": messages})
    assert (status, error["error"]) == (413, "BatchTooLarge")
    assert [stored(topic, index) for index in range(2)] == [[], []]


async def test_an_id_that_was_there_before(served: Served):
    topic = await served.topic("t", partitions=2)
    first = (await served.ask("POST", PATH, {"value": "one", "dedup_id": "1"}))[1]
    assert first["duplicate"] is False
    for _ in range(4):
        again = (await served.ask("POST", PATH, {"value": "one", "dedup_id": "1"}))[1]
        assert again == {**first, "duplicate": True}
    by_header = (await served.ask("POST", PATH, {"value": "one"}, **{"Headrace-Dedup-Id": "1"}))[1]
    assert by_header == {**first, "duplicate": True}
    named = {"value": "one", "headers": [{"name": "headrace-dedup-id", "value": "1"}]}
    assert (await served.ask("POST", PATH, named))[1] == {**first, "duplicate": True}
    assert len(stored(topic, 0)) + len(stored(topic, 1)) == 1
    assert stored(topic, first["partition"])[0][3] == [("headrace-dedup-id", b"1")]
    assert topic.config["deduplication.window.ms"] == "600000"
    figures = (await render(served.broker)).decode()
    assert 'headrace_topic_duplicate_records_total{topic="t"} 6.0' in figures
    assert "headrace_deduplication_ids 1.0" in figures

    await served.restart()
    assert (await served.ask("POST", PATH, {"value": "one", "dedup_id": "1"}))[1] == {**first, "duplicate": True}


async def test_ids_of_many(served: Served):
    topic = await served.topic("t")
    many = [{"value": "0", "dedup_id": "a"}, {"value": "1"}, {"value": "x", "dedup_id": "a"}]
    _, answer = await served.ask("POST", PATH, {"messages": many})
    assert [(each["offset"], each["duplicate"]) for each in answer["messages"]] == [(0, False), (1, False), (0, True)]
    _, answer = await served.ask("POST", PATH, {"messages": [{"value": "x", "dedup_id": "a"}, {"value": "2"}]})
    assert [(each["offset"], each["duplicate"]) for each in answer["messages"]] == [(0, True), (4, False)]
    assert [row[2] for row in stored(topic)] == [b"0", b"1", b"2"]


async def test_at_the_same_time(served: Served):
    """Many clients, one id: one of them is the first."""
    topic = await served.topic("t", partitions=4, durability="sync")
    asked = [served.ask("POST", PATH, {"value": "one", "dedup_id": "1"}) for _ in range(20)]
    answers = [answer for _, answer in await asyncio.gather(*asked)]
    assert sorted(each["duplicate"] for each in answers) == [False] + [True] * 19
    assert len({(each["partition"], each["offset"]) for each in answers}) == 1
    assert sum(len(stored(topic, index)) for index in range(4)) == 1


async def test_a_topic_that_wants_no_ids(served: Served):
    topic = await served.topic("t", **{"deduplication.window.ms": "0"})
    for _ in range(2):
        assert (await served.ask("POST", PATH, {"value": "one", "dedup_id": "1"}))[1]["duplicate"] is False
    assert len(stored(topic)) == 2


@pytest.mark.parametrize("id", [{}, {"dedup_id": "1"}])
async def test_a_topic_that_delays(served: Served, id: dict[str, str]):
    topic = await served.topic("t", delay="true")
    due = str(served.broker.runtime.clock.now_ms() + 2_000)
    later = {"value": "later", "headers": [{"name": "headrace-deliver-at", "value": due}], **id}
    assert (await served.ask("POST", PATH, later))[0] == 200
    if id:
        assert (await served.ask("POST", PATH, later))[1]["duplicate"] is True
    assert stored(topic) == []
    await until(lambda: [row[2] for row in stored(topic)] == [b"later"])


async def test_topics_that_are_missing(served: Served):
    assert (await served.ask("POST", PATH, {"value": "x"}))[0] == 404
    status, error = await served.ask("POST", "/v1/topics/__queues/messages", {"value": "x"})
    assert (status, error["error"]) == (400, "InvalidTopic")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "value"),
        ([], "object"),
        (b"{", "JSON"),
        ({"value": 7}, "value"),
        ({"value": "x", "value_base64": "eA=="}, "both"),
        ({"value_base64": "!"}, "Base64"),
        ({"value": "x", "partition": 1}, "partition is 1"),
        ({"value": "x", "partition": -2}, "partition"),
        ({"value": "x", "ttl": 7}, "ttl"),
        ({"value": "x", "dedup_id": ""}, "dedup_id"),
        ({"value": "x", "dedup_id": "x" * 1025}, "dedup_id"),
        ({"value": "x", "dedup_id": 7}, "dedup_id"),
        ({"value": "x", "dedup_id": "1", "headers": [{"name": "headrace-dedup-id", "value": "1"}]}, "both"),
        ({"value": "x", "headers": [{"name": "headrace-dedup-id", "value": "y" * 1025}]}, "1025"),
        ({"value": "x", "headers": {"a": "b"}}, "headers"),
        ({"messages": []}, "messages"),
        ({"messages": [7]}, "messages"),
        ({"messages": [{"value": "x"}], "value": "x"}, "value"),
        ({"messages": [{"value": "x"}, {}]}, "value"),
    ],
)
async def test_what_makes_no_sense(served: Served, body: Any, word: str):
    topic = await served.topic("t")
    status, error = await served.ask("POST", PATH, body)
    assert status == 400, error
    assert word in error["message"]
    assert stored(topic) == []


async def test_one_id_for_several(served: Served):
    await served.topic("t")
    body = {"messages": [{"value": "x"}, {"value": "y"}]}
    status, error = await served.ask("POST", PATH, body, **{"Headrace-Dedup-Id": "1"})
    assert status == 400
    assert "dedup_id" in error["message"]


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("media", "body"),
    [
        (FORM, b"value=one"),
        (FORM, b"%7B%22value%22%3A%22one%22%7D="),
        (FORM, b""),
        ("text/plain", b'{"value": "one"}'),
        ("multipart/form-data; boundary=x", b"--x--"),
        ("application/octet-stream", b'{"value": "one"}'),
    ],
)
async def test_what_a_web_page_can_have_a_browser_send_is_no_json(served: Served, media: str, body: bytes):
    topic = await served.topic("orders")
    for method, path in (
        ("POST", "/v1/topics/orders/messages"),
        ("PUT", "/v1/topics/orders/queues/mail"),
        ("POST", "/v1/topics/orders/queues/mail/empty"),
    ):
        status, answer = await served.ask(method, path, body, **{"Content-Type": media})
        assert (status, answer["error"]) == (415, "UnsupportedMediaType")
    assert topic.partitions[0].end == 0
    assert not served.broker.queues.of("orders")


@pytest.mark.parametrize(
    "media", ["application/json", "application/json; charset=utf-8", "application/vnd.x+json", FORM]
)
async def test_json_is_taken_by_its_names_and_as_curl_calls_it(served: Served, media: str):
    await served.topic("orders")
    status, _ = await served.ask("POST", "/v1/topics/orders/messages", b' {"value": "1"}', **{"Content-Type": media})
    assert status == 200
