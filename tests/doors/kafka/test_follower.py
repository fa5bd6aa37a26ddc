"""The Kafka door of a node that follows: what it answers itself, what it passes on, and what it refuses with."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import typing
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from tests.doors.group import FakeMembership
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, frame, open_door, produce_fields, values
from tests.doors.replicated import ReplicatedBroker, leading
from tests.waiting import SECONDS

from headrace.addresses import format_address
from headrace.broker.membership import NodeView
from headrace.broker.security import Identity, Operation, Resource
from headrace.broker.security.identity import Scope
from headrace.broker.security.rules import allow
from headrace.client import Client
from headrace.doors.door import DoorContext
from headrace.doors.kafka.door import KafkaDoor
from headrace.doors.kafka.follower import KafkaFollowerDoor
from headrace.doors.kafka.registry import APIS
from headrace.log.interface import Topic

NOT_LEADER, NOT_COORDINATOR = ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator
NOT_CONTROLLER = ErrorCode.not_controller
ANSWERED = {"metadata", "find_coordinator", "api_versions", "describe_log_dirs", "describe_cluster", "fetch"} | {
    "describe_topic_partitions", "describe_acls", "describe_user_scram_credentials", "list_groups", "list_transactions",
    "sasl_handshake", "sasl_authenticate",
}  # fmt: skip
CODES = {
    **dict.fromkeys(("produce", "list_offsets", "delete_records", "offset_for_leader_epoch"), NOT_LEADER),
    **dict.fromkeys(("describe_producers", "write_txn_markers"), NOT_LEADER),
    **dict.fromkeys(("create_topics", "delete_topics", "create_partitions", "elect_leaders"), NOT_CONTROLLER),
    **dict.fromkeys(("alter_partition_reassignments", "list_partition_reassignments"), NOT_CONTROLLER),
    **dict.fromkeys(("describe_configs", "alter_configs", "incremental_alter_configs"), NOT_CONTROLLER),
    **dict.fromkeys(("describe_quorum", "list_config_resources"), NOT_CONTROLLER),
    **dict.fromkeys(("create_acls", "delete_acls", "alter_user_scram_credentials"), NOT_CONTROLLER),
}
PRODUCER: dict[str, Any] = {"transactional_id": None, "transaction_timeout": 1, "producer_id": -1, "producer_epoch": -1}
REFUSED = [
    (api, version) for api in APIS.values() if api.name not in ANSWERED for version in range(api.oldest, api.newest + 1)
]


@asynccontextmanager
async def following(
    data: Path, leader: KafkaDoor | None = None, **settings: Any
) -> AsyncIterator[tuple[ReplicatedBroker, KafkaFollowerDoor, Topic]]:
    """Node 1, which has led until it had a topic with three records, and follows node 2 now."""
    async with leading(data, kafka="127.0.0.1:0", **settings) as node:
        topic = await node.broker.topics.create("rain", 2)
        door = KafkaDoor(DoorContext(node.broker, node.config, node.config))  # type: ignore[arg-type]
        await door.start()
        async with await Wire.open(door) as wire:
            for _ in range(3):
                assert (await wire.produce(9, topic, batch_of(b"a"))).error_code is ErrorCode.none
        await door.stop()
        # A port on which nothing listens, unless there is a leader.
        address = "127.0.0.1:1" if leader is None else format_address(*leader.address)
        node.group.nodes[2] = NodeView(2, "green", {"kafka": address})
        node.follow(2, 8)
        follower = KafkaFollowerDoor(DoorContext(node.broker, node.config, node.config))  # type: ignore[arg-type]
        await follower.start()
        try:
            yield node, follower, topic
        finally:
            await follower.stop()
            node.lead()


def example(hint: Any, name: str = "") -> Any:
    """Some value of a field; arrays have one element."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return (example(inner[0], name),)
    if inner:
        return example(next(each for each in inner if each is not type(None)), name)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{each.name: example(hints[each.name], each.name) for each in dataclasses.fields(hint)})  # type: ignore[operator]
    for kind, value in ((bool, True), (bytes, b"x"), (str, "x"), (int, 1), (timedelta, timedelta(seconds=1))):
        if isinstance(hint, type) and issubclass(hint, kind):
            return hint(value) if kind is int else value
    if hint is UUID:
        return UUID(int=7)
    return {"f64": 1.0}.get(getattr(hint, "__name__", ""), timedelta(seconds=1))


def errors_in(entity: Any) -> Iterator[ErrorCode]:
    """All error codes of a reply."""
    for each in dataclasses.fields(entity):
        value = getattr(entity, each.name)
        if isinstance(value, ErrorCode) and each.name != "topic_config_error_code":
            yield value
        for inner in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(inner):
                yield from errors_in(inner)


