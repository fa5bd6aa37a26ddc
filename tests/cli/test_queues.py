from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest
from tests.cli.conftest import Cli
from tests.cli.nsq import NsqConsumer
from tests.waiting import wait_until

from headrace.broker.queues import QueueSettings
from headrace.cli.queues import SETTINGS
from headrace.embedded import Broker

pytestmark = pytest.mark.headrace(http="127.0.0.1:0")


@pytest.fixture(autouse=True)
def _http(headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)


@pytest.fixture
def orders(cli: Cli) -> None:
    """A topic with three messages."""
    cli("produce", "orders", "--key-separator", ":", stdin=b"1:boots\n2:hat\n3:coat\n")


def test_every_setting_has_an_option():
    assert list(SETTINGS) == [each.name for each in fields(QueueSettings)]


@pytest.mark.usefixtures("orders")
def test_create_list_show_delete(cli: Cli):
    assert cli("queue", "list", "--json").json == []
    made = cli("queue", "create", "orders", "mail", "--timeout-ms", "30s", "--backoff-ms", "1s,5m")
    assert (made.code, made.out, made.err) == (0, b"", "")
    (queue,) = cli("queue", "list", "--format", "json").json
    assert (queue["topic"], queue["queue"], queue["depth"]) == ("orders", "mail", 3)
    assert cli("queue", "list", "orders", "--json").json[0]["queue"] == "mail"
    heading, line = cli("queue", "list").lines
    assert heading.split()[:3] == ["topic", "queue", "ready"]
    assert line.split()[:3] == ["orders", "mail", "3"]

    shown = cli("queue", "show", "orders", "mail", "--json").json
    assert shown["settings"]["timeout_ms"] == 30_000
    assert shown["settings"]["backoff_ms"] == [1_000, 300_000]
    text = cli("queue", "show", "orders", "mail").text
    for words in ("queue mail of orders", "3 ready", "orders.mail.dead", "30s", "1s,5m"):
        assert words in text

    assert cli("queue", "delete", "orders", "mail", stdin=b"n\n").code == 1
    assert len(cli("queue", "list", "--json").json) == 1
    assert cli("queue", "delete", "orders", "mail", "--yes").code == 0
    assert cli("queue", "list", "--json").json == []


@pytest.mark.usefixtures("orders")
def test_set_is_live(cli: Cli, headrace_broker: Broker):
    cli("queue", "create", "orders", "mail")
    options = ("--max-attempts", 1, "--order-by-key", "--filter", "not has test", "--deliveries", 0.5)
    assert cli("queue", "set", "orders", "mail", *options, "--dead-key", "park").code == 0
    settings = cli("queue", "show", "orders", "mail", "--json").json["settings"]
    assert settings["max_attempts"] == 1
    assert settings["order_by_key"] is True
    assert settings["filter"] == "not has test"
    assert (settings["dead_key"], settings["deliveries"]) == ("park", 0.5)
    assert cli("queue", "set", "orders", "mail", "--no-order-by-key", "--filter", "").code == 0
    settings = cli("queue", "show", "orders", "mail", "--json").json["settings"]
    assert (settings["order_by_key"], settings["filter"], settings["max_attempts"]) == (False, "", 1)
    assert cli("queue", "set", "orders", "mail", "--timeout-ms", "100ms", "--max-attempts", 0).code == 0
    with NsqConsumer(headrace_broker.nsq, "orders", "mail", credit=1) as consumer:
        # It times out and comes again, though perhaps not at once.
        assert consumer.next()[1] == b"boots"
        assert b"boots" in [consumer.next()[1] for _ in range(4)]


@pytest.mark.usefixtures("orders")
def test_pause_empty_and_peek(cli: Cli, headrace_broker: Broker):
    cli("queue", "create", "orders", "mail", "--from", "1")
    peeked = cli("queue", "peek", "orders", "mail", "--json").json
    assert [(each["offset"], each["key"], each["value"]) for each in peeked] == [(1, "2", "hat"), (2, "3", "coat")]
    assert cli("queue", "peek", "orders", "mail", "--limit", 1).lines[1].split()[-2:] == ["2", "hat"]

    assert cli("queue", "pause", "orders", "mail").code == 0
    assert "paused" in cli("queue", "list").text
    assert cli("queue", "unpause", "orders", "mail", "--json").json["paused"] is False
    with NsqConsumer(headrace_broker.nsq, "orders", "mail", credit=1) as consumer:
        assert consumer.next()[1] == b"hat"
        (subscription,) = cli("queue", "show", "orders", "mail", "--json").json["subscriptions"]
        assert subscription["in_flight"] == 1
        assert "subscriptions" not in cli("queue", "show", "orders", "mail").text

        assert cli("queue", "empty", "orders", "mail", stdin=b"\n").code == 1
        assert cli("queue", "empty", "orders", "mail", "-y").code == 0
    (queue,) = cli("queue", "list", "--json").json
    assert (queue["depth"], queue["in_flight"]) == (0, 0)


@pytest.mark.usefixtures("orders")
def test_where_a_queue_begins(cli: Cli):
    for start, depth in (("earliest", 3), ("latest", 0), ("1", 2), ("-1h", 3), ("2026-01-01", 3)):
        name = f"from{start}"
        assert cli("queue", "create", "orders", name, "--from", start).code == 0
        assert cli("queue", "show", "orders", name, "--json").json["depth"] == depth, start


