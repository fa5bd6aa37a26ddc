"""The client beside a real etcd: members that are killed and stopped, leases, watches, users and certificates."""

from __future__ import annotations

import asyncio
import random
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.peers.etcd import EtcdPeers
from tests.certificates import Authority
from tests.cluster.conftest import Peers
from tests.waiting import until

from headrace.client.tls import client_context
from headrace.cluster.errors import EtcdError, EtcdRejected, EtcdUnavailable
from headrace.cluster.etcd import Etcd, Outcome, Refused, Swapped, Unknown, View, _range_of
from headrace.cluster.watcher import Watcher

pytestmark = pytest.mark.etcd


@asynccontextmanager
async def client(peers: EtcdPeers, key: str = "x", **options: Any) -> AsyncIterator[Etcd]:
    """One that an answer came to. It waits longer for answers than a busy machine takes, unless it is to notice
    silence."""
    etcd = Etcd([("127.0.0.1", member.port) for member in peers.members], **{"attempt_seconds": 10, **options})
    try:
        await until(lambda: answers(etcd, key))
        yield etcd
    finally:
        await etcd.close()


async def answers(etcd: Etcd, key: str = "x") -> bool:
    try:
        await etcd.read(key)
    except EtcdUnavailable:
        return False
    return True


async def test_reads_swaps_and_deletes(etcd_peers: Peers) -> None:
    peers = etcd_peers()
    async with client(peers) as etcd:
        assert list((await etcd.versions()).values()) == [peers.version]
        assert await etcd.read("/h/k") is None
        created = await etcd.swap("/h/k", 0, b"\x00one")
        assert isinstance(created, Swapped)
        entry = await etcd.read("/h/k")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"\x00one", created.revision)
        assert await etcd.swap("/h/k", 0, b"again") == Refused(entry)
        changed = await etcd.swap("/h/k", entry.revision, b"two")
        assert isinstance(changed, Swapped)
        assert changed.revision > created.revision
        await etcd.swap("/i", 0, b"beside")
        view = await etcd.read_prefix("/h/")
        assert {key: each.value for key, each in view.entries.items()} == {"/h/k": b"two"}
        assert view.revision > changed.revision
        assert isinstance(await etcd.swap("/h/k", changed.revision, None), Swapped)
        assert await etcd.swap("/h/k", changed.revision, b"three") == Refused(None)


async def test_a_key_lives_by_its_lease(etcd_peers: Peers) -> None:
    peers = etcd_peers()
    async with client(peers) as etcd:
        lease = await etcd.grant(2)
        assert isinstance(await etcd.swap("/h/n", 0, b"here", lease=lease), Swapped)
        entry = await etcd.read("/h/n")
        assert entry is not None
        assert entry.lease == lease
        for _ in range(3):
            assert await etcd.keep_alive(lease)
        await etcd.revoke(lease)
        assert await etcd.read("/h/n") is None
        assert not await etcd.keep_alive(lease)
        await etcd.revoke(lease)
        short = await etcd.grant(1)
        await etcd.swap("/h/n", 0, b"here", lease=short)

        async def gone() -> bool:
            return await etcd.read("/h/n") is None

        await until(gone)
        assert not await etcd.keep_alive(short)


async def test_a_watch_brings_changes_and_the_end_of_a_lease(etcd_peers: Peers) -> None:
    views: list[View] = []
    peers = etcd_peers()
    async with client(peers) as etcd, client(peers) as other:
        # Reading by itself would take longer than the test may.
        watcher = Watcher(etcd, "/h/", 3600, views.append, lambda error: None)
        watcher.start()
        # The read behind the watch's first event: from here on nothing is missed.
        await until(lambda: len(views) >= 2)
        lease = await other.grant(5)
        await other.swap("/h/n", 0, b"here", lease=lease)
        await until(lambda: "/h/n" in views[-1].entries)
        await other.revoke(lease)
        await until(lambda: "/h/n" not in views[-1].entries)
        await watcher.stop()


async def test_the_next_member_is_asked_when_one_is_killed_or_stopped(etcd_peers: Peers) -> None:
    peers = etcd_peers(3)
    async with client(peers, attempt_seconds=2) as etcd:
        revision = 0
        for number, fail in enumerate((peers.members[0].kill, lambda: peers.members[1].signal(signal.SIGSTOP))):
            if number:
                peers.members[0].start()
            revision = await swapped(etcd, revision, b"before %d" % number)
            fail()
            revision = await swapped(etcd, revision, b"after %d" % number)
        # Most are away: one answers, and knows no leader.
        peers.members[2].kill()
        with pytest.raises(EtcdUnavailable):
            await until(lambda: never(etcd))
        peers.members[1].signal(signal.SIGCONT)
        await swapped(etcd, revision, b"again")


