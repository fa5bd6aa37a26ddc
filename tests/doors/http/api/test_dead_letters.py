"""Dead letters over HTTP: where they are, why they died, one by one, and sent back with edits, each once."""

from __future__ import annotations

import pytest
from tests.doors.http.api.conftest import Served
from tests.doors.http.api.test_redrive import DEAD, delivered, died

from headrace.broker.queues import Queue

PATH = f"/v1/dead-letters/{DEAD}"


@pytest.fixture
async def queue(served: Served) -> Queue:
    """One whose five messages have died."""
    topic = await served.topic("orders", 5)
    return await died(served, topic, dead_letter_topic=DEAD)


async def waiting(served: Served) -> int:
    _, answer = await served.ask("GET", "/v1/dead-letters")
    (found,) = answer["topics"]
    assert (found["topic"], found["queues"]) == (DEAD, [{"topic": "orders", "queue": "mail"}])
    return int(found["waiting"])


async def test_where_and_why(served: Served, queue: Queue):
    assert await waiting(served) == 5
    status, answer = await served.ask("GET", PATH)
    assert status == 200
    assert (answer["counted"], answer["all_counted"]) == (5, True)
    assert {each["error"]: each["count"] for each in answer["kinds"]} == {f"no stamps {n}": 1 for n in range(5)}
    _, narrowed = await served.ask("GET", f"{PATH}?error=stamps%203")
    assert [each["error"] for each in narrowed["kinds"]] == ["no stamps 3"]
    assert (await served.ask("GET", "/v1/dead-letters/none"))[0] == 404


async def test_one_by_one(served: Served, queue: Queue):
    _, page = await served.ask("GET", f"{PATH}/messages?limit=2")
    assert [each["offset"] for each in page["messages"]] == [4, 3]
    first = page["messages"][0]
    assert first["origin"] == {"topic": "orders", "partition": 0, "offset": 4, "queue": "mail"}
    assert (first["value"], first["error"], first["attempts"], first["sent_back"]) == ("4", "no stamps 4", 1, False)
    assert "headers" not in first, "what dying has added is shown apart"
    _, rest = await served.ask("GET", f"{PATH}/messages?limit=9&after={page['next']}")
    assert [each["offset"] for each in rest["messages"]] == [2, 1, 0]
    assert rest["next"] is None
    _, pattern = await served.ask("GET", f"{PATH}/messages?error_pattern=*%201&origin=orders&queue=mail")
    assert [each["offset"] for each in pattern["messages"]] == [1]


async def test_selected_ones_go_back_edited_and_once(served: Served, queue: Queue):
    edit = {"value": "mended", "headers": [{"name": "by", "value": "me"}]}
    chosen = [{"partition": 0, "offset": 3, "edit": edit}, {"partition": 0, "offset": 1}]
    status, tried = await served.ask("POST", f"{PATH}/redrive", {"messages": chosen, "dry_run": True})
    assert status == 200
    assert [each["outcome"] for each in tried["results"]] == ["would-be-redriven"] * 2
    status, answer = await served.ask("POST", f"{PATH}/redrive", {"messages": chosen})
    assert (status, answer["left"]) == (200, 0)
    assert [(each["outcome"], each["offset"]) for each in answer["results"]] == [("redriven", 3), ("redriven", 1)]
    (key, value, headers), (other_key, other_value, other_headers) = await delivered(served, queue, 2)
    assert (key, value, headers["by"]) == (b"3", b"mended", b"me")
    assert (other_key, other_value) == (b"1", b"1")
    assert "by" not in other_headers
    assert await waiting(served) == 3
    _, page = await served.ask("GET", f"{PATH}/messages")
    assert {each["offset"]: each["sent_back"] for each in page["messages"]} == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}
    _, again = await served.ask("POST", f"{PATH}/redrive", {"messages": [*chosen, {"partition": 0, "offset": 99}]})
    assert [each["outcome"] for each in again["results"]] == ["skipped"] * 3
    assert again["results"][0]["reason"] == "it was sent back before"


async def test_what_is_no_selection(served: Served, queue: Queue):
    for wrong in ([], "x", [1], [{"partition": -1, "offset": 0}], [{"offset": 0, "x": 1}], [{"edit": {"x": 1}}]):
        status, answer = await served.ask("POST", f"{PATH}/redrive", {"messages": wrong})
        assert (status, answer["error"]) == (400, "BadRequest"), wrong
    assert (await served.ask("GET", f"{PATH}/messages?after=x"))[0] == 400
