"""Nodes show each other certificates: who is let in, who is not, and what either side reports of it. On asyncio's loop
and on uvloop, which a server runs on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.captured_logs import capture_logs
from tests.certificates import Authority
from tests.waiting import until

from headrace.addresses import parse_address
from headrace.cluster import peer_network
from headrace.cluster.connection import PeerConnection
from headrace.cluster.figures import Figures
from headrace.cluster.peer_network import PLAIN_REFUSED, PeerNetwork
from headrace.cluster.peer_tls import NO_TLS, NOT_ACCEPTED, PeerTls, load, names_host
from headrace.cluster.wire import Caller, Hello, Message, Refusal, Welcome
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.exposure import refuse_exposed
from headrace.group_server import GroupServer, exposed_peer, peer_tls_of

HELLO = Hello(Caller(1, 1, "c", "g", 2, "d", 1, 0), ())


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(work)

    return run


class Side:
    """One node: its network, and what it hears."""

    def __init__(self, tls: PeerTls | None) -> None:
        self.figures = Figures()
        self.network = PeerNetwork(tls, self.figures)
        self.heard: list[Message] = []
        self.closed = 0
        self.connections: list[PeerConnection] = []

    def make(self) -> PeerConnection:
        self.connections.append(PeerConnection(self, 1 << 20))
        return self.connections[-1]

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        self.heard.append(message)
        if isinstance(message, Hello):
            reason = self.network.refusal(connection, message.caller.node, ("127.0.0.1", 7070))
            if reason is None:
                connection.send(Welcome(1, 0, 1))
            else:
                connection.close(Refusal(reason, 0))

    def on_closed(self, connection: PeerConnection) -> None:
        self.closed += 1

    def on_drained(self, connection: PeerConnection) -> None:
        pass


async def meet(leader: Side, follower: Side, within: Callable[[], object]) -> list[str]:
    """Connect the two, and wait for what is to come of it; what was logged."""
    with capture_logs() as lines:
        place = parse_address(await leader.network.listen(leader.make, "127.0.0.1", 0))
        assert place is not None
        connection = follower.make()
        try:
            await follower.network.connect(connection, place)
            connection.send(HELLO)
        except OSError:
            pass
        await until(within)
        connection.close()
        for each in leader.connections:
            each.close()
        leader.network.close()
        # What was closed goes.
        await asyncio.sleep(0.01)
    return [line["event"] for line in lines]


def tls(authority: Authority, *names: str, ca: Authority | None = None, **options: Any) -> PeerTls:
    return load(*authority.issue(*names, **options), (ca or authority).path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def foreign(tmp_path: Path) -> Authority:
    (tmp_path / "foreign").mkdir()
    return Authority(tmp_path / "foreign")


def test_nodes_with_certificates_of_one_authority_meet(authority: Authority, run: Any) -> None:
    async def scenario() -> None:
        leader, follower = Side(tls(authority, "127.0.0.1")), Side(tls(authority, "127.0.0.1"))
        assert await meet(leader, follower, lambda: follower.heard == [Welcome(1, 0, 1)]) == []
        assert leader.heard == [HELLO]
        assert (leader.figures.peers_refused, follower.figures.peers_refused) == (0, 0)

    run(scenario())


def test_each_side_reports_why_the_other_is_refused(authority: Authority, foreign: Authority, run: Any) -> None:
    good = tls(authority, "127.0.0.1")
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(authority.path)
    not_accepted, hung_up = "its certificate is not accepted", "it hung up. Does it speak TLS, and accept this node's"
    cases: list[tuple[PeerTls | None, PeerTls | None, str, str]] = [
        # What the leader has, what the follower has, what each logs.
        (good, PeerTls(good.server, bare), "it shows no certificate", NOT_ACCEPTED),
        (good, tls(foreign, "127.0.0.1", ca=authority), not_accepted, NOT_ACCEPTED),
        (good, tls(authority, "127.0.0.1", expired=True), f"{not_accepted}: certificate has expired", NOT_ACCEPTED),
        (tls(foreign, "127.0.0.1", ca=authority), good, hung_up, not_accepted),
        (tls(authority, "127.0.0.2"), good, hung_up, f"{not_accepted}: IP address mismatch"),
    ]

    async def scenario() -> None:
        for has, other, said_by_leader, said_by_follower in cases:
            leader, follower = Side(has), Side(other)
            lines = await meet(
                leader,
                follower,
                lambda leader=leader, follower=follower: (  # type: ignore[misc]
                    leader.figures.peers_refused and follower.figures.peers_refused
                ),
            )
            assert (leader.heard, follower.heard) == ([], [])
            for who, said in (("the peer at 127.0.0.1:", said_by_leader), ("the node at 127.0.0.1:", said_by_follower)):
                assert [line for line in lines if line.startswith(f"no TLS with {who}") and said in line], lines

    run(scenario())


def test_a_certificate_of_another_node_is_refused_by_a_message(authority: Authority, run: Any) -> None:
    async def scenario() -> None:
        leader, follower = Side(tls(authority, "127.0.0.1")), Side(tls(authority, "127.0.0.9", "other"))
        lines = await meet(leader, follower, lambda: follower.heard)
        assert follower.heard == [
            Refusal("the certificate that this node got is not for 127.0.0.1, the host of node 2's peer address", 0)
        ]
        assert [line.partition(": ")[2] for line in lines] == ["its certificate is not for 127.0.0.1, where node 2 is"]
        assert leader.figures.peers_refused == 1

    run(scenario())


def test_a_node_without_tls_is_answered_why(authority: Authority, run: Any) -> None:
    async def scenario() -> None:
        leader, follower = Side(tls(authority, "127.0.0.1")), Side(None)
        lines = await meet(leader, follower, lambda: follower.heard and follower.closed)
        assert follower.heard == [Refusal(PLAIN_REFUSED, 0)]
        assert [line.partition(": ")[2] for line in lines] == [NO_TLS]
        assert leader.figures.peers_refused == 1

    run(scenario())


def test_a_node_with_tls_is_told_of_one_without(authority: Authority, run: Any) -> None:
    async def scenario() -> None:
        leader, follower = Side(None), Side(tls(authority, "127.0.0.1"))
        lines = await meet(leader, follower, lambda: leader.closed and follower.figures.peers_refused)
        assert "a peer's connection is closed" in lines
        assert any(line.startswith("no TLS with the node at") and "hung up" in line for line in lines), lines

    run(scenario())


def test_a_probe_is_no_refusal_and_silence_is(authority: Authority, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_network, "HANDSHAKE_S", 0.05)

    async def scenario() -> None:
        side = Side(tls(authority, "127.0.0.1"))
        place = parse_address(await side.network.listen(side.make, "127.0.0.1", 0))
        assert place is not None
        reader, writer = await asyncio.open_connection(*place)
        writer.close()
        await writer.wait_closed()
        reader, writer = await asyncio.open_connection(*place)
        assert await reader.read() == b""
        writer.close()
        assert side.figures.peers_refused == 1
        side.network.close()

    run(scenario())


def test_handshakes_under_way_are_bounded(authority: Authority, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_network, "HANDSHAKES_MAX", 3)

    async def scenario() -> None:
        side = Side(tls(authority, "127.0.0.1"))
        place = parse_address(await side.network.listen(side.make, "127.0.0.1", 0))
        assert place is not None
        # One is the listener itself.
        silent = [await asyncio.open_connection(*place) for _ in range(2)]
        await until(lambda: len(side.network._listening._tasks) == 3)  # type: ignore[union-attr]
        reader, writer = await asyncio.open_connection(*place)
        assert await reader.read() == b""
        assert side.figures.peers_refused == 1
        for each in (writer, *(writer for _, writer in silent)):
            each.close()
        side.network.close()

    run(scenario())


@pytest.mark.parametrize(
    ("names", "host", "is_named"),
    [
        (("node1.example",), "node1.example", True),
        (("node1.example",), "Node1.Example.", True),
        (("node1.example",), "node2.example", False),
        (("*.example.com",), "node1.example.com", True),
        (("*.example.com",), "a.node1.example.com", False),
        (("*.example.com",), "example.com", False),
        (("*.com",), "example.com", False),
        (("10.0.0.1",), "10.0.0.1", True),
        (("10.0.0.1",), "10.0.0.2", False),
        (("::1",), "0:0:0:0:0:0:0:1", True),
    ],
)
def test_the_hosts_that_a_certificate_names(names: tuple[str, ...], host: str, is_named: bool) -> None:
    kinds = [("IP Address" if each[0].isdigit() or ":" in each else "DNS", each) for each in names]
    assert names_host({"subjectAltName": tuple(kinds)}, host) is is_named


def test_a_common_name_names_nothing() -> None:
    assert not names_host({"subject": ((("commonName", "node1"),),)}, "node1")


def test_old_versions_are_not_spoken(authority: Authority) -> None:
    made = tls(authority, "127.0.0.1")
    assert [each.minimum_version for each in (made.server, made.client)] == [ssl.TLSVersion.TLSv1_2] * 2


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("127.0.0.1")
    for files, named in (
        ((str(tmp_path / "none.pem"), key, authority.path), "none.pem with .* cannot be the node's certificate"),
        ((cert, key, str(tmp_path / "none.pem")), "peer_tls_ca .*none.pem cannot be used"),
        ((cert, authority.issue("x")[1], authority.path), "cannot be the node's certificate"),
    ):
        with pytest.raises(ConfigError, match=named):
            load(*files)


def test_a_listener_that_other_machines_reach_needs_certificates(authority: Authority) -> None:
    cert, key = authority.issue("10.0.0.1")
    group = {"cluster": "etcd://127.0.0.1:1/x"}
    tls = {"peer_tls_ca": authority.path, "peer_tls_cert": cert, "peer_tls_key": key}
    assert exposed_peer(Config(**group, peer="127.0.0.1:7070")) == []
    assert exposed_peer(Config(**group, peer="10.0.0.1:7070", **tls)) == []
    [exposed] = exposed_peer(Config(**group, peer="10.0.0.1:7070"))
    with pytest.raises(ConfigError, match=r"peer on 10\.0\.0\.1:7070 with neither TLS.*peer_tls_ca.*--insecure"):
        refuse_exposed([exposed], insecure=False)


async def test_a_node_does_not_start_behind_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    doors = {"kafka": "off", "http": "off", "nsq": "off", "nsq_http": "off", "lookup": "off", "lookup_http": "off"}
    doors |= {"rocketmq": "off", "rocketmq_namesrv": "off", "rocketmq_grpc": "off"}
    server = GroupServer(Config(data=str(data), cluster="etcd://127.0.0.1:1/x", peer="0.0.0.0:7070", **doors))
    with pytest.raises(ConfigError, match=r"peer on 0\.0\.0\.0:7070"):
        await server.start()
    assert not data.exists()


def test_settings(authority: Authority) -> None:
    cert, key = authority.issue("127.0.0.1")
    group = {"cluster": "etcd://127.0.0.1:1/x", "peer": "127.0.0.1:0"}
    assert peer_tls_of(Config(**group)) is None
    assert peer_tls_of(Config(**group, tls_cert=cert, tls_key=key, tls_client_ca=authority.path)) is None
    assert peer_tls_of(Config(**group, peer_tls_ca=authority.path, tls_cert=cert, tls_key=key)) is not None
    own = {"peer_tls_cert": cert, "peer_tls_key": key}
    assert peer_tls_of(Config(**group, peer_tls_ca=authority.path, **own)) is not None
    for wrong, said in (
        ({"peer_tls_cert": cert}, "go together"),
        (own, "peer_tls_cert needs peer_tls_ca"),
        ({"peer_tls_ca": authority.path}, "peer_tls_ca needs a certificate"),
    ):
        with pytest.raises(ConfigError, match=said):
            Config(**group, **wrong)
