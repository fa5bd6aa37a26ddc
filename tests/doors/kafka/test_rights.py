"""Who may do what at the Kafka door: each API with users of generated rights, against a plain model of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.probes import (
    CLUSTER,
    CREATE,
    CREATED,
    DESCRIBE,
    GROUP,
    ID,
    NO_CLUSTER,
    NO_ID,
    NO_TOPIC,
    PROBES,
    READ,
    TOPIC,
    UNAUTHORIZED,
    UNPROBED,
    WRITE,
    T,
    acl,
    may_of,
    places,
    some_rules,
)
from tests.doors.kafka.secured import secured_door
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields

from headrace.broker.security import Identity, Operation
from headrace.broker.security.rights import CLUSTER_NAME, OPERATIONS, Inside, Open, Pattern
from headrace.broker.security.rules import Rule, allow
from headrace.doors.kafka.door import KafkaDoor
from headrace.doors.kafka.registry import APIS
from headrace.doors.kafka.rights import DECLARATIONS, NOT_ASKED, bits
from headrace.format.batch import TRANSACTIONAL
from headrace.log.interface import Topic

ALL_TOPICS: dict[str, Any] = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": True,
    "include_topic_authorized_operations": True,
}


def test_every_api_declares_its_rights() -> None:
    assert set(DECLARATIONS) == {api.name for api in APIS.values()}
    for name, declared in DECLARATIONS.items():
        if not isinstance(declared, Open | Inside):
            assert declared, name
            assert all(each.operation in OPERATIONS[each.resource] and each.by for each in declared), name


def test_every_api_is_probed() -> None:
    assert {probe.api for probe in PROBES} | UNPROBED == {api.name for api in APIS.values()}


def plain_door(data: Path, rules: Sequence[Rule] = (), **settings: Any) -> AbstractAsyncContextManager[KafkaDoor]:
    """A door whose clients are whom `become` makes them."""
    return secured_door(data, rules, **{"kafka_mechanisms": "", "group_initial_rebalance_delay_ms": 0, **settings})


def become(door: KafkaDoor, user: str) -> None:
    """Make the one client somebody."""
    [connection] = door.connections
    if connection.memberships is not None:
        # Of whoever it was: a member that is somebody else has lost its right.
        connection.memberships.end()
    if user:
        connection.login(Identity(user, "test"))
    else:
        door.broker.security.logout(connection.session)
        connection.readable = None


async def the_topic(door: KafkaDoor, exists: bool) -> Topic:
    topics = door.broker.topics
    found = topics.get(T) or await topics.create(T, 1)
    if not exists:
        await topics.delete(T)
    return found


USERS = ["", "root", *(f"user-{number}" for number in range(12))]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("exists", [True, False], ids=["exists", "missing"])
async def test_each_user_may_do_what_the_model_allows(tmp_path: Path, seed: int, exists: bool) -> None:
    rules = some_rules(["ANONYMOUS", *USERS[2:]], seed)
    refused = allowed = 0
    async with plain_door(tmp_path, rules) as door, await Wire.open(door) as wire:
        await wire.ask("api_versions", 0)
        for user in USERS:
            become(door, user)
            may = may_of(rules, user or "ANONYMOUS")
            for probe in PROBES:
                reply = await wire.ask(probe.api, probe.version, **probe.fields(await the_topic(door, exists)))
                said, expected = ErrorCode(probe.said(reply)), probe.expected(may, exists)
                what = f"{user or 'ANONYMOUS'} {probe.api} {probe.version}: {said!r}, by the model {expected!r}"
                if expected is None:
                    allowed += 1
                    assert said not in UNAUTHORIZED, what
                else:
                    refused += 1
                    assert said is expected, what
    assert allowed > 100
    assert refused > 100


# --- what lists show --------------------------------------------------------------------------------------------------


async def test_lists_leave_out_what_the_client_may_not_describe(tmp_path: Path) -> None:
    rules = [
        allow("ann", DESCRIBE, TOPIC, "a", Pattern.PREFIXED),
        allow("ann", DESCRIBE, GROUP, "ga"),
        allow("ann", WRITE, ID, "xa"),
        allow("bob", DESCRIBE, CLUSTER, CLUSTER_NAME),
    ]
    async with plain_door(tmp_path, rules) as door, await Wire.open(door) as wire:
        for name in ("a1", "a2", "b1"):
            await door.broker.topics.create(name, 1)
        await wire.ask("api_versions", 0)
        become(door, "root")
        for group in ("ga", "gb"):
            await commit(wire, group, "a1", "b1")
            fields = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
            made = await wire.ask("init_producer_id", 4, transactional_id=f"x{group[1]}", **fields)
            assert made.error_code is ErrorCode.none
        names = await shown(wire)
        assert {"a1", "a2", "b1", "__consumer_offsets", "ga", "gb", "xa", "xb", "ga:a1", "ga:b1"} <= names
        # Users and rules are for nobody to read.
        assert "__security" not in names
        become(door, "ann")
        assert await shown(wire) == {"a1", "a2", "ga", "xa", "ga:a1"}
        become(door, "bob")
        assert await shown(wire) == {"ga", "gb"}
        become(door, "eve")
        assert await shown(wire) == set()


async def commit(wire: Wire, group: str, *topics: str) -> None:
    commit = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": None}
    at = [{**each, "name": name} for name in topics for each in places(**commit)["topics"]]
    fields = {"member_id": "", "group_instance_id": None, "generation_id_or_member_epoch": -1}
    reply = await wire.ask("offset_commit", 8, group_id=group, **fields, topics=at)
    assert reply.topics[0].partitions[0].error_code is ErrorCode.none


async def shown(wire: Wire) -> set[str]:
    """All names that the client is told by lists."""
    topics = {each.name for each in (await wire.ask("metadata", 10, **ALL_TOPICS)).topics}
    pages = await wire.ask("describe_topic_partitions", 0, topics=[], response_partition_limit=2000, cursor=None)
    assert {each.name for each in pages.topics} == topics
    groups = await wire.ask("list_groups", 5, states_filter=[], types_filter=[])
    filters = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": None}
    ids = await wire.ask("list_transactions", 2, **filters)
    offsets = await wire.ask("offset_fetch", 7, group_id="ga", topics=None, require_stable=False)
    return {
        *topics,
        *(each.group_id for each in groups.groups),
        *(each.transactional_id for each in ids.transaction_states),
        *(f"ga:{each.name}" for each in offsets.topics),
    }


async def test_topics_that_are_asked_for_by_id_do_not_tell_their_names(tmp_path: Path) -> None:
    async with plain_door(tmp_path) as door, await Wire.open(door) as wire:
        made = await door.broker.topics.create("secret", 1)
        await wire.ask("api_versions", 0)
        become(door, "ann")
        for found, code in ((made.id, NO_TOPIC), (UUID(int=7), ErrorCode.unknown_topic_id)):
            asked = [{"name": None, "topic_id": found}]
            [answer] = (await wire.ask("metadata", 13, **{**ALL_TOPICS, "topics": asked})).topics
            assert (answer.error_code, answer.name) == (code, None)
            [deleted] = (await wire.ask("delete_topics", 6, topics=asked, timeout=1000)).responses
            assert (deleted.error_code, deleted.name) == (code, None)
            assert "secret" not in (deleted.error_message or "")
        assert door.broker.topics.get("secret") is made


async def test_operations_are_named_only_where_they_are_asked_for(tmp_path: Path) -> None:
    rules = [
        allow("ann", READ, TOPIC, "t"),
        allow("ann", READ, GROUP, "g"),
        allow("ann", Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME),
        allow("bob", DESCRIBE, CLUSTER, CLUSTER_NAME),
    ]
    async with plain_door(tmp_path, rules) as door, await Wire.open(door) as wire:
        await door.broker.topics.create("t", 1)
        await wire.ask("api_versions", 0)

        async def said(is_asked: bool) -> tuple[int, int, int, int]:
            asked = {"include_cluster_authorized_operations": is_asked, "include_topic_authorized_operations": is_asked}
            metadata = await wire.ask("metadata", 10, **{**ALL_TOPICS, **asked})
            groups = await wire.ask("describe_groups", 5, groups=["g"], include_authorized_operations=is_asked)
            of_cluster = {"include_cluster_authorized_operations": is_asked}
            nodes = await wire.ask("describe_cluster", 1, endpoint_type=1, **of_cluster)
            return (
                next((each.topic_authorized_operations for each in metadata.topics if each.name == "t"), 0),
                groups.groups[0].authorized_operations,
                metadata.cluster_authorized_operations,
                nodes.cluster_authorized_operations,
            )

        become(door, "root")
        assert await said(True) == (3576, 3400, 8096, 8096)
        become(door, "ann")
        own = bits((READ, DESCRIBE))
        # To see what one may do to the cluster takes the right to describe it.
        assert await said(True) == (own, own, 0, 0)
        assert set(await said(False)) == {NOT_ASKED}
        become(door, "bob")
        assert await said(True) == (0, NOT_ASKED, bits((DESCRIBE,)), bits((DESCRIBE,)))


# --- what takes one of several rights ---------------------------------------------------------------------------------


async def test_a_producer_id_takes_a_right_to_write_something(tmp_path: Path) -> None:
    fields = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    rules = [
        allow("ann", WRITE, TOPIC, "t"),
        allow("bob", Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME),
        allow("eve", READ, TOPIC, "t"),
    ]
    async with plain_door(tmp_path, rules) as door, await Wire.open(door) as wire:
        await wire.ask("api_versions", 0)
        for user, code in (("ann", ErrorCode.none), ("bob", ErrorCode.none), ("eve", NO_CLUSTER)):
            become(door, user)
            assert (await wire.ask("init_producer_id", 4, **fields)).error_code is code


async def test_transactional_batches_take_a_right_to_their_id(tmp_path: Path) -> None:
    rules = [allow("ann", WRITE, TOPIC, "t"), allow("ann", WRITE, ID, "mine")]
    async with plain_door(tmp_path, rules) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("t", 1)
        await wire.ask("api_versions", 0)
        become(door, "ann")
        batch = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
        other = await wire.produce(11, topic, batch, transactional_id="other")
        mine = await wire.produce(11, topic, batch, transactional_id="mine")
        assert other.error_code is NO_ID
        assert mine.error_code not in UNAUTHORIZED


async def test_settings_of_a_new_topic_are_for_those_who_may_see_them(tmp_path: Path) -> None:
    rules = [allow("ann", CREATE, TOPIC, "t", Pattern.PREFIXED)]
    async with plain_door(tmp_path, rules) as door, await Wire.open(door) as wire:
        await wire.ask("api_versions", 0)
        for user, partitions in (("ann", -1), ("root", 1)):
            become(door, user)
            asked = [{**CREATED, "name": f"t-{user}"}]
            [made] = (await wire.ask("create_topics", 7, topics=asked, timeout=1000, validate_only=False)).topics
            assert made.error_code is ErrorCode.none
            assert (made.num_partitions, bool(made.configs)) == (partitions, partitions > 0)


async def test_log_only_reports_and_allows(tmp_path: Path) -> None:
    async with plain_door(tmp_path, authorization="log-only") as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("t", 1)
        assert (await wire.produce(9, topic, batch_of(b"a"))).error_code is ErrorCode.none
        fetched = await wire.ask("fetch", 11, **fetch_fields((topic, 0, 0)))
        assert fetched.responses[0].partitions[0].error_code is ErrorCode.none
        assert (await wire.ask("describe_acls", 3, **acl("_filter"))).error_code is ErrorCode.none
        assert door.broker.security.refused[READ, TOPIC]
        assert door.broker.security.refused[WRITE, TOPIC]
        described = (await wire.ask("metadata", 10, **ALL_TOPICS)).topics
        assert next(each.topic_authorized_operations for each in described if each.name == "t") == 3576
