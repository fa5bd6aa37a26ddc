"""The formats of `__consumer_offsets`."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.fields import UnreadableRecord
from headrace.broker.groups.group_codec import (
    Committed,
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    read_group,
    read_key,
    read_offset,
    write_group,
    write_group_key,
    write_offset,
    write_offset_key,
)
from headrace.broker.groups.shard import shard_of
from headrace.broker.groups.subscription import subscribed_topics

names = st.text(st.characters(codec="utf-8"), max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    StoredMember, names, st.none() | names, names, names, st.integers(0, 2**31 - 1), int32, st.binary(), st.binary()
)


@given(names, names, int32)
def test_keys_round_trip(group: str, topic: str, partition: int) -> None:
    assert read_key(write_offset_key(group, topic, partition)) == OffsetKey(group, topic, partition)
    assert read_key(write_group_key(group)) == GroupKey(group)


@given(int64, int32, st.text(st.characters(codec="utf-8"), max_size=300), int64, st.uuids() | st.none())
def test_offsets_round_trip(offset: int, epoch: int, metadata: str, at: int, topic_id: UUID | None) -> None:
    committed = Committed(offset, epoch, metadata, at, topic_id=topic_id or UUID(int=1))
    assert read_offset(write_offset(committed)) == committed


@given(st.builds(StoredGroup, names, int32, st.none() | names, st.none() | names, int64, st.tuples(members, members)))
def test_groups_round_trip(group: StoredGroup) -> None:
    assert read_group(write_group(group)) == group


@given(st.binary(max_size=200))
def test_garbage_is_refused_in_words(raw: bytes) -> None:
    for read in (read_key, read_offset, read_group):
        try:
            read(raw)
        except UnreadableRecord:
            pass
    subscribed_topics(raw)


def test_bytes_as_kafka_writes_them() -> None:
    assert write_offset_key("g", "t", 3).hex() == "0001" + "000167" + "000174" + "00000003"
    assert write_group_key("g").hex() == "0002" + "000167"
    with_expiry = Committed(5, metadata="m", commit_ms=7, expire_ms=9)
    assert write_offset(with_expiry).hex() == "0001" + f"{5:016x}" + "00016d" + f"{7:016x}" + f"{9:016x}"
    assert read_offset(write_offset(with_expiry)) == with_expiry
    plain = Committed(5, 2, "m", 7)
    assert write_offset(plain).hex() == "0004" + f"{5:016x}" + "00000002" + "026d" + f"{7:016x}" + "00"
    # Version 3, which Kafka wrote before topics had ids here.
    assert read_offset(bytes.fromhex("0003" + f"{5:016x}" + "00000002" + "00016d" + f"{7:016x}")) == plain


def test_unknown_keys_are_left_alone() -> None:
    assert read_key(bytes.fromhex("0009" + "000167")) is None


@pytest.mark.parametrize(
    ("group", "hashed"),
    # Java's "...".hashCode(), of which "polygenelubricants" has the one that has no positive counterpart.
    [
        ("", 0),
        ("a", 97),
        ("test-group", 627841412),
        ("polygenelubricants", 0),
        ("\U0001f600", 1772899),
        ("zzzzzz", 685785664),
    ],
)
def test_partition_is_javas_hash(group: str, hashed: int) -> None:
    assert shard_of(group, 1 << 31) == hashed


def test_subscription() -> None:
    assert subscribed_topics(bytes.fromhex("0003" + "00000002" + "000161" + "00026262" + "ffffffff")) == {"a", "bb"}
    assert subscribed_topics(bytes.fromhex("0000" + "7fffffff" + "000161")) is None
