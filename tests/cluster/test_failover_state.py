"""Everything that the broker keeps is there when its leader is killed, and goes on: over real doors, in real processes.

What is written, and what must be found, is what data directories of earlier versions are tested with.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from tests.clients.nsq.raw import Raw
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses
from tests.olddata.write import write
from tests.waiting import wait_until

from headrace.client import Client
from headrace.client.messages import request

pytestmark = pytest.mark.etcd

FLAGS = ("--http", "127.0.0.1:0", "--nsq", "127.0.0.1:0", "--rocketmq", "127.0.0.1:0")
DELAY_MS = 4_000


class Doors:
    """Of the node that leads."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.kafka, self.nsq, self.http = (addresses[name] for name in ("kafka", "nsq", "http"))

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"http://{self.http}{path}", data, method=method)
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return json.loads(reply.read() or b"null")

    def read(self, topic: str, partitions: int = 1) -> list[bytes]:
        """All messages of a topic that a committed reader gets."""
        settings = {"bootstrap.servers": self.kafka, "group.id": "all", "enable.partition.eof": True}
        consumer = Consumer({**settings, "enable.auto.commit": False, "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        found, ends = [], 0
        try:
            while ends < partitions:
                message = consumer.poll(30)
                assert message is not None, f"nothing comes behind {len(found)} messages"
                error = message.error()
                if error is None:
                    found.append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends += 1
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        return found


def check(doors: Doors, node: int, expected: dict[str, Any], payments: list[bytes]) -> None:
    orders = [*(b"order %d" % number for number in range(300)), b"decided"]
    assert sorted(doors.read("orders", 3)) == sorted(orders)
    assert doors.read("logs") == [b"line %d" % number for number in range(300)]
    assert doors.read("payments") == payments
    consumer = Consumer({"bootstrap.servers": doors.kafka, "group.id": "readers"})
    committed = consumer.committed([TopicPartition("logs", 0), TopicPartition("orders", 1)], timeout=30)
    consumer.close()
    assert [each.offset for each in committed] == [123, 7]
    admin = AdminClient({"bootstrap.servers": doors.kafka})
    of_broker, of_topic = (
        ConfigResource(ResourceType.BROKER, str(node)),
        ConfigResource(ResourceType.TOPIC, "reminders"),
    )
    described = {each: found.result(30) for each, found in admin.describe_configs([of_broker, of_topic]).items()}
    assert described[of_broker]["log.retention.ms"].value == "777600000"
    assert described[of_topic]["delay"].value == "true"

    queue = doors.ask("/v1/topics/jobs/queues/workers")
    assert queue["settings"] == expected["queue"]["settings"]
    assert (queue["depth"] + queue["deferred"], queue["deferred"]) == (14, 3)
    timers = {each["id"]: each["topic"] for each in doors.ask("/v1/timers")["timers"]}
    assert timers[expected["timer"]["timer"]] == "reminders"
    undecided = doors.ask(f"/v1/half/{expected['undecided']}")
    assert (undecided["state"], undecided["topic"]) == ("prepared", "orders")
    found = doors.ask(f"/v1/half/{expected['committed']['id']}")
    assert {name: found[name] for name in expected["committed"]} == expected["committed"]
    again = doors.ask("/v1/topics/emails/messages", {"value": "hello", "dedup_id": "email-1"})
    assert (again["duplicate"], again["offset"]) == (True, expected["email"]["offset"])


def test_what_the_broker_keeps_is_there_after_failovers_and_goes_on(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    peers.wait()
    with GroupProcesses(peers, tmp_path, *FLAGS, first=0) as group:
        leader = group.wait_leader(3)
        doors = Doors(group.nodes[leader].addresses)
        expected = write(doors.kafka, doors.nsq, doors.http)
        asyncio.run(set_default(doors.kafka, "log.retention.ms", "777600000"))

        # What is under way when the leader is killed.
        transactional = Producer({"bootstrap.servers": group.kafka, "transactional.id": "mover", "log_level": 0})
        transactional.init_transactions(30)
        transactional.begin_transaction()
        transactional.produce("moves", b"first half")
        transactional.flush(30)
        doors.ask("/v1/topics/tasks/messages", {"messages": [{"value": str(number)} for number in range(10)]})
        doors.ask("/v1/topics/tasks/queues/one", {"from": "earliest"}, "PUT")
        consumer = Raw(doors.nsq, msg_timeout=2_000)
        consumer.send("SUB", "tasks", "one")
        assert consumer.response() == b"OK"
        consumer.send("RDY", 6)
        taken = [consumer.frame()[1] for _ in range(6)]
        for message in taken[:2]:
            consumer.send("FIN", message[10:26].decode())
        wait_until(lambda: unsettled(doors) == 8, lambda: doors.ask("/v1/topics/tasks/queues/one"))
        doors.ask("/v1/topics/later/messages", {"value": "due", "delay": f"{DELAY_MS}ms"})
        # Queues write their state down behind their clients.
        time.sleep(0.5)

        group.nodes[leader].kill()
        killed, leader = leader, group.wait_leader(2, other_than=leader)
        doors = Doors(group.nodes[leader].addresses)
        # The one that is left open since is still open: it holds the readers back.
        payments = [b"payment 0", b"payment 2"]
        check(doors, leader, expected, payments)

        transactional.produce("moves", b"second half")
        transactional.commit_transaction(60)
        assert doors.read("moves") == [b"first half", b"second half"]
        assert wait_until(lambda: doors.read("later") if "later" in topics(doors) else None) == [b"due"]
        consumer = Raw(doors.nsq)
        consumer.send("SUB", "tasks", "one")
        assert consumer.response() == b"OK"
        consumer.send("RDY", 10)
        again = [consumer.frame()[1] for _ in range(8)]
        assert sorted(message[26:] for message in again) == [b"%d" % number for number in range(2, 10)]
        consumer.close()

        group.nodes[killed].start()
        group.wait_leader(3)
        group.nodes[leader].kill()
        leader = group.wait_leader(2, other_than=leader)
        check(Doors(group.nodes[leader].addresses), leader, expected, payments)


async def set_default(kafka: str, name: str, value: str) -> None:
    """Set a default of all brokers: confluent-kafka has no name for them."""
    entry = {"name": name, "config_operation": 0, "value": value}
    resources = [{"resource_type": int(ResourceType.BROKER.value), "resource_name": "", "configs": [entry]}]
    async with Client(kafka) as client:
        asked = request("incremental_alter_configs", 1, resources=resources, validate_only=False)
        reply = await (await client.cluster.any_node()).call(asked)
    assert [each.error_code for each in reply.responses] == [0], reply


def unsettled(doors: Doors) -> int:
    queue = doors.ask("/v1/topics/tasks/queues/one")
    count: int = queue["depth"] + queue["in_flight"] + queue["deferred"]
    return count


def topics(doors: Doors) -> Any:
    return AdminClient({"bootstrap.servers": doors.kafka}).list_topics(timeout=30).topics
