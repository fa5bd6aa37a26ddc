"""A lost etcd is rebuilt from the nodes: what the new record says, and whole groups that lose theirs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from bench.peers.etcd import EtcdPeers
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses
from tests.cluster.test_serve_group import Load, read_all
from tests.waiting import wait_until

from headrace.cluster.errors import ChangeRefused
from headrace.cluster.rebuilding import rebuild
from headrace.cluster.records import Cluster, Group, Incarnation, Member
from headrace.cluster.versions import FEATURE_LEVEL
from headrace.cluster.wire import Report
from headrace.log.group_frames import NOTHING, Position

CLUSTER = str(UUID(int=99))


def directory(node: int) -> str:
    return str(UUID(int=node))


GROUP = Group(
    version=9,
    epoch=4,
    leader=Incarnation(1, directory(1), 2),
    isr=(directory(1), directory(2)),
    elr=(),
    replicas=(1, 2, 3),
    adding=(),
    removing=(),
    transfer_to=2,
    min_isr=2,
    unclean=False,
)


def report(node: int, sequence: int, epoch: int = 4, **changes: Any) -> Report:
    end = Position(epoch, sequence)
    made = Report(CLUSTER, FEATURE_LEVEL, "main", node, directory(node), 2, False, False, 4, end, 0, GROUP)
    return replace(made, **changes)


REPORTS = [report(1, 70), report(2, 71), report(3, 60)]


def test_the_replica_with_the_last_frame_is_in_sync() -> None:
    made = rebuild(REPORTS, None, None)
    assert (made.group.leader, made.group.isr, made.group.elr) == (None, (directory(2),), ())
    assert (made.group.version, made.group.epoch, made.group.transfer_to) == (10, 5, None)
    assert (made.group.replicas, made.group.min_isr) == ((1, 2, 3), 2)
    assert made.cluster == Cluster(CLUSTER, FEATURE_LEVEL)
    assert made.members == {number: Member(directory(number), 2) for number in (1, 2, 3)}


def test_a_later_epoch_goes_before_a_longer_journal() -> None:
    assert rebuild([report(1, 70), report(2, 71), report(3, 9, epoch=5)], None, None).group.isr == (directory(3),)


def test_who_leads_goes_on() -> None:
    leading = [report(1, 70, leads=True), *REPORTS[1:]]
    assert rebuild(leading, None, None).group.isr == (directory(1),)
    # One that does not know yet that its time has passed.
    late = [report(1, 70, leads=True), replace(REPORTS[1], epoch=5)]
    assert rebuild([*late, REPORTS[2]], None, None).group.isr == (directory(2),)


def test_of_two_that_end_alike_a_member_of_the_isr_leads() -> None:
    assert rebuild([report(3, 70), report(2, 70), report(1, 60)], None, None).group.isr == (directory(2),)


def test_epochs_go_beyond_what_any_node_has_seen() -> None:
    later = replace(GROUP, version=12, epoch=7)
    made = rebuild([report(1, 70, seen=later), report(2, 71), report(3, 1)], None, None)
    assert (made.group.version, made.group.epoch) == (13, 8)
    assert rebuild([replace(REPORTS[0], epoch=20), *REPORTS[1:]], None, None).group.epoch == 21


def test_a_group_that_never_began_begins_as_ever() -> None:
    empty = replace(GROUP, epoch=0, leader=None, isr=(), transfer_to=None)
    made = rebuild([report(each, 0, epoch=0, seen=empty) for each in (1, 2, 3)], None, None)
    assert (made.group.version, made.group.isr) == (10, ())


def test_an_older_record_in_etcd_is_replaced() -> None:
    made = rebuild(REPORTS, Cluster(CLUSTER, 1), replace(GROUP, version=3, epoch=2))
    assert (made.group.version, made.group.epoch, made.cluster.feature_level) == (10, 5, FEATURE_LEVEL)


@pytest.mark.parametrize(
    ("reports", "cluster", "group", "without", "said"),
    [
        (REPORTS[:2], None, None, (), "node 3 was not asked, and may have messages that the others lack"),
        (REPORTS, None, None, (3,), "node 3 answers, so that it cannot be left out"),
        ([*REPORTS, REPORTS[0]], None, None, (), "node 1 was asked twice"),
        (
            [*REPORTS[:2], replace(REPORTS[2], cluster=directory(7))],
            None,
            None,
            (),
            "node 3 belongs to group 'main' of",
        ),
        (REPORTS, Cluster(directory(7)), None, (), f"etcd has cluster {directory(7)}"),
        (REPORTS, None, GROUP, (), "no node has seen a later one: nothing is lost"),
        ([replace(each, is_copying=True) for each in REPORTS], None, None, (), "no node has a whole copy"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(
    reports: list[Report], cluster: Cluster | None, group: Group | None, without: tuple[int, ...], said: str
) -> None:
    with pytest.raises(ChangeRefused, match=said):
        rebuild(reports, cluster, group, without)


def test_a_node_that_is_gone_for_good_can_be_left_out() -> None:
    assert rebuild(REPORTS[:2], None, None, (3,)).group.isr == (directory(2),)


def test_a_node_that_copies_has_nothing() -> None:
    copying = report(2, 0, epoch=0, is_copying=True, end=NOTHING)
    assert rebuild([report(1, 70), copying, report(3, 60)], None, None).group.isr == (directory(1),)


# --- processes ---


def lose(peers: EtcdPeers) -> None:
    """An etcd with nothing in it, at the same addresses."""
    for member in peers.members:
        member.kill()
    for member in peers.members:
        shutil.rmtree(member.folder / "data")
        member.start()
    peers.wait()


@contextmanager
def loaded(group: GroupProcesses) -> Iterator[Load]:
    load = Load(group.kafka)
    try:
        yield load
    finally:
        load.stop()
    assert load.failed == []


def check(group: GroupProcesses, load: Load) -> None:
    found = read_all(group.kafka, max(load.acknowledged))
    assert len(set(found)) == len(found)
    assert set(load.acknowledged) <= set(found)


def rebuilt(group: GroupProcesses, *arguments: str) -> str:
    return group.command("init", "--from-nodes", ",".join(group.peers.values()), *arguments)


@pytest.mark.etcd
def test_a_group_goes_on_when_its_etcd_is_lost_and_rebuilt(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    peers.wait()
    with GroupProcesses(peers, tmp_path) as group:
        leader = group.wait_leader(3)
        with loaded(group) as load:
            load.wait(200)
            lose(peers)
            # Whoever leads goes on, and says what is wrong.
            load.wait(200)
            said = "etcd has no record of group 'main' any more"
            wait_until(lambda: said in group.nodes[leader].words(), group.words)
            assert f"Node {leader} has every committed message" in rebuilt(group)
            group.wait_leader(3)
            load.wait(200)
        check(group, load)


@pytest.mark.etcd
def test_nodes_that_were_down_too_wait_and_then_serve(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    peers.wait()
    with GroupProcesses(peers, tmp_path) as group:
        group.wait_leader(3)
        with loaded(group) as load:
            load.wait(200)
            for node in group.nodes.values():
                node.kill()
            lose(peers)
            for node in group.nodes.values():
                node.launch()
            for node in group.nodes.values():
                wait_until(lambda node=node: "waits for etcd's records to be rebuilt" in node.words(), group.words)  # type: ignore[misc]
            rebuilt(group)
            for node in group.nodes.values():
                node.wait_ready()
            group.wait_leader(3)
            load.wait(200)
        check(group, load)


@pytest.mark.etcd
def test_an_etcd_that_went_back_in_time_is_refused_until_it_is_rebuilt(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    peers.wait()
    data = peers.members[0].folder / "data"
    with GroupProcesses(peers, tmp_path) as group:
        group.wait_leader(3)
        peers.stop()
        shutil.copytree(data, tmp_path / "backup")
        peers.start()
        peers.wait()
        with loaded(group) as load:
            load.wait(100)
            group.command("transfer", "2")
            group.wait_leader(3, other_than=1)
            for node in group.nodes.values():
                node.kill()
            peers.stop()
            shutil.rmtree(data)
            shutil.copytree(tmp_path / "backup", data)
            peers.start()
            peers.wait()
            for node in group.nodes.values():
                node.launch()
            for node in group.nodes.values():
                wait_until(lambda node=node: "etcd went back in time" in node.words(), group.words)  # type: ignore[misc]
            rebuilt(group)
            for node in group.nodes.values():
                node.wait_ready()
            group.wait_leader(3)
            load.wait(100)
        check(group, load)
