"""A Produce request that is like the last, and its reply: compiled and interpreted say the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted

import headrace.doors.kafka.produce_cache as installed
from headrace.doors.kafka.produce_wire import parse
from headrace.format import records
from headrace.format.varint import varint

BUILDS = [installed, interpreted("doors.kafka.produce_cache")]
BATCH = bytes(records.build([(1, b"k", b"v", [])]))
ZSTD = 4
SIZE_MAX = 10_000_000
# Length, API key, version and correlation id.
BODY = 12


def request(batch: bytes, version: int, correlation: int = 7) -> tuple[bytearray, int, bytes]:
    """A request for one partition, where its records begin, and what stands before their length."""
    if version >= 9:
        prefix = b"\0" + b"\0\x01" + bytes(4) + b"\x02\x05rain\x02" + bytes(4)
        body = prefix + varint(len(batch) + 1)
        end = b"\0\0\0"
    else:
        prefix = b"\xff\xff" + b"\0\x01" + bytes(4) + b"\0\0\0\x01\0\x04rain\0\0\0\x01" + bytes(4)
        body = prefix + len(batch).to_bytes(4, "big")
        end = b""
    head = bytes(2) + version.to_bytes(2, "big") + correlation.to_bytes(4, "big", signed=True)
    frame = head + body + batch + end
    return bytearray(len(frame).to_bytes(4, "big") + frame), BODY + len(body), prefix


def sized(frame: bytes | bytearray) -> bytearray:
    """The frame with the length that it has."""
    return bytearray((len(frame) - 4).to_bytes(4, "big") + frame[4:])


def cached(build: ModuleType, version: int, prefix: bytes, codec_max: int = ZSTD, size_max: int = SIZE_MAX) -> Any:
    return build.CachedRequest(version, prefix, codec_max, size_max, b"head", b"tail", True)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("size", [0, 50, 20_000, 3_000_000])
def test_the_records_are_where_the_parser_finds_them(build: ModuleType, version: int, size: int) -> None:
    batch = bytes(records.build([(1, None, bytes(size), [])]))
    frame, at, prefix = request(batch, version)
    [(_, [(_, start, end)])] = parse(frame, BODY, len(frame), version, 10).topics
    assert cached(build, version, prefix).match(frame, 0, len(frame)) == (start, end, len(frame), 7)
    assert (start, end) == (at, at + len(batch))
    # In the middle of a buffer, as they come.
    shifted = bytearray(b"x" * 7) + frame + b"y" * 9
    for stop in (7 + len(frame), len(shifted)):
        assert cached(build, version, prefix).match(shifted, 7, stop) == (at + 7, end + 7, len(frame) + 7, 7)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("version", [8, 9])
def test_what_is_unlike_is_left_to_the_parser(build: ModuleType, version: int) -> None:
    frame, at, prefix = request(BATCH, version)

    def found(changed: bytes | bytearray, **limits: int) -> bool:
        return cached(build, version, prefix, **limits).match(bytearray(changed), 0, len(changed)) is not None

    assert found(frame)
    for position in (4, 5, 6, 7, BODY, BODY + len(prefix) - 1):
        changed = bytearray(frame)
        changed[position] ^= 1
        assert not found(changed)
    # Cut off anywhere, with the length that it should have and with the one that it has.
    for size in range(len(frame)):
        assert not found(frame[:size])
        if size >= 4:
            assert not found(sized(frame[:size]))
    assert not found(sized(frame + b"\0"))
    for position, value in ((16, 1), (11, BATCH[11] ^ 1), (22, 0x10), (22, 0x20)):
        changed = bytearray(frame)
        changed[at + position] = value
        assert not found(changed)
    for behind in range(1, 4 if version >= 9 else 1):
        changed = bytearray(frame)
        changed[-behind] = 1
        assert not found(changed)
    zstd = bytearray(frame)
    zstd[at + 22] = ZSTD
    assert found(zstd)
    assert not found(zstd, codec_max=ZSTD - 1)
    assert found(frame, size_max=len(frame) - 4)
    assert not found(frame, size_max=len(frame) - 5)
    # Two batches, which only the log may take in one.
    assert not found(request(BATCH * 2, version)[0])


@given(st.data(), st.sampled_from([8, 9]))
def test_both_builds_say_the_same_of_anything(data: st.DataObject, version: int) -> None:
    frame, _, prefix = request(BATCH, version, data.draw(st.integers(-(1 << 31), (1 << 31) - 1)))
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(frame) + 3))
    answers = {cached(build, version, prefix).match(frame, 0, stop) for build in BUILDS}
    assert len(answers) == 1


@given(
    correlation=st.integers(-(1 << 31), (1 << 31) - 1),
    numbers=st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1)] * 3),
    with_start=st.booleans(),
)
def test_a_reply(correlation: int, numbers: tuple[int, int, int], with_start: bool) -> None:
    written = b"".join(each.to_bytes(8, "big", signed=True) for each in numbers[: 3 if with_start else 2])
    expected = correlation.to_bytes(4, "big", signed=True) + b"head" + bytes(2) + written + b"tail"
    for build in BUILDS:
        made = build.CachedRequest(9, b"prefix", ZSTD, SIZE_MAX, b"head", b"tail", with_start).reply(
            correlation, *numbers
        )
        assert made == len(expected).to_bytes(4, "big") + expected
        assert type(made) is bytes


@pytest.mark.parametrize("build", BUILDS)
def test_a_correlation_id_may_be_negative(build: ModuleType) -> None:
    frame, _, prefix = request(BATCH, 9, -2)
    assert cached(build, 9, prefix).match(frame, 0, len(frame))[3] == -2
