"""A group of three with an etcd of three, each on a machine of its own, real clients, and one fault after another:
nothing acknowledged is lost, doubled, reordered, or seen although it was aborted.

Where machines cannot be made (`machines.py`), it is processes alone that are killed, stopped and paused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench.peers import Missing
from confluent_kafka.admin import AdminClient, NewTopic
from tests.acknowledged import IDEMPOTENT, PARTITIONS, IdempotentClient, check_idempotent
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses
from tests.cluster.machine_nemesis import MachineNemesis
from tests.cluster.machines import Machines
from tests.cluster.nemesis import Nemesis
from tests.copy_scene import Scene, check_copied, create_topics, settle
from tests.longer import LONGER

NODES, MEMBERS = ("n1", "n2", "n3"), ("m0", "m1", "m2")
# Small files, so that much happens to them, and a journal in which one that was away does not find what it lacks.
FLAGS = ("--checkpoint-ms", "2000", "--replica-journal-max-bytes", str(64 << 20), "--insecure")
# What is sent to a machine that was cut off is given up, and sent to the next one.
PATIENT = {"message.timeout.ms": 600_000, "socket.timeout.ms": 10_000, "request.timeout.ms": 10_000}
# Messages under way: more would make a run of minutes one of millions.
OUTSTANDING = 20


@dataclass
class Outcome:
    """What a run came to."""

    copied: int
    """Transactions."""
    acknowledged: int
    """Messages of an idempotent producer."""
    epochs: int
    longest_s: float
    """The longest time in which nothing was acknowledged."""
    faults: Counter[str]


@contextmanager
def machines_in(folder: Path) -> Iterator[Machines | None]:
    """Machines of their own; None where there are none."""
    try:
        machines = Machines(folder, [*NODES, *MEMBERS]).__enter__()
    except Missing as reason:
        print(f"links and disks stay as they are: {reason}")
        yield None
        return
    try:
        yield machines
    finally:
        machines.__exit__()


def live_through_faults(peers_of: Peers, folder: Path, seconds: float, seed: int) -> Outcome:
    with machines_in(folder) as machines:
        places = [] if machines is None else [(machines[name].address, machines[name].under) for name in MEMBERS]
        peers = peers_of(len(MEMBERS), places=places)
        try:
            peers.wait()
            with GroupProcesses(peers, folder, *FLAGS, machines=machines) as group:
                nemesis = Nemesis(group, peers, seed)
                if machines is not None:
                    nemesis = MachineNemesis(group, peers, machines, seed)
                return live(group, nemesis, folder, seconds)
        finally:
            # Before the machines are gone that they run on.
            peers.stop()


def live(group: GroupProcesses, nemesis: Nemesis, folder: Path, seconds: float) -> Outcome:
    group.wait_leader(3)
    create_topics(group.kafka)
    admin = AdminClient({"bootstrap.servers": group.kafka, "log_level": 0})
    for made in admin.create_topics([NewTopic(IDEMPOTENT, PARTITIONS)]).values():
        made.result(40)
    scene, idempotent = Scene(folder, group, "confluent", 2), IdempotentClient(group.kafka, OUTSTANDING, **PATIENT)
    longest, heard, count = 0.0, time.monotonic(), 0
    try:
        nemesis.start()
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            scene.keep()
            if len(idempotent.places) > count:
                longest, heard, count = max(longest, now - heard), now, len(idempotent.places)
            time.sleep(0.2)
        nemesis.stop()
        group.wait_leader(3)
        scene.source.kill()
        # librdkafka's consumers do not come through everything by themselves.
        settle(scene, restarts=2)
    finally:
        scene.kill()
        idempotent.stop()
    check_idempotent(group.kafka, idempotent)
    epochs = group.status()["group"]["epoch"]
    found = Outcome(check_copied(scene), len(idempotent.places), epochs, longest, nemesis.done)
    print(found)
    return found


# With every run, where there is an etcd.
@pytest.mark.timeout(600)
def test_a_group_lives_through_faults(etcd_peers: Peers, tmp_path: Path) -> None:
    found = live_through_faults(etcd_peers, tmp_path, 60, seed=1)
    assert found.copied > 5
    assert found.acknowledged > 1_000
    assert found.epochs > 3
    assert sum(found.faults.values()) > 8


@pytest.mark.etcd
@pytest.mark.long
@pytest.mark.timeout(3600 * LONGER)
@pytest.mark.parametrize("seed", range(2, 4))
def test_a_group_lives_through_many_faults(etcd_peers: Peers, tmp_path: Path, seed: int) -> None:
    found = live_through_faults(etcd_peers, tmp_path, 900 * LONGER, seed)
    assert found.copied > 100
    assert found.acknowledged > 50_000
    assert found.epochs > 40
    assert len(found.faults) > 15
