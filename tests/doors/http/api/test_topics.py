"""Topics over HTTP: lists of many, what one is, making, growing, trimming, deleting; and their settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served, serving

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rules import allow
from headrace.doors.http.api import listing


async def names(served: Served, query: str = "") -> tuple[list[str], int]:
    status, answer = await served.ask("GET", f"/v1/topics?{query}")
    assert status == 200, answer
    return [each["topic"] for each in answer["topics"]], answer["total"]


async def test_a_list_is_searched_sorted_and_paged(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listing, "STEP", 3)
    for number in range(10):
        await served.topic(f"order{number}", number)
    await served.topic("pay-1", 20)
    assert await names(served) == ([*(f"order{number}" for number in range(10)), "pay-1"], 11)
    assert await names(served, "search=ORDER&limit=3&offset=2") == (["order2", "order3", "order4"], 10)
    assert await names(served, "search=order?&order=desc&limit=2") == (["order9", "order8"], 10)
    assert await names(served, "search=*9") == (["order9"], 1)
    assert await names(served, "search=order*0*1") == ([], 0)
    assert await names(served, "offset=100") == ([], 11)


@pytest.fixture
async def three(served: Served) -> Served:
    for name, count in (("a", 5), ("b", 20), ("c", 1)):
        await served.topic(name, count)
    return served


async def test_it_is_sorted_by_figures(three: Served):
    assert await names(three, "sort=messages") == (["c", "a", "b"], 3)
    assert await names(three, "sort=messages&order=desc&limit=1") == (["b"], 3)
    status, answer = await three.ask("GET", "/v1/topics?sort=x")
    assert status == 400
    assert "messages" in answer["message"]


async def test_the_brokers_own_are_shown_where_they_are_asked_for(three: Served):
    await three.broker.queues.ensure(three.broker.topics.existing("a"), "q")
    assert "__queues" not in (await names(three))[0]
    assert "__queues" in (await names(three, "internal=true"))[0]


async def test_ten_thousand_are_listed_a_step_at_a_time():
    """By the entries that a step looks at."""
    turns = 0
    done = False

    async def others() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(others())
    wanted = listing.Listing("7", "topic", True, 10, 5)
    every = [f"t{number:05}" for number in range(10_000)]
    found = await listing.page_of(every, wanted, lambda name: name, lambda name: name)
    done = True
    await other
    matching = sorted((name for name in every if "7" in name), reverse=True)
    assert found == (matching[10:15], len(matching))
    assert turns >= 10_000 / listing.STEP


async def test_only_what_may_be_described_is_listed(tmp_path: Path):
    async with serving(tmp_path, authorization="on") as closed:
        for name in ("mine", "other"):
            await closed.topic(name)
        closed.broker.security.set_rules([allow("ANONYMOUS", Operation.DESCRIBE, Resource.TOPIC, "mine")])
        assert await names(closed) == (["mine"], 1)


async def test_one(served: Served):
    topic = await served.topic("t", 4, partitions=2, **{"retention.ms": "5000"})
    await served.broker.queues.ensure(topic, "q")
    status, answer = await served.ask("GET", "/v1/topics/t")
    assert status == 200
    assert (answer["messages"], answer["partitions"], answer["queue_names"]) == (8, 2, ["q"])
    assert answer["settings"] == {"retention.ms": "5000"}
    assert answer["retention_ms"] == 5000
    assert [(each["start"], each["end"], each["leader"], each["isr"]) for each in answer["partition_list"]] == [
        (0, 4, 0, [0])
    ] * 2
    assert (await served.ask("GET", "/v1/topics/none"))[0] == 404


async def test_make_and_delete(served: Served):
    made = {"partitions": 3, "settings": {"retention.ms": 1000, "delay": True}}
    status, answer = await served.ask("PUT", "/v1/topics/t", made)
    assert (status, answer["partitions"]) == (201, 3)
    assert served.broker.topics.existing("t").config == {"retention.ms": "1000", "delay": "true"}
    assert (await served.ask("PUT", "/v1/topics/t", made))[1]["error"] == "TopicExists"
    assert await served.ask("DELETE", "/v1/topics/t") == (200, {"topic": "t", "deleted": True})
    assert (await served.ask("DELETE", "/v1/topics/t"))[0] == 404
    assert (await served.ask("PUT", "/v1/topics/__queues", {}))[0] == 400


async def test_a_form_is_judged_before_it_is_sent(served: Served):
    await served.topic("there")

    async def problems(name: str, body: dict[str, Any]) -> list[str]:
        status, answer = await served.ask("POST", f"/v1/topics/{name}/check", body)
        assert status == 200
        assert answer["valid"] == (answer["problems"] == [])
        return [each["field"] for each in answer["problems"]]

    assert await problems("new", {"settings": {"retention.ms": "5"}}) == []
    assert await problems("there", {}) == ["name"]
    assert await problems("new", {"partitions": 0}) == ["partitions"]
    wrong = {"retention.ms": "x", "nothing": "1", "delay": "true"}
    assert await problems("new", {"settings": wrong}) == ["settings.retention.ms", "settings.nothing"]
    assert await problems("new", {"settings": {"overflow": "block"}}) == ["settings"]
    assert served.broker.topics.get("new") is None


async def test_growing(served: Served):
    await served.topic("t")
    path = "/v1/topics/t/partitions"
    status, answer = await served.ask("POST", path, {"count": 3, "dry_run": True})
    assert (status, answer["partitions_before"], answer["partitions"]) == (200, 1, 3)
    assert len(served.broker.topics.existing("t").partitions) == 1
    assert (await served.ask("POST", path, {"count": 3}))[0] == 200
    assert len(served.broker.topics.existing("t").partitions) == 3
    assert (await served.ask("POST", path, {"count": 2}))[1]["error"] == "InvalidPartitions"


async def test_trimming(served: Served):
    topic = await served.topic("t", 10, partitions=2)
    path = "/v1/topics/t/delete-records"
    status, answer = await served.ask("POST", path, {"before": {"1": 4}, "dry_run": True})
    assert (status, answer["partitions"]) == (
        200, [{"partition": 1, "start_before": 0, "start": 4, "end": 10, "deleted": 4}]
    )  # fmt: skip
    assert topic.partitions[1].start == 0
    assert (await served.ask("POST", path, {"before": {"1": 4}}))[0] == 200
    assert [each.start for each in topic.partitions] == [0, 4]
    assert (await served.ask("POST", path, {"before": {"1": 99}}))[1]["error"] == "OffsetOutOfRange"
    assert (await served.ask("POST", path, {"before": {"7": 1}}))[0] == 400
    for wrong in ({}, {"all": True, "before": {"0": 1}}):
        assert (await served.ask("POST", path, wrong))[0] == 400
    assert (await served.ask("POST", path, {"before_ms": 1}))[0] == 200
    assert [each.start for each in topic.partitions] == [0, 4]
    assert (await served.ask("POST", path, {"all": True}))[0] == 200
    assert [each.start for each in topic.partitions] == [10, 10]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def settled(served: Served) -> Served:
    await served.topic("t", **{"retention.ms": "5000"})
    return served


async def setting(served: Served, name: str, path: str = "/v1/topics/t/settings") -> dict[str, Any]:
    status, answer = await served.ask("GET", path)
    assert status == 200
    (found,) = (each for each in answer["settings"] if each["name"] == name)
    return dict(found)


async def test_settings_are_explained(settled: Served):
    found = await setting(settled, "retention.ms")
    assert (found["value"], found["default"], found["source"]) == ("5000", "604800000", "topic")
    assert (found["type"], found["choices"], found["honoured"]) == ("long", [], True)
    assert found["doc"]
    found = await setting(settled, "overflow", "/v1/topic-settings")
    assert found["choices"] == ["spill", "block", "reject", "drop-oldest"]
    assert (await setting(settled, "durability"))["source"] == "broker"
    assert (await setting(settled, "delay"))["choices"] == ["true", "false"]


async def test_a_change_is_judged_shown_and_made(settled: Served):
    path = "/v1/topics/t/settings"
    change = {"settings": {"retention.ms": None, "delay": "true"}}
    status, answer = await settled.ask("PATCH", path, {**change, "dry_run": True})
    assert status == 200
    expected = [
        {"name": "delay", "before": "false", "after": "true"},
        {"name": "retention.ms", "before": "5000", "after": "604800000"},
    ]
    assert answer["changed"] == expected
    assert (await setting(settled, "delay"))["value"] == "false"
    assert (await settled.ask("PATCH", path, change))[1]["changed"] == expected
    assert (await setting(settled, "delay"))["value"] == "true"
    for wrong in ({"x": "1"}, {"x": None}, {"retention.ms": "x"}, {"retention.ms": []}):
        assert (await settled.ask("PATCH", path, {"settings": wrong}))[0] == 400, wrong
