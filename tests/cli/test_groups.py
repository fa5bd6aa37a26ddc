from __future__ import annotations

from confluent_kafka import Consumer
from tests.cli.conftest import Cli

from headrace.embedded import Broker


def test_list_describe_reset(cli: Cli):
    cli("produce", "t", stdin=b"a\nb\nc\n")
    cli("consume", "t", "--group", "g", "--count", 2)
    assert [group["group"] for group in cli("group", "list", "--json").json] == ["g"]
    described = cli("group", "describe", "g", "--json").json
    assert described["state"] == "Empty"
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
