from __future__ import annotations

import time

import pytest
from tests.cli.conftest import Cli

from headrace.embedded import Broker

pytestmark = pytest.mark.headrace(http="127.0.0.1:0")


@pytest.fixture(autouse=True)
def _http(headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)


def test_list_and_cancel(cli: Cli):
    cli("topic", "create", "orders", "--set", "delay=true")
    due = int(time.time() * 1000) + 3_600_000
    for number in range(3):
        header = f"headrace-deliver-at={due + number}"
        assert cli("produce", "orders", "--header", header, "--key", number, stdin=b"later\n").code == 0
    listed = cli("timer", "list", "--json").json
    assert [(each["topic"], each["due_ms"], each["key"]) for each in listed] == [
        ("orders", due + number, str(number)) for number in range(3)
    ]
    assert [line.split()[0] for line in cli("timer", "list", "orders", "--limit", 2).lines[1:]] == [
        each["id"] for each in listed[:2]
    ]
    assert cli("timer", "cancel", listed[0]["id"], listed[2]["id"]).code == 0
    assert [each["key"] for each in cli("timer", "list", "--format", "json").json] == ["1"]
    again = cli("timer", "cancel", listed[0]["id"])
    assert again.code == 1
    assert listed[0]["id"] in again.err


def test_what_goes_wrong_is_one_line(cli: Cli):
    for arguments, word in ((("timer", "list", "nothing"), "nothing"), (("timer", "cancel", "x"), "x")):
        outcome = cli(*arguments)
        assert outcome.code == 1
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err