async def test_every_swap_counts_once_while_members_are_killed_and_stopped(etcd_peers: Peers) -> None:
    peers = etcd_peers(3)
    rng = random.Random(1)
    counted = 0
    is_over = False

    async def count(etcd: Etcd, which: int) -> None:
        """Raise a number by one, again and again. A swap without an answer is sent again as it is."""
        nonlocal counted
        mine = 0
        while not is_over:
            try:
                entry = await etcd.read("/h/n")
                # The number, and how much of it each client counted: that shows whose swaps were carried out.
                numbers = [0, 0, 0] if entry is None else [int(each) for each in entry.value.split()]
                assert numbers[which] == mine
                wanted = [numbers[0] + 1, *(n + (at == which) for at, n in enumerate(numbers[1:], 1))]
            except EtcdUnavailable:
                continue
            revision, value = 0 if entry is None else entry.revision, b"%d %d %d" % tuple(wanted)
            while True:
                try:
                    outcome = await etcd.swap("/h/n", revision, value)
                except EtcdUnavailable:
                    continue
                if not isinstance(outcome, Unknown):
                    break
            made = isinstance(outcome, Swapped)
            if isinstance(outcome, Refused) and outcome.current is not None:
                made = int(outcome.current.value.split()[which]) > mine
            mine += made
            counted += made

    async with (
        client(peers, attempt_seconds=1) as first,
        client(peers, attempt_seconds=1) as second,
        client(peers) as reader,
    ):
        counting = [asyncio.create_task(count(etcd, which)) for which, etcd in enumerate((first, second), 1)]
        for _ in range(4):
            member = rng.choice(peers.members)
            before = counted
            member.signal(signal.SIGSTOP)
            await until(lambda before=before: counted > before + 5)
            member.signal(signal.SIGCONT)
            member = rng.choice(peers.members)
            before = counted
            member.kill()
            await until(lambda before=before: counted > before + 5)
            member.start()
            await until(lambda: answers(reader))
        is_over = True
        await asyncio.gather(*counting)
        entry = await reader.read("/h/n")
        assert entry is not None
        assert int(entry.value.split()[0]) == counted


async def test_a_view_goes_on_when_the_member_that_is_watched_stops(etcd_peers: Peers) -> None:
    peers = etcd_peers(3)
    views: list[View] = []
    async with client(peers, attempt_seconds=1) as etcd, client(peers) as other:
        watcher = Watcher(etcd, "/h/", 0.5, views.append, lambda error: None)
        watcher.start()
        await until(lambda: len(views) >= 2)
        watched = etcd._members[0]
        stopped = next(member for member in peers.members if member.port == watched[1])
        stopped.signal(signal.SIGSTOP)
        other._members.sort(key=lambda member: member == watched)
        await swapped(other, 0, b"new")
        await until(lambda: "/h/k" in views[-1].entries)
        await watcher.stop()
        stopped.signal(signal.SIGCONT)


async def never(etcd: Etcd) -> bool:
    await etcd.read("x")
    return False


async def swapped(etcd: Etcd, revision: int, value: bytes) -> int:
    """Swap as a node does: an outcome that is unknown is looked up, and what was seen is swapped again."""

    async def attempt() -> int:
        nonlocal revision
        try:
            outcome: Outcome = await etcd.swap("/h/k", revision, value)
            if isinstance(outcome, Swapped):
                return outcome.revision
            entry = outcome.current if isinstance(outcome, Refused) else await etcd.read("/h/k")
        except EtcdUnavailable:
            return 0
        if entry is not None and entry.value == value:
            return entry.revision
        revision = entry.revision if entry is not None else 0
        return 0

    return int(await until(attempt, pause=0.05))