async def test_every_other_api_is_refused_by_the_table(tmp_path: Path) -> None:
    async with following(tmp_path) as (_, door, _):
        for api, version in REFUSED:
            request = example(load_request_schema(api.key, version))
            out = io.BytesIO()
            entity_writer(type(request))(out, request)
            async with await Wire.open(door) as wire:
                wire.correlation = 5
                wire.writer.write(frame(api.key, version, 5, out.getvalue()))
                reply = await asyncio.wait_for(wire.receive(api.name, version), SECONDS)
            expected = CODES.get(api.name, NOT_COORDINATOR)
            found = list(errors_in(reply))
            assert found, f"{api.name} {version}: nothing says that it is refused: {reply}"
            assert set(found) == {expected}, f"{api.name} {version}: {reply}"


def test_every_api_has_an_answer() -> None:
    assert len(REFUSED) > 100
    assert ANSWERED | {api.name for api, _ in REFUSED} == {api.name for api in APIS.values()}
    assert {api.name for api, _ in REFUSED} >= set(CODES)


async def test_what_was_asked_about_is_named_in_the_refusal(tmp_path: Path) -> None:
    async with following(tmp_path) as (_, door, topic), await Wire.open(door) as wire:
        for version in (3, 10, 13):
            fields = produce_fields(topic, batch_of(b"b"), index=1)
            reply = await wire.ask("produce", version, **fields)
            (answer,) = reply.responses
            assert (answer.topic_id if version >= 13 else answer.name) == (topic.id if version >= 13 else "rain")
            partition = answer.partition_responses[0]
            assert (partition.index, partition.error_code) == (1, NOT_LEADER)
            if version >= 10:
                assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (2, 8)
                assert [(each.node_id, each.port, each.rack) for each in reply.node_endpoints] == [(2, 1, "green")]
        groups = await wire.ask("describe_groups", 6, groups=["a", "b"], include_authorized_operations=False)
        assert [(each.group_id, each.error_code) for each in groups.groups] == [
            ("a", NOT_COORDINATOR),
            ("b", NOT_COORDINATOR),
        ]
        wanted = [{"topic": "rain", "partitions": [0, 1]}]
        elected = await wire.ask("elect_leaders", 2, election_type=0, topic_partitions=wanted, timeout=1_000)
        (result,) = elected.replica_election_results
        assert (result.topic, [each.partition_id for each in result.partition_result]) == ("rain", [0, 1])


async def test_acks_zero_closes_the_connection(tmp_path: Path) -> None:
    async with following(tmp_path) as (_, door, topic), await Wire.open(door) as wire:
        wire.send("produce", 9, **produce_fields(topic, batch_of(b"b"), acks=0))
        assert await wire.closed() == b""


