"""Three `headrace serve` with a real etcd: real clients live through the death of a leader."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from tests.clients.nsq.raw import ERROR, NOWHERE, Raw
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses
from tests.waiting import wait_until

pytestmark = pytest.mark.etcd

TOPIC = "orders"
FLAGS = ("--nsq", "127.0.0.1:0", "--queue-flush-ms", "60000")


class Load:
    """An idempotent producer that numbers its messages and remembers which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "topic.metadata.refresh.interval.ms": 1_000,
                "reconnect.backoff.max.ms": 500,
                "message.timeout.ms": 60_000,
            }
        )
        self.acknowledged: list[int] = []
        self.failed: list[KafkaError] = []
        self.sent = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.001):
            number = self.sent
            self._producer.produce(TOPIC, b"%d" % number, on_delivery=self._delivered)
            self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            value = message.value()
            assert isinstance(value, bytes)
            self.acknowledged.append(int(value))

    def wait(self, more: int) -> None:
        """Until so many more are acknowledged."""
        least = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= least, lambda: f"{len(self.acknowledged)} of {least}")

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(40) == 0


def read_all(bootstrap: str, last: int) -> list[int]:
    """What a consumer from the beginning reads, until it has the number `last`."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    found: list[int] = []

    def read() -> bool:
        for message in consumer.consume(1_000, 0.5):
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            found.append(int(value))
        return last in found

    wait_until(read, lambda: f"{len(found)} messages, {last} is not among them")
    consumer.close()
    return found


# A node that fails as one whose disk does, at a signal.
BREAKING = """
import asyncio, runpy, signal
from headrace.group_server import GroupServer
start = GroupServer.start
async def breakable(self):
    await start(self)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.replica.fail, "its disk is gone")
GroupServer.start = breakable
runpy.run_module("headrace.cli", run_name="__main__")
"""


def test_a_node_that_cannot_go_on_ends_and_another_takes_over(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    peers.wait()
    with GroupProcesses(peers, tmp_path, program=("-c", BREAKING)) as group:
        broken = group.wait_leader(3)
        os.kill(group.nodes[broken].pid, signal.SIGUSR1)
        assert group.nodes[broken].wait() == 1
        assert "headrace serve: this replica cannot go on: its disk is gone." in group.nodes[broken].words()
        group.wait_leader(2, other_than=broken)
        group.nodes[broken].start()
        group.wait_leader(3)


def test_nothing_acknowledged_is_lost_or_doubled_when_leaders_are_killed(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    peers.wait()
    with GroupProcesses(peers, tmp_path) as group:
        leader = group.wait_leader(3)
        load = Load(group.kafka)
        try:
            load.wait(200)
            for _ in range(2):
                group.nodes[leader].kill()
                killed = leader
                leader = group.wait_leader(2, other_than=killed)
                load.wait(200)
                group.nodes[killed].start()
                leader = group.wait_leader(3)
        finally:
            load.stop()
        assert not load.failed
        found = read_all(group.kafka, max(load.acknowledged))
    counts = Counter(found)
    assert not [number for number in load.acknowledged if number not in counts]
    assert not [number for number, count in counts.items() if count > 1]
    assert found == sorted(found)


def test_a_leader_that_is_stopped_hands_over(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    peers.wait()
    with GroupProcesses(peers, tmp_path, *FLAGS) as group:
        leader = group.wait_leader(3)
        load = Load(group.kafka)
        try:
            load.wait(200)
            consumer = Raw(group.nodes[leader].addresses["nsq"])
            consumer.subscribe(TOPIC, "workers", 100)
            taken = [consumer.delivery() for _ in range(100)]
            consumer.send("RDY", 0)
            consumer.send_raw(b"".join(b"FIN %b\n" % each.id for each in taken) + NOWHERE)
            # It has taken all of them by then, and what it has is written down by the stop alone.
            kind, error = consumer.frame()
            assert (kind, error[:12]) == (ERROR, b"E_FIN_FAILED")
            group.nodes[leader].stop()
            stopped, leader = leader, group.wait_leader(2, other_than=leader)
            load.wait(200)
            assert "the leadership was not handed over" not in group.nodes[stopped].words()
            assert "hands over" in group.nodes[stopped].words()
            consumer = Raw(group.nodes[leader].addresses["nsq"])
            consumer.subscribe(TOPIC, "workers", 100)
            assert not {consumer.delivery().body for _ in range(100)} & {each.body for each in taken}
        finally:
            load.stop()
        assert not load.failed
        found = read_all(group.kafka, max(load.acknowledged))
    assert found == sorted(set(found))
    assert not set(load.acknowledged) - set(found)