@pytest.mark.usefixtures("orders")
def test_what_goes_wrong_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    cli("queue", "create", "orders", "mail")
    for arguments, word in (
        (("queue", "list", "nothing"), "nothing"),
        (("queue", "show", "orders", "nothing"), "nothing"),
        (("queue", "create", "orders", "mail"), "mail"),
        (("queue", "create", "nothing", "mail"), "nothing"),
        (("queue", "create", "orders", "no space"), "no space"),
        (("queue", "create", "orders", "new", "--from", "soon"), "soon"),
        (("queue", "create", "orders", "new", "--timeout-ms", "soon"), "soon"),
        (("queue", "create", "orders", "new", "--max-attempts", "many"), "max_attempts"),
        (("queue", "set", "orders", "mail"), "--timeout-ms"),
        (("queue", "set", "orders", "mail", "--deliveries", "2"), "deliveries"),
        (("queue", "set", "orders", "nothing", "--deliveries", "1"), "nothing"),
        (("queue", "pause", "orders", "nothing"), "nothing"),
        (("queue", "empty", "orders", "nothing", "--yes"), "nothing"),
        (("queue", "delete", "orders", "nothing", "--yes"), "nothing"),
        (("queue", "peek", "orders", "nothing"), "nothing"),
        (("queue", "list", "--http", "127.0.0.1:1"), "127.0.0.1:1"),
        (("queue", "list", "--http", "nowhere"), "nowhere"),
        (("queue", "list", "--http", "off"), "off"),
    ):
        outcome = cli(*arguments)
        assert outcome.code == 1, arguments
        assert outcome.out == b""
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err


def test_another_server_is_not_taken_for_a_broker(cli: Cli, headrace_broker: Broker):
    outcome = cli("queue", "list", "--http", headrace_broker.kafka)
    assert outcome.code == 1
    assert headrace_broker.kafka in outcome.err


@pytest.mark.usefixtures("orders")
def test_as_a_process(cli: Cli, headrace_broker: Broker):
    cli("queue", "create", "orders", "mail")
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "queue", "list", "--http", headrace_broker.http],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.splitlines()[1].split()[:3] == ["orders", "mail", "3"]
    assert done.stderr == ""


@pytest.mark.usefixtures("orders")
def test_figures_follow_the_consumers(cli: Cli, headrace_broker: Broker):
    with NsqConsumer(headrace_broker.nsq, "orders", "mail") as consumer:
        for command in ("FIN {}", "REQ {} 60000", "TOUCH {}"):
            consumer.say(command.format(consumer.next()[0]))

        def figures() -> tuple[int, ...]:
            (queue,) = cli("queue", "list", "--json").json
            return tuple(
                queue[each] for each in ("depth", "in_flight", "deferred", "finished", "requeued", "consumers")
            )

        wait_until(lambda: figures() == (0, 1, 1, 1, 1, 1), lambda: str(figures()))
    wait_until(lambda: figures() == (1, 0, 1, 1, 1, 0), lambda: str(figures()))


@pytest.mark.usefixtures("orders")
def test_dead_messages_that_cannot_move_are_shown_with_the_reason(cli: Cli, headrace_broker: Broker):
    cli("produce", "orders", stdin=b"no key\n")
    assert cli("topic", "create", "orders.mail.dead", "--set", "cleanup.policy=compact").code == 0
    assert cli("queue", "create", "orders", "mail", "--max-attempts", "1").code == 0
    assert "stuck" not in cli("queue", "list").text
    with NsqConsumer(headrace_broker.nsq, "orders", "mail") as consumer:
        for _ in range(4):
            consumer.next()

    def figures() -> tuple[int, ...]:
        (queue,) = cli("queue", "list", "--json").json
        return tuple(queue[each] for each in ("depth", "condemned", "stuck", "dead"))

    wait_until(lambda: figures() == (0, 0, 1, 3), lambda: str(figures()))
    assert "stuck" in cli("queue", "list").lines[0]
    assert "1 are stuck: the topic orders.mail.dead is compacted, and the message has no key" in (
        cli("queue", "show", "orders", "mail").text
    )
    assert cli("queue", "set", "orders", "mail", "--dead-letter-topic", "others.dead").code == 0
    wait_until(lambda: figures() == (0, 0, 0, 4), lambda: str(figures()))


@pytest.mark.usefixtures("orders")
def test_single_messages_are_shown_and_settled(cli: Cli, headrace_broker: Broker):
    assert cli("queue", "create", "orders", "mail").code == 0
    heading, line, *_ = cli("queue", "messages", "orders", "mail").lines
    assert heading.split() == ["message", "attempts", "age", "key", "value"]
    assert (line.split()[0], line.split()[-1]) == ("0/0", "boots")
    with NsqConsumer(headrace_broker.nsq, "orders", "mail") as consumer:
        for _ in range(3):
            consumer.next()
        assert cli("queue", "settle", "orders", "mail", "0/0", stdin=b"n\n").code == 1
        assert cli("queue", "settle", "orders", "mail", "0/0", "--yes").code == 0
        assert cli("queue", "requeue", "orders", "mail", "0/1", "--delay", "1h").code == 0
        assert cli("queue", "reject", "orders", "mail", "0/2", "--error", "worn").code == 0
        (deferred,) = cli("queue", "messages", "orders", "mail", "--state", "deferred", "--json").json
        assert (deferred["offset"], deferred["value"]) == (1, "hat")
        assert cli("queue", "messages", "orders", "mail", "--state", "in_flight", "--json").json == []
    wait_until(lambda: cli("queue", "show", "orders", "mail", "--json").json["dead"] == 1)
    assert "worn" in cli("dead", "show", "orders.mail.dead").text
    again = cli("queue", "settle", "orders", "mail", "0/1", "0/0", "--yes")
    assert again.code == 1
    assert "1 of 2 messages stay as they are. 0/0: it is not in the queue" in again.err
    assert "'x' is no message of a queue" in cli("queue", "settle", "orders", "mail", "x", "--yes").err
