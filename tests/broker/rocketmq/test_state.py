"""Physical offsets and the name server's configuration, through restarts and deletions."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from tests import brokers
from tests.waiting import until

from headrace.broker.rocketmq.physical_offsets import NUMBERS_MAX, OFFSET_BITS, PhysicalOffsets, Span
from headrace.broker.rocketmq.subscription_groups import SubscriptionGroup


@given(
    st.integers(1, NUMBERS_MAX - 1),
    st.integers(0, 1 << 20),
    st.integers(0, (1 << 63) - 1),
)
def test_a_physical_offset_comes_back(number: int, partition: int, offset: int) -> None:
    offsets = PhysicalOffsets()
    topic = UUID(int=7)
    assert offsets.encode(topic, partition, offset) is None
    offsets.put(number, Span(topic, partition, offset >> OFFSET_BITS))
    physical = offsets.encode(topic, partition, offset)
    assert physical is not None
    assert 0 < physical < 1 << 63
    assert offsets.decode(physical) == (topic, partition, offset)
    offsets.drop(number)
    assert offsets.decode(physical) is None
    assert offsets.encode(topic, partition, offset) is None


def test_a_partition_that_has_used_up_its_numbers_offsets() -> None:
    offsets = PhysicalOffsets()
    topic = UUID(int=7)
    offsets.put(1, Span(topic, 0, 0))
    last = (1 << OFFSET_BITS) - 1
    assert offsets.encode(topic, 0, last) == 1 << OFFSET_BITS | last
    assert offsets.encode(topic, 0, last + 1) is None
    offsets.put(9, Span(topic, 0, 1))
    assert offsets.encode(topic, 0, last + 1) == 9 << OFFSET_BITS


async def test_numbers_outlive_the_process_and_are_never_given_twice(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        topic = await broker.topics.create("t", 2)
        await broker.rocketmq.number(topic)
        given = [broker.rocketmq.offsets.encode(topic.id, index, 5) for index in range(2)]
        assert None not in given
        await broker.rocketmq.number(topic)
        await broker.topics.grow("t", 3)
        await broker.rocketmq.number(topic)
        assert [broker.rocketmq.offsets.encode(topic.id, index, 5) for index in range(2)] == given
        assert len(broker.rocketmq.offsets.spans) == 3
    async with brokers.running(tmp_path) as broker:
        state, topic = broker.rocketmq, broker.topics.existing("t")
        await state.load()
        assert [state.offsets.encode(topic.id, index, 5) for index in range(2)] == given
        assert state.offsets.decode(given[1] or 0) == (topic.id, 1, 5)
        before = set(state.offsets.spans)
        await broker.topics.delete("t")
        await until(lambda: not state.offsets.spans)
    async with brokers.running(tmp_path) as broker:
        state = broker.rocketmq
        await state.load()
        assert not state.offsets.spans
        topic = await broker.topics.create("t", 3)
        await state.number(topic)
        assert min(state.offsets.spans) > max(before)


async def test_a_topic_that_was_deleted_while_the_state_was_not_read(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        await broker.rocketmq.number(await broker.topics.create("t"))
    async with brokers.running(tmp_path) as broker:
        await broker.topics.delete("t")
    for _ in range(2):
        async with brokers.running(tmp_path) as broker:
            await broker.rocketmq.load()
            assert not broker.rocketmq.offsets.spans


async def test_configuration(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        await broker.rocketmq.put_kv("n", "a", "1")
        await broker.rocketmq.put_kv("n", "b", "ü")
        await broker.rocketmq.put_kv("m", "a", "2")
        await broker.rocketmq.put_kv("m", "a", None)
        await broker.rocketmq.put_kv("m", "never", None)
        assert broker.rocketmq.kv == {"n": {"a": "1", "b": "ü"}}
    async with brokers.running(tmp_path) as broker:
        await broker.rocketmq.load()
        assert broker.rocketmq.kv == {"n": {"a": "1", "b": "ü"}}


async def test_settings_of_groups(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        for name in ("a", "ü"):
            await broker.rocketmq.put_group(name, SubscriptionGroup.parse(name, {"retryMaxTimes": 3}))
        await broker.rocketmq.put_group("b", SubscriptionGroup("b"))
        await broker.rocketmq.put_group("b", None)
        await broker.rocketmq.put_group("never", None)
    async with brokers.running(tmp_path) as broker:
        await broker.rocketmq.load()
        assert list(broker.rocketmq.groups) == ["a", "ü"]
        assert broker.rocketmq.groups["ü"].retries_max == 3
        assert broker.rocketmq.groups["a"].may_consume


async def test_what_is_not_used_is_not_made(tmp_path: Path) -> None:
    async with brokers.running(tmp_path) as broker:
        await broker.topics.create("t")
        assert "__rocketmq" not in broker.topics.all
