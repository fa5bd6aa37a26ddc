from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Cli
from tests.cli.nsq import NsqConsumer
from tests.waiting import wait_until

from headrace.embedded import Broker

pytestmark = pytest.mark.headrace(http="127.0.0.1:0")


@pytest.fixture(autouse=True)
def _dead(cli: Cli, headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three messages that have died."""
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)
    cli("produce", "orders", "--key-separator", ":", stdin=b"1:boots\n2:hat\n3:coat\n")
    cli("queue", "create", "orders", "mail", "--max-attempts", 1)
    with NsqConsumer(headrace_broker.nsq, "orders", "mail") as consumer:
        for _ in range(3):
            consumer.say(f"REQ {consumer.next()[0]} 0")
        wait_until(lambda: cli("queue", "show", "orders", "mail", "--json").json["dead"] == 3)


def test_the_dead_come_back(cli: Cli, headrace_broker: Broker):
    dry = cli("redrive", "orders.mail.dead", "--dry-run")
    assert dry.code == 0
    assert len(dry.lines) == 3
    assert "3 would be redriven" in dry.err
    one = cli("redrive", "orders.mail.dead", "--key", 2)
    assert one.lines[0].startswith("redriven  orders.mail.dead/0/1 from orders/0/1 on mail, now orders/0/3")
    assert "1 redriven, 2 not selected" in one.err
    rest = cli("redrive", "orders.mail.dead", "--since", "-1h", "--queue", "mail", "--rate", 50, "--format", "json")
    results = [json.loads(line) for line in rest.lines]
    assert [(each["outcome"], each["key"]) for each in results] == [("redriven", "1"), ("redriven", "3")]
    none = cli("redrive", "orders.mail.dead")
    assert none.out == b""
    assert "0 redriven, 3 redriven before" in none.err
    with NsqConsumer(headrace_broker.nsq, "orders", "mail") as consumer:
        assert [consumer.next()[1] for _ in range(3)] == [b"hat", b"boots", b"coat"]
    copied = cli("consume", "orders", "--from", 3, "--count", 1, "--format", "json").json
    assert copied["key"] == "2"
    assert copied["headers"] == [
        {"name": "headrace-for-queue", "value": "mail"},
        {"name": "headrace-redriven", "value": "1"},
    ]


def test_a_limit(cli: Cli):
    assert len(cli("redrive", "orders.mail.dead", "--limit", 2).lines) == 2
    assert len(cli("redrive", "orders.mail.dead", "--limit", 2).lines) == 1


def test_quiet(cli: Cli):
    outcome = cli("redrive", "orders.mail.dead", "--quiet", "--all-queues")
    assert outcome.out == b""
    assert "3 redriven" in outcome.err


def test_what_fails_is_said_and_stays(cli: Cli):
    cli("queue", "delete", "orders", "mail", "--yes")
    outcome = cli("redrive", "orders.mail.dead")
    assert outcome.code == 1
    assert all(line.startswith("failed") and "no queue 'mail'" in line for line in outcome.lines)
    assert "3 messages could not be sent back" in outcome.err
    cli("queue", "create", "orders", "mail")
    assert cli("redrive", "orders.mail.dead").code == 0


def test_what_goes_wrong_is_one_line(cli: Cli):
    for arguments, word in (
        (("redrive", "nothing"), "nothing"),
        (("redrive", "orders.mail.dead", "--since", "earliest"), "earliest"),
        (("redrive", "orders.mail.dead", "--until", "5"), "5"),
        (("redrive", "orders.mail.dead", "--rate", "0.001"), "rate"),
    ):
        outcome = cli(*arguments)
        assert outcome.code == 1, arguments
        assert outcome.out == b""
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err