async def test_a_follower_shows_the_group_and_has_no_groups_to_list(tmp_path: Path) -> None:
    async with following(tmp_path) as (_, door, _), await Wire.open(door) as wire:
        more = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
        reply = await wire.ask("metadata", 12, topics=None, allow_auto_topic_creation=True, **more)
        assert reply.controller_id == 2
        assert {each.leader_epoch for each in reply.topics[0].partitions} == {8}
        assert [each.name for each in reply.topics] == ["rain"]
        found = await wire.ask("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
        assert found.coordinators[0].node_id == 2
        listed = await wire.ask("list_groups", 4, states_filter=[])
        assert (listed.error_code, listed.groups) == (ErrorCode.none, ())


# --- reading ----------------------------------------------------------------------------------------------------------


def result(reply: Any) -> Any:
    return reply.responses[0].partitions[0]


async def test_consumers_read_what_is_applied(tmp_path: Path) -> None:
    async with following(tmp_path) as (node, door, topic), await Wire.open(door) as wire:
        for version in (11, 12, 13, 18):
            for isolation in (0, 1):
                reply = await wire.ask("fetch", version, **fetch_fields((topic, 0, 1), isolation_level=isolation))
                assert (values(reply), result(reply).error_code) == ([b"a", b"a"], ErrorCode.none)
                for offset in (3, 4, 1 << 40):
                    fields = fetch_fields((topic, 0, offset), isolation_level=isolation)
                    fields["topics"][0]["partitions"][0]["last_fetched_epoch"] = 8
                    fields["topics"][0]["partitions"][0]["current_leader_epoch"] = 8
                    reply = await wire.ask("fetch", version, **fields)
                    assert (values(reply), result(reply).error_code) == ([], ErrorCode.none)
            reply = await wire.ask("fetch", version, **fetch_fields((topic, 0, -1)))
            assert result(reply).error_code is ErrorCode.offset_out_of_range
        for version in (4, 10):
            reply = await wire.ask("fetch", version, **fetch_fields((topic, 0, 0)))
            assert result(reply).error_code is NOT_LEADER
        # Consumers of the leader that was, and of one that this node has not heard of.
        for epoch, code in ((7, ErrorCode.fenced_leader_epoch), (9, ErrorCode.unknown_leader_epoch)):
            fields = fetch_fields((topic, 0, 0))
            fields["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
            reply = await wire.ask("fetch", 16, **fields)
            assert result(reply).error_code is code
            if code is ErrorCode.fenced_leader_epoch:
                assert (result(reply).current_leader.leader_id, reply.node_endpoints[0].node_id) == (2, 2)
        node.group.change(isr=(2, 3))
        reply = await wire.ask("fetch", 16, **fetch_fields((topic, 0, 0)))
        assert result(reply).error_code is NOT_LEADER, "who is behind sends consumers back"
        assert (result(reply).current_leader.leader_id, reply.node_endpoints[0].node_id) == (2, 2)


@pytest.mark.parametrize("version", [11, 12, 18])
async def test_the_leader_sends_consumers_to_their_rack(tmp_path: Path, version: int) -> None:
    async with leading(tmp_path, kafka="127.0.0.1:0") as node:
        topic = await node.broker.topics.create("rain", 1)
        door = KafkaDoor(DoorContext(node.broker, node.config, node.config))  # type: ignore[arg-type]
        await door.start()

        async def preferred(rack: str, offset: int = 0) -> tuple[int, list[bytes | None]]:
            reply = await wire.ask("fetch", version, **fetch_fields((topic, 0, offset), rack_id=rack, max_wait=0))
            assert result(reply).error_code in (ErrorCode.none, ErrorCode.offset_out_of_range)
            return result(reply).preferred_read_replica, values(reply)

        async with await Wire.open(door) as wire:
            await wire.produce(9, topic, batch_of(b"a"))
            assert await preferred("green") == (2, [])
            for rack in ("red", "blue", ""):
                assert await preferred(rack) == (-1, [b"a"])
            assert await preferred("green", 7) == (-1, []), "out of range: the leader says so itself"
            # A long poll is not held back for it.
            session = fetch_fields((topic, 0, 1), rack_id="green", max_wait=60_000, session_epoch=0)
            assert result(await wire.ask("fetch", version, **session)).preferred_read_replica == 2
            node.group.change(isr=(1, 3))
            assert await preferred("green") == (-1, [b"a"]), "not in sync"
        await door.stop()


async def test_what_the_leader_has_in_memory_is_read_from_it_alone(tmp_path: Path) -> None:
    async with leading(tmp_path, kafka="127.0.0.1:0") as node:
        topic = await node.broker.topics.create("rain", 1, {"durability": "memory"})
        context = DoorContext(node.broker, node.config, node.config)  # type: ignore[arg-type]
        door = KafkaDoor(context)
        await door.start()
        async with await Wire.open(door) as wire:
            await wire.produce(9, topic, batch_of(b"a"))
            reply = await wire.ask("fetch", 16, **fetch_fields((topic, 0, 0), rack_id="green"))
            assert (result(reply).preferred_read_replica, values(reply)) == (-1, [b"a"])
        await door.stop()
        node.follow(2, 8)
        follower = KafkaFollowerDoor(context)
        await follower.start()
        async with await Wire.open(follower) as wire:
            reply = await wire.ask("fetch", 16, **fetch_fields((topic, 0, 0), rack_id="green"))
            assert result(reply).error_code is NOT_LEADER
        await follower.stop()
        node.lead()


# --- what is passed on ------------------------------------------------------------------------------------------------


async def test_what_clients_ask_of_any_broker_is_asked_of_the_leader(tmp_path: Path) -> None:
    group = FakeMembership(node_id=2, leader=2)
    async with (
        open_door(tmp_path / "leader", membership=group, auto_create_topics=True) as leader,
        following(tmp_path / "follower", leader) as (node, door, _),
        await Wire.open(door) as wire,
    ):
        made = await wire.ask(
            "init_producer_id", 4, transactional_id=None, transaction_timeout=1, producer_id=-1, producer_epoch=-1
        )
        assert (made.error_code, made.producer_epoch) == (ErrorCode.none, 0)
        refused = await wire.ask(
            "init_producer_id", 4, transactional_id="t", transaction_timeout=1, producer_id=-1, producer_epoch=-1
        )
        assert refused.error_code is NOT_COORDINATOR
        more = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
        for version in (4, 12):
            reply = await wire.ask(
                "metadata",
                version,
                topics=[{"name": f"new{version}", "topic_id": None}],
                allow_auto_topic_creation=True,
                **more,
            )
            assert (reply.topics[0].error_code, reply.topics[0].name) == (ErrorCode.none, f"new{version}")
            assert leader.broker.topics.get(f"new{version}") is not None

        async def configs(kind: int, name: str) -> Any:
            resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]
            reply = await wire.ask(
                "describe_configs", 4, resources=resources, include_synonyms=False, include_documentation=False
            )
            return reply.results[0].error_code, {each.name: each.value for each in reply.results[0].configs}

        code, found = await configs(2, "new4")
        assert (code, "retention.ms" in found) == (ErrorCode.none, True)
        code, found = await configs(4, "1")
        assert (code, found["node.id"]) == (ErrorCode.none, "1"), "of this node, this node knows"
        # Many at once over one connection, and another leader.
        others = [await Wire.open(door) for _ in range(5)]
        ids = [
            other.ask(
                "init_producer_id", 4, transactional_id=None, transaction_timeout=1, producer_id=-1, producer_epoch=-1
            )
            for other in others
            for _ in range(1)
        ]
        assert len({each.producer_id for each in await asyncio.gather(*ids)}) == 5
        for other in others:
            other.writer.close()
        node.group.change(leader=None)
        gone = await wire.ask(
            "init_producer_id", 4, transactional_id=None, transaction_timeout=1, producer_id=-1, producer_epoch=-1
        )
        assert gone.error_code is NOT_COORDINATOR
        reply = await wire.ask(
            "metadata", 12, topics=[{"name": "new", "topic_id": None}], allow_auto_topic_creation=True, **more
        )
        assert reply.topics[0].error_code in (ErrorCode.unknown_topic_or_partition, NOT_LEADER)


@pytest.mark.parametrize("mechanisms", ["", "SCRAM-SHA-256"], ids=["open", "sasl"])
async def test_the_leader_knows_for_whom_it_is_asked(tmp_path: Path, mechanisms: str) -> None:
    settings = {"authorization": "on", "super_users": "root", "kafka_mechanisms": mechanisms}
    rules = [allow("ann", Operation.DESCRIBE_CONFIGS, Resource.TOPIC, "snow")]
    async with (
        open_door(tmp_path / "leader", membership=FakeMembership(2, 2), **settings) as leader,
        following(tmp_path / "follower", leader, authorization="on", super_users="ANONYMOUS;root") as (_, door, _),
        await Wire.open(door) as wire,
    ):
        await leader.broker.topics.create("snow", 1)
        for each in (leader, door):
            each.broker.security.set_rules(rules)
            each.broker.security.users.secret = b"s" * 32
        resources = [{"resource_type": 2, "resource_name": "snow", "configuration_keys": None}]
        asked = {"resources": resources, "include_synonyms": False, "include_documentation": False}
        await wire.ask("api_versions", 0)
        [connection] = door.connections
        denied = ErrorCode.topic_authorization_failed
        for user, code in (("ann", ErrorCode.none), ("bob", denied), ("root", ErrorCode.none), ("", denied)):
            if user:
                connection.login(Identity(user, "test"))
            else:
                door.broker.security.logout(connection.session)
            [result] = (await wire.ask("describe_configs", 4, **asked)).results
            assert result.error_code is code
        # A token narrows what its user may do there, too.
        connection.login(Identity("root", "test", scope=Scope([allow("*", Operation.READ, Resource.TOPIC, "*")])))
        [result] = (await wire.ask("describe_configs", 4, **asked)).results
        assert result.error_code is denied
        connection.login(Identity("eve", "test"))
        door.broker.security.users.secret = b"t" * 32
        [result] = (await wire.ask("describe_configs", 4, **asked)).results
        assert result.error_code is NOT_CONTROLLER


async def test_a_leader_that_closes_is_asked_again_over_another_connection(tmp_path: Path) -> None:
    async with (
        open_door(tmp_path / "leader", membership=FakeMembership(2, 2)) as leader,
        following(tmp_path / "follower", leader) as (_, door, _),
        await Wire.open(door) as wire,
    ):
        assert (await wire.ask("init_producer_id", 4, **PRODUCER)).error_code is ErrorCode.none
        for connection in leader.connections:
            connection.abort()
        answers = [(await wire.ask("init_producer_id", 4, **PRODUCER)).error_code for _ in range(3)]
        assert answers[-1] is ErrorCode.none
        assert set(answers) <= {ErrorCode.none, NOT_COORDINATOR}


async def test_headraces_own_client_looks_for_another_controller(tmp_path: Path) -> None:
    async with (
        open_door(tmp_path / "leader", membership=FakeMembership(2, 2)) as leader,
        following(tmp_path / "follower", leader) as (_, door, _),
        Client(format_address(*door.address)) as client,
    ):
        await client.cluster.refresh(())
        client.cluster._controller = 1
        made = await client.admin.create_topic("snow", replication=3)
        assert made is not None
        assert client.cluster._controller == 2
        assert leader.broker.topics.get("snow") is not None
