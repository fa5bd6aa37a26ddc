"""The records of the consumer protocol: round trips, Kafka's bytes, and garbage."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.fields import UnreadableRecord
from headrace.broker.groups.consumer import consumer_codec as codec
from headrace.broker.groups.consumer.consumer_member import Position, Step, Traits
from headrace.broker.groups.group_codec import read_key

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


@given(st.sampled_from(codec.KINDS), names, names)
def test_keys(kind, group_id, member_id) -> None:
    key = codec.ConsumerKey(kind, group_id, member_id if kind in codec.KINDS_OF_MEMBERS else "")
    assert read_key(codec.write_key(key)) == key


@given(epochs, st.integers(-(2**63), 2**63 - 1), traits, places, positions)
def test_values(epoch, fingerprint, traits, places, position) -> None:
    assert codec.read_epoch(codec.write_epoch(epoch, fingerprint)) == (epoch, fingerprint)
    assert codec.read_target_epoch(codec.write_target_epoch(epoch)) == epoch
    assert codec.read_member(codec.write_member(traits)) == traits
    assert codec.read_target(codec.write_target(places)) == places
    assert codec.read_position(codec.write_position(position)) == position


def test_kafkas_bytes() -> None:
    assert codec.write_key(codec.ConsumerKey(codec.MEMBER, "g", "m")) == b"\0\5\0\1g\0\1m"
    assert codec.write_epoch(7, 0) == b"\0\0\0\0\0\7\0"
    topic = UUID(int=1)
    position = Position(2, 1, Step.UNREVOKED, {topic: frozenset([3])}, {})
    placed = b"\2" + topic.bytes + b"\2\0\0\0\3\0"
    assert codec.write_position(position) == b"\0\0\0\0\0\2\0\0\0\1\1" + placed + b"\1\0"


@given(st.binary(max_size=60), st.sampled_from(codec.KINDS))
def test_garbage(raw, kind) -> None:
    stored = codec.StoredConsumerGroup()
    try:
        stored.take(codec.ConsumerKey(kind, "g", "m"), raw)
    except UnreadableRecord:
        pass


def test_a_step_from_the_future() -> None:
    with pytest.raises(UnreadableRecord, match="step 9"):
        codec.read_position(b"\0\0\0\0\0\2\0\0\0\1\x09\1\1\0")
