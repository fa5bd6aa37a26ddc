from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

import pytest
from tests.cli.conftest import Cli
from tests.waiting import wait_until

from headrace.embedded import Broker

pytestmark = pytest.mark.headrace(http="127.0.0.1:0", half_timeout_ms=300, half_check_interval_ms=100)


@pytest.fixture(autouse=True)
def _http(headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)


def prepare(broker: Broker, **fields: Any) -> str:
    connection = HTTPConnection(*broker.http.rsplit(":", 1), timeout=30)
    connection.request("POST", "/v1/half", json.dumps({"topic": "orders", "group": "shop", **fields}))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return str(answer["id"])


def test_list_show_and_decide(cli: Cli, headrace_broker: Broker):
    headers = [{"name": "trace", "value": "7"}]
    ids = [
        prepare(headrace_broker, key=str(n), value=f"value {n}", headers=headers, timeout_ms=60_000) for n in range(3)
    ]
    ids.append(prepare(headrace_broker, topic="others", group="bank", partition=0, timeout_ms=60_000))
    assert [each["id"] for each in cli("half", "list", "--json").json] == ids
    assert [line.split()[0] for line in cli("half", "list", "--topic", "orders", "--limit", 2).lines[1:]] == ids[:2]
    assert [each["id"] for each in cli("half", "list", "--group", "bank", "--format", "json").json] == [ids[3]]
    shown = cli("half", "show", ids[1]).text
    for word in (ids[1], "prepared", "orders", "shop", "value 1", "header trace: 7"):
        assert word in shown
    assert cli("half", "show", ids[1], "--json").json["value"] == "value 1"
    assert cli("half", "commit", ids[0], ids[1]).lines == [
        f"{ids[0]} is committed to orders/0 at offset 0",
        f"{ids[1]} is committed to orders/0 at offset 1",
    ]
    assert cli("half", "rollback", ids[2]).lines == [f"{ids[2]} is rolled back"]
    assert "committed to orders/0 at offset 1" in cli("half", "show", ids[1]).text
    again = cli("half", "rollback", ids[1])
    assert again.code == 1
    assert "orders/0 at offset 1" in again.err
    assert [each["id"] for each in cli("half", "list", "--json").json] == [ids[3]]


# Fifteen rounds of asking are longer here than the command takes to start where other things run.
@pytest.mark.headrace(http="127.0.0.1:0", half_timeout_ms=300, half_check_interval_ms=1_000)
def test_checks(cli: Cli, headrace_broker: Broker):
    id = prepare(headrace_broker, value="v")
    checks = cli("half", "checks", "shop", "--wait", "20s", "--json").json
    assert {(each["id"], each["value"]) for each in checks} == {(id, "v")}
    cli("half", "rollback", id)
    assert cli("half", "checks", "shop", "--wait", "10ms").lines[1:] == []


def test_what_is_given_up(cli: Cli, headrace_broker: Broker):
    id = prepare(headrace_broker, value="v", timeout_ms=1)
    wait_until(lambda: "no check was answered" in cli("half", "show", id).text)
    assert cli("half", "show", id, "--json").json == {"id": id, "state": "rolled-back", "given_up": True}
    assert cli("half", "rollback", id).lines == [f"{id} is rolled back, by the broker, because no check was answered"]


def test_the_log_can_be_read(cli: Cli, headrace_broker: Broker):
    """As docs/half.md says."""
    cli("half", "commit", prepare(headrace_broker, value="v", timeout_ms=60_000))
    said = [json.loads(line) for line in cli("consume", "__half", "--format", "json").lines]
    assert "prepared" in str(said[0]["headers"])
    assert "committed" in str(said[-1]["headers"])


def test_what_goes_wrong_is_one_line(cli: Cli):
    for arguments, word in (
        (("half", "list", "--topic", "nothing"), "nothing"),
        (("half", "show", "x"), "hexadecimal"),
        (("half", "commit", "0" * 24), "0000"),
        (("half", "checks", "shop", "--wait", "soon"), "soon"),
    ):
        outcome = cli(*arguments)
        assert outcome.code == 1
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err
