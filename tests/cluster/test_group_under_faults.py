"""A group of three with an etcd of three, real clients, and one fault after another: nothing acknowledged is lost,
doubled, reordered, or seen although it was aborted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.acknowledged import IDEMPOTENT, PARTITIONS, IdempotentClient, check_idempotent
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses
from tests.cluster.nemesis import Nemesis
from tests.copy_scene import Scene, check_copied, create_topics, settle
from tests.longer import LONGER

# Small files, so that much happens to them.
FLAGS = ("--checkpoint-ms", "2000")


def live_through_faults(peers_of: Peers, folder: Path, seconds: float, seed: int) -> tuple[int, Nemesis]:
    """How many transactions were copied, and what happened meanwhile."""
    peers = peers_of(3)
    peers.wait()
    with GroupProcesses(peers, folder, *FLAGS) as group:
        group.wait_leader(3)
        create_topics(group.kafka)
        admin = AdminClient({"bootstrap.servers": group.kafka, "log_level": 0})
        for made in admin.create_topics([NewTopic(IDEMPOTENT, PARTITIONS)]).values():
            made.result(40)
        scene, idempotent = Scene(folder, group, "confluent", 2), IdempotentClient(group.kafka)
        nemesis = Nemesis(group, peers, seed)
        try:
            nemesis.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                scene.keep()
                time.sleep(0.2)
            nemesis.stop()
            group.wait_leader(3)
            scene.source.kill()
            settle(scene)
        finally:
            scene.kill()
            idempotent.stop()
        check_idempotent(group.kafka, idempotent)
        return check_copied(scene), nemesis


# With every run, where there is an etcd.
def test_a_group_lives_through_faults(etcd_peers: Peers, tmp_path: Path) -> None:
    copied, nemesis = live_through_faults(etcd_peers, tmp_path, 60, seed=1)
    print(copied, nemesis.done, len(nemesis.leaders))
    assert copied > 10
    assert sum(nemesis.done.values()) > 8


@pytest.mark.etcd
@pytest.mark.long
@pytest.mark.timeout(3600 * LONGER)
@pytest.mark.parametrize("seed", range(2, 4))
def test_a_group_lives_through_many_faults(etcd_peers: Peers, tmp_path: Path, seed: int) -> None:
    copied, nemesis = live_through_faults(etcd_peers, tmp_path, 900 * LONGER, seed)
    print(copied, nemesis.done, len(nemesis.leaders))
    assert copied > 200
    assert set(nemesis.done) == set(nemesis.faults)
