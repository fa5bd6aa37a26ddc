"""`headrace cluster`: beside keys in memory, and beside a real etcd where there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from bench.peers import free_port
from tests.certificates import Authority
from tests.cli.conftest import Cli
from tests.cluster.conftest import Peers, etcd_peers  # noqa: F401 - a fixture
from tests.cluster.store import Store, serving

from headrace.cluster.changes import elect
from headrace.cluster.records import Group, Incarnation, Keys, Member, Node, parse_group
from headrace.cluster.swaps import read_cluster
from headrace.cluster.versions import FEATURE_LEVEL

KEYS = Keys("main")
GROUP = KEYS.group("main")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    kept = Store()
    with serving(kept) as address:
        monkeypatch.setenv("HEADRACE_CLUSTER", f"etcd://{address}/main")
        yield kept


def group_in(store: Store) -> Group:
    return parse_group(store.keys[GROUP][0].encode(), GROUP)


def directory(node: int) -> str:
    return str(UUID(int=node))


def run_nodes(store: Store, *nodes: int, leader: int = 1) -> None:
    """As if these ran and were in sync."""
    for node in nodes:
        store.put(KEYS.member(node), Member(directory(node), 2).encode())
        running = Node(directory(node), 2, "main", "r1", {"peer": f"h{node}:9100", "kafka": f"h{node}:1"}, "b", 1, 1)
        store.put(KEYS.node(node), running.encode())
    led = elect(group_in(store), Incarnation(leader, directory(leader), 2), [])
    store.put(GROUP, replace(led, isr=tuple(map(directory, nodes))).encode())


def test_init_begins_a_cluster_once(store: Store, cli: Cli) -> None:
    done = cli("cluster", "init", 1, 2, 3)
    assert done.code == 0
    assert "group main has the nodes 1, 2, 3, and min.insync.replicas is 2" in done.text
    identity = json.loads(store.keys[KEYS.cluster][0])["id"]
    assert identity in done.text
    assert group_in(store).replicas == (1, 2, 3)
    again = cli("cluster", "init", 1)
    assert (again.code, again.err) == (1, "headrace: the cluster 'main' has a group 'main' already\n")
    # Another group of the same cluster.
    other = cli("cluster", "init", 4, "--group", "b", "--json").json
    assert other["cluster"] == {"id": identity, "feature_level": FEATURE_LEVEL}
    assert other["group"]["min_isr"] == 1


def test_init_refuses_what_cannot_be(store: Store, cli: Cli) -> None:
    assert "a node is named twice (1, 1)" in cli("cluster", "init", 1, 1).err
    assert "must be 1 to 2" in cli("cluster", "init", 1, 2, "--min-insync-replicas", 3).err
    assert not store.keys


def test_init_takes_nodes_or_addresses_to_ask(store: Store, cli: Cli) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    for arguments, said in (
        ((), "give the ids of the nodes, or --from-nodes with their peer addresses"),
        ((1, "--from-nodes", nowhere), "give the ids of the nodes, or --from-nodes"),
        ((1, "--without", 2), "--without goes with --from-nodes"),
        (("--from-nodes", nowhere, "--min-insync-replicas", 1), "use headrace cluster set afterwards"),
        (("--from-nodes", nowhere), f"the node at {nowhere} cannot be asked"),
        (("--from-nodes", "nowhere"), "nowhere"),
        (("--from-nodes", nowhere, "--peer-tls-ca", "x.pem"), "--peer-tls-key go together: give all, or none"),
    ):
        done = cli("cluster", "init", *arguments)
        assert (done.code, said in done.err) == (1, True), done.err
    assert not store.keys


def test_a_lost_answer_is_looked_up(store: Store, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cluster.swaps.PAUSE_SECONDS", 0)
    store.lost = 2
    assert cli("cluster", "init", 1).code == 0
    assert cli("cluster", "set", "unclean.leader.election.enable=true").code == 0
    assert group_in(store).version == 2


def test_status_shows_leader_nodes_and_problems(store: Store, cli: Cli) -> None:
    cli("cluster", "init", 1, 2, 3)
    assert "The group has not begun. Start node 1." in cli("cluster", "status").text
    run_nodes(store, 1, 2)
    shown = cli("cluster", "status")
    assert "group main: node 1 leads, epoch 1, version 2" in shown.text
    assert (
        "  min.insync.replicas=2\n  replica.lag.time.max.ms=3000\n  unclean.leader.election.enable=false" in shown.text
    )
    assert "Not in sync: node 3." in shown.text
    told = cli("cluster", "status", "--json").json
    assert [(each["node"], each["role"], each["sync"], each["runs"]) for each in told["nodes"]] == [
        (1, "leader", "ISR", "yes"),
        (2, "follower", "ISR", "yes"),
        (3, "follower", None, "no"),
    ]
    assert told["nodes"][0]["addresses"] == {"peer": "h1:9100", "kafka": "h1:1"}
    assert [each["version"] for each in told["etcd"]] == ["3.5.9"]
    store.delete(KEYS.node(1))
    assert "Node 1 leads, and etcd has not heard of it for a lease." in cli("cluster", "status").text
    alone = replace(group_in(store), isr=(directory(1),), elr=(directory(9),), leader=None, transfer_to=2)
    store.put(GROUP, alone.encode())
    shown = cli("cluster", "status")
    for problem in (
        "No node leads",
        "The ISR has 1 of the 2 members that min.insync.replicas asks for",
        f"No node has the directory {directory(9)} any more",
        "The leader is asked to hand over to node 2.",
    ):
        assert problem in shown.text


def test_settings_are_changed_in_one_swap(store: Store, cli: Cli) -> None:
    cli("cluster", "init", 1, 2, 3)
    done = cli("cluster", "set", "min.insync.replicas=1", "replica.lag.time.max.ms=500")
    assert (done.code, done.text) == (0, "group main: min.insync.replicas=1, replica.lag.time.max.ms=500\n")
    group = group_in(store)
    assert (group.version, group.min_isr, group.lag_ms, group.unclean) == (2, 1, 500, False)
    assert cli("cluster", "set", "unclean.leader.election.enable=true", "--json").json["unclean"] is True
    for setting, said in (
        ("min.insync.replicas=4", "must be 1 to 3, as many as there are replicas (got 4)"),
        ("min.insync.replicas=0", "must be a whole number of 1 to"),
        ("min.insync.replicas=²", "must be a whole number of 1 to"),
        ("unclean.leader.election.enable=maybe", "must be true or false (got 'maybe')"),
        ("colour=red", "there is no setting 'colour'. Use min.insync.replicas, "),
        ("colour", "a setting must be NAME=VALUE (got 'colour')"),
    ):
        done = cli("cluster", "set", setting)
        assert done.code == 1
        assert said in done.err


def test_the_feature_level_rises_once_every_node_knows_it(
    store: Store, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("cluster", "init", 1, 2)
    run_nodes(store, 1)
    ours, next_one = FEATURE_LEVEL, FEATURE_LEVEL + 1
    assert "node 2 does not run, so that its version is not known" in cli("cluster", "set", f"feature.level={ours}").err
    run_nodes(store, 1, 2)
    assert (
        f"node 1 knows feature.level {ours} at most (got {next_one}). Upgrade it first."
        in cli("cluster", "set", f"feature.level={next_one}").err
    )
    for node in (1, 2):
        value = json.loads(store.keys[KEYS.node(node)][0])
        store.put(KEYS.node(node), json.dumps({**value, "feature_level": next_one}).encode())
    refused = cli("cluster", "set", f"feature.level={next_one}").err
    assert f"this command knows feature.level {ours} at most" in refused
    monkeypatch.setattr("headrace.cluster.changes.FEATURE_LEVEL", next_one)
    monkeypatch.setattr(read_cluster, "__defaults__", (next_one,))
    assert cli("cluster", "set", f"feature.level={next_one}").text == f"cluster main: feature.level={next_one}\n"
    assert cli("cluster", "set", f"feature.level={next_one}", "--json").json["feature_level"] == next_one
    assert f"never falls (got {ours})" in cli("cluster", "set", f"feature.level={ours}").err
    # A build that knows less does not start beside it.
    monkeypatch.setattr(read_cluster, "__defaults__", (ours,))
    assert f"and this version knows {ours} at most. Use a newer Headrace." in cli("cluster", "status").err


def test_nodes_are_added_removed_and_given_the_lead(store: Store, cli: Cli) -> None:
    cli("cluster", "init", 1, 2, 3)
    run_nodes(store, 1, 2)
    assert "node 4 is added to group main. Start it with an empty data directory" in cli("cluster", "add-node", 4).text
    assert group_in(store).adding == (4,)
    assert "node 3 leaves group main" in cli("cluster", "remove-node", 3).text
    assert group_in(store).removing == (3,)
    assert "is asked to hand over to node 2" in cli("cluster", "transfer", 2).text
    assert group_in(store).transfer_to == 2
    for arguments, said in (
        (("add-node", 1), "node 1 is a replica already"),
        (("remove-node", 1), "node 1 leads. Transfer the leadership to another node first."),
        (("transfer", 3), "node 3 is being removed"),
        (("transfer", 4), "node 4 is not in sync"),
        (("transfer", 9), "node 9 is not a replica of the group"),
    ):
        done = cli("cluster", *arguments)
        assert done.code == 1
        assert said in done.err


def test_without_etcd_or_cluster_there_is_a_sentence(store: Store, cli: Cli, tmp_path: Path) -> None:
    assert cli("cluster", "status").err == "headrace: etcd has no cluster 'main'. Run headrace cluster init.\n"
    store.put(KEYS.cluster, b"{}")
    assert "etcd's record /headrace/main/cluster has no field 'id'" in cli("cluster", "status").err
    away = cli("cluster", "status", "--cluster", "etcd://127.0.0.1:1/main")
    assert (away.code, away.err) == (
        1,
        "headrace: cannot reach 127.0.0.1:1: Connection refused. Is etcd running? See --cluster.\n",
    )
    assert "--cluster (or HEADRACE_CLUSTER): 'x' is not etcd://" in cli("cluster", "status", "--cluster", "x").err
    assert "Use etcds://" in cli("cluster", "status", "--etcd-ca", Authority(tmp_path).path).err
    assert "--etcd-cert and --etcd-key go together" in cli("cluster", "status", "--etcd-cert", "x").err
    (tmp_path / "pw").write_bytes(b"\xff")
    assert "is not UTF-8 text" in cli("cluster", "status", "--etcd-password-file", tmp_path / "pw").err


@pytest.mark.etcd
def test_with_a_real_etcd(cli: Cli, etcd_peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    peers = etcd_peers(3)
    peers.wait()
    members = ",".join(member.address for member in peers.members)
    monkeypatch.setenv("HEADRACE_CLUSTER", f"etcd://{members}/main")
    assert cli("cluster", "init", 1, 2, 3).code == 0
    peers.members[0].kill()
    assert cli("cluster", "add-node", 4).code == 0
    told = cli("cluster", "status", "--json").json
    assert told["group"]["replicas"] == [1, 2, 3, 4]
    assert sorted(each["version"] for each in told["etcd"])[:2] == [peers.version] * 2
    assert any("Connection refused" in each["version"] for each in told["etcd"])
