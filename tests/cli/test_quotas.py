from __future__ import annotations

import pytest
from tests.cli.conftest import Cli

from headrace.embedded import Broker

pytestmark = pytest.mark.headrace(http="127.0.0.1:0")


@pytest.fixture(autouse=True)
def _http(headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)


def test_set_list_and_delete(cli: Cli):
    assert cli("quota", "set", "--user", "ann", "producer_byte_rate=1000", "request_percentage=2.5").code == 0
    assert cli("quota", "set", "--user", "ann", "--client-id", "<default>", "consumer_byte_rate=2000").code == 0
    assert cli("quota", "set", "--ip", "10.0.0.1", "connection_creation_rate=3").code == 0
    assert [line.split() for line in cli("quota", "list").lines[1:]] == [
        ["10.0.0.1", "connection_creation_rate=3"],
        ["ann", "producer_byte_rate=1000", "request_percentage=2.5"],
        ["ann", "<default>", "consumer_byte_rate=2000"],
    ]
    assert cli("quota", "set", "--user", "ann", "producer_byte_rate=none").code == 0
    assert [each["quotas"] for each in cli("quota", "list", "--user", "ann", "--json").json] == [
        {"request_percentage": 2.5},
        {"consumer_byte_rate": 2000},
    ]
    assert cli("quota", "delete", "--user", "ann").code == 0
    assert len(cli("quota", "list", "--json").json) == 2


def test_what_goes_wrong_is_one_line(cli: Cli):
    for arguments, word in (
        (("quota", "set", "producer_byte_rate=1"), "--user"),
        (("quota", "set", "--user", "ann", "producer_byte_rate"), "QUOTA=VALUE"),
        (("quota", "set", "--user", "ann", "bytes=1"), "'bytes'"),
        (("quota", "delete"), "--user"),
    ):
        outcome = cli(*arguments)
        assert outcome.code == 1
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err
