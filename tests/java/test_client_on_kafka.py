"""Headrace's own client against a real Apache Kafka: what it takes for Kafka's behaviour is Kafka's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests import apache
from tests.client.test_broker import *  # noqa: F403
from tests.client.test_transactions_broker import *  # noqa: F403
from tests.client.test_transactions_broker import fresh, read

from headrace.client import LATEST, Client
from headrace.client import coordinator as coordinator_module

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]

# Without the check of KIP-890, a transaction can hang, as in older brokers.
PROPERTIES = """\
transaction.partition.verification.enable=false
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
"""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with apache.running(PROPERTIES) as address:
        yield address


async def test_a_transaction_that_hangs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written to a partition that its coordinator never heard of, as a late request of a dead producer is."""
    monkeypatch.setattr(coordinator_module, "SECOND_GENERATION", 99)
    topic = fresh()
    await client.admin.create_topic(topic, 2)
    producer = client.transactional(fresh("x"))
    await producer.init()
    add = producer._coordinator.add_partitions

    async def forget_one(identity: Any, partitions: list[Any]) -> None:
        await add(identity, [each for each in partitions if each[1] == 0])

    monkeypatch.setattr(producer._coordinator, "add_partitions", forget_one)
    producer.begin()
    for partition in range(2):
        await producer.send(topic, b"v", partition=partition)
    await producer.commit()
    await producer.close()
    async with client.producer() as plain:
        await plain.send(topic, b"behind", partition=1)
    places = [(topic, 0), (topic, 1)]
    assert b"behind" not in await read(client, topic, 2)
    now = time.time_ns() // 1_000_000
    assert await client.transactions.find_hanging(places, 3_600_000, now) == []
    [found] = await client.transactions.find_hanging(places, 0, now + 1000)
    assert (found.topic, found.partition, found.first_offset) == (topic, 1, 0)
    assert found.producer_id == producer.identity[0]
    await client.transactions.abort_hanging(found)
    assert await client.transactions.find_hanging(places, 0, now + 1000) == []
    stable = await client.admin.list_offsets({(topic, 1): LATEST}, committed=True)
    assert stable[topic, 1].offset == 3
    assert sorted(await read(client, topic, 2), key=str) == [b"behind", b"v"]
