"""The formats of messages: byte for byte as RocketMQ's own classes write them, and garbage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.doors.rocketmq.formats import decode, encode_batch, read_offset_id
from tests.doors.rocketmq.vectors import HASHES, VECTORS

from headrace.doors.rocketmq.messages import (
    BatchedMessage,
    Host,
    StoredMessage,
    decode_batch,
    encode,
    hash_tag,
    offset_id,
    read_properties,
    write_properties,
)
from headrace.errors import InvalidRecords

PHYSICAL = 1 << 40 | 7
V4 = Host.of("192.0.2.1", 54321)
V6 = Host.of("2001:db8::1", 54321)

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x01\x02"), max_size=20)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65535))
stored = st.builds(
    StoredMessage,
    topic=st.text("abc%|-_", min_size=1, max_size=200),
    queue_id=int32s,
    queue_offset=int64s,
    physical_offset=int64s,
    body=st.binary(max_size=60),
    properties=st.dictionaries(texts, texts, max_size=3).map(write_properties),
    born_ms=int64s,
    born_host=hosts,
    store_ms=int64s,
    store_host=hosts,
    flag=int32s,
    sys_flag=st.integers(0, 15),
    reconsume_times=int32s,
    prepared_offset=int64s,
)


def message(topic: str, born: Host, store: str) -> StoredMessage:
    return StoredMessage(
        topic=topic,
        queue_id=3,
        queue_offset=12_345_678_901,
        physical_offset=PHYSICAL,
        body="body ü".encode(),
        properties=write_properties({"TAGS": "TagA"}),
        born_ms=1_700_000_000_001,
        born_host=born,
        store_ms=1_700_000_000_002,
        store_host=Host.of(store, 10911),
        flag=9,
        reconsume_times=2,
    )


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("v4", message("orders", V4, "127.0.0.1")),
        ("v6", message("%RETRY%billing", V6, "::1")),
        ("mixed", message("orders", V6, "127.0.0.1")),
    ],
)
def test_stored_messages_are_rocketmqs(name: str, made: StoredMessage) -> None:
    raw = bytes.fromhex(VECTORS[f"message.{name}"])
    assert encode(made) == raw
    assert decode(raw) == (made, len(raw))


@given(stored)
def test_a_stored_message_comes_back(made: StoredMessage) -> None:
    raw = encode(made)
    assert decode(raw) == (made, len(raw))


def test_batches_are_rocketmqs() -> None:
    raw = bytes.fromhex(VECTORS["batch"])
    found = list(decode_batch(raw))
    assert [(flag, body) for flag, body, _ in found] == [(0, b"b0"), (1, b"b1")]
    assert read_properties(found[1].properties) == {"WAIT": "true", "TAGS": "T1"}
    assert encode_batch(found) == raw


@given(st.lists(st.builds(BatchedMessage, int32s, st.binary(max_size=30), texts), max_size=4))
def test_a_batch_comes_back(batch: list[BatchedMessage]) -> None:
    assert list(decode_batch(encode_batch(batch))) == batch


@given(st.binary(max_size=80))
def test_a_batch_of_garbage_is_refused(garbage: bytes) -> None:
    try:
        assert sum(22 + len(each.body) + len(each.properties.encode()) for each in decode_batch(garbage)) == len(
            garbage
        )
    except InvalidRecords:
        pass


@given(st.data())
def test_a_batch_whose_lengths_lie_is_refused(data: st.DataObject) -> None:
    raw = bytearray.fromhex(VECTORS["batch"])
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        assert len(list(decode_batch(bytes(raw)))) in (1, 2)
    except InvalidRecords:
        pass


def test_ids_are_rocketmqs() -> None:
    for name, host in (("v4", Host.of("192.0.2.1", 10911)), ("v6", Host.of("2001:db8::1", 10911))):
        assert offset_id(host, PHYSICAL) == VECTORS[f"id.{name}"]
        assert read_offset_id(VECTORS[f"id.{name}"]) == (host, PHYSICAL)


def test_properties_are_rocketmqs() -> None:
    text = bytes.fromhex(VECTORS["properties"]).decode()
    assert write_properties({"KEYS": "a ü b"}) == text
    assert read_properties(text) == {"KEYS": "a ü b"}
    assert read_properties("a\x01b\x02nothing\x02c\x01d") == {"a": "b", "c": "d"}


def test_tags_hash_as_in_java() -> None:
    assert len(HASHES) == 4
    assert {tag: hash_tag(tag) for tag in HASHES} == HASHES
    # Two that collide.
    assert hash_tag("Aa") == hash_tag("BB")


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_hosts_come_back_from_text(address: str) -> None:
    host = Host.of(address, 80)
    assert Host.parse(str(host)) == host


def test_a_host_that_is_no_address() -> None:
    assert Host.of("localhost", 1) == Host(bytes(4), 1)
    assert Host.of("fe80::1%eth0", 1).ip[:2] == b"\xfe\x80"


def test_an_ipv4_address_that_came_by_ipv6_is_one_of_ipv4() -> None:
    assert Host.of("::ffff:192.0.2.1", 54321) == V4
    assert Host.of("fe80::1%eth0", 1).ip == bytes.fromhex("fe80" + 13 * "00" + "01")
