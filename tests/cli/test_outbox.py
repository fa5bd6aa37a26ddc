from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, update
from tests.cli.conftest import Cli
from tests.waiting import wait_until

from headrace.embedded import Broker
from headrace.outbox import Outbox
from headrace.outbox.store import Store


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'application.db'}"
    monkeypatch.setenv("HEADRACE_DATABASE", url)
    return url


@pytest.fixture
def engine(database: str) -> Engine:
    return create_engine(database)


@pytest.fixture
def outbox(engine: Engine, cli: Cli) -> Outbox:
    assert cli("outbox", "create").code == 0
    return Outbox()


def relay(broker: Broker, *flags: str) -> subprocess.Popen[str]:
    """In a process of its own; the database is in the environment."""
    command = [sys.executable, "-m", "headrace.cli", "outbox", "relay", "--bootstrap", broker.kafka, "--poll", "20ms"]
    return subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)


def test_relay_until_told_to_stop(cli: Cli, headrace_broker: Broker, engine: Engine, outbox: Outbox):
    with engine.begin() as connection:
        outbox.add(connection, "orders", "a hat", key="42", headers={"from": "shop"})
    running = relay(headrace_broker)
    try:
        wait_until(lambda: cli("outbox", "status", "--json").json[0]["waiting"] == 0)
        with engine.begin() as connection:
            outbox.add(connection, "orders", "boots")
        wait_until(lambda: cli("outbox", "status", "--json").json[0]["waiting"] == 0)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 0
    assert json.loads(said.splitlines()[0])["event"] == "relaying"
    consumed = cli("consume", "orders", "--format", "json", "--committed").lines
    assert [json.loads(line)["value"] for line in consumed] == ["a hat", "boots"]
    [row] = cli("outbox", "status", "--json").json
    assert (row["name"], row["published"], row["oldest"]) == ("default", 2, None)


def test_what_is_refused_ends_it_in_one_line_that_says_what_to_do(
    cli: Cli, headrace_broker: Broker, engine: Engine, outbox: Outbox
):
    assert cli("topic", "create", "small", "--set", "max.message.bytes=1000").code == 0
    with engine.begin() as connection:
        outbox.add(connection, "small", "x" * 2_000)
    ended = relay(headrace_broker, "--log-level", "error")
    try:
        _, said = ended.communicate(timeout=60)
    finally:
        ended.kill()
    assert ended.returncode == 1
    [line] = said.splitlines()
    assert "message 1" in line
    assert "max.message.bytes" in line
    assert "park" in line


def test_parked_and_tried_again(cli: Cli, engine: Engine, outbox: Outbox):
    with engine.begin() as connection:
        outbox.add(connection, "orders", "a hat")
        connection.execute(update(outbox.tables.messages).values(refused="too large"))
    assert cli("outbox", "status", "--json").json[0]["refused"] == 1
    assert cli("outbox", "parked", "--json").json == [{"id": 1, "topic": "orders", "bytes": 5, "reason": "too large"}]
    assert "too large" in cli("outbox", "parked", "--retry").text
    status = Store(engine, outbox.tables).status()
    assert (status.refused, status.waiting) == (0, 1)


def test_status_for_people(cli: Cli, engine: Engine, outbox: Outbox):
    with engine.begin() as connection:
        outbox.add(connection, "orders", "a hat")
        added_ms = outbox.tables.messages.c.added_ms - 90 * 60_000
        connection.execute(update(outbox.tables.messages).values(added_ms=added_ms))
    heading, row = cli("outbox", "status").lines
    assert heading.split() == ["table", "relayed", "as", "waiting", "oldest", "parked", "kept", "published"]
    assert row.split()[:6] == ["headrace_outbox", "-", "1", "1h", "30m", "0"]


@pytest.mark.usefixtures("database")
def test_what_goes_wrong_is_one_line(cli: Cli):
    for arguments, word in (
        (("status",), "outbox create"),
        (("status", "--database", "nonsense"), "cannot be opened by SQLAlchemy"),
        (("status", "--database", "oracle+nothing://x"), "cannot be opened by SQLAlchemy"),
        (("status", "--database", "postgresql://nobody@127.0.0.1:1/x"), "port 1"),
        (("relay", "--poll", "soon"), "soon"),
        (("relay", "--log-level", "loud"), "loud"),
    ):
        outcome = cli("outbox", *arguments)
        assert outcome.code == 1, arguments
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err
