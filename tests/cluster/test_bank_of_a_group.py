"""The bank of `tests/test_bank.py` over a group of three: its leader dies, or sleeps, or hands over, and the money is
all there."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from bench.peers import free_port
from bench.peers.etcd import EtcdPeers
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses
from tests.longer import LONGER
from tests.test_bank import run_bank

pytestmark = pytest.mark.etcd

# Longer than a lease: another leads meanwhile.
SLEEP_S = 4.0


class GroupBroker:
    """A group where a bank expects a broker."""

    def __init__(self, folder: Path, peers: EtcdPeers, seed: int) -> None:
        self._peers = peers
        self._random = Random(seed)
        self._group = GroupProcesses(peers, folder)
        places = {number: f"127.0.0.1:{free_port()}" for number in self._group.nodes}
        for number, node in self._group.nodes.items():
            node._flags = (*node._flags, "--nsq", places[number], "--nsq-http", "off")
        self.kafka = self._group.kafka
        self.nsq = ",".join(places.values())
        self._due: list[Callable[[int], None]] = []

    def open(self) -> None:
        self._peers.wait()
        self._group.__enter__()
        self._group.wait_leader(3)

    def crash(self) -> None:
        """Each kind of accident in its turn, to the node that leads."""
        leader = self._group.wait_leader(2)
        if not self._due:
            self._due = [self._kill, self._sleep, self._hand_over, self._lose_etcd]
            self._random.shuffle(self._due)
        self._due.pop()(leader)

    def _kill(self, leader: int) -> None:
        self._group.nodes[leader].kill()
        self._group.wait_leader(2, other_than=leader)
        self._group.nodes[leader].start()

    def _sleep(self, leader: int) -> None:
        node = self._group.nodes[leader]
        node.signal(signal.SIGSTOP)
        time.sleep(SLEEP_S)
        node.signal(signal.SIGCONT)

    def _hand_over(self, leader: int) -> None:
        others = [number for number in self._group.nodes if number != leader]
        self._group.wait_leader(3)
        self._group.command("transfer", str(self._random.choice(others)))

    def _lose_etcd(self, leader: int) -> None:
        """etcd is away for a while, and the leader dies."""
        for member in self._peers.members:
            member.signal(signal.SIGSTOP)
        self._group.nodes[leader].kill()
        time.sleep(SLEEP_S)
        for member in self._peers.members:
            member.signal(signal.SIGCONT)
        self._group.wait_leader(2, other_than=leader)
        self._group.nodes[leader].start()

    def close(self) -> None:
        self._group.__exit__(None)


def test_the_sum_never_changes(etcd_peers: Peers, tmp_path: Path) -> None:
    """Each part dies once, the broker by one accident of a group."""
    run_bank(tmp_path, 7, 1, GroupBroker(tmp_path, etcd_peers(3), 1))


@pytest.mark.long
@pytest.mark.timeout(3_600 * LONGER)
def test_the_sum_never_changes_for_minutes(etcd_peers: Peers, tmp_path: Path) -> None:
    run_bank(tmp_path, 60 * LONGER, 2, GroupBroker(tmp_path, etcd_peers(3), 2))
