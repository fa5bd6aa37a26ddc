"""`POST /topics/NAME`: the body is the value; the rest stands in the query, in headers, or in a CloudEvent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served
from tests.doors.http.api.test_publish import stored
from tests.waiting import until

from headrace.format.delay import MAX_DELAY_MS
from headrace.format.partitioning import partition_of

EVENT = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order.placed"}
STRUCTURED = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
BATCH = {"Content-Type": "application/cloudevents-batch+json"}
LINES = {"Content-Type": "application/x-ndjson"}
ANSWER = {"topic": "t", "partition": 0, "offset": 0, "duplicate": False}


async def test_the_body_is_the_value(served: Served):
    topic = await served.topic("t")
    assert await served.ask("POST", "/topics/t", b"one tea") == (200, ANSWER)
    assert await served.ask("POST", "/topics/t", b"\0\xff", **{"Content-Type": "image/png"}) == (
        200,
        {**ANSWER, "offset": 1},
    )
    # What curl says when nobody told it the type, and a body that is empty.
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    await served.ask("POST", "/topics/t", b"a=b", **form)
    await served.ask("POST", "/topics/t", b"")
    assert stored(topic) == [
        (0, None, b"one tea", []),
        (1, None, b"\0\xff", [("content-type", b"image/png")]),
        (2, None, b"a=b", []),
        (3, None, b"", []),
    ]


async def test_what_else_belongs_to_it(served: Served):
    topic = await served.topic("t", partitions=4)
    query = "?key=a%20b%ff&header.Trace=7&header.Trace=8&header.gr%C3%BCn=%C3%BC"
    _, said = await served.ask("POST", "/topics/t" + query, b"x")
    assert said["partition"] == partition_of(b"a b\xff", 4)
    expected = [("Trace", b"7"), ("Trace", b"8"), ("grün", "ü".encode())]
    assert stored(topic, said["partition"]) == [(0, b"a b\xff", b"x", expected)]

    headers = {
        "Headrace-Key": "k",
        "Headrace-Partition": "3",
        "Headrace-Header-Colour": "red",
        "Headrace-Dedup-Id": "1",
        "traceparent": "00-ab-cd-01",
        "X-Other": "no",
    }
    _, said = await served.ask("POST", "/topics/t", b"y", **headers)
    assert (said["partition"], said["duplicate"]) == (3, False)
    expected = [("colour", b"red"), ("traceparent", b"00-ab-cd-01"), ("headrace-dedup-id", b"1")]
    key, value, found = stored(topic, 3)[-1][1:]
    assert (key, value, sorted(found)) == (b"k", b"y", sorted(expected))
    _, again = await served.ask("POST", "/topics/t?dedup_id=1", b"y")
    assert again == {**said, "duplicate": True}


@pytest.mark.parametrize(
    ("path", "headers", "word"),
    [
        ("?ttl=7", {}, "ttl"),
        ("", {"Headrace-Ttl": "7"}, "headrace-ttl"),
        ("?key=a", {"Headrace-Key": "b"}, "twice"),
        ("?key=a&key=b", {}, "twice"),
        ("?header.=b", {}, "name"),
        ("?header.%ff=b", {}, "UTF-8"),
        ("?partition=1", {}, "partition is 1"),
        ("?partition=-1", {}, "partition"),
        ("?partition=x", {}, "partition"),
        ("?dedup_id=", {}, "dedup_id"),
        ("?dedup_id=" + "x" * 1025, {}, "1024"),
        ("?dedup_id=1&header.headrace-dedup-id=1", {}, "both"),
        ("?dedup=event", {}, "CloudEvent"),
        ("?delay=soon", {}, "delay"),
        ("?delay=-1", {}, "delay"),
        ("?delay=", {}, "delay"),
        ("?delay=%ff", {}, "UTF-8"),
        ("?delay=1s&deliver_at=1", {}, "both"),
        ("?delay=1s", {"Headrace-Deliver-At": "1"}, "both"),
        ("?delay=1500w", {}, "25 years"),
        ("?deliver_at=tomorrow", {}, "deliver_at"),
        ("?deliver_at=2030-01-01T00:00:00", {}, "zone"),
        ("?deliver_at=99999999999999", {}, "25 years"),
        ("?deliver_at=1000000000000000000000", {}, "deliver_at"),
        ("?key=a", LINES, "key"),
        ("?header.a=b", LINES, "a does not apply"),
        ("?dedup_id=1", BATCH, "dedup_id"),
        ("", STRUCTURED, "JSON"),
    ],
)
async def test_what_makes_no_sense(served: Served, path: str, headers: dict[str, str], word: str):
    topic = await served.topic("t")
    status, error = await served.ask("POST", "/topics/t" + path, b"x", **headers)
    assert status == 400, error
    assert word in error["message"]
    assert stored(topic) == []
    assert served.broker.timer.pending == 0


async def test_limits_at_their_edges(served: Served):
    await served.topic("ids")
    assert (await served.ask("POST", "/topics/ids?dedup_id=" + "x" * 1024, b"x"))[0] == 200
    topic = await served.topic("t", **{"max.message.bytes": "1000"})
    # A batch's head has 61 bytes, a record some more.
    sizes = [size for size in range(900, 1000) if (await served.ask("POST", "/topics/t", b"x" * size))[0] == 200]
    assert sizes == list(range(900, sizes[-1] + 1))
    end = topic.partitions[0].end
    status, error = await served.ask("POST", "/topics/t", b"x" * (sizes[-1] + 1))
    assert (status, error["error"]) == (413, "BatchTooLarge")
    status, error = await served.ask("POST", "/topics/t?delay=1h", b"x" * (sizes[-1] + 1))
    assert (status, error["error"]) == (413, "BatchTooLarge")
    assert (await served.ask("POST", "/topics/t?delay=1h", b"x" * sizes[-1]))[0] == 200
    assert (topic.partitions[0].end, served.broker.timer.pending) == (end, 1)

    most = served.server.config.message_max_bytes * 2 + 65_536
    assert (await served.ask("POST", "/topics/t", b"x" * most))[1]["error"] == "BatchTooLarge"
    assert (await served.ask("POST", "/topics/t", b"x" * (most + 1)))[1]["error"] == "RequestTooLarge"

    # To the second, because some time passes meanwhile.
    now = served.broker.runtime.clock.now_ms()
    assert (await served.ask("POST", f"/topics/t?deliver_at={now + MAX_DELAY_MS - 1_000}", b"x"))[0] == 200
    assert (await served.ask("POST", f"/topics/t?deliver_at={now + MAX_DELAY_MS + 60_000}", b"x"))[0] == 400
    assert (await served.ask("POST", f"/topics/t?delay={MAX_DELAY_MS}ms", b"x"))[0] == 200
    assert (await served.ask("POST", f"/topics/t?delay={MAX_DELAY_MS + 1}ms", b"x"))[0] == 400


async def test_a_topic_that_is_missing(served: Served):
    assert (await served.ask("POST", "/topics/t", b"x"))[0] == 404
    assert (await served.ask("POST", "/topics/__queues", b"x"))[1]["error"] == "InvalidTopic"
    assert (await served.ask("GET", "/topics/t"))[0] == 405
    assert (await served.ask("POST", "/topics/t/x", b"x"))[0] == 404
    status, error = await served.ask("POST", "/topics/t", b"x", Origin="http://evil.example")
    assert (status, error["error"]) == (403, "ForeignOrigin")


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [("600250ms", 600_250), ("600.25", 600_250), ("600.25s", 600_250), ("600.25001s", 600_251), ("0", 0), ("0ms", 0)],
)
async def test_delays(served: Served, given: str, milliseconds: int):
    topic = await served.topic("t")
    await served.broker.timer.load()
    before = served.broker.runtime.clock.now_ms()
    _, said = await served.ask("POST", f"/topics/t?key=k&delay={given}&header.a=b", b"later")
    after = served.broker.runtime.clock.now_ms()
    if not milliseconds:
        assert said == ANSWER
        return
    assert before + milliseconds <= said["deliver_at"] <= after + milliseconds
    assert (said["offset"], said["duplicate"]) == (None, False)
    _, listed = await served.ask("GET", "/v1/timers")
    assert [(each["id"], each["due_ms"]) for each in listed["timers"]] == [(said["timer"], said["deliver_at"])]
    assert stored(topic) == []


async def test_a_delayed_message_is_stored_when_it_is_due(served: Served):
    topic = await served.topic("t")
    _, said = await served.ask("POST", "/topics/t?key=k&delay=250ms&header.a=b", b"later")
    await until(lambda: stored(topic) == [(0, b"k", b"later", [("a", b"b")])])
    assert served.broker.runtime.clock.now_ms() >= said["deliver_at"]


async def test_a_delay_survives_a_restart_and_can_be_cancelled(served: Served):
    await served.topic("t", durability="sync")
    due = served.broker.runtime.clock.now_ms() + 3_600_000
    _, kept = await served.ask("POST", f"/topics/t?deliver_at={due}", b"x")
    _, gone = await served.ask("POST", "/topics/t?deliver_at=2049-01-01T01:00:00%2B01:00", b"y")
    assert gone["deliver_at"] == 2_493_072_000_000
    await served.restart()
    assert (await served.ask("DELETE", f"/v1/timers/{gone['timer']}"))[0] == 200
    _, listed = await served.ask("GET", "/v1/timers")
    assert [each["id"] for each in listed["timers"]] == [kept["timer"]]


async def test_a_time_that_has_passed_is_now(served: Served):
    topic = await served.topic("t")
    assert await served.ask("POST", "/topics/t?deliver_at=1000", b"x") == (200, ANSWER)
    assert await served.ask("POST", "/topics/t?deliver_at=2001-01-01T00:00:00Z", b"x") == (200, {**ANSWER, "offset": 1})
    assert len(stored(topic)) == 2


@pytest.mark.parametrize("path", ["/topics/t", "/v1/topics/t/messages"])
async def test_many_each_with_its_time(served: Served, path: str):
    topic = await served.topic("t", partitions=3)
    await served.broker.timer.load()
    now = served.broker.runtime.clock.now_ms()
    rows: list[dict[str, Any]] = [{"value": str(number), "partition": number % 3} for number in range(12)]
    rows[3]["delay"] = 2
    rows[4]["deliver_at"] = now + 4_000
    rows[5]["delay"] = "1h"
    rows[6]["delay"] = "1h"
    rows[7] |= {"delay": "2h", "dedup_id": "seven"}
    rows[8] |= {"delay": 7_200, "dedup_id": "seven"}
    rows[9]["dedup_id"] = "nine"
    body: Any = {"messages": rows}
    headers = {}
    if path == "/topics/t":
        body = b"\n\n".join(json.dumps(row).encode() for row in rows) + b"\r\n"
        headers = LINES
    status, said = await served.ask("POST", path, body, **headers)
    assert status == 200, said
    answers = said["messages"]
    assert [each["offset"] is None for each in answers] == [3 <= number <= 8 for number in range(12)]
    assert [each["duplicate"] for each in answers] == [number == 8 for number in range(12)]
    assert ["timer" in each for each in answers] == [3 <= number <= 7 for number in range(12)]
    assert len({each["timer"] for each in answers[3:8]}) == 5
    assert [row[2] for row in stored(topic, 0)] == [b"0", b"9"]
    _, listed = await served.ask("GET", "/v1/timers")
    assert [(each["id"], each["partition"]) for each in listed["timers"]] == [
        (answers[number]["timer"], number % 3)
        for number in (3, 4, *sorted((5, 6), key=lambda n: answers[n]["timer"]), 7)
    ]
    await until(lambda: [row[2] for row in stored(topic, 0)] == [b"0", b"9", b"3"])
    await until(lambda: [row[2] for row in stored(topic, 1)] == [b"1", b"10", b"4"])
    # All of it again: what had an id is not there twice, whether it waits or not.
    _, again = await served.ask("POST", path, body, **headers)
    assert [each["duplicate"] for each in again["messages"]] == [number in (7, 8, 9) for number in range(12)]
    assert again["messages"][9] == {**answers[9], "duplicate": True}
    assert again["messages"][7]["offset"] is None


async def test_many_all_or_none(served: Served):
    topic = await served.topic("t", partitions=2, **{"max.message.bytes": "1000"})
    large = {"value": "x" * 2_000, "partition": 1, "delay": "1h", "dedup_id": "b"}
    rows = [{"value": "a", "partition": 0, "dedup_id": "a"}, {"value": "b", "partition": 0, "delay": "1h"}, large]
    for without in (False, True):
        if without:
            for row in rows:
                row.pop("dedup_id", None)
        status, error = await served.ask("POST", "/v1/topics/t/messages", {"messages": rows})
        assert (status, error["error"]) == (413, "BatchTooLarge")
        assert (stored(topic, 0), served.broker.timer.pending) == ([], 0)
    # Its id was given back.
    assert (await served.ask("POST", "/topics/t?dedup_id=a", b"x"))[1]["duplicate"] is False


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "no line"),
        (b"7", "line 1"),
        (b'{"value": "x"}\n{"value": 7}', "line 2"),
        (b'{"value": "x"}\n{"value"', "line 2 is not JSON"),
        (b'{"value": "x", "delay": true}', "delay"),
        (b'{"value": "x", "delay": [1]}', "delay"),
        (b'{"value": "x", "delay": 1e300}', "delay"),
        (b'{"value": "x", "deliver_at": 1.5}', "deliver_at"),
        (b'{"value": "x", "deliver_at": true}', "deliver_at"),
        (b'{"value": "x", "deliver_at": -1}', "deliver_at"),
        (b'{"value_json": NaN}', "value_json"),
        (b'{"value": "x", "value_json": 1}', "value_json"),
        (b'{"value_json": null}', "value"),
        (b"[" * 100_000, "line 1 is not JSON"),
    ],
)
async def test_lines_that_make_no_sense(served: Served, body: bytes, word: str):
    topic = await served.topic("t")
    status, error = await served.ask("POST", "/topics/t", b'{"value": "good"}\n' * 0 + body, **LINES)
    assert status == 400, error
    assert word in error["message"]
    assert stored(topic) == []


async def test_values_in_json(served: Served):
    topic = await served.topic("t")
    await served.ask("POST", "/topics/t", b'{"value_json": {"a": [1.0, "\xc3\xbc", null]}}', **LINES)
    await served.ask("POST", "/v1/topics/t/messages", {"value_json": 0})
    assert [row[2] for row in stored(topic)] == ['{"a":[1.0,"ü",null]}'.encode(), b"0"]


# --- CloudEvents ------------------------------------------------------------------------------------------------------

HEADERS = [("ce_specversion", b"1.0"), ("ce_id", b"7"), ("ce_source", b"/shop"), ("ce_type", b"order.placed")]


async def test_an_event_in_binary_mode(served: Served):
    topic = await served.topic("t")
    headers = {f"ce-{name}": value for name, value in EVENT.items()}
    headers |= {"ce-subject": "gr%C3%BCn%20%25", "ce-note": '"say \\"hi\\""', "Content-Type": "text/plain"}
    assert (await served.ask("POST", "/topics/t", b"one tea", **headers))[0] == 200
    extra = [("ce_subject", "grün %".encode()), ("ce_note", b'say "hi"'), ("content-type", b"text/plain")]
    assert stored(topic) == [(0, None, b"one tea", HEADERS + extra)]


async def test_an_event_in_structured_mode(served: Served):
    topic = await served.topic("t")
    event = {
        **EVENT,
        "data": {"id": 7, "ü": 1.0},
        "time": "2026-11-16T12:00:00.5Z",
        "partitionkey": "k",
        "n": 7,
        "b": True,
    }
    assert (await served.ask("POST", "/topics/t?delay=0", event, **STRUCTURED))[0] == 200
    extra = [("ce_time", b"2026-11-16T12:00:00.5Z"), ("ce_partitionkey", b"k"), ("ce_n", b"7"), ("ce_b", b"true")]
    kind = [("content-type", b"application/json")]
    assert stored(topic) == [(0, b"k", '{"id":7,"ü":1.0}'.encode(), HEADERS + extra + kind)]
    text = {**EVENT, "data": "<a/>", "datacontenttype": "text/xml", "subject": None}
    await served.ask("POST", "/topics/t?key=own", text, **STRUCTURED)
    packed = {**EVENT, "data_base64": "/w==", "datacontenttype": "image/png"}
    await served.ask("POST", "/topics/t", packed, **STRUCTURED)
    await served.ask("POST", "/topics/t", EVENT, **STRUCTURED)
    assert [row[1:] for row in stored(topic)[1:]] == [
        (b"own", b"<a/>", [*HEADERS, ("content-type", b"text/xml")]),
        (None, b"\xff", [*HEADERS, ("content-type", b"image/png")]),
        (None, b"", HEADERS),
    ]


async def test_many_events(served: Served):
    topic = await served.topic("t")
    events = [{**EVENT, "id": str(number), "data": number} for number in range(3)]
    for again in (False, True):
        status, said = await served.ask("POST", "/topics/t?dedup=event&header.a=b", events, **BATCH)
        assert status == 200, said
        assert [each["duplicate"] for each in said["messages"]] == [again] * 3
    assert [row[2] for row in stored(topic)] == [b"0", b"1", b"2"]
    assert stored(topic)[1][3][-2:] == [("a", b"b"), ("headrace-dedup-id", b"/shop 1")]


@pytest.mark.parametrize(
    ("event", "word"),
    [
        ([], "object"),
        ({**EVENT, "specversion": "0.3"}, "specversion"),
        ({**EVENT, "id": ""}, "no id"),
        ({**EVENT, "source": None}, "no source"),
        ({**EVENT, "type": 7.5}, "type"),
        ({**EVENT, "Colour": "red"}, "Colour"),
        ({**EVENT, "a": {}}, "'a'|a is"),
        ({**EVENT, "a": 1 << 31}, "32 bits"),
        ({**EVENT, "time": "noon"}, "time"),
        ({**EVENT, "time": "2026-01-01T00:00:00"}, "time"),
        ({**EVENT, "data": 1, "data_base64": "eA=="}, "one of them"),
        ({**EVENT, "data_base64": "!"}, "Base64"),
        ({**EVENT, "data": 1, "datacontenttype": "text/plain"}, "text"),
        ({**EVENT, "datacontenttype": 7}, "datacontenttype"),
        ({**EVENT, "subject": "\ud800"}, "UTF-8"),
        ({**EVENT, "data": "\ud800"}, "data"),
    ],
)
async def test_what_is_no_event(served: Served, event: Any, word: str):
    topic = await served.topic("t")
    for kind, body in ((STRUCTURED, event), (BATCH, [EVENT, event])):
        status, error = await served.ask("POST", "/topics/t", body, **kind)
        assert status == 400, error
        assert any(each in error["message"] for each in word.split("|")), error
    assert stored(topic) == []


async def test_other_forms_of_events(served: Served):
    topic = await served.topic("t")
    assert (await served.ask("POST", "/topics/t", b"[]", **BATCH))[0] == 400
    kind = {"Content-Type": "application/cloudevents+avro"}
    status, error = await served.ask("POST", "/topics/t", b"x", **kind)
    assert (status, error["error"]) == (415, "UnknownFormat")
    assert (await served.ask("POST", "/topics/t", b"x", **{"ce-specversion": "1.0"}))[0] == 400
    headers = {f"ce-{name}": value for name, value in {**EVENT, "subject": "%ff"}.items()}
    assert "UTF-8" in (await served.ask("POST", "/topics/t", b"x", **headers))[1]["message"]
    assert (await served.ask("POST", "/topics/t?dedup=id", EVENT, **STRUCTURED))[0] == 400
    assert (await served.ask("POST", "/topics/t?dedup=event&dedup_id=1", EVENT, **STRUCTURED))[0] == 400
    assert stored(topic) == []


@pytest.mark.parametrize(
    ("path", "kind", "one", "form"),
    [
        ("/topics/t", "application/x-ndjson", b'{"value":"x"}\n', b"%b"),
        ("/topics/t", "application/cloudevents-batch+json", b"{},", b"[%b{}]"),
        ("/v1/topics/t/messages", "application/json", b"{},", b'{"messages":[%b{}]}'),
    ],
)
async def test_no_more_messages_than_the_others_can_wait_for(
    served: Served, path: str, kind: str, one: bytes, form: bytes
):
    topic = await served.topic("t")
    status, said = await served.ask("POST", path, form % (one * 10_001), **{"Content-Type": kind})
    assert (status, said["error"]) == (413, "TooManyMessages")
    assert stored(topic) == []


async def test_as_many_messages_as_there_may_be(served: Served):
    topic = await served.topic("t")
    status, said = await served.ask("POST", "/topics/t", b'{"value":"x"}\n' * 10_000, **LINES)
    assert (status, len(said["messages"])) == (200, 10_000)
    assert len(stored(topic)) == 10_000
