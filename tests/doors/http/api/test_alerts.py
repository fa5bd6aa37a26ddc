"""Alerts over HTTP: the rules of the first minute, changes with versions, silences, channels without their secrets,
the lease; and that all of it survives a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served, serving

from headrace.broker.console import DEFAULT_RULES, FIGURES, documents
from headrace.broker.internal import CONSOLE
from headrace.broker.security import Operation, Resource
from headrace.broker.security.rules import allow

RULES, SILENCES, CHANNELS = "/v1/alerts/rules", "/v1/alerts/silences", "/v1/alerts/channels"
RULE = {"name": "Orders wait", "figure": "group_lag", "threshold": 100, "scope": {"topic": "orders*"}}


async def ids(served: Served, path: str) -> list[str]:
    status, answer = await served.ask("GET", path)
    assert status == 200
    (listed,) = answer.values()
    return [each["id"] for each in listed]


def test_default_rules_make_sense():
    figures = {each.name for each in FIGURES}
    assert {rule["figure"] for rule in DEFAULT_RULES.values()} == figures - {"group_lag", "queue_depth"}


async def test_there_are_rules_from_the_first_minute(served: Served):
    assert await ids(served, RULES) == sorted(DEFAULT_RULES)
    assert served.broker.topics.get(CONSOLE) is None, "to look costs no topic"
    status, answer = await served.ask("GET", f"{RULES}/disk")
    assert (status, answer["built_in"], answer["version"], answer["figure"]) == (200, True, 0, "disk_used_percent")
    assert (await served.ask("GET", f"{RULES}/none"))[0] == 404


async def test_a_rule_is_made_changed_and_deleted(served: Served):
    status, made = await served.ask("PUT", f"{RULES}/orders", RULE)
    assert status == 200
    assert (made["version"], made["compare"], made["severity"], made["enabled"]) == (1, ">", "warning", True)
    changed = {**RULE, "threshold": 5.5, "version": 1}
    assert (await served.ask("PUT", f"{RULES}/orders", changed))[1]["version"] == 2
    status, answer = await served.ask("PUT", f"{RULES}/orders", changed)
    assert (status, answer["error"]) == (409, "VersionConflict")
    await served.restart()
    _, kept = await served.ask("GET", f"{RULES}/orders")
    assert (kept["threshold"], kept["version"], kept["scope"]) == (5.5, 2, {"topic": "orders*"})
    assert await served.ask("DELETE", f"{RULES}/orders") == (200, {"id": "orders", "deleted": True})
    assert (await served.ask("DELETE", f"{RULES}/orders"))[0] == 404
    await served.restart()
    assert await ids(served, RULES) == sorted(DEFAULT_RULES)


async def test_a_rule_that_came_with_the_broker_comes_back(served: Served):
    _, disk = await served.ask("GET", f"{RULES}/disk")
    body = {name: disk[name] for name in ("name", "figure", "threshold")}
    status, changed = await served.ask("PUT", f"{RULES}/disk", {**body, "enabled": False, "version": 0})
    assert (status, changed["enabled"], changed["built_in"]) == (200, False, True)
    assert (await served.ask("DELETE", f"{RULES}/disk"))[0] == 200
    assert await served.ask("GET", f"{RULES}/disk") == (200, disk)
    assert (await served.ask("DELETE", f"{RULES}/disk"))[0] == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": " "},
        {"name": "x" * 1_001},
        {"figure": "x"},
        {"threshold": "5"},
        {"threshold": True},
        {"threshold": None},
        {"compare": "="},
        {"severity": "bad"},
        {"for_ms": -1},
        {"for_ms": 8 * 86_400_000},
        {"scope": {"x": "y"}},
        {"scope": {"topic": 1}},
        {"channels": "x"},
        {"channels": [1]},
        {"channels": ["x"] * 51},
        {"enabled": "yes"},
        {"labels": {"a": 1}},
        {"runbook": "javascript:alert(1)"},
        {"version": -1},
    ],
)
async def test_what_is_no_rule(served: Served, wrong: dict[str, Any]):
    status, answer = await served.ask("PUT", f"{RULES}/r", {**RULE, **wrong})
    assert (status, answer["error"]) == (400, "BadRequest"), answer


async def test_ids_and_bounds(served: Served, monkeypatch: pytest.MonkeyPatch):
    for id in ("a%20b", ".x", "x" * 81, "%C3%A4"):
        assert (await served.ask("PUT", f"{RULES}/{id}", RULE))[0] == 400
    monkeypatch.setattr(documents, "DOCUMENTS_MAX", 1)
    assert (await served.ask("PUT", f"{RULES}/a", RULE))[0] == 200
    assert (await served.ask("PUT", f"{RULES}/b", RULE))[1]["error"] == "DocumentsFull"
    assert (await served.ask("PUT", f"{RULES}/a", RULE))[0] == 200


async def test_silences(served: Served):
    body = {
        "matchers": {"topic": "orders*"},
        "ends_ms": 1 << 41,
        "starts_ms": (1 << 41) - 1000,
        "comment": "maintenance",
    }
    status, made = await served.ask("PUT", f"{SILENCES}/s", body)
    assert (status, made["matchers"], made["comment"]) == (200, {"topic": "orders*"}, "maintenance")
    await served.restart()
    assert await ids(served, SILENCES) == ["s"]
    for wrong in ({"ends_ms": 5}, {"matchers": {}}, {"matchers": {"x": "y"}}, {"ends_ms": 1 << 50}):
        assert (await served.ask("PUT", f"{SILENCES}/s", {**body, **wrong}))[0] == 400, wrong
    assert (await served.ask("DELETE", f"{SILENCES}/s"))[0] == 200
    assert await ids(served, SILENCES) == []


async def test_channels_and_their_secrets(tmp_path: Path):
    async with serving(tmp_path, authorization="on") as closed:
        security = closed.broker.security

        def may(*operations: Operation) -> None:
            security.set_rules([allow("ANONYMOUS", each, Resource.CONSOLE, "alerts") for each in operations])

        body = {"kind": "slack", "url": "https://hooks.example.org/T0/SECRET", "secret": "hush"}
        may(Operation.DESCRIBE)
        assert (await closed.ask("PUT", f"{CHANNELS}/c", body))[0] == 401
        may(Operation.WRITE)
        status, made = await closed.ask("PUT", f"{CHANNELS}/c", body)
        assert (status, made["url"], made["secret_set"]) == (200, "https://hooks.example.org/...", True)
        assert "SECRET" not in str(await closed.ask("GET", CHANNELS))
        assert (await closed.ask("GET", f"{CHANNELS}/c/secret"))[0] == 401
        # What is not given stays.
        assert (await closed.ask("PUT", f"{CHANNELS}/c", {"kind": "slack", "enabled": False}))[1]["enabled"] is False
        may(Operation.READ)
        _, secret = await closed.ask("GET", f"{CHANNELS}/c/secret")
        assert secret == {"id": "c", "url": body["url"], "secret": "hush"}
        may(Operation.WRITE)
        for wrong in ({"kind": "x"}, {"kind": "webhook", "url": "ftp://x"}, {"kind": "email", "to": ["x"]}, {}):
            assert (await closed.ask("PUT", f"{CHANNELS}/d", wrong))[0] == 400, wrong
        assert (await closed.ask("PUT", f"{CHANNELS}/d", {"kind": "email", "to": ["a@example.org"]}))[0] == 200


async def test_the_topic_is_hidden_from_clients(served: Served):
    await served.ask("PUT", f"{RULES}/a", RULE)
    assert served.broker.topics.get(CONSOLE) is not None
    _, answer = await served.ask("GET", "/v1/topics?internal=true")
    assert CONSOLE not in [each["topic"] for each in answer["topics"]]
    assert (await served.ask("GET", f"/v1/topics/{CONSOLE}/messages"))[0] in (401, 403)


async def test_the_lease(served: Served):
    async def take(holder: str, ttl_ms: int) -> tuple[bool, str]:
        status, answer = await served.ask("POST", "/v1/alerts/lease", {"holder": holder, "ttl_ms": ttl_ms})
        assert status == 200
        assert (answer["left_ms"] > 0) == bool(answer["holder"])
        return answer["held"], answer["holder"]

    assert await take("a", 60_000) == (True, "a")
    assert await take("b", 60_000) == (False, "a")
    assert await take("a", 60_000) == (True, "a")
    assert await take("b", 0) == (False, "a")
    assert await take("a", 0) == (False, "")
    assert await take("b", 60_000) == (True, "b")
    assert (await served.ask("POST", "/v1/alerts/lease", {"holder": "", "ttl_ms": 1}))[0] == 400
