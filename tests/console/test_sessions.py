"""Sessions and local users: how long a login lasts, how many there are, and what is kept of a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.console.client.transport import Credentials
from headrace.console.sessions import ATTEMPTS_MAX, IDLE_SECONDS, LIFE_SECONDS, Role, Sessions
from headrace.console.users_file import add_user, read_users, verify
from headrace.errors import ConfigError


class Now:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_when_it_is_not_used_and_in_any_case() -> None:
    now = Now()
    sessions = Sessions(clock=now)
    ann = sessions.begin("ann", Role.VIEWER)
    now.now += IDLE_SECONDS - 1
    assert sessions.find(ann.id) is ann
    now.now += IDLE_SECONDS
    assert sessions.find(ann.id) is None
    bob = sessions.begin("bob", Role.ADMIN)
    for _ in range(int(LIFE_SECONDS / 1800)):
        now.now += 1800
        last = sessions.find(bob.id)
    assert last is None
    assert not sessions.is_alive(bob)
    assert sessions.find(None) is None
    assert sessions.find("guess") is None


def test_the_session_unused_for_longest_makes_room() -> None:
    now = Now()
    sessions = Sessions(most=2, clock=now)
    first, second = sessions.begin("a", Role.VIEWER), sessions.begin("b", Role.VIEWER)
    now.now += 1
    sessions.find(first.id)
    third = sessions.begin("c", Role.VIEWER)
    assert sessions.find(second.id) is None
    assert sessions.find(first.id) is first
    assert sessions.find(third.id) is third
    sessions.end(third.id)
    assert sessions.find(third.id) is None
    assert len({first.id, second.id, third.id}) == 3


def test_wrong_passwords_make_an_address_wait() -> None:
    now = Now()
    sessions = Sessions(clock=now)
    for _ in range(ATTEMPTS_MAX):
        assert sessions.may_try("10.0.0.1")
        sessions.failed("10.0.0.1")
    assert not sessions.may_try("10.0.0.1")
    assert sessions.may_try("10.0.0.2")
    now.now += 61
    assert sessions.may_try("10.0.0.1")


def test_credentials_are_shown_nowhere() -> None:
    assert "secret" not in repr(Credentials("ann", "secret", "secret"))
    assert Credentials("ann", "p").header == "Basic YW5uOnA="
    assert Credentials("ann", "p", "hr_1_x").header == "Bearer hr_1_x"


def test_local_users(tmp_path: Path) -> None:
    path = tmp_path / "data" / "users"
    assert read_users(path) == {}
    add_user(path, "ann", "operator", "correct horse")
    add_user(path, "bob", "viewer", "battery staple")
    add_user(path, "ann", "admin", "correct horse 2")
    users = read_users(path)
    assert {name: each.role for name, each in users.items()} == {"ann": Role.ADMIN, "bob": Role.VIEWER}
    assert verify(users["ann"], "correct horse 2")
    assert not verify(users["ann"], "correct horse")
    assert not verify(None, "correct horse")
    assert "horse" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    for name, role, password in (("a b", "viewer", "x" * 8), ("a", "king", "x" * 8), ("a", "viewer", "short")):
        with pytest.raises(ConfigError):
            add_user(path, name, role, password)
    path.write_text("ann admin\n")
    with pytest.raises(ConfigError, match="line 1"):
        read_users(path)
