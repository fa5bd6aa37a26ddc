"""Batches that are appended as they come: compiled, interpreted and the log's admission say the same."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted

import headrace.log.header_check as installed
from headrace.errors import AppendRefused, InvalidTimestamp
from headrace.format import records
from headrace.format.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    header_at,
)
from headrace.log.admission import admit
from headrace.log.interface import Topic, TopicSettings

BUILDS = [installed, interpreted("log.header_check")]
NOW = 1_700_000_000_000
HOUR = 3_600_000
SETTINGS = TopicSettings(max_batch_bytes=10_000)
TOPIC = Topic("rain", UUID(int=1), {}, SETTINGS)
BOUNDED = replace(SETTINGS, timestamp_before_max_ms=HOUR, timestamp_after_max_ms=1_000)


def batch(**fields: int) -> bytearray:
    """A batch of two records with other fields in its header, and the checksum that fits."""
    made = bytearray(records.build([(NOW - 5, b"k", b"v", []), (NOW - 3, None, b"w", [])]))
    HEADER.pack_into(made, 0, *header_at(made)._replace(**fields))
    if "crc" not in fields:
        made[17:21] = crc32c(made[21:]).to_bytes(4, "big")
    return made


def ask(build: ModuleType, made: bytearray | memoryview, settings: TopicSettings = SETTINGS) -> tuple[int, int] | None:
    found: tuple[int, int] | None = build.plain(
        made, settings.max_batch_bytes, NOW, settings.timestamp_before_max_ms, settings.timestamp_after_max_ms
    )
    return found


@pytest.mark.parametrize("build", BUILDS)
def test_a_plain_batch(build: ModuleType) -> None:
    made = batch()
    assert ask(build, made) == (1, NOW - 3)
    # Where it lies in a buffer, as it comes.
    assert ask(build, memoryview(b"x" * 9 + made + b"y")[9:-1]) == (1, NOW - 3)
    for attributes in (1, 4, LOG_APPEND_TIME):
        assert ask(build, batch(attributes=attributes)) == (1, NOW - 3)
    assert ask(build, made, replace(SETTINGS, max_batch_bytes=len(made))) == (1, NOW - 3)
    for newest in (-1, NOW - HOUR, NOW, NOW + HOUR, -(1 << 63)):
        assert ask(build, batch(base_timestamp=newest, max_timestamp=newest)) == (1, newest)
    boundless = replace(SETTINGS, timestamp_after_max_ms=(1 << 63) - 1)
    for newest in (0, (1 << 63) - 1):
        assert ask(build, batch(base_timestamp=0, max_timestamp=newest), boundless) == (1, newest)


@pytest.mark.parametrize("build", BUILDS)
def test_any_other_batch(build: ModuleType) -> None:
    assert ask(build, batch(), replace(SETTINGS, max_batch_bytes=len(batch()) - 1)) is None
    for size in range(len(batch())):
        assert ask(build, batch()[:size]) is None
    for attributes in (5, 7, TRANSACTIONAL, CONTROL, DELETE_HORIZON, 0x80, 0x100, -0x8000):
        assert ask(build, batch(attributes=attributes)) is None
    for bound in ({"timestamp_before_max_ms": (1 << 63) - 2}, {"timestamp_after_max_ms": HOUR - 1}):
        assert ask(build, batch(), replace(SETTINGS, **bound)) is None
    for newest in (NOW + HOUR + 1, (1 << 63) - 1):
        assert ask(build, batch(base_timestamp=0, max_timestamp=newest)) is None
    for newest in (-1, NOW - HOUR, NOW - 6, -(1 << 63)):
        assert ask(build, batch(max_timestamp=newest)) is None
    for fields in (
        {"length": len(batch()) - 13},
        {"magic": 1},
        {"crc": 7},
        {"producer_id": 0, "base_sequence": 0},
        {"record_count": 1},
        {"record_count": 0, "last_offset_delta": -1},
        {"record_count": -1, "last_offset_delta": -2},
        {"last_offset_delta": 2},
    ):
        assert ask(build, batch(**fields)) is None


@given(st.data())
def test_what_is_plain_is_what_admission_takes_from_no_producer(data: st.DataObject) -> None:
    made = batch()
    for _ in range(data.draw(st.integers(0, 3))):
        made[data.draw(st.integers(0, len(made) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        made[17:21] = crc32c(made[21:]).to_bytes(4, "big")
    answers = {ask(build, made) for build in BUILDS}
    assert len(answers) == 1
    came = header_at(made)
    header: BatchHeader | None
    try:
        header = admit(made, TOPIC, NOW, 10_000)
    except AppendRefused:
        header = None
    dated = came.max_timestamp < came.base_timestamp or came.max_timestamp > NOW + HOUR
    special = header is not None and (header.producer_id >= 0 or header.attributes & ~0x0F or dated)
    expected = None if header is None or special else (header.last_offset_delta, header.max_timestamp)
    assert answers == {expected}


@pytest.mark.parametrize("codec", range(5))
def test_a_largest_time_that_is_left_out_is_found(codec: int) -> None:
    times = [NOW - 7, NOW - 2, NOW - 9]
    made = bytearray(records.build([(time, None, b"v", []) for time in times], compression=codec))
    HEADER.pack_into(made, 0, *header_at(made)._replace(max_timestamp=-1))
    made[17:21] = crc32c(made[21:]).to_bytes(4, "big")
    assert admit(made, TOPIC, NOW, 10_000).max_timestamp == NOW - 2
    assert header_at(made).max_timestamp == NOW - 2
    assert header_at(made).crc == crc32c(made[21:])
    with pytest.raises(InvalidTimestamp):
        admit(batch(max_timestamp=-1), TOPIC, NOW - 2 * HOUR, 10_000)


@pytest.mark.parametrize("codec", range(5))
def test_where_times_are_bounded_each_record_counts(codec: int) -> None:
    topic = Topic("rain", UUID(int=1), {}, BOUNDED)
    good = [NOW - HOUR, NOW, -1, NOW + 1_000]
    admit(records.build([(time, None, b"v", []) for time in good], compression=codec), topic, NOW, 10_000)
    times = [*good, NOW - HOUR - 1, NOW, NOW + 1_001]
    made = records.build([(time, None, b"v", []) for time in times], compression=codec)
    with pytest.raises(InvalidTimestamp) as caught:
        admit(made, topic, NOW, 10_000)
    assert [index for index, _ in caught.value.records] == [4, 6]
    # The header's word is not taken for it.
    HEADER.pack_into(made, 0, *header_at(made)._replace(max_timestamp=NOW, base_timestamp=NOW - HOUR))
    made[17:21] = crc32c(made[21:]).to_bytes(4, "big")
    with pytest.raises(InvalidTimestamp):
        admit(made, topic, NOW, 10_000)


def test_a_largest_time_that_no_record_has_is_put_right() -> None:
    assert admit(batch(max_timestamp=NOW + 2 * HOUR), TOPIC, NOW, 10_000).max_timestamp == NOW - 3
