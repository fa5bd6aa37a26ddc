"""Metadata, CreateTopics, DeleteTopics, CreatePartitions, DescribeTopicPartitions, ElectLeaders, DescribeCluster.

The expected codes and fields are what Apache Kafka 4.3.1 answered to the same requests, unless a test says so.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests import brokers
from tests.device import Device
from tests.doors.kafka.local_client import LocalClient

from headrace.doors.kafka.placement import Placement

NOT_ASKED = -(1 << 31)
UNKNOWN_ID = UUID(int=7)


def new(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [],
        "configs": [],
    } | more


async def create(
    ask: LocalClient, *topics: dict[str, Any], version: int = 7, timeout: int = 5000, validate: bool = False
) -> Any:
    reply = await ask("create_topics", version, topics=list(topics), timeout=timeout, validate_only=validate)
    return reply.topics


async def metadata(ask: LocalClient, *names: str, version: int = 12, make: bool = False) -> Any:
    topics = [{"name": name, "topic_id": None} for name in names]
    return await ask(
        "metadata",
        version,
        topics=topics,
        allow_auto_topic_creation=make,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


# --- Metadata ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
async def test_metadata_in_every_version(ask: LocalClient, version: int) -> None:
    await create(ask, new("t", 2))
    reply = await ask(
        "metadata",
        version,
        topics=[{"name": "t", "topic_id": None}, {"name": "a b", "topic_id": None}],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    (broker,) = reply.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "broker.test", 9092)
    topic, invalid = reply.topics
    assert (topic.error_code, topic.name) == (ErrorCode.none, "t")
    assert [partition.partition_index for partition in topic.partitions] == [0, 1]
    for partition in topic.partitions:
        assert partition.error_code is ErrorCode.none
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, (1,), (1,))
        assert getattr(partition, "offline_replicas", ()) == ()
        assert getattr(partition, "leader_epoch", 0) == 0
    assert invalid.error_code is ErrorCode.invalid_topic_exception
    if version >= 1:
        assert reply.controller_id == 1
        assert topic.is_internal is False
    if version >= 2:
        assert reply.cluster_id == ask.broker.cluster_id
    if version >= 8:
        assert topic.topic_authorized_operations == 3576
    if 8 <= version <= 10:
        assert reply.cluster_authorized_operations == 8096
    if version >= 10:
        assert topic.topic_id == ask.broker.topics.all["t"].id


def test_a_partition_that_is_offline_has_no_leader() -> None:
    stand_in: Any = SimpleNamespace(index=3, epoch=2, offline="its files are damaged")
    described = Placement(1, 1, 0, [1], [1], [], []).describe(stand_in)
    assert (described["error_code"], described["leader_id"]) == (ErrorCode.leader_not_available, -1)
    assert (described["replica_nodes"], described["offline_replicas"]) == ([1], [1])


async def test_metadata_of_many_topics_lets_others_have_their_turn(ask: LocalClient) -> None:
    await create(ask, *(new(f"t{number}", 2) for number in range(200)))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.ensure_future(others())
    for version in (1, 12):
        reply = await ask("metadata", version, topics=None, include_topic_authorized_operations=False)
        assert len(reply.topics) == 200
    waiting.cancel()
    assert turns > 5


async def test_metadata_null_and_empty(ask: LocalClient) -> None:
    await create(ask, new("t"), new("u"))
    assert [topic.name for topic in (await ask("metadata", 0, topics=[])).topics] == ["t", "u"]
    assert [topic.name for topic in (await ask("metadata", 1, topics=None)).topics] == ["t", "u"]
    assert (await ask("metadata", 1, topics=[])).topics == ()
    assert (await metadata(ask, "t")).topics[0].topic_authorized_operations == NOT_ASKED


async def test_metadata_by_id(ask: LocalClient) -> None:
    (made,) = await create(ask, new("t"))
    flags = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    asked = [{"topic_id": made.topic_id, "name": None}, {"topic_id": UNKNOWN_ID, "name": None}]
    found, unknown = (await ask("metadata", 12, topics=asked, **flags)).topics
    assert (found.name, found.topic_id) == ("t", made.topic_id)
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (ErrorCode.unknown_topic_id, None, UNKNOWN_ID)
    # The id wins over a name, and a topic asked for twice comes once.
    asked = [{"topic_id": made.topic_id, "name": "other"}, {"topic_id": None, "name": "t"}]
    assert [topic.name for topic in (await ask("metadata", 12, topics=asked, **flags)).topics] == ["t"]


async def test_metadata_that_makes_no_sense(ask: LocalClient) -> None:
    (made,) = await create(ask, new("t"))
    flags = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    for version, asked in ((11, {"topic_id": made.topic_id, "name": None}), (12, {"topic_id": None, "name": None})):
        reply = await ask("metadata", version, topics=[asked], **flags)
        assert (reply.brokers, reply.cluster_id, reply.controller_id) == ((), None, -1)
        assert reply.topics[0].error_code is ErrorCode.invalid_request


async def test_metadata_makes_topics_where_it_may(ask: LocalClient) -> None:
    """Kafka would answer UNKNOWN_TOPIC_OR_PARTITION first, and with the topic when asked again."""
    (topic,) = (await metadata(ask, "auto", make=False)).topics
    assert topic.error_code is ErrorCode.unknown_topic_or_partition
    (topic,) = (await metadata(ask, "auto", make=True)).topics
    assert topic.error_code is ErrorCode.none
    assert len(topic.partitions) == 1
    # Before version 4 a client had no say.
    (topic,) = (await ask("metadata", 3, topics=[{"name": "old"}])).topics
    assert topic.error_code is ErrorCode.none
    codes = {topic.name: topic.error_code for topic in (await metadata(ask, "a b", "", "x.y", "x_y", make=True)).topics}
    assert codes == {
        "a b": ErrorCode.invalid_topic_exception,
        "": ErrorCode.invalid_topic_exception,
        "x.y": ErrorCode.none,
        "x_y": ErrorCode.invalid_topic_exception,
    }
    (topic,) = (await metadata(ask, "__consumer_offsets", make=True)).topics
    assert (topic.error_code, topic.is_internal) == (ErrorCode.unknown_topic_or_partition, True)


@pytest.mark.parametrize("asking_settings", [{"auto_create_topics": False}], indirect=True)
async def test_metadata_makes_no_topic_where_it_may_not(ask: LocalClient) -> None:
    (topic,) = (await metadata(ask, "auto", make=True)).topics
    assert topic.error_code is ErrorCode.unknown_topic_or_partition
    assert "auto" not in ask.broker.topics.all


# --- CreateTopics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_in_every_version(ask: LocalClient, version: int) -> None:
    (made,) = await create(ask, new("t", 3, -1, configs=[{"name": "retention.ms", "value": "1000"}]), version=version)
    topic = ask.broker.topics.get("t")
    assert topic is not None
    assert (made.name, made.error_code, made.error_message) == ("t", ErrorCode.none, None)
    assert len(topic.partitions) == 3
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        entries = {entry.name: (entry.value, entry.config_source) for entry in made.configs}
        assert entries["retention.ms"] == ("1000", 1)
        assert entries["segment.bytes"] == (str(1 << 30), 5)
    if version >= 7:
        assert made.topic_id == topic.id


def by_hand(*replicas: tuple[int, list[int]], **more: Any) -> dict[str, Any]:
    assignments = [{"partition_index": index, "broker_ids": brokers} for index, brokers in replicas]
    return new("t", -1, -1, assignments=assignments) | more


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new("t"), ErrorCode.none),
        (new("t", -1, -1), ErrorCode.none),
        (new(""), ErrorCode.invalid_topic_exception),
        (new("a b"), ErrorCode.invalid_topic_exception),
        (new("there"), ErrorCode.topic_already_exists),
        (new("a_b"), ErrorCode.invalid_topic_exception),
        (new("__cluster_metadata"), ErrorCode.invalid_request),
        (new("t", 0), ErrorCode.invalid_partitions),
        (new("t", -2), ErrorCode.invalid_partitions),
        (new("t", 1, 0), ErrorCode.invalid_replication_factor),
        (new("t", 1, -2), ErrorCode.invalid_replication_factor),
        (new("t", 1, 2), ErrorCode.invalid_replication_factor),
        (new("t", configs=[{"name": "nope", "value": "1"}]), ErrorCode.invalid_config),
        (new("t", configs=[{"name": "retention.ms", "value": "x"}]), ErrorCode.invalid_config),
        (new("t", configs=[{"name": "retention.ms", "value": None}]), ErrorCode.invalid_config),
        (new("t", configs=[{"name": "retention.ms", "value": v} for v in "12"]), ErrorCode.none),
        (by_hand((0, [1]), (1, [1])), ErrorCode.none),
        (by_hand((1, [1]), (0, [1])), ErrorCode.none),
        (by_hand((0, [1]), num_partitions=1), ErrorCode.invalid_request),
        (by_hand((0, [1]), replication_factor=1), ErrorCode.invalid_request),
        (by_hand((0, [7])), ErrorCode.invalid_replica_assignment),
        (by_hand((0, [1, 7])), ErrorCode.invalid_replica_assignment),
        (by_hand((0, [1, 1])), ErrorCode.invalid_replica_assignment),
        (by_hand((0, [])), ErrorCode.invalid_replica_assignment),
        (by_hand((0, [1]), (0, [1])), ErrorCode.invalid_replica_assignment),
        (by_hand((0, [1]), (2, [1])), ErrorCode.invalid_replica_assignment),
        (by_hand((1, [1])), ErrorCode.invalid_replica_assignment),
    ],
)
async def test_what_create_judges(ask: LocalClient, topic: dict[str, Any], code: ErrorCode) -> None:
    await create(ask, new("there"), new("a.b"))
    before = set(ask.broker.topics.all)
    (tried,) = await create(ask, topic, validate=True)
    assert tried.error_code is code
    assert set(ask.broker.topics.all) == before
    (made,) = await create(ask, topic)
    assert made.error_code is code
    assert made.num_partitions == tried.num_partitions
    if code is ErrorCode.none:
        assert set(ask.broker.topics.all) - before == {topic["name"]}
    else:
        assert set(ask.broker.topics.all) == before
        assert made.error_message
        assert (made.num_partitions, made.replication_factor, made.configs, made.topic_id) == (-1, -1, (), None)


async def test_create_topics_named_twice(ask: LocalClient) -> None:
    results = await create(ask, new("twice"), new("once"), new("twice", 2))
    assert {topic.name: topic.error_code for topic in results} == {
        "twice": ErrorCode.invalid_request,
        "once": ErrorCode.none,
    }
    assert set(ask.broker.topics.all) == {"once"}
    assert await create(ask) == ()


async def test_changes_without_time_are_made(ask: LocalClient) -> None:
    # Apache Kafka 4.3.1 answers REQUEST_TIMED_OUT and begins nothing. librdkafka, which up to 1.4 gives no time unless
    # it is told to, and still does where it is told so, takes that code for a change under way.
    for name, timeout in (("t", 0), ("u", -1)):
        (made,) = await create(ask, new(name), timeout=timeout)
        assert made.error_code is ErrorCode.none
    (again,) = await create(ask, new("t"), timeout=0)
    assert again.error_code is ErrorCode.topic_already_exists
    grown = await ask("create_partitions", 3, topics=[more(3)], timeout=0, validate_only=False)
    assert [each.error_code for each in grown.results] == [ErrorCode.none]
    assert {name: len(topic.partitions) for name, topic in ask.broker.topics.all.items()} == {"t": 3, "u": 1}
    deleted = await ask("delete_topics", 5, topic_names=["t"], timeout=0)
    assert [each.error_code for each in deleted.responses] == [ErrorCode.none]
    assert set(ask.broker.topics.all) == {"u"}


async def test_create_that_is_late_is_made_all_the_same(device: Device) -> None:
    async with brokers.running(device, node_id=1) as broker:
        ask = LocalClient(broker)
        device.hold()
        (made,) = await create(ask, new("t"), timeout=10)
        assert made.error_code is ErrorCode.request_timed_out
        # A second creation waits for the first, whose client has gone.
        second = asyncio.ensure_future(create(ask, new("t")))
        await asyncio.sleep(0)
        device.release()
        assert (await second)[0].error_code is ErrorCode.topic_already_exists


# --- DeleteTopics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 6))
async def test_delete_by_name(ask: LocalClient, version: int) -> None:
    await create(ask, new("t"))
    reply = await ask("delete_topics", version, topic_names=["t", "nope", "a b"], timeout=1000)
    assert {each.name: each.error_code for each in reply.responses} == {
        "t": ErrorCode.none,
        "nope": ErrorCode.unknown_topic_or_partition,
        "a b": ErrorCode.unknown_topic_or_partition,
    }
    assert not ask.broker.topics.all


async def test_delete_by_id(ask: LocalClient) -> None:
    made = {topic.name: topic.topic_id for topic in await create(ask, *(new(name) for name in "abcdef"))}
    topics = [
        (None, made["a"], ErrorCode.none),
        ("b", None, ErrorCode.none),
        ("c", made["c"], ErrorCode.invalid_request),
        (None, None, ErrorCode.invalid_request),
        (None, UNKNOWN_ID, ErrorCode.unknown_topic_id),
        ("d", None, ErrorCode.invalid_request),
        ("d", None, ErrorCode.invalid_request),
        ("e", None, ErrorCode.invalid_request),
        (None, made["e"], ErrorCode.invalid_request),
    ]
    asked = [{"name": name, "topic_id": topic_id} for name, topic_id, _ in topics]
    reply = await ask("delete_topics", 6, topics=asked, timeout=1000)
    assert [each.error_code for each in reply.responses] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
        ErrorCode.unknown_topic_id,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    assert [(each.name, each.topic_id) for each in reply.responses[:2]] == [("a", made["a"]), ("b", made["b"])]
    assert set(ask.broker.topics.all) == set("cdef")


async def test_delete_what_is_the_brokers_own(ask: LocalClient) -> None:
    await ask.broker.topics.create("__consumer_offsets", 1, internal=True)
    reply = await ask("delete_topics", 5, topic_names=["__consumer_offsets"], timeout=1000)
    assert reply.responses[0].error_code is ErrorCode.invalid_topic_exception


# --- CreatePartitions -------------------------------------------------------------------------------------------------


def more(count: int, assignments: list[list[int]] | None = None, name: str = "t") -> dict[str, Any]:
    replicas = None if assignments is None else [{"broker_ids": each} for each in assignments]
    return {"name": name, "count": count, "assignments": replicas}


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (more(3), ErrorCode.none),
        (more(4, [[1], [1]]), ErrorCode.none),
        (more(2), ErrorCode.invalid_partitions),
        (more(1), ErrorCode.invalid_partitions),
        (more(0), ErrorCode.invalid_partitions),
        (more(-1), ErrorCode.invalid_partitions),
        (more(3, name="nope"), ErrorCode.unknown_topic_or_partition),
        (more(3, name="a b"), ErrorCode.unknown_topic_or_partition),
        (more(4, [[1]]), ErrorCode.invalid_replica_assignment),
        (more(3, []), ErrorCode.invalid_replica_assignment),
        (more(3, [[9]]), ErrorCode.invalid_replica_assignment),
        (more(3, [[1, 9]]), ErrorCode.invalid_replica_assignment),
        (more(3, [[]]), ErrorCode.invalid_replica_assignment),
    ],
)
async def test_what_create_partitions_judges(ask: LocalClient, topic: dict[str, Any], code: ErrorCode) -> None:
    await create(ask, new("t", 2))
    for validate in (True, False):
        for version in range(4) if validate else (3,):
            reply = await ask("create_partitions", version, topics=[topic], timeout=1000, validate_only=validate)
            assert reply.results[0].error_code is code
        grown = topic["count"] if code is ErrorCode.none and not validate else 2
        assert len(ask.broker.topics.all["t"].partitions) == grown


async def test_a_request_asks_for_so_many_partitions_in_all(tmp_path: Path) -> None:
    async with brokers.running(tmp_path, partitions_per_request_max=6, partitions_max=8, num_partitions=2) as broker:
        ask = LocalClient(broker)
        for topics in ([new("t", 7)], [new("t", 3), new("u", 4)], [new("t", 5), new("u", -1)]):
            made = await create(ask, *topics)
            assert {each.error_code for each in made} == {ErrorCode.policy_violation}
            assert "partitions_per_request_max" in made[0].error_message
        assert not broker.topics.all
        assert {each.error_code for each in await create(ask, new("t", 4), new("u", -1))} == {ErrorCode.none}
        for counts, code in (((8, 5), ErrorCode.policy_violation), ((7, 5), ErrorCode.none)):
            topics = [more(count, name=name) for name, count in zip("tu", counts, strict=True)]
            reply = await ask("create_partitions", 3, topics=topics, timeout=1000, validate_only=False)
            assert {each.error_code for each in reply.results} == {code}
        made = await create(ask, new("v", 6))
        assert made[0].error_code is ErrorCode.none
        reply = await ask("create_partitions", 3, topics=[more(9, name="v")], timeout=1000, validate_only=False)
        assert reply.results[0].error_code is ErrorCode.invalid_partitions


async def test_create_partitions_of_what_is_the_brokers_own(ask: LocalClient) -> None:
    await ask.broker.topics.create("__consumer_offsets", 1, internal=True)
    grown = [more(2, name="__consumer_offsets")]
    reply = await ask("create_partitions", 3, topics=grown, timeout=1000, validate_only=False)
    assert reply.results[0].error_code is ErrorCode.invalid_topic_exception


async def test_create_partitions_named_twice(ask: LocalClient) -> None:
    await create(ask, new("t", 2))
    reply = await ask("create_partitions", 3, topics=[more(3), more(4)], timeout=1000, validate_only=False)
    assert [each.error_code for each in reply.results] == [ErrorCode.invalid_request]


# --- DescribeTopicPartitions ------------------------------------------------------------------------------------------


async def pages(ask: LocalClient, names: list[str], limit: int, cursor: tuple[str, int] | None = None) -> Any:
    where = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    reply = await ask(
        "describe_topic_partitions",
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=where,
    )
    found = [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in reply.topics]
    then = reply.next_cursor
    return found, None if then is None else (then.topic_name, then.partition_index)


async def test_topic_partitions_page_by_page(ask: LocalClient) -> None:
    await create(ask, new("b", 3), new("a", 2))
    both = ["b", "a"]
    assert await pages(ask, both, 2000) == ([("a", [0, 1]), ("b", [0, 1, 2])], None)
    assert await pages(ask, [], 2000) == ([("a", [0, 1]), ("b", [0, 1, 2])], None)
    assert await pages(ask, both, 1) == ([("a", [0])], ("a", 1))
    assert await pages(ask, both, 2) == ([("a", [0, 1])], ("b", 0))
    assert await pages(ask, both, 3) == ([("a", [0, 1]), ("b", [0])], ("b", 1))
    assert await pages(ask, both, 2, ("a", 1)) == ([("a", [1]), ("b", [0])], ("b", 1))
    assert await pages(ask, both, 2, ("b", 1)) == ([("b", [1, 2])], None)
    assert await pages(ask, ["a"], 2) == ([("a", [0, 1])], None)
    assert await pages(ask, ["a"], 0) == ([("a", [0])], ("a", 1))
    assert await pages(ask, both, 9, ("a", 7)) == ([("a", []), ("b", [0, 1, 2])], None)
    # A topic that has gone since the last page does not end the listing of all.
    assert await pages(ask, [], 9, ("aa", 3)) == ([("b", [0, 1, 2])], None)


async def test_topic_partitions_that_are_not_there(ask: LocalClient) -> None:
    await create(ask, new("t"))
    reply = await ask(
        "describe_topic_partitions",
        0,
        topics=[{"name": "nope"}, {"name": "a b"}, {"name": "t"}],
        response_partition_limit=1,
        cursor=None,
    )
    assert {topic.name: topic.error_code for topic in reply.topics} == {
        "a b": ErrorCode.invalid_topic_exception,
        "nope": ErrorCode.unknown_topic_or_partition,
        "t": ErrorCode.none,
    }
    (partition,) = reply.topics[-1].partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())
    for cursor in (("t", -1), ("other", 0)):
        where = {"topic_name": cursor[0], "partition_index": cursor[1]}
        refused = await ask(
            "describe_topic_partitions", 0, topics=[{"name": "t"}], response_partition_limit=1, cursor=where
        )
        assert refused.topics[0].error_code is ErrorCode.invalid_request


# --- ElectLeaders and DescribeCluster ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_no_election_is_needed(ask: LocalClient, version: int) -> None:
    await create(ask, new("t"))
    asked = [{"topic": "t", "partitions": [0, 9]}, {"topic": "nope", "partitions": [0]}]
    reply = await ask("elect_leaders", version, election_type=0, topic_partitions=asked, timeout=1000)
    codes = [[each.error_code for each in topic.partition_result] for topic in reply.replica_election_results]
    unknown = ErrorCode.unknown_topic_or_partition
    assert codes == [[ErrorCode.election_not_needed, unknown], [unknown]]
    everything = await ask("elect_leaders", version, election_type=0, topic_partitions=None, timeout=1000)
    assert [(each.topic, each.partition_result) for each in everything.replica_election_results] == [("t", ())]


async def test_an_election_of_an_unknown_type(ask: LocalClient) -> None:
    asked = [{"topic": "t", "partitions": [0]}]
    reply = await ask("elect_leaders", 2, election_type=7, topic_partitions=asked, timeout=1000)
    assert reply.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(ask: LocalClient, version: int) -> None:
    fields = {"endpoint_type": 1, "include_fenced_brokers": True}
    reply = await ask("describe_cluster", version, include_cluster_authorized_operations=True, **fields)
    assert (reply.cluster_id, reply.controller_id) == (ask.broker.cluster_id, 1)
    assert [(broker.broker_id, broker.host, broker.port) for broker in reply.brokers] == [(1, "broker.test", 9092)]
    assert reply.cluster_authorized_operations == 8096
    reply = await ask("describe_cluster", version, include_cluster_authorized_operations=False, **fields)
    assert reply.cluster_authorized_operations == NOT_ASKED


async def test_describe_cluster_of_controllers(ask: LocalClient) -> None:
    for kind, code in ((2, ErrorCode.mismatched_endpoint_type), (9, ErrorCode.unsupported_endpoint_type)):
        reply = await ask("describe_cluster", 1, include_cluster_authorized_operations=False, endpoint_type=kind)
        assert (reply.error_code, reply.brokers, reply.controller_id) == (code, (), -1)
