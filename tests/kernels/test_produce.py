"""Finding the records of a Produce request that is like the last: compiled and interpreted say the same."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted

import headrace.kernels.produce as installed
from headrace.doors.kafka.produce_wire import parse
from headrace.doors.kafka.wire import varint
from headrace.kernels import records

BUILDS = [installed, interpreted("produce")]
BATCH = bytes(records.build([(1, b"k", b"v", [])]))
ZSTD = 4


def request(batch: bytes, version: int) -> tuple[bytearray, int, bytes]:
    """The body of a request for one partition, where its records begin, and what stands before their length."""
    if version >= 9:
        prefix = b"\0" + b"\0\x01" + bytes(4) + b"\x02\x05rain\x02" + bytes(4)
        head = prefix + varint(len(batch) + 1)
        return bytearray(head + batch + b"\0\0\0"), len(head), prefix
    prefix = b"\xff\xff" + b"\0\x01" + bytes(4) + b"\0\0\0\x01\0\x04rain\0\0\0\x01" + bytes(4)
    head = prefix + len(batch).to_bytes(4, "big")
    return bytearray(head + batch), len(head), prefix


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("size", [0, 50, 20_000, 3_000_000])
def test_the_records_are_where_the_parser_finds_them(build: ModuleType, version: int, size: int) -> None:
    batch = bytes(records.build([(1, None, bytes(size), [])]))
    body, at, prefix = request(batch, version)
    [(_, [(_, start, end)])] = parse(body, 0, len(body), version, 10).topics
    assert build.records_at(body, 0, len(body), prefix, version >= 9, ZSTD) == at == start
    assert end == at + len(batch)
    # In the middle of a buffer, as they come.
    shifted = bytearray(b"x" * 7) + body + b"y" * 9
    assert build.records_at(shifted, 7, 7 + len(body), prefix, version >= 9, ZSTD) == at + 7


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("version", [8, 9])
def test_what_is_unlike_is_left_to_the_parser(build: ModuleType, version: int) -> None:
    body, at, prefix = request(BATCH, version)

    def ask(changed: bytes | bytearray, codec_max: int = ZSTD) -> int:
        found: int = build.records_at(bytearray(changed), 0, len(changed), prefix, version >= 9, codec_max)
        return found

    assert ask(b"z" + body[1:]) == build.OTHER
    assert ask(body[: len(prefix) - 1]) == build.OTHER
    assert ask(body[: len(prefix)]) == build.UNUSUAL
    assert ask(body[:-1]) == build.UNUSUAL
    assert ask(body + b"\0") == build.UNUSUAL
    for position, value in ((16, 1), (11, BATCH[11] ^ 1), (22, 0x10), (22, 0x20)):
        changed = bytearray(body)
        changed[at + position] = value
        assert ask(changed) == build.UNUSUAL
    zstd = bytearray(body)
    zstd[at + 22] = ZSTD
    assert ask(zstd) == at
    assert ask(zstd, ZSTD - 1) == build.UNUSUAL
    # Two batches, which only the log may take in one.
    assert ask(request(BATCH * 2, version)[0]) == build.UNUSUAL


@given(st.data(), st.sampled_from([8, 9]))
def test_both_builds_say_the_same_of_anything(data: st.DataObject, version: int) -> None:
    body, _, prefix = request(BATCH, version)
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(body) + 3))
    answers = {build.records_at(body, 0, stop, prefix, version >= 9, ZSTD) for build in BUILDS}
    assert len(answers) == 1
