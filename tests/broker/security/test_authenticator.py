"""Passwords: which are right, what a wrong one costs, and what is slowed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.security import Identity, Session, authenticator, credentials
from headrace.broker.security.credentials import ITERATIONS_MAX, Mechanism, derive
from headrace.broker.security.failures import FIRST_DELAY_MS, FORGET_SECONDS, Failures
from headrace.broker.security.users import User
from headrace.errors import AuthenticationFailed

Starting = Callable[..., Awaitable[Broker]]
SALTS = dict.fromkeys(Mechanism, (b"salt", 4096))


def add_user(broker: Broker, name: str, *passwords: bytes, mechanisms: Any = Mechanism) -> None:
    salts = {each: SALTS[each] for each in mechanisms}
    user = User(name)
    for password in passwords:
        user = user.with_password(derive(password, salts), old_until_ms=1 << 62)
    broker.security.users.by_name[name] = user


@pytest.mark.parametrize("mechanisms", [Mechanism, [Mechanism.SHA_256], [Mechanism.SHA_512]])
async def test_a_password(broker: Broker, mechanisms: Any):
    add_user(broker, "ann", b"old", b"new", mechanisms=mechanisms)
    verify = broker.security.authenticator.password
    for password in ("new", "old", "old", "new"):
        assert await verify("ann", password, Session()) == Identity("ann", "password")
    for user, password in (("ann", "newer"), ("ann", ""), ("ann", "x" * 2_000), ("bob", "new"), ("", "new")):
        with pytest.raises(AuthenticationFailed, match="the user is unknown, or the password is wrong"):
            await verify(user, password, Session())
    assert broker.security.authenticator.succeeded == {"password": 4}
    assert broker.security.authenticator.failed == {"password": 5}


async def test_a_password_that_is_no_more(broker: Broker):
    add_user(broker, "ann", b"old")
    verify = broker.security.authenticator.password
    await verify("ann", "old", Session())
    add_user(broker, "ann", b"new")
    with pytest.raises(AuthenticationFailed):
        await verify("ann", "old", Session())
    del broker.security.users.by_name["ann"]
    with pytest.raises(AuthenticationFailed):
        await verify("ann", "new", Session())


async def test_unknown_users_and_wrong_passwords_take_the_same_work(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    add_user(broker, "few", b"right")
    broker.security.users.by_name["many"] = User(
        "many", tuple(derive(b"right", dict.fromkeys(Mechanism, (b"salt", ITERATIONS_MAX))))
    )
    work: list[tuple[str, int]] = []
    real = credentials.salt_password

    def counted(mechanism: Mechanism, password: bytes, salt: bytes, iterations: int) -> bytes:
        work.append((mechanism.hash, iterations))
        return real(mechanism, password, salt, iterations)

    monkeypatch.setattr(credentials, "salt_password", counted)
    for user in ("few", "many", "unknown"):
        work.clear()
        with pytest.raises(AuthenticationFailed):
            await broker.security.authenticator.password(user, "wrong", Session())
        assert {each for each, _ in work} == {"sha256"}
        assert sum(iterations for _, iterations in work) == ITERATIONS_MAX
    # A right one is derived once, and remembered.
    work.clear()
    for _ in range(3):
        await broker.security.authenticator.password("many", "right", Session())
    assert len(work) == 1


async def test_the_salt_of_an_unknown_user_stays_the_same(broker: Broker):
    def salt(user: str, mechanism: Mechanism = Mechanism.SHA_256) -> bytes:
        exchange = broker.security.authenticator.scram(mechanism, Session())
        return exchange.step(f"n,,n={user},r=abc".encode()).split(b",")[1]

    assert salt("ann") == salt("ann") != salt("bob")
    assert salt("ann") != salt("ann", Mechanism.SHA_512)
    add_user(broker, "bob", b"secret", mechanisms=[Mechanism.SHA_256])
    assert salt("bob") != salt("bob", Mechanism.SHA_512) == salt("bob", Mechanism.SHA_512)


async def test_nonces_are_never_the_same(broker: Broker):
    firsts = {broker.security.authenticator.scram(Mechanism.SHA_256, Session()).step(b"n,,n=a,r=b") for _ in range(50)}
    assert len(firsts) == 50


async def test_each_failure_is_answered_later_than_the_last(start_broker: Starting):
    broker = await start_broker(authentication_delay_max_ms=200)
    delays: list[int] = []
    for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"):
        with pytest.raises(AuthenticationFailed) as error:
            await broker.security.authenticator.password("ann", "guess", Session(host=host))
        delays.append(error.value.delay_ms)
    assert delays == [50, 100, 200, 200]
    with pytest.raises(AuthenticationFailed) as error:
        await broker.security.authenticator.password("bob", "guess", Session(host="10.0.0.4"))
    assert error.value.delay_ms == 50


def test_the_table_of_failures_is_bounded_and_forgets():
    failures = Failures(1_000, 10)
    for number in range(100):
        assert failures.count(f"user{number}", f"host{number}", 0.0) == FIRST_DELAY_MS
        assert len(failures) <= 10
    assert failures.count("user99", "other", 0.0) == 2 * FIRST_DELAY_MS
    assert failures.count("user99", "other", FORGET_SECONDS + 1) == FIRST_DELAY_MS
    assert failures.count("ann", "", 0.0) == FIRST_DELAY_MS
    for _ in range(100):
        assert failures.count("ann", "", 0.0) <= 1_000


async def test_only_so_many_passwords_wait(start_broker: Starting, monkeypatch: pytest.MonkeyPatch):
    broker = await start_broker(authentication_waiting_max=1)
    monkeypatch.setattr(authenticator, "VERIFIED_MAX", 1)
    for name in ("ann", "bob"):
        add_user(broker, name, b"right")
    verify = broker.security.authenticator.password
    found = await asyncio.gather(*(verify("ann", "right", Session()) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [Identity, AuthenticationFailed, AuthenticationFailed]
    assert "too many passwords wait" in str(found[1])
    for name in ("ann", "bob", "ann"):
        await verify(name, "right", Session())
        assert len(broker.security.authenticator._verified) == 1


async def test_nothing_secret_is_shown():
    [credential] = derive(b"pencil", {Mechanism.SHA_256: (b"salty", 4_096)})
    shown = repr(User("ann", (credential,)))
    for secret in (credential.salt, credential.stored_key, credential.server_key):
        assert repr(secret)[2:-1] not in shown
