"""What is packed by hand says what kio's entities say, and spares a reader kio."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from kio.schema.api_versions.v3 import request as api_versions_request
from kio.schema.api_versions.v3 import response as api_versions_response
from kio.schema.list_offsets.v7 import request as list_offsets_request
from kio.schema.list_offsets.v7 import response as list_offsets_response
from kio.schema.metadata.v12 import request as metadata_request
from kio.schema.metadata.v12 import response as metadata_response
from kio.serial import entity_reader

from headrace.client import lookups
from headrace.client.lookups import PartitionState
from headrace.format.schema import struct_writer

NAMES = st.text(max_size=12)
INT16 = st.integers(0, (1 << 15) - 1)
INT32 = st.integers(-1, (1 << 31) - 1)
INT64 = st.integers(-3, (1 << 63) - 1)


def reply(entity: Any, tags: bytes = b"\0", **fields: Any) -> memoryview:
    out = bytearray(tags)
    struct_writer(entity)(out, fields)
    return memoryview(out)


def request(entity: Any, parts: list[Any]) -> Any:
    payload = b"".join(parts)
    assert payload[:1] == b"\0"
    read, end = entity_reader(entity)(payload, 1)
    assert end == len(payload) - 1
    return read


@given(st.dictionaries(INT16, st.tuples(INT16, INT16), max_size=5), st.dictionaries(NAMES, INT16, max_size=3), INT64)
def test_api_versions(versions: dict[int, tuple[int, int]], features: dict[str, int], epoch: int) -> None:
    asked = request(api_versions_request.ApiVersionsRequest, lookups.encode_api_versions("headrace", "0.1"))
    assert (asked.client_software_name, asked.client_software_version) == ("headrace", "0.1")
    answer = reply(
        api_versions_response.ApiVersionsResponse,
        b"",
        api_keys=[{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in versions.items()],
        supported_features=[{"name": name, "min_version": 0, "max_version": 99} for name in features],
        finalized_features_epoch=max(epoch, -1),
        finalized_features=[
            {"name": name, "max_version_level": level, "min_version_level": 0} for name, level in features.items()
        ],
    )
    assert lookups.decode_api_versions(answer) == (versions, features if epoch >= 0 else {})


PARTITIONS = st.tuples(
    st.just(0), INT32, INT32, INT32, st.lists(INT32, max_size=3).map(tuple), st.lists(INT32, max_size=3).map(tuple)
)
TOPICS = st.tuples(
    st.integers(0, 5), NAMES, st.uuids() | st.none(), st.booleans(), st.lists(PARTITIONS, max_size=4)
).filter(lambda each: each[2] != UUID(int=0))


@given(st.lists(st.tuples(INT32, NAMES, INT32), max_size=3), st.none() | NAMES, INT32, st.lists(TOPICS, max_size=3))
def test_metadata(
    brokers: list[tuple[int, str, int]], cluster: str | None, controller: int, topics: list[tuple[Any, ...]]
) -> None:
    answer = reply(
        metadata_response.MetadataResponse,
        throttle_time=7,
        brokers=[{"node_id": node, "host": host, "port": port, "rack": None} for node, host, port in brokers],
        cluster_id=cluster,
        controller_id=controller,
        topics=[
            {
                "error_code": error,
                "name": name,
                "topic_id": identity,
                "is_internal": internal,
                "partitions": [
                    {
                        "error_code": partition[0],
                        "partition_index": partition[1],
                        "leader_id": partition[2],
                        "leader_epoch": partition[3],
                        "replica_nodes": partition[4],
                        "isr_nodes": partition[5],
                        "offline_replicas": (1,),
                    }
                    for partition in partitions
                ],
            }
            for error, name, identity, internal, partitions in topics
        ],
    )
    expected = [
        (
            error,
            lookups.TopicState(name, identity, internal, tuple(sorted(PartitionState(*each[1:]) for each in listed))),
        )
        for error, name, identity, internal, listed in topics
    ]
    assert lookups.decode_metadata(answer) == (brokers, cluster, controller, expected)


@given(st.none() | st.lists(NAMES, max_size=3), st.booleans())
def test_metadata_asked(names: list[str] | None, create: bool) -> None:
    asked = request(metadata_request.MetadataRequest, lookups.encode_metadata(names, create))
    assert (asked.topics is None) == (names is None)
    assert [(each.topic_id, each.name) for each in asked.topics or ()] == [(None, name) for name in names or ()]
    assert asked.allow_auto_topic_creation is create
    assert not asked.include_topic_authorized_operations


@given(st.dictionaries(NAMES, st.lists(st.tuples(INT32, INT64), max_size=3), max_size=3), st.booleans())
def test_offsets_asked(wanted: dict[str, list[tuple[int, int]]], committed: bool) -> None:
    asked = request(list_offsets_request.ListOffsetsRequest, lookups.encode_list_offsets(wanted, committed))
    assert (asked.replica_id, asked.isolation_level) == (-1, int(committed))
    assert {
        topic.name: [(each.partition_index, each.timestamp) for each in topic.partitions] for topic in asked.topics
    } == wanted


@given(st.lists(st.tuples(NAMES, INT32, st.integers(0, 5), INT64, INT64, INT32), max_size=4))
def test_offsets(rows: list[tuple[Any, ...]]) -> None:
    answer = reply(
        list_offsets_response.ListOffsetsResponse,
        topics=[
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": index,
                        "error_code": error,
                        "timestamp": time,
                        "offset": offset,
                        "leader_epoch": epoch,
                    }
                ],
            }
            for name, index, error, time, offset, epoch in rows
        ],
    )
    assert lookups.decode_list_offsets(answer) == rows


@given(st.binary(max_size=80))
def test_garbage_is_an_error_and_nothing_else(data: bytes) -> None:
    for decode in (lookups.decode_api_versions, lookups.decode_metadata, lookups.decode_list_offsets):
        try:
            decode(memoryview(data))
        except (struct.error, ValueError, IndexError):
            pass


def test_the_client_is_loaded_without_schemas() -> None:
    code = "import sys, headrace.client; sys.exit(bool({'kio.serial', 'kio.index', 'hypothesis'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
