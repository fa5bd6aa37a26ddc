from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.cli.conftest import Cli

from headrace.client import Client, ProducerFenced
from headrace.client.transactional import TransactionalProducer
from headrace.embedded import Broker


class Open:
    """A transaction that stays open while commands run."""

    def __init__(self, bootstrap: str) -> None:
        self._runner = asyncio.Runner()
        self._client, self._producer = self._runner.run(self._begin(bootstrap))

    async def _begin(self, bootstrap: str) -> tuple[Client, TransactionalProducer]:
        client = Client(bootstrap)
        producer = client.transactional("worker-1", transaction_timeout=30)
        await producer.init()
        producer.begin()
        await producer.send("t", b"open", partition=0)
        await producer.flush()
        return client, producer

    def commit(self) -> None:
        self._runner.run(self._producer.commit())

    def close(self) -> None:
        async def end() -> None:
            await self._producer.close()
            await self._client.close()

        self._runner.run(end())
        self._runner.close()


@contextmanager
def opened(broker: Broker) -> Iterator[Open]:
    transaction = Open(broker.kafka)
    try:
        yield transaction
    finally:
        transaction.close()


def test_list_and_describe(cli: Cli, headrace_broker: Broker) -> None:
    assert cli("transaction", "list", "--json").json == []
    cli("produce", "t", "--transactional-id", "import", stdin=b"a\nb\n")
    with opened(headrace_broker) as transaction:
        listed = cli("transaction", "list", "--json").json
        assert [(each["transactional_id"], each["state"]) for each in listed] == [
            ("import", "CompleteCommit"),
            ("worker-1", "Ongoing"),
        ]
        [ongoing] = cli("transaction", "list", "--state", "Ongoing", "--json").json
        assert ongoing == listed[1]
        assert cli("transaction", "list", "--older-than", "1h", "--json").json == []
        assert cli("transaction", "list", "--older-than", "0", "--json").json == [ongoing]
        described = cli("transaction", "describe", "worker-1", "--json").json
        assert described["partitions"] == [{"topic": "t", "partition": 0}]
        assert (described["state"], described["timeout_ms"]) == ("Ongoing", 30_000)
        assert described["producer_id"] == ongoing["producer_id"]
        text = cli("transaction", "describe", "worker-1").text
        assert "Ongoing" in text
        assert "timeout 30s" in text
        assert "open for" in text
        transaction.commit()
    done = cli("transaction", "describe", "worker-1", "--json").json
    assert (done["state"], done["partitions"]) == ("CompleteCommit", [])
    assert "open for" not in cli("transaction", "describe", "worker-1").text


def test_abort_fences(cli: Cli, headrace_broker: Broker) -> None:
    cli("produce", "t", stdin=b"a\n")
    with opened(headrace_broker) as transaction:
        # What is open is not waited for, but read up to.
        assert cli("consume", "t", "--committed").lines == ["a"]
        cli("produce", "t", stdin=b"b\n")
        assert cli("consume", "t", "--committed").lines == ["a"]
        assert cli("consume", "t").lines == ["a", "open", "b"]
        assert cli("transaction", "abort", "worker-1").code == 0
        assert cli("consume", "t", "--committed").lines == ["a", "b"]
        with pytest.raises(ProducerFenced):
            transaction.commit()


def test_what_is_known_does_not_hang(cli: Cli, headrace_broker: Broker) -> None:
    with opened(headrace_broker):
        assert cli("transaction", "hanging", "--older-than", "0", "--json").json == []
        assert cli("transaction", "hanging", "--topic", "t").code == 0


def test_a_marker_by_hand(cli: Cli, headrace_broker: Broker) -> None:
    cli("produce", "t", stdin=b"a\n")
    with opened(headrace_broker):
        outcome = cli("transaction", "abort", "--topic", "t", "--partition", 0, "--offset", 7)
        assert outcome.code == 1
        assert "open ones begin at 1" in outcome.err
        assert cli("transaction", "abort", "--topic", "t", "--partition", 0, "--offset", 1).code == 0
        assert cli("consume", "t", "--committed").lines == ["a"]
        assert "none is open there" in cli("transaction", "abort", "--topic", "t", "--partition", 0, "--offset", 1).err


def test_produce_is_one_transaction(cli: Cli) -> None:
    assert cli("produce", "t", "--transactional-id", "import", stdin=b"a\nb\nc\n").code == 0
    assert cli("consume", "t", "--committed").lines == ["a", "b", "c"]
    broken = b'{"value": "d"}\nnot json\n'
    assert cli("produce", "t", "--transactional-id", "import", "--format", "json", stdin=broken).code == 1
    assert cli("consume", "t", "--committed").lines == ["a", "b", "c"]
    assert cli("produce", "t", "--transactional-id", "import", stdin=b"e\n").code == 0
    assert cli("consume", "t", "--committed").lines == ["a", "b", "c", "e"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("transaction", "describe", "nobody"), "nobody"),
        (("transaction", "abort", "nobody"), "nobody"),
        (("transaction", "abort"), "transactional id"),
        (("transaction", "abort", "x", "--topic", "t"), "transactional id"),
        (("transaction", "abort", "--topic", "t", "--partition", "0"), "--offset"),
        (("transaction", "list", "--state", "Sleeping"), "Sleeping"),
        (("transaction", "list", "--older-than", "soon"), "soon"),
        (("produce", "t", "--transactional-id", "x", "--acks", "1"), "--acks"),
    ],
)
def test_what_goes_wrong_is_one_line(cli: Cli, arguments: tuple[Any, ...], word: str) -> None:
    outcome = cli(*arguments)
    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert word in outcome.err
