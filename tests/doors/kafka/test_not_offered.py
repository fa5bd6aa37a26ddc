"""APIs that are not offered: an error in their reply's form on a connection that goes on; and DescribeQuorum."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from tests.doors.kafka.local_client import LocalClient
from tests.doors.kafka.wired import Wire, open_door

from headrace.doors.kafka import codec
from headrace.doors.kafka.not_offered import _EACH, SHARE_STATE
from headrace.doors.kafka.registry import APIS, Api, not_offered

UNSUPPORTED = ErrorCode.unsupported_version
NOT_OFFERED = [api for key in api_key_map if (api := not_offered(key)) is not None]


@pytest.mark.parametrize("api", NOT_OFFERED)
def test_every_other_api_of_kafka_has_a_place_for_the_error(api: Api) -> None:
    assert api.key not in APIS
    for version in range(api.oldest, api.newest + 1):
        reply = load_response_schema(api.key, version)
        assert reply.__flexible__ == (version >= api.flexible)
        assert "error_code" in reply.__annotations__ or api.name in _EACH
        assert api.name in _EACH or codec.encode_response(api.key, version, {"error_code": UNSUPPORTED})


async def test_a_client_that_asks_all_the_same_is_told(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        for api, version, fields, code in (
            (
                "remove_raft_voter",
                0,
                {"cluster_id": None, "voter_id": 3, "voter_directory_id": UUID(int=4)},
                UNSUPPORTED,
            ),
            ("get_telemetry_subscriptions", 0, {"client_instance_id": UUID(int=5)}, UNSUPPORTED),
            ("describe_delegation_token", 3, {"owners": None}, ErrorCode.delegation_token_auth_disabled),
            ("unregister_broker", 0, {"broker_id": 7}, UNSUPPORTED),
        ):
            reply = await wire.ask(api, version, **fields)
            assert reply.error_code is code
            assert "is not offered" in getattr(reply, "error_message", "is not offered")
        described = await wire.ask("api_versions", 3, client_software_name="test", client_software_version="1")
        assert {each.api_key for each in described.api_keys}.isdisjoint(api.key for api in NOT_OFFERED)


async def test_of_several_things_each_is_told(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        shares = await wire.ask("share_group_describe", 1, group_ids=["a", "b"], include_authorized_operations=False)
        assert [(each.group_id, each.error_code) for each in shares.groups] == [("a", UNSUPPORTED), ("b", UNSUPPORTED)]
        streams = await wire.ask("streams_group_describe", 0, group_ids=["a"], include_authorized_operations=False)
        assert [(each.group_id, each.error_code) for each in streams.groups] == [("a", UNSUPPORTED)]
        offsets = await wire.ask("describe_share_group_offsets", 0, groups=[{"group_id": "a", "topics": None}])
        assert [(each.group_id, each.error_code) for each in offsets.groups] == [("a", UNSUPPORTED)]
        folders = await wire.ask(
            "alter_replica_log_dirs", 2, dirs=[{"path": "/d", "topics": [{"name": "t", "partitions": [3]}]}]
        )
        (topic,) = folders.results
        assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(3, UNSUPPORTED)]


@pytest.mark.parametrize("api", SHARE_STATE)
async def test_the_state_of_share_groups_is_refused_partition_by_partition(tmp_path: Path, api: str) -> None:
    given = {"state_batches": [], "state_epoch": 1, "leader_epoch": 1, "start_offset": 0}
    partitions = [{"partition": 3, **given}, {"partition": 4, **given}]
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        reply = await wire.ask(api, 0, group_id="g", topics=[{"topic_id": UUID(int=7), "partitions": partitions}])
        (topic,) = reply.results
        assert topic.topic_id == UUID(int=7)
        assert [(each.partition, each.error_code) for each in topic.partitions] == [(3, UNSUPPORTED), (4, UNSUPPORTED)]


@pytest.mark.parametrize("version", range(3))
async def test_the_quorum_is_this_node(ask: LocalClient, version: int) -> None:
    def partitions(*indexes: int) -> list[dict[str, int]]:
        return [{"partition_index": index} for index in indexes]

    topics = [
        {"topic_name": "__cluster_metadata", "partitions": partitions(0, 1)},
        {"topic_name": "t", "partitions": partitions(0)},
    ]
    reply = await ask("describe_quorum", version, topics=topics)
    assert reply.error_code is ErrorCode.none
    quorum, other = reply.topics[0].partitions
    assert (quorum.error_code, quorum.leader_id) == (ErrorCode.none, 1)
    assert quorum.leader_epoch == ask.broker.log.epoch
    assert [voter.replica_id for voter in quorum.current_voters] == [1]
    assert quorum.observers == ()
    unknown = ErrorCode.unknown_topic_or_partition
    assert (other.error_code, reply.topics[1].partitions[0].error_code) == (unknown, unknown)
    if version >= 2:
        (node,) = reply.nodes
        assert [(each.host, each.port) for each in node.listeners] == [("broker.test", 9092)]
