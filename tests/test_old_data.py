"""Data directories of earlier versions: each opens, and everything that `tests/olddata/write.py` wrote is there.

The broker's clock is set to when they were written, so that nothing has expired since.
"""

from __future__ import annotations

import json
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from headrace import Broker
from headrace.runtime.clock import SystemClock

ARCHIVES = sorted((Path(__file__).parent / "olddata").glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def old(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Broker, dict[str, Any]]]:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    behind = time.time_ns() // 1_000_000 - expected["written_ms"]
    now_ms = SystemClock.now_ms
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: now_ms(self) - behind)
    with Broker(tmp_path / "data", http="127.0.0.1:0") as broker:
        yield broker, expected


def ask(broker: Broker, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{broker.http}{path}", data)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def read(broker: Broker, topic: str, partitions: int = 1) -> list[Any]:
    """All messages of a topic that a committed reader gets."""
    settings = {"bootstrap.servers": broker.kafka, "group.id": "old", "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    found = []
    ends = 0
    try:
        while ends < partitions:
            message = consumer.poll(30)
            assert message is not None, f"nothing comes behind {len(found)} messages"
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends += 1
            else:
                raise KafkaException(message.error())
    finally:
        consumer.close()
    return found


def test_messages_and_transactions(old: tuple[Broker, dict[str, Any]]) -> None:
    broker, _ = old
    orders = read(broker, "orders", 3)
    assert sorted(message.value() for message in orders) == sorted(
        [*(b"order %d" % number for number in range(300)), b"decided"]
    )
    for message in orders:
        if message.value() != b"decided":
            number = message.value().split()[1]
            assert (message.key(), message.headers()) == (b"%d" % (int(number) % 7), [("n", number)])
    assert [message.value() for message in read(broker, "logs")] == [b"line %d" % number for number in range(300)]
    assert {message.key(): message.value() for message in read(broker, "users")} == {
        b"user %d" % number: b"%d" % (290 + number) for number in range(10)
    }
    # One is open still, so that readers stop before it.
    assert [message.value() for message in read(broker, "payments")] == [b"payment 0", b"payment 2"]


def test_groups_and_settings(old: tuple[Broker, dict[str, Any]]) -> None:
    broker, _ = old
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "readers"})
    committed = consumer.committed([TopicPartition("logs", 0), TopicPartition("orders", 1)], timeout=30)
    consumer.close()
    assert [each.offset for each in committed] == [123, 7]
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    of_broker = ConfigResource(ResourceType.BROKER, "0")
    of_topic = ConfigResource(ResourceType.TOPIC, "reminders")
    described = {each: found.result(30) for each, found in admin.describe_configs([of_broker, of_topic]).items()}
    assert described[of_broker]["log.retention.ms"].value == "777600000"
    assert described[of_topic]["delay"].value == "true"


def test_queues_timers_prepared_messages_and_deduplication(old: tuple[Broker, dict[str, Any]]) -> None:
    broker, expected = old
    queue = ask(broker, "/v1/topics/jobs/queues/workers")
    assert queue["settings"] == expected["queue"]["settings"]
    assert (queue["depth"] + queue["deferred"], queue["partitions"]) == (14, expected["queue"]["partitions"])
    assert queue["deferred"] == 3

    (timer,) = ask(broker, "/v1/timers")["timers"]
    assert (timer["id"], timer["topic"]) == (expected["timer"]["timer"], "reminders")
    assert [message.value() for message in read(broker, "reminders")] == [b"soon"]

    undecided = ask(broker, f"/v1/half/{expected['undecided']}")
    assert (undecided["state"], undecided["topic"]) == ("prepared", "orders")
    assert ask(broker, f"/v1/half/{expected['undecided']}/commit", {})["state"] == "committed"
    committed = ask(broker, f"/v1/half/{expected['committed']['id']}")
    assert {name: committed[name] for name in expected["committed"]} == expected["committed"]

    again = ask(broker, "/v1/topics/emails/messages", {"value": "hello", "dedup_id": "email-1"})
    assert (again["duplicate"], again["offset"]) == (True, expected["email"]["offset"])
