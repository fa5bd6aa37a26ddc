from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer
from tests.cli.conftest import Cli

from headrace.broker.groups.consumer import consumer_group as group
from headrace.client import Client
from headrace.client.messages import request
from headrace.embedded import Broker


def test_list_describe_reset(cli: Cli):
    cli("produce", "t", stdin=b"a\nb\nc\n")
    cli("consume", "t", "--group", "g", "--count", 2)
    assert [group["group"] for group in cli("group", "list", "--json").json] == ["g"]
    described = cli("group", "describe", "g", "--json").json
    assert (described["state"], described["type"]) == ("Empty", "classic")
    assert described["offsets"] == [{"topic": "t", "partition": 0, "committed": 2, "end": 3, "lag": 1, "member": None}]
    planned = cli("group", "reset", "g", "--topic", "t", "--to", "earliest", "--dry-run", "--json").json
    assert planned == [{"topic": "t", "partition": 0, "from": 2, "to": 0}]
    assert cli("group", "describe", "g", "--json").json["offsets"][0]["committed"] == 2
    for to, offset in (("earliest", 0), ("latest", 3), ("1", 1), ("-1h", 0), ("99", 3)):
        assert cli("group", "reset", "g", "--topic", "t", "--to", to).code == 0
        assert cli("group", "describe", "g", "--json").json["offsets"][0]["committed"] == offset


def test_an_active_group_is_not_reset(cli: Cli, headrace_broker: Broker):
    cli("produce", "t", stdin=b"a\n")
    consumer = Consumer({"bootstrap.servers": headrace_broker.kafka, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    assert consumer.poll(10) is not None
    consumer.commit(asynchronous=False)
    described = cli("group", "describe", "g", "--json").json
    assert described["state"] == "Stable"
    assert len(described["members"]) == 1
    assert described["offsets"][0]["member"] == described["members"][0]["member"]
    outcome = cli("group", "reset", "g", "--topic", "t", "--to", "earliest")
    consumer.close()
    assert outcome.code == 1
    assert "active" in outcome.err
    assert cli("group", "reset", "g", "--topic", "t", "--to", "earliest").code == 0


@pytest.fixture
def members(headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Heartbeats of members of the consumer protocol that do as the test says; targets are computed at once."""
    monkeypatch.setattr(group, "ASSIGNING_REST", 0)

    async def beat(member: str, epoch: int, **fields: Any) -> Any:
        asked = request(
            "consumer_group_heartbeat",
            1,
            group_id="g",
            member_id=member,
            member_epoch=epoch,
            **{
                "rebalance_timeout": 60_000,
                "server_assignor": "range",
                "subscribed_topic_names": ["t"],
                "topic_partitions": [],
                **fields,
            },
        )
        async with Client(headrace_broker.kafka) as client:
            return await (await client.cluster.coordinator("g")).call(asked)

    return lambda *arguments, **fields: asyncio.run(beat(*arguments, **fields))


def test_a_group_of_the_consumer_protocol(cli: Cli, members: Callable[..., Any]):
    cli("topic", "create", "t", "--partitions", 2)
    cli("produce", "t", stdin=b"a\nb\nc\n")
    cli("consume", "t", "--group", "g", "--count", 3)
    members("a", 0, instance_id="i")
    assert cli("group", "list", "--json").json == [
        {"group": "g", "type": "consumer", "state": "Stable", "protocol_type": "consumer"}
    ]
    described = cli("group", "describe", "g", "--json").json
    assert (described["type"], described["state"], described["protocol"]) == ("consumer", "Stable", "range")
    assert described["epoch"] == described["assignment_epoch"] == described["members"][0]["epoch"]
    [member] = described["members"]
    assert (member["member"], member["instance"], member["client"]) == ("a", "i", "headrace")
    assert [(each["member"], each["target"]) for each in described["offsets"]] == [("a", "a"), ("a", "a")]
    assert sum(each["committed"] or 0 for each in described["offsets"]) == 3
    text = cli("group", "describe", "g")
    assert re.fullmatch(r"group g, Stable, 1 members, range, epoch \d+", text.lines[0])
    assert "target" not in text.text

    members("b", 0)
    described = cli("group", "describe", "g", "--json").json
    assert described["state"] == "Reconciling"
    assert [(each["member"], each["target"]) for each in described["offsets"]] == [("a", "a"), ("a", "b")]
    [heading] = [line for line in cli("group", "describe", "g").lines if line.startswith("topic")]
    assert heading.split()[-2:] == ["member", "target"]

    refused = cli("group", "reset", "g", "--topic", "t", "--to", "earliest")
    assert refused.code == 1
    assert "active (Reconciling, 2 members)" in refused.err
    for each in ("a", "b"):
        members(each, -1, instance_id="i" if each == "a" else None)
    assert cli("group", "describe", "g").text.startswith("group g, Empty, 0 members, ")
    assert cli("group", "reset", "g", "--topic", "t", "--to", "earliest").code == 0
    assert [each["committed"] for each in cli("group", "describe", "g", "--json").json["offsets"]] == [0, 0]
    [row] = [line for line in cli("group", "list").lines if line.startswith("g ")]
    assert row.split() == ["g", "consumer", "Empty"]


def test_what_goes_wrong_is_one_line(cli: Cli):
    cli("produce", "t", stdin=b"a\n")
    for arguments, word in (
        (("group", "describe", "nobody"), "nobody"),
        (("group", "reset", "g", "--topic", "nothing", "--to", "earliest"), "nothing"),
        (("group", "reset", "g", "--topic", "t", "--to", "soon"), "soon"),
    ):
        outcome = cli(*arguments)
        assert outcome.code == 1
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err