async def test_a_swap_to_a_stopped_member_is_unknown_until_the_key_is_written_again(etcd_peers: Peers) -> None:
    [member] = (peers := etcd_peers()).members
    async with client(peers) as etcd, client(peers, attempt_seconds=1) as hasty:
        await etcd.swap("/h/k", 0, b"one")
        entry = await etcd.read("/h/k")
        assert entry is not None
        member.signal(signal.SIGSTOP)
        assert isinstance(await hasty.swap("/h/k", entry.revision, b"two"), Unknown)
        with pytest.raises(EtcdUnavailable, match="did not answer within"):
            await hasty.read("/h/k")
        member.signal(signal.SIGCONT)
        await until(lambda: answers(etcd))
        # Carried out, on its way, or lost with the connection: the next write of the key decides it.
        decided = await etcd.swap("/h/k", entry.revision, b"three")
        assert isinstance(decided, Swapped) or (isinstance(decided, Refused) and decided.holds(b"two"))
        before = await etcd.read("/h/k")
        assert isinstance(await etcd.swap("/h/k", entry.revision, b"four"), Refused)
        assert await etcd.read("/h/k") == before


async def test_users(etcd_peers: Peers) -> None:
    peers = etcd_peers()
    async with client(peers) as root:
        for path, body in (
            ("/v3/auth/user/add", {"name": "root", "password": "pw"}),
            ("/v3/auth/role/add", {"name": "root"}),
            ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
            ("/v3/auth/user/add", {"name": "stranger", "password": "pw"}),
            ("/v3/auth/user/add", {"name": "node", "password": "pw"}),
            ("/v3/auth/role/add", {"name": "headrace"}),
            ("/v3/auth/role/grant", {"name": "headrace", "perm": {"permType": "READWRITE", **_range_of("/h/")}}),
            ("/v3/auth/user/grant", {"user": "node", "role": "headrace"}),
        ):
            await root._ask(path, body, dict)
    async with client(peers, user="root", password="pw") as etcd:
        # Users are not asked for yet.
        assert isinstance(await etcd.swap("/h/k", 0, b"one"), Swapped)
        await etcd._ask("/v3/auth/enable", {}, dict)
        assert await etcd.read("/h/k") is not None
        with pytest.raises(EtcdRejected, match="asks for a user and a password"):
            await Etcd([("127.0.0.1", peers.members[0].port)]).read("/h/k")
        with pytest.raises(EtcdRejected, match="the user or the password is wrong"):
            await Etcd([("127.0.0.1", peers.members[0].port)], user="root", password="x").read("/h/k")
        with pytest.raises(EtcdRejected, match="no right"):
            await Etcd([("127.0.0.1", peers.members[0].port)], user="stranger", password="pw").read("/h/k")
    async with client(peers, user="root", password="pw") as etcd:
        entry = await etcd.read("/h/k")
        assert entry is not None
        assert isinstance(await etcd.swap("/h/k", entry.revision, b"two"), Swapped)
        assert etcd._token
        etcd._token = "no.1"
        assert isinstance(await etcd.swap("/h/l", 0, b"two"), Swapped)
    # One with the rights that a node needs, and no others.
    async with client(peers, key="/h/x", user="node", password="pw") as etcd:
        assert list((await etcd.versions()).values()) == [peers.version]
        lease = await etcd.grant(60)
        assert isinstance(await etcd.swap("/h/n", 0, b"here", lease=lease), Swapped)
        assert await etcd.keep_alive(lease)
        assert set((await etcd.read_prefix("/h/")).entries) == {"/h/k", "/h/l", "/h/n"}
        async with aclosing(etcd.watch("/h/")) as changes:
            await anext(changes)
        with pytest.raises(EtcdRejected, match="no right"):
            await etcd.read("/i")
        await etcd.revoke(lease)


async def test_tls_with_client_certificates(etcd_peers: Peers, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("127.0.0.1")
    options = [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={authority.path}", "--client-cert-auth"]
    peers = etcd_peers(options=options, scheme="https")
    async with client(peers, tls=client_context(authority.path, cert, key)) as etcd:
        assert isinstance(await etcd.swap("/h/k", 0, b"one"), Swapped)
        assert list((await etcd.versions()).values()) == [peers.version]
    where = [("127.0.0.1", peers.members[0].port)]
    for tls, said in (
        (None, r"[Ss]peaks? TLS.*Use etcds://"),
        (client_context(authority.path), "asks for a client certificate|does not accept the client's certificate"),
        (ssl.create_default_context(), "its certificate is not accepted"),
    ):
        with pytest.raises(EtcdError, match=said):
            await Etcd(where, tls=tls).read("/h/k")
    plain = etcd_peers()
    async with client(plain):
        with pytest.raises(EtcdError, match=r"Use etcd://|Connection reset"):
            await Etcd([("127.0.0.1", plain.members[0].port)], tls=client_context(authority.path, cert, key)).read(
                "/h/k"
            )
