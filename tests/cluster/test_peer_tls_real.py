"""Replicas that show each other certificates, with a real etcd: sessions, copies, and who gets neither."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.captured_logs import capture_logs
from tests.certificates import Authority
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses
from tests.cluster.test_copying_real import copied, values_of
from tests.cluster.test_group_clients import curl
from tests.cluster.test_replica_real import append, begin, leader_of, shown, start_replica
from tests.waiting import until

from headrace.broker import rate_limit
from headrace.cluster.peer_tls import PeerTls, load
from headrace.cluster.replica import Replica
from headrace.log.interface import TopicSettings

pytestmark = pytest.mark.etcd

REFUSED = "headrace_replica_peers_refused_total"


async def test_replicas_follow_and_copy_over_tls_and_no_other_does(
    etcd_peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each sentence every time.
    monkeypatch.setattr(rate_limit, "INTERVAL_SECONDS", 0.0)
    peers, authority = etcd_peers(1), Authority(tmp_path)
    (tmp_path / "foreign").mkdir()
    foreign = Authority(tmp_path / "foreign")
    good = load(*authority.issue("127.0.0.1"), authority.path)
    await begin(peers)

    async def start(number: int, tls: PeerTls | None) -> Replica:
        return await start_replica(peers, tmp_path / str(number), number, tls=tls)

    replicas = {number: await start(number, good) for number in (1, 2, 3)}
    _, leader = await leader_of(replicas, 3)
    await leader.log.create("t", 1, {}, TopicSettings())
    [partition] = leader.log.topics["t"].partitions
    await partition.load()
    await append(leader, (partition, b"one"))
    assert shown(leader)[REFUSED] == 0
    number = next(each for each in (3, 2) if replicas[each] is not leader)
    others: list[tuple[PeerTls | None, str]] = [
        (load(*authority.issue("127.0.0.9"), authority.path), "its certificate is not for 127.0.0.1, where node"),
        (load(*foreign.issue("127.0.0.1"), authority.path), "its certificate is not accepted"),
        (None, "it does not speak TLS"),
    ]
    # Once with what it has, once with an empty directory, which copies.
    for wipes in (False, True):
        for tls, reason in others:
            await replicas.pop(number).stop()
            if wipes:
                shutil.rmtree(tmp_path / str(number))
            before = shown(leader)[REFUSED]
            with capture_logs() as lines:
                replicas[number] = await start(number, tls)
                await until(lambda before=before: shown(leader)[REFUSED] > before)  # type: ignore[misc]
                await until(
                    lambda lines=lines: (
                        any("the leader refuses" in line["event"] for line in lines)  # type: ignore[misc]
                        or any("copy from the leader ends" in line["event"] for line in lines)
                        or any("no TLS with the node at" in line["event"] for line in lines)
                    )
                )
            assert any(reason in line["event"] for line in lines), lines
            assert replicas[number].log.is_copying is wipes
            assert leader.node.leadership is not None
            assert leader.node.leadership.follower(replicas[number].node.me) is None
    await replicas.pop(number).stop()
    replicas[number] = await start(number, good)
    await copied(replicas[number])
    await append(leader, (partition, b"two"))
    await leader_of(replicas, 3)
    replica = replicas[number]
    await until(lambda: replica.log.frames.applied >= leader.log.frames.committed)
    [partition] = replica.log.topics["t"].partitions
    await partition.load()
    assert await values_of(replica, partition) == [b"one", b"two"]
    for each in replicas.values():
        await each.stop()


def test_a_group_with_tls_everywhere(etcd_peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("127.0.0.1")
    options = [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={authority.path}", "--client-cert-auth"]
    peers = etcd_peers(1, options=options, scheme="https")
    client = authority.issue("headrace")
    etcd = ("--etcd-ca", authority.path, "--etcd-cert", client[0], "--etcd-key", client[1])
    tls = ("--peer-tls-ca", authority.path, "--peer-tls-cert", cert, "--peer-tls-key", key)
    # For the commands.
    names = ("HEADRACE_PEER_TLS_CA", "HEADRACE_PEER_TLS_CERT", "HEADRACE_PEER_TLS_KEY")
    for name, value in zip(names, tls[1::2], strict=True):
        monkeypatch.setenv(name, str(value))
    with GroupProcesses(peers, tmp_path, *tls, "--http", "127.0.0.1:0", etcd=etcd) as group:
        leader = group.wait_leader(3)
        status = group.status()
        assert status["problems"] == []
        assert sorted(each["lag_bytes"] is None for each in status["nodes"]) == [False, False, True]
        group.nodes[leader].stop()
        next_one = group.wait_leader(2, other_than=leader)
        group.nodes[leader].start()
        group.wait_leader(3)
        metrics = f"http://{group.nodes[next_one].addresses['http']}/metrics"
        code, scraped = curl(metrics)
        assert code == 200
        assert f"\n{REFUSED} 0" in scraped
        for name in names:
            monkeypatch.delenv(name)
        assert "Give all nodes of the group peer_tls_ca" in group.status()["problems"][0]
