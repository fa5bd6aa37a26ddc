"""The first administrator of a group, with a real etcd and real nodes, while the first leader is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import NAME, GroupProcesses
from tests.waiting import wait_until

from headrace.cli.credentials import Login
from headrace.cli.over_http import Api
from headrace.cluster.etcd import Entry, Etcd
from headrace.cluster.records import Keys
from headrace.cluster.url import parse_cluster_url
from headrace.errors import HeadraceError

pytestmark = pytest.mark.etcd

KEY = Keys(NAME).admin("main")
PASSWORD = "white whale in a file"
FLAGS = ("--http", "127.0.0.1:0", "--authorization", "on", "--authentication-delay-max-ms", "1")


def at_etcd(group: GroupProcesses, value: bytes = b"") -> Entry | None:
    """The record in etcd; with a value, once that was put there."""

    async def ask() -> Entry | None:
        etcd = Etcd(parse_cluster_url(group.url).members)
        try:
            if value:
                await etcd.swap(KEY, 0, value)
            return await etcd.read(KEY)
        finally:
            await etcd.close()

    return asyncio.run(ask())


class Admin:
    """Asks whichever node answers as the one that leads."""

    def __init__(self, group: GroupProcesses, user: str, password: str) -> None:
        self._group = group
        self._login = Login(user, password)

    def ask(self, method: str, path: str, **body: Any) -> Any:
        nodes = [each for each in self._group.nodes.values() if each.runs]
        api = Api(",".join(each.addresses["http"] for each in nodes), True, self._login.header)
        return api.ask(method, path, body or None)

    def may(self) -> bool:
        """Whether it may see users."""
        try:
            self.ask("GET", "/v1/users")
        except HeadraceError:
            return False
        return True


def test_the_first_administrator_outlives_the_first_leader(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    peers.wait()
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o600)
    group = GroupProcesses(peers, tmp_path, *FLAGS)
    group.command("init", *map(str, group.nodes), "--admin", "ops", "--password-file", str(secret))
    record = at_etcd(group)
    assert record is not None
    assert PASSWORD.encode() not in record.value
    try:
        for node in group.nodes.values():
            node.start()
        # At no moment in particular: it has taken the administrator, or not, or has not removed it.
        killed = group.wait_leader(2)
        group.nodes[killed].kill()
        leader = group.wait_leader(2, other_than=killed)
        ops = Admin(group, "ops", PASSWORD)
        wait_until(ops.may, group.words)
        assert not Admin(group, "ops", "wrong").may()
        wait_until(lambda: at_etcd(group) is None, group.words)

        # As a leader leaves it that was killed between the two: the user is changed, then deleted, and stays so.
        ops.ask("POST", "/v1/users", name="chief", password=PASSWORD)
        ops.ask("POST", "/v1/roles", user="chief", role="admin")
        chief = Admin(group, "chief", PASSWORD)
        chief.ask("DELETE", "/v1/users/ops")
        group.nodes[killed].start()
        group.wait_leader(3)
        group.nodes[leader].kill()
        assert at_etcd(group, record.value) is not None
        group.wait_leader(2, other_than=leader)
        wait_until(lambda: at_etcd(group) is None, group.words)
        wait_until(chief.may, group.words)
        assert [each["name"] for each in chief.ask("GET", "/v1/users")["users"]] == ["chief"]

        # For a group that nobody can log in to any more.
        secret.write_text("another one\n")
        group.command("admin", "ops", "--password-file", str(secret))
        wait_until(Admin(group, "ops", "another one").may, group.words)
        assert PASSWORD not in group.words()
    finally:
        for node in group.nodes.values():
            if node.runs:
                node.kill()


def test_what_makes_no_sense_is_refused(etcd_peers: Peers, tmp_path: Path) -> None:
    peers = etcd_peers(1)
    peers.wait()
    group = GroupProcesses(peers, tmp_path)
    secret = tmp_path / "secret"
    for text, wrong, words in (
        ("x", ("init", "1", "--password-file", str(secret)), "Give --admin, too"),
        ("x", ("init", "1", "--admin", "*", "--password-file", str(secret)), "cannot be a user's name"),
        ("", ("init", "1", "--admin", "ops", "--password-file", str(secret)), "no password"),
        ("x", ("init", "--from-nodes", "127.0.0.1:1", "--admin", "ops"), "Use headrace cluster admin"),
        ("x", ("admin", "ops", "--password-file", str(secret)), "Run headrace cluster init"),
    ):
        secret.write_text(text + "\n")
        secret.chmod(0o600)
        with pytest.raises(AssertionError, match=words.replace("*", r"\*")):
            group.command(*wrong)
    assert at_etcd(group) is None
