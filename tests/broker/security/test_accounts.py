"""Users, credentials and tokens: made, changed and removed, and there again after a start."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.security import OWN, Identity, Operation, Resource, Session
from headrace.broker.security.accounts import PASSWORD_BYTES_MAX, Accounts, Deletion, Upsert
from headrace.broker.security.credentials import ITERATIONS_MAX, ITERATIONS_MIN, Mechanism, salt_password
from headrace.broker.security.roles import Grant
from headrace.broker.security.rules import allow
from headrace.broker.security.users import NAME_CHARACTERS_MAX
from headrace.errors import (
    AuthenticationFailed,
    CorruptLog,
    DuplicateCredentials,
    InvalidCredentials,
    InvalidRule,
    NotAuthorized,
    TooManyIdentities,
    UnknownToken,
    UnknownUser,
    UserExists,
)

Starting = Callable[..., Awaitable[Broker]]
SHA_256, SHA_512 = Mechanism.SHA_256, Mechanism.SHA_512
SALT = b"salt of a client"


def session_of(user: str = "") -> Session:
    return Session(user=user, host="127.0.0.1", door="test")


def upsert(user: str, password: bytes = b"secret", mechanism: Mechanism = SHA_256, iterations: int = 4096) -> Upsert:
    return Upsert(user, mechanism, iterations, SALT, salt_password(mechanism, password, SALT, iterations))


async def is_right(broker: Broker, user: str, password: str) -> bool:
    try:
        identity = await broker.security.authenticator.password(user, password, session_of())
    except AuthenticationFailed:
        return False
    assert identity.user == user
    return True


async def test_a_user_is_there_after_a_start(start_broker: Starting):
    broker = await start_broker()
    await broker.security.accounts.create_user(OWN, "ann", "first")
    await broker.security.accounts.create_user(OWN, "bob", "other")
    assert await is_right(broker, "ann", "first")
    salts = broker.security.users.secret
    broker = await start_broker()
    assert [user.name for user in broker.security.accounts.users(OWN)] == ["ann", "bob"]
    assert await is_right(broker, "ann", "first")
    assert not await is_right(broker, "ann", "other")
    # Or a restart would show which users there are.
    assert broker.security.users.secret == salts
    await broker.security.accounts.set_password(OWN, "ann", "second")
    await broker.security.accounts.delete_user(OWN, "bob")
    broker = await start_broker()
    assert [await is_right(broker, "ann", each) for each in ("first", "second")] == [False, True]
    assert not await is_right(broker, "bob", "other")
    assert broker.topics.existing("__security").config["cleanup.policy"] == "compact"


async def test_a_broker_without_users_makes_no_topic(broker: Broker):
    assert broker.security.accounts.users(OWN) == []
    assert not broker.topics.all


async def test_both_passwords_are_right_for_a_while(broker: Broker):
    accounts = broker.security.accounts
    await accounts.create_user(OWN, "ann", "first")
    await accounts.set_password(OWN, "ann", "second", keep_old_ms=600_000)
    assert [await is_right(broker, "ann", each) for each in ("first", "second")] == [True, True]
    # Only the last one goes on.
    await accounts.set_password(OWN, "ann", "third", keep_old_ms=600_000)
    assert [await is_right(broker, "ann", each) for each in ("first", "second", "third")] == [False, True, True]
    await accounts.set_password(OWN, "ann", "fourth", keep_old_ms=1)
    await until(lambda: len(broker.security.users.by_name["ann"].of(SHA_256, broker.runtime.clock.now_ms())) == 1)
    assert [await is_right(broker, "ann", each) for each in ("third", "fourth")] == [False, True]


@pytest.mark.parametrize("name", ["", "x" * (NAME_CHARACTERS_MAX + 1), "*", "ANONYMOUS", " a", "a\n", "User:a", "a;b"])
async def test_what_is_no_name(broker: Broker, name: str):
    with pytest.raises(InvalidCredentials):
        await broker.security.accounts.create_user(OWN, name, "secret")
    failed = await broker.security.accounts.alter_credentials(OWN, [upsert(name)])
    assert isinstance(failed[name], InvalidCredentials)


async def test_what_users_cannot_be(start_broker: Starting):
    accounts: Accounts = (await start_broker(users_max=2, tokens_max=1)).security.accounts
    await accounts.create_user(OWN, "x" * NAME_CHARACTERS_MAX, "p" * PASSWORD_BYTES_MAX)
    for password in ("", "p" * (PASSWORD_BYTES_MAX + 1)):
        with pytest.raises(InvalidCredentials, match="a password has 1 to 1024 bytes"):
            await accounts.create_user(OWN, "ann", password)
    await accounts.create_user(OWN, "ann")
    with pytest.raises(UserExists):
        await accounts.create_user(OWN, "ann", "secret")
    with pytest.raises(TooManyIdentities, match="users_max"):
        await accounts.create_user(OWN, "bob", "secret")
    failed = await accounts.alter_credentials(OWN, [upsert("ann"), upsert("bob")])
    assert {name: type(error) for name, error in failed.items()} == {"bob": TooManyIdentities}
    await accounts.create_token(OWN, "ann")
    with pytest.raises(TooManyIdentities, match="tokens_max"):
        await accounts.create_token(OWN, "ann")
    for call in (
        accounts.set_password(OWN, "cid", "p"),
        accounts.delete_user(OWN, "cid"),
        accounts.create_token(OWN, "cid"),
    ):
        with pytest.raises(UnknownUser):
            await call


async def test_credentials_that_clients_make(broker: Broker):
    accounts = broker.security.accounts
    assert await accounts.alter_credentials(OWN, [upsert("ann"), upsert("ann", mechanism=SHA_512), upsert("bob")]) == {}
    assert await is_right(broker, "ann", "secret")
    described = accounts.describe_credentials(OWN)
    assert {name: [each.mechanism for each in found] for name, found in described.items()} == {  # type: ignore[union-attr]
        "ann": [SHA_256, SHA_512],
        "bob": [SHA_256],
    }
    wrong = [
        upsert("few", iterations=ITERATIONS_MIN - 1),
        upsert("many", iterations=ITERATIONS_MAX + 1),
        Upsert("short", SHA_256, 4096, SALT, b"x"),
        Upsert("salt", SHA_256, 4096, b"", bytes(32)),
        Deletion("cid", SHA_256),
        Deletion("bob", SHA_512),
        upsert("ann", b"one"),
        Deletion("ann", SHA_256),
        Deletion("bob", SHA_256),
        upsert("dan", iterations=ITERATIONS_MAX),
    ]
    failed = await accounts.alter_credentials(OWN, wrong)
    assert {name: type(error) for name, error in failed.items()} == {
        **dict.fromkeys(("few", "many", "short", "salt"), InvalidCredentials),
        **dict.fromkeys(("cid", "bob"), UnknownUser),
        "ann": DuplicateCredentials,
    }
    # All of a user's or none.
    assert await is_right(broker, "bob", "secret")
    assert await accounts.alter_credentials(OWN, [Deletion("bob", SHA_256), upsert("ann", b"next")]) == {}
    assert [await is_right(broker, *each) for each in (("bob", "secret"), ("ann", "next"))] == [False, True]
    described = accounts.describe_credentials(OWN, ["ann", "bob", "zoe", "ann"])
    assert {name: type(found) for name, found in described.items()} == {
        "ann": DuplicateCredentials,
        "bob": UnknownUser,
        "zoe": UnknownUser,
    }


async def test_tokens(start_broker: Starting):
    broker = await start_broker()
    accounts = broker.security.accounts
    await accounts.create_user(OWN, "ann")
    await accounts.create_user(OWN, "bob", "secret")
    now = broker.runtime.clock.now_ms()
    token, text = await accounts.create_token(OWN, "ann", expires_at=now + 600_000, scope=["write:topic:t*"], note="CI")
    for _ in range(2):
        verify = broker.security.authenticator
        identity = verify.token(text, session_of())
        assert (identity.user, identity.how, identity.token_id) == ("ann", "token", token.id)
        assert identity.expires_at == now + 600_000
        assert str(identity.scope) == "Scope(allow * WRITE on topic t*)"
        assert (await verify.bearer(text, session_of())).user == "ann"
        assert (await verify.password("ann", text, session_of())).how == "token"
        with pytest.raises(AuthenticationFailed, match="unknown, or it was revoked"):
            await verify.password("bob", text, session_of())
        other = text[:-1] + ("0" if text[-1] != "0" else "1")
        for wrong in (other, text[:-1], "", "hr_", text + "\n", text.replace(token.id, "0" * 16)):
            with pytest.raises(AuthenticationFailed):
                verify.token(wrong, session_of())
        broker = await start_broker()
    assert [(each.id, each.note) for each in broker.security.accounts.tokens(OWN, "ann")] == [(token.id, "CI")]
    assert broker.security.accounts.tokens(OWN, "bob") == []
    await broker.security.accounts.revoke_token(OWN, token.id)
    for again in (False, True):
        broker = await start_broker() if again else broker
        with pytest.raises(AuthenticationFailed):
            broker.security.authenticator.token(text, session_of())
        with pytest.raises(UnknownToken):
            await broker.security.accounts.revoke_token(OWN, token.id)


async def test_a_token_expires(broker: Broker):
    accounts = broker.security.accounts
    await accounts.create_user(OWN, "ann")
    now = broker.runtime.clock.now_ms()
    token, text = await accounts.create_token(OWN, "ann", expires_at=now + 200)
    await until(lambda: not token.is_valid(broker.runtime.clock.now_ms()))
    with pytest.raises(AuthenticationFailed, match="has expired"):
        broker.security.authenticator.token(text, session_of())
    with pytest.raises(InvalidCredentials, match="in the past"):
        await accounts.create_token(OWN, "ann", expires_at=now)
    for scope, why in (
        ("write", "OPERATION:RESOURCE:NAME"),
        ("write:topic:", "OPERATION:RESOURCE:NAME"),
        ("write:moon:x", "no kind of resource 'moon'"),
        ("commit:topic:x", "no operation 'commit'"),
        ("write:group:g", "no write on a group"),
    ):
        with pytest.raises(InvalidRule, match=why):
            await accounts.create_token(OWN, "ann", scope=[scope])
    with pytest.raises(InvalidRule, match="at most 100"):
        await accounts.create_token(OWN, "ann", scope=["read:topic:t"] * 101)


async def test_a_token_that_signs(start_broker: Starting):
    broker = await start_broker()
    await broker.security.accounts.create_user(OWN, "ann")
    token, text = await broker.security.accounts.create_token(OWN, "ann", signing=True)
    plain, plain_text = await broker.security.accounts.create_token(OWN, "ann")
    broker = await start_broker()
    verify = broker.security.authenticator.signature
    key = text.rpartition("_")[2].encode()
    signature = hmac.digest(key, b"request", "sha1")
    assert verify(token.id, b"request", signature, session_of()).user == "ann"
    # It is an ordinary token, too.
    assert broker.security.authenticator.token(text, session_of()).user == "ann"
    plain_signature = hmac.digest(plain_text.rpartition("_")[2].encode(), b"request", "sha1")
    empty = hmac.digest(b"", b"request", "sha1")
    for access_key, signed, given in (
        (token.id, b"another", signature),
        (token.id, b"request", empty),
        (plain.id, b"request", plain_signature),
        (plain.id, b"request", empty),
        ("unknown", b"request", empty),
    ):
        with pytest.raises(AuthenticationFailed):
            verify(access_key, signed, given, session_of())


async def test_what_a_session_may(start_broker: Starting):
    broker = await start_broker(authorization="on", super_users="root")
    accounts = broker.security.accounts
    root, ann = session_of("root"), session_of("ann")
    await accounts.create_user(root, "ann", "secret")
    for call in (
        lambda: accounts.create_user(ann, "bob", "p"),
        lambda: accounts.set_password(ann, "ann", "p"),
        lambda: accounts.delete_user(ann, "root"),
        lambda: accounts.alter_credentials(ann, [upsert("ann")]),
        lambda: accounts.create_token(ann, "ann"),
        lambda: accounts.revoke_token(ann, "some"),
    ):
        with pytest.raises(NotAuthorized):
            await call()
    for listing in (accounts.users, accounts.describe_credentials, accounts.tokens):
        with pytest.raises(NotAuthorized):
            listing(ann)
    rights = (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)
    await broker.security.grants.add_rules(root, [allow("ann", each, Resource.USER, "ann") for each in rights])
    token, text = await accounts.create_token(ann, "ann", scope=["create-tokens:user:ann", "read:topic:*"])
    assert accounts.tokens(ann, "ann") == [token]
    with pytest.raises(NotAuthorized):
        await accounts.create_token(ann, "root")
    # A token with a scope makes none without.
    narrowed = session_of()
    broker.security.login(narrowed, broker.security.authenticator.token(text, narrowed))
    with pytest.raises(NotAuthorized):
        await accounts.create_token(narrowed, "ann")
    await accounts.revoke_token(ann, token.id)


async def test_what_ends_sessions(start_broker: Starting):
    broker = await start_broker(authorization="on")
    accounts, grants = broker.security.accounts, broker.security.grants
    await accounts.create_user(OWN, "ann", "secret")
    await grants.grant_role(OWN, Grant("ann", "viewer"))
    await grants.add_rules(OWN, [allow("ann", Operation.READ, Resource.TOPIC, "t")])
    ended: list[tuple[str, str]] = []

    # Nothing else keeps them.
    sessions: list[Session] = []

    def login(identity: Identity) -> None:
        session = session_of()
        session.on_ended = lambda why: ended.append((identity.how, why))
        broker.security.login(session, identity)
        sessions.append(session)

    token, text = await accounts.create_token(OWN, "ann")
    login(broker.security.authenticator.token(text, session_of()))
    login(Identity("ann", "password"))
    login(Identity("bob", "password"))
    await accounts.revoke_token(OWN, token.id)
    assert ended == [("token", "the token was revoked")]
    _, text = await accounts.create_token(OWN, "ann")
    login(broker.security.authenticator.token(text, session_of()))
    await accounts.delete_user(OWN, "ann")
    assert sorted(ended[1:]) == [("password", "the user was deleted"), ("token", "the user was deleted")]
    # The next one of that name has neither its tokens nor its roles.
    broker = await start_broker(authorization="on")
    with pytest.raises(AuthenticationFailed):
        broker.security.authenticator.token(text, session_of())
    assert broker.security.grants.roles(OWN) == []
    assert not broker.security.allows(session_of("ann"), Operation.DESCRIBE, Resource.TOPIC, "u")
    assert broker.security.allows(session_of("ann"), Operation.READ, Resource.TOPIC, "t")


async def test_no_secret_is_in_the_topic(start_broker: Starting, tmp_path: Path):
    broker = await start_broker()
    accounts = broker.security.accounts
    await accounts.create_user(OWN, "ann", "my-password")
    _, text = await accounts.create_token(OWN, "ann")
    await broker.stop()
    await broker.log.stop()
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b'"user","ann"' in stored
    for secret in ("my-password", text, text.rpartition("_")[2]):
        assert secret.encode() not in stored
        assert secret not in repr(accounts.users(OWN)) + repr(accounts.tokens(OWN))


async def test_a_record_that_cannot_be_read_fails_the_start(start_broker: Starting):
    broker = await start_broker()
    store = broker.security.store
    await broker.security.accounts.create_user(OWN, "ann", "secret")
    async with store.changing():
        change = store._tables["user"].drop(("bob",))
        await store.write([change._replace(value=b'{"credentials": "what-is-secret"}')])
    with pytest.raises(CorruptLog, match="offset 2 of __security cannot be read") as failure:
        await start_broker()
    assert "what-is-secret" not in str(failure.value)
