"""The hand-packed messages against kio's, which are generated from Kafka's own definitions."""

from __future__ import annotations

import io
import struct
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from headrace.client import messages, wire

topics = st.text(max_size=10)
batches = st.lists(st.tuples(topics, st.integers(0, 9), st.binary(max_size=50)), max_size=8, unique_by=lambda b: b[:2])


def read(api: str, version: int, kind: str, data: bytes) -> Any:
    entity, size = entity_reader(messages._class(api, version, kind))(data, 0)
    assert size == len(data)
    return entity


def written(api: str, version: int, fields: dict[str, Any]) -> memoryview:
    kind = messages._class(api, version, "response")
    out = io.BytesIO()
    entity_writer(kind)(out, messages._entity(kind, fields))
    return memoryview(out.getvalue())


@given(batches, st.sampled_from([-1, 0, 1]), st.integers(0, 1 << 30))
def test_produce_request(given_batches: list[tuple[str, int, bytes]], acks: int, timeout: int) -> None:
    request = read("produce", 8, "request", b"".join(wire.encode_produce(given_batches, acks, timeout)))
    found = {
        (topic.name, each.index): bytes(each.records) for topic in request.topic_data for each in topic.partition_data
    }
    assert found == {(topic, partition): batch for topic, partition, batch in given_batches}
    assert (request.acks, request.timeout) == (acks, timedelta(milliseconds=timeout))


@given(
    st.lists(
        st.tuples(topics, st.integers(0, 9), st.sampled_from([0, 6, 87]), st.integers(-1, 1 << 60), st.none() | topics),
        max_size=5,
    )
)
def test_produce_response(rows: list[Any]) -> None:
    responses = [
        {
            "name": topic,
            "partition_responses": [
                {
                    "index": index,
                    "error_code": error,
                    "base_offset": base,
                    "error_message": message,
                    "record_errors": [{"batch_index": 1, "batch_index_error_message": "bad"}] if error else [],
                }
            ],
        }
        for topic, index, error, base, message in rows
    ]
    found = wire.decode_produce(written("produce", 8, {"responses": responses}))
    assert [(each.topic, each.partition, each.error, each.base_offset) for each in found] == [row[:4] for row in rows]
    for each, row in zip(found, rows, strict=True):
        assert each.message == (row[4] or ("bad" if row[2] else row[4] or None))


@given(
    st.lists(st.tuples(topics, st.integers(0, 9), st.integers(0, 1 << 60), st.integers(0, 1 << 30)), max_size=6),
    st.booleans(),
)
def test_fetch_request(rows: list[Any], committed: bool) -> None:
    wanted = [wire.Wanted(*row) for row in rows]
    body = wire.encode_fetch(wanted, max_wait_ms=500, min_bytes=1, max_bytes=1000, committed=committed)
    request = read("fetch", 11, "request", b"".join(body))
    found = [
        (topic.topic, each.partition, each.fetch_offset, each.partition_max_bytes)
        for topic in request.topics
        for each in topic.partitions
    ]
    assert sorted(found) == sorted(rows)
    assert (request.replica_id, request.isolation_level, request.session_id, request.session_epoch) == (
        -1,
        int(committed),
        0,
        -1,
    )


@given(
    st.lists(
        st.tuples(
            topics,
            st.integers(0, 9),
            st.integers(0, 1 << 60),
            st.none() | st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=3),
            st.none() | st.binary(max_size=60),
        ),
        max_size=5,
    )
)
def test_fetch_response(rows: list[Any]) -> None:
    responses = [
        {
            "topic": topic,
            "partitions": [
                {
                    "partition_index": index,
                    "high_watermark": high,
                    "last_stable_offset": high - 1,
                    "aborted_transactions": None
                    if aborted is None
                    else [{"producer_id": pid, "first_offset": first} for pid, first in aborted],
                    "records": data,
                }
            ],
        }
        for topic, index, high, aborted, data in rows
    ]
    error, found = wire.decode_fetch(written("fetch", 11, {"error_code": 0, "responses": responses}))
    assert error == 0
    assert [(each.topic, each.partition, each.high_watermark, each.aborted, bytes(each.records)) for each in found] == [
        (topic, index, high, aborted or [], data or b"") for topic, index, high, aborted, data in rows
    ]


@given(st.binary(max_size=80))
def test_garbage_is_an_error_and_nothing_else(data: bytes) -> None:
    for decode in (wire.decode_produce, wire.decode_fetch):
        try:
            decode(memoryview(data))
        except (struct.error, ValueError):
            pass


def test_requests_from_plain_values() -> None:
    request = messages.request("create_topics", 7, topics=[{"name": "a", "num_partitions": 2}], timeout=1500)
    assert request.timeout.total_seconds() == 1.5
    [topic] = request.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor, topic.assignments) == ("a", 2, 0, ())
    with pytest.raises(TypeError, match="has no topiks"):
        messages.request("create_topics", 7, topiks=[])
