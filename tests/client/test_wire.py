"""The hand-packed messages against kio's, which are generated from Kafka's own definitions."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from headrace.client import messages, wire
from headrace.client.transactions import TransactionDescription, describe_state
from headrace.format.schema import struct_writer

topics = st.text(max_size=10)
batches = st.lists(st.tuples(topics, st.integers(0, 9), st.binary(max_size=50)), max_size=8, unique_by=lambda b: b[:2])


def read(api: str, version: int, kind: str, data: bytes) -> Any:
    entity, size = entity_reader(messages._load(api, version, kind))(data, 0)
    assert size == len(data)
    return entity


def written(api: str, version: int, fields: dict[str, Any]) -> memoryview:
    kind = messages._load(api, version, "response")
    out = bytearray()
    struct_writer(kind)(out, fields)
    return memoryview(out)


def described(reply: bytes | bytearray) -> list[tuple[int, TransactionDescription]]:
    found = messages.request("describe_transactions", 0).decode(memoryview(reply))
    return [(each.error_code, describe_state(each)) for each in found.transaction_states]


@given(batches, st.sampled_from([-1, 0, 1]), st.integers(0, 1 << 30))
def test_produce_request(given_batches: list[tuple[str, int, bytes]], acks: int, timeout: int) -> None:
    for form in (wire.FIXED, wire.ENROLLING):
        for whose in (None, "", "ä transactional id"):
            body = b"".join(form.encode(given_batches, acks, timeout, whose))
            if form is wire.ENROLLING:
                # The tags of the request's header.
                assert body[:1] == b"\0"
                body = body[1:]
            request = read("produce", form.version, "request", body)
            found = {
                (topic.name, each.index): bytes(each.records)
                for topic in request.topic_data
                for each in topic.partition_data
            }
            assert found == {(topic, partition): batch for topic, partition, batch in given_batches}
            assert (request.acks, request.timeout) == (acks, timedelta(milliseconds=timeout))
            assert request.transactional_id == whose


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
    fixed = wire.FIXED.decode(written("produce", 8, {"responses": responses}))
    for topic in responses:
        topic["partition_responses"][0]["current_leader"] = {"leader_id": 3, "leader_epoch": 7}
    compact = written("produce", 12, {"responses": responses, "node_endpoints": [{"node_id": 3, "host": "h"}]})
    assert wire.ENROLLING.decode(memoryview(b"\0" + compact)) == fixed
    assert [(each.topic, each.partition, each.error, each.base_offset) for each in fixed] == [row[:4] for row in rows]
    for each, row in zip(fixed, rows, strict=True):
        assert each.message == (row[4] or ("bad" if row[2] else row[4] or None))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 105]),
            topics,
            st.sampled_from(["Empty", "Ongoing"]),
            st.integers(0, 1 << 30),
            st.integers(0, 1 << 40),
            st.integers(-1, 1 << 60),
            st.integers(-1, 32767),
            st.lists(st.tuples(topics, st.lists(st.integers(0, 9), max_size=3)), max_size=3),
        ),
        max_size=4,
    )
)
def test_describe_transactions_response(rows: list[Any]) -> None:
    states = [
        {
            "error_code": error,
            "transactional_id": name,
            "transaction_state": state,
            "transaction_timeout": timeout,
            "transaction_start_time": datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=started),
            "producer_id": producer,
            "producer_epoch": epoch,
            "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in listed],
        }
        for error, name, state, timeout, started, producer, epoch, listed in rows
    ]
    reply = written("describe_transactions", 0, {"transaction_states": states})
    assert described(b"\0" + reply) == [
        (
            error,
            TransactionDescription(
                name,
                state,
                producer,
                epoch,
                timeout,
                started,
                tuple((topic, index) for topic, indexes in listed for index in indexes),
            ),
        )
        for error, name, state, timeout, started, producer, epoch, listed in rows
    ]
    # No transaction has begun yet: what kio cannot read.
    for error, name, *_ in rows[:1]:
        at = 1 + 4 + 1 + 2 + 1 + len(name.encode()) + 1 + len(rows[0][2]) + 4
        data = bytearray(b"\0" + reply)
        data[at : at + 8] = struct.pack(">q", -1)
        first = described(data)[0]
        assert (first[0], first[1].started) == (error, -1)


@given(
    st.lists(st.tuples(topics, st.integers(0, 9), st.integers(0, 1 << 60), st.integers(0, 1 << 30)), max_size=6),
    st.booleans(),
)
def test_fetch_request(rows: list[Any], committed: bool) -> None:
    wanted = [wire.FetchPosition(*row) for row in rows]
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
    decodes = (wire.FIXED.decode, wire.ENROLLING.decode, wire.decode_fetch)
    for decode in (*decodes, messages.request("describe_transactions", 0).decode):
        try:
            decode(memoryview(data))
        except (struct.error, ValueError, IndexError, OverflowError):
            pass


def test_requests_from_plain_values() -> None:
    asked = messages.request("create_topics", 7, topics=[{"name": "a", "num_partitions": 2}], timeout=1500)
    request = read("create_topics", 7, "request", bytes(asked.encode()[1:]))
    assert request.timeout.total_seconds() == 1.5
    [topic] = request.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor, topic.assignments) == ("a", 2, 0, ())
    with pytest.raises(TypeError, match="has no topiks"):
        messages.request("create_topics", 7, topiks=[])
