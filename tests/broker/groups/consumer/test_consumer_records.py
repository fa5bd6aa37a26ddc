"""The records of the consumer protocol: round trips, Kafka's bytes, and garbage."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.fields import UnreadableRecord
from headrace.broker.groups.consumer import records
from headrace.broker.groups.consumer.member import Position, Step, Traits
from headrace.broker.groups.records import read_key

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
epochs = st.integers(-2, 2**31 - 1)
places = st.dictionaries(st.uuids(), st.frozensets(st.integers(0, 2**31 - 1), min_size=1, max_size=5), max_size=3)
traits = st.builds(
    Traits,
    st.none() | names,
    st.none() | names,
    names,
    names,
    st.lists(names, max_size=3).map(tuple),
    names,
    epochs,
    st.none() | names,
)
positions = st.builds(Position, epochs, epochs, st.sampled_from(Step), places, places)


@given(st.sampled_from(records.KINDS), names, names)
def test_keys(kind, group_id, member_id) -> None:
    key = records.ConsumerKey(kind, group_id, member_id if kind in records.KINDS_OF_MEMBERS else "")
    assert read_key(records.write_key(key)) == key


@given(epochs, st.integers(-(2**63), 2**63 - 1), traits, places, positions)
def test_values(epoch, fingerprint, traits, places, position) -> None:
    assert records.read_epoch(records.write_epoch(epoch, fingerprint)) == (epoch, fingerprint)
    assert records.read_target_epoch(records.write_target_epoch(epoch)) == epoch
    assert records.read_member(records.write_member(traits)) == traits
    assert records.read_target(records.write_target(places)) == places
    assert records.read_position(records.write_position(position)) == position


def test_kafkas_bytes() -> None:
    assert records.write_key(records.ConsumerKey(records.MEMBER, "g", "m")) == b"\0\5\0\1g\0\1m"
    assert records.write_epoch(7, 0) == b"\0\0\0\0\0\7\0"
    topic = UUID(int=1)
    position = Position(2, 1, Step.UNREVOKED, {topic: frozenset([3])}, {})
    placed = b"\2" + topic.bytes + b"\2\0\0\0\3\0"
    assert records.write_position(position) == b"\0\0\0\0\0\2\0\0\0\1\1" + placed + b"\1\0"


@given(st.binary(max_size=60), st.sampled_from(records.KINDS))
def test_garbage(raw, kind) -> None:
    stored = records.StoredConsumerGroup()
    try:
        stored.take(records.ConsumerKey(kind, "g", "m"), raw)
    except UnreadableRecord:
        pass


def test_a_step_from_the_future() -> None:
    with pytest.raises(UnreadableRecord, match="step 9"):
        records.read_position(b"\0\0\0\0\0\2\0\0\0\1\x09\1\1\0")
