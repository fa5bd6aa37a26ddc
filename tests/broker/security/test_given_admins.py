"""An administrator that a group is given from outside is taken once."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.security.test_accounts import is_right, session_of

from headrace.broker.broker import Broker
from headrace.broker.security import OWN, Operation, Resource
from headrace.broker.security.credentials import ITERATIONS_MIN, Mechanism, derive
from headrace.broker.security.given_admins import IDS_MAX, GivenAdmin, read_given
from headrace.errors import InvalidCredentials, TooManyIdentities

Starting = Callable[..., Awaitable[Broker]]
SALTS = dict.fromkeys(Mechanism, (b"salt of a test", ITERATIONS_MIN))
ON: dict[str, Any] = {"authorization": "on"}


def given(id: str = "1", user: str = "ops", password: bytes = b"first") -> GivenAdmin:
    return GivenAdmin(id, user, tuple(derive(password, SALTS)))


async def test_it_may_everything_and_is_taken_once(start_broker: Starting):
    broker = await start_broker(**ON)
    ops = session_of("ops")
    assert not broker.security.allows(ops, Operation.ALTER, Resource.CLUSTER, "kafka-cluster")
    assert await broker.security.given_admins.take(given())
    assert await is_right(broker, "ops", "first")
    assert broker.security.allows(ops, Operation.ALTER, Resource.CLUSTER, "kafka-cluster")
    # As after a kill between taking and removing: what was done to the user meanwhile stays.
    await broker.security.accounts.set_password(OWN, "ops", "second")
    broker = await start_broker(**ON)
    assert not await broker.security.given_admins.take(given())
    assert await is_right(broker, "ops", "second")
    await broker.security.accounts.delete_user(OWN, "ops")
    broker = await start_broker(**ON)
    assert not await broker.security.given_admins.take(given())
    assert broker.security.accounts.users(OWN) == []
    # Another gift is another one, also to a user that is there.
    assert await broker.security.given_admins.take(given("2"))
    assert await broker.security.given_admins.take(given("3", password=b"third"))
    assert await is_right(broker, "ops", "third")
    assert len(broker.security.grants.roles(OWN, "ops")) == 1


async def test_the_last_ids_are_remembered(broker: Broker):
    for number in range(IDS_MAX + 1):
        assert await broker.security.given_admins.take(given(str(number)))
    assert not await broker.security.given_admins.take(given("1"))
    assert await broker.security.given_admins.take(given("0"))


async def test_nothing_is_taken_in_part(start_broker: Starting):
    broker = await start_broker(rules_max=1, **ON)
    with pytest.raises(TooManyIdentities):
        await broker.security.given_admins.take(given())
    assert broker.security.accounts.users(OWN) == []
    broker = await start_broker(users_max=1, **ON)
    await broker.security.accounts.create_user(OWN, "ann", "x")
    with pytest.raises(TooManyIdentities):
        await broker.security.given_admins.take(given())
    assert broker.security.grants.roles(OWN) == []


def test_what_etcd_has_is_checked() -> None:
    found = given()
    assert read_given(found.id, found.user, json.loads(json.dumps(found.encode()))) == found
    good = found.encode()[0]
    for wrong in (
        [],
        [{}],
        [good | {"mechanism": "MD5"}],
        [good | {"stored_key": "c2hvcnQ="}],
        [good | {"iterations": 1}],
        [good | {"iterations": 1 << 40}],
        [good | {"salt": ""}],
        [good | {"salt": 5}],
    ):
        with pytest.raises(InvalidCredentials) as refused:
            read_given("1", "ops", wrong)
        assert good["stored_key"] not in str(refused.value)
    with pytest.raises(InvalidCredentials, match="cannot be a user's name"):
        read_given("1", "*", found.encode())
    assert good["stored_key"] not in repr(found)
    assert replace(found, user="x") != found
