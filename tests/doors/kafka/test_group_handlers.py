"""What a node of a group answers to Kafka's clients about its group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests import brokers
from tests.doors.group import FakeMembership
from tests.doors.kafka.local_client import LocalClient
from tests.doors.kafka.test_topic_handlers import by_hand, new

LEADER, FOLLOWER = 1, 2


@pytest.fixture
def group(request: pytest.FixtureRequest) -> FakeMembership:
    return FakeMembership(leader=getattr(request, "param", LEADER))


@pytest.fixture
async def ask(tmp_path: Path, group: FakeMembership) -> AsyncIterator[LocalClient]:
    async with brokers.running(tmp_path, group, node_id=1, durability="async") as broker:
        await broker.topics.create("rain", 2)
        yield LocalClient(broker)


async def metadata(ask: LocalClient, version: int = 12) -> Any:
    more = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
    return await ask("metadata", version, topics=None, allow_auto_topic_creation=False, **more)


@pytest.mark.parametrize("group", [LEADER, FOLLOWER], indirect=True)
@pytest.mark.parametrize("version", range(1, 14))
async def test_metadata_names_the_nodes_and_who_leads(ask: LocalClient, group: FakeMembership, version: int) -> None:
    group.lose(3)
    reply = await metadata(ask, version)
    assert [(each.node_id, each.host, each.port, each.rack) for each in reply.brokers] == [
        (1, "broker.test", 9092, "red"),
        (2, "node2.test", 9092, "green"),
    ]
    assert reply.controller_id == group.leader
    for partition in reply.topics[0].partitions:
        assert (partition.error_code, partition.leader_id) == (ErrorCode.none, group.leader)
        assert (partition.replica_nodes, partition.isr_nodes) == ((2, 1, 3), (1, 2))
        assert getattr(partition, "offline_replicas", (3,)) == (3,)
        assert getattr(partition, "leader_epoch", 7) == 7


async def test_metadata_without_a_leader(ask: LocalClient, group: FakeMembership) -> None:
    # Its record still names the node, which is dead.
    for leader in (None, 3):
        group.leader = leader
        group.lose(3)
        reply = await metadata(ask)
        assert reply.controller_id == -1
        partition = reply.topics[0].partitions[0]
        assert (partition.error_code, partition.leader_id) == (ErrorCode.leader_not_available, -1)


async def test_a_node_without_a_kafka_door_is_no_broker(ask: LocalClient, group: FakeMembership) -> None:
    for addresses in ({"http": "node2.test:9080"}, {"kafka": "nonsense"}, {"kafka": "off"}):
        group.nodes[2] = brokers_view(2, addresses)
        assert [each.node_id for each in (await metadata(ask)).brokers] == [1, 3]


def brokers_view(number: int, addresses: dict[str, str]) -> Any:
    from headrace.broker.membership import NodeView

    return NodeView(number, "", addresses)


async def test_eligible_leader_replicas(ask: LocalClient, group: FakeMembership) -> None:
    group.change(isr=(1,), elr=(2,))
    reply = await ask(
        "describe_topic_partitions", 0, topics=[{"name": "rain"}], response_partition_limit=10, cursor=None
    )
    partition = reply.topics[0].partitions[0]
    assert (partition.isr_nodes, partition.eligible_leader_replicas) == ((1,), (2,))


@pytest.mark.parametrize("group", [LEADER, FOLLOWER], indirect=True)
@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(ask: LocalClient, group: FakeMembership, version: int) -> None:
    reply = await ask(
        "describe_cluster",
        version,
        include_cluster_authorized_operations=False,
        endpoint_type=1,
        include_fenced_brokers=False,
    )
    assert reply.controller_id == group.leader
    assert [(each.broker_id, each.rack) for each in reply.brokers] == [(1, "red"), (2, "green"), (3, None)]


@pytest.mark.parametrize("version", range(7))
async def test_coordinators_are_where_the_leader_is(ask: LocalClient, group: FakeMembership, version: int) -> None:
    async def find() -> Any:
        keys: dict[str, Any] = {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}
        reply = await ask("find_coordinator", version, **keys)
        found = reply.coordinators[0] if version >= 4 else reply
        return found.error_code, found.node_id, found.host

    assert await find() == (ErrorCode.none, 1, "broker.test")
    group.leader = 2
    assert await find() == (ErrorCode.none, 2, "node2.test")
    group.lose(2)
    assert await find() == (ErrorCode.coordinator_not_available, -1, "")


async def test_the_quorum_is_the_group(ask: LocalClient, group: FakeMembership) -> None:
    group.lags = {2: 0.0, 3: 9.5}
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    reply = await ask("describe_quorum", 2, topics=topics)
    partition = reply.topics[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch) == (1, 7)
    behind = {each.replica_id: each.last_caught_up_timestamp for each in partition.current_voters}
    assert (set(behind), behind[1] - behind[3]) == ({1, 2, 3}, 9_500)
    assert [each.node_id for each in reply.nodes] == [1, 2, 3]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new("u", 1, 3), ErrorCode.none),
        (new("u", 1, -1), ErrorCode.none),
        (by_hand((0, [3, 1, 2])), ErrorCode.none),
        (new("u", 1, 1), ErrorCode.invalid_replication_factor),
        (new("u", 1, 2), ErrorCode.invalid_replication_factor),
        (new("u", 1, 4), ErrorCode.invalid_replication_factor),
        (by_hand((0, [1, 2])), ErrorCode.invalid_replica_assignment),
        (by_hand((0, [1, 2, 4])), ErrorCode.invalid_replica_assignment),
        (by_hand((0, [1, 2, 2])), ErrorCode.invalid_replica_assignment),
    ],
)
async def test_every_node_has_a_replica(ask: LocalClient, topic: dict[str, Any], code: ErrorCode) -> None:
    reply = await ask("create_topics", 7, topics=[topic], timeout=5_000, validate_only=False)
    assert reply.topics[0].error_code is code, reply.topics[0].error_message
    assert reply.topics[0].replication_factor == (3 if code is ErrorCode.none else -1)


def wanted(*indexes: int, topic: str = "rain") -> list[dict[str, Any]]:
    return [{"topic": topic, "partitions": list(indexes)}]


async def elect(ask: LocalClient, topics: list[dict[str, Any]] | None, kind: int = 0) -> list[list[ErrorCode]]:
    reply = await ask("elect_leaders", 2, election_type=kind, topic_partitions=topics, timeout=5_000)
    assert reply.error_code is ErrorCode.none
    return [[each.error_code for each in topic.partition_result] for topic in reply.replica_election_results]


async def test_the_preferred_leader_takes_over(ask: LocalClient, group: FakeMembership) -> None:
    assert await elect(ask, wanted(0, 5)) == [[ErrorCode.none, ErrorCode.unknown_topic_or_partition]]
    assert (group.transfers, group.leader) == ([2], 2)


async def test_electing_all(ask: LocalClient, group: FakeMembership) -> None:
    assert await elect(ask, None) == [[ErrorCode.none, ErrorCode.none]]
    group.change(leader=1, replicas=(1, 2, 3))
    assert await elect(ask, None) == [[]]
    assert group.transfers == [2]


async def test_elections_that_come_to_nothing(ask: LocalClient, group: FakeMembership) -> None:
    group.refuses = "node 2 did not follow in time"
    reply = await ask("elect_leaders", 2, election_type=0, topic_partitions=wanted(0), timeout=5_000)
    result = reply.replica_election_results[0].partition_result[0]
    assert (result.error_code, result.error_message) == (ErrorCode.preferred_leader_not_available, group.refuses)
    assert await elect(ask, wanted(0), kind=1) == [[ErrorCode.election_not_needed]]
    assert await elect(ask, wanted(0, topic="u")) == [[ErrorCode.unknown_topic_or_partition]]
    group.lose(2)
    assert await elect(ask, wanted(0)) == [[ErrorCode.preferred_leader_not_available]]
    assert group.transfers == [2]


async def test_partitions_do_not_move_one_by_one(ask: LocalClient) -> None:
    asked = [{"partition_index": i, "replicas": each} for i, each in ((0, [1, 2, 3]), (1, [1, 2]), (9, [1]))]
    reply = await ask("alter_partition_reassignments", 1, topics=[{"name": "rain", "partitions": asked}], timeout=5_000)
    codes = [each.error_code for each in reply.responses[0].partitions]
    unknown = ErrorCode.unknown_topic_or_partition
    assert codes == [ErrorCode.none, ErrorCode.invalid_replica_assignment, unknown]
    assert "remove-node" in (reply.responses[0].partitions[1].error_message or "")


async def test_settings_of_the_group_are_shown(ask: LocalClient, group: FakeMembership) -> None:
    async def values(kind: int, name: str) -> dict[str, str | None]:
        resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]
        reply = await ask(
            "describe_configs", 4, resources=resources, include_synonyms=True, include_documentation=False
        )
        return {each.name: each.value for each in reply.results[0].configs}

    group.change(unclean=True)
    of_topic, of_broker = await values(2, "rain"), await values(4, "1")
    for shown in (of_topic, of_broker):
        assert (shown["min.insync.replicas"], shown["unclean.leader.election.enable"]) == ("2", "true")
    assert (of_broker["replica.lag.time.max.ms"], of_broker["default.replication.factor"]) == ("3000", "3")
