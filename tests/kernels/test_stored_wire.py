"""The kernel that encodes pulled messages, held against the door's own encoding of single ones."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted_together

from headrace.doors.rocketmq import messages, stored_wire
from headrace.doors.rocketmq.messages import Host, hash_tag
from headrace.doors.rocketmq.records import host_bytes, message_of, tag_of
from headrace.errors import InvalidRecords
from headrace.format import records
from headrace.format.records import Record

SOURCE = "doors.rocketmq.stored_wire"
KERNELS = pytest.mark.parametrize(
    "kernel", [stored_wire, interpreted_together("format.records", SOURCE)[SOURCE]], ids=["installed", "interpreted"]
)
HOST = Host(bytes((10, 0, 0, 1)), 10_911)
HOST_V6 = Host(bytes(15) + b"\1", 10_911)
SHIFT = (77 << 39) - 5
ALL = 1 << 20

Headers = list[tuple[str, bytes | None]]


def origin(kernel: ModuleType, topic: str = "topic", host: Host = HOST) -> Any:
    def slowly(record: Record) -> bytes:
        return messages.encode(message_of(record, topic, 3, record[0] + SHIFT, host))

    address = host.ip + host.port.to_bytes(4, "big")
    return kernel.Origin(topic.encode(), 3, SHIFT, address, host_bytes, hash_tag, slowly)


def wants(tags: frozenset[int] | None) -> Any:
    return lambda record: tags is None or (tag_of(record[4]) != "" and hash_tag(tag_of(record[4])) in tags)


def encode(
    kernel: ModuleType,
    batch: bytes,
    offset: int = 0,
    tags: frozenset[int] | None = None,
    bounds: tuple[int, int, int, bool] = (ALL, ALL, ALL, True),
    topic: str = "topic",
    host: Host = HOST,
) -> Any:
    found = kernel.encode(batch, ALL, origin(kernel, topic, host), offset, tags, wants(tags), *bounds)
    return bytes(found[0]), *found[1:]


def expected(
    batch: bytes, offset: int = 0, tags: frozenset[int] | None = None, topic: str = "topic", host: Host = HOST
) -> list[bytes]:
    return [
        messages.encode(message_of(record, topic, 3, record[0] + SHIFT, host))
        for record in records.parse(batch, ALL)
        if record[0] >= offset and wants(tags)(record)
    ]


def batch_of(*headers: Headers, value: bytes | None = b"body") -> bytes:
    return bytes(records.build([(1_700 + number, None, value, each) for number, each in enumerate(headers)]))


OWN: Headers = [
    *(("rocketmq-born-time", b"1234"), ("rocketmq-born-host", b"127.0.0.1:99"), ("rocketmq-flag", b"7")),
    *(("rocketmq-sys-flag", b"1842"), ("rocketmq-reconsume-times", b"3")),
]


@KERNELS
@pytest.mark.parametrize("host", [HOST, HOST_V6])
@pytest.mark.parametrize("topic", ["topic", "t" * 127, "t" * 128])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("TAGS", b"red"), ("KEYS", b"k"), *OWN],
        [("rocketmq-born-host", b"[::1]:99"), ("rocketmq-other", b"x"), ("TAGS", None), ("", b"")],
        [("rocketmq-born-host", b"nowhere"), ("rocketmq-flag", b"-3"), ("rocketmq-sys-flag", None)],
        [
            ("rocketmq-flag", b"2147483648"),
            ("rocketmq-sys-flag", b"1073741824"),
            ("rocketmq-reconsume-times", b"9" * 10),
        ],
        [("rocketmq-flag", b"2147483647"), ("rocketmq-sys-flag", b"1073741823"), ("rocketmq-born-time", b"9" * 19)],
        [("twice", b"1"), ("other", b"2"), ("twice", b"3"), ("rocketmq-flag", b"1"), ("rocketmq-flag", b"2")],
        [("bin", b"\xff"), ("sep", b"a\x01b"), ("a\x02b", b"left out"), ("blå", "grün".encode()), ("k", "ü".encode())],
        [(f"name-{number}", b"x" * 400) for number in range(64)],
        [(f"name-{number}", b"x") for number in range(65)],
        [(f"name-{number}", b"x" * 600) for number in range(60)],
        *([("a", b"x" * size)] for size in (32_724, 32_725, 32_726, 32_740, 32_764, 32_765, 32_766)),
        [("MSG_REGION", b"elsewhere"), ("a", b"b")],
        [("a", b"b"), ("TRACE_ON", b"false")],
    ],
)
def test_a_record_is_encoded_as_the_door_encodes_it(
    kernel: ModuleType, headers: Headers, topic: str, host: Host
) -> None:
    batch = batch_of(headers, [], headers)
    wanted = b"".join(expected(batch, topic=topic, host=host))
    assert encode(kernel, batch, topic=topic, host=host) == (wanted, 3, 3, 3, False)
    null = batch_of(headers, value=None)
    assert encode(kernel, null, topic=topic, host=host)[0] == expected(null, topic=topic, host=host)[0]


@KERNELS
def test_tags_are_compared_by_their_hash(kernel: ModuleType) -> None:
    kinds: list[Headers] = [
        *([("TAGS", tag)] for tag in (b"Aa", b"BB", b"red", b"", None, "blå😀".encode(), b"overflowing hash of a tag")),
        *([], [("TAGS", b"red"), ("TAGS", b"Aa")], [("TAGS", b"\xff")], [("TAGS", b"red"), ("x", b"\xff")]),
    ]
    batch = batch_of(*kinds)
    for tag in ("Aa", "red", "blå😀", "overflowing hash of a tag", "none", "�"):
        tags = frozenset((hash_tag(tag), 1))
        wanted = expected(batch, tags=tags)
        assert encode(kernel, batch, tags=tags) == (b"".join(wanted), len(wanted), len(kinds), len(kinds), False)
    assert len(expected(batch, tags=frozenset((hash_tag("Aa"),)))) == 3
    assert encode(kernel, batch, tags=frozenset((0,)))[1] == 0, "a message without a tag has no hash"


@KERNELS
@pytest.mark.parametrize("first", [[], [("bin", b"\xff")]], ids=["plain", "slowly"])
def test_bounds(kernel: ModuleType, first: Headers) -> None:
    batch = batch_of(*[first] * 10)
    one = len(expected(batch)[0])
    assert encode(kernel, batch, 4)[1:] == (6, 6, 10, False)
    assert encode(kernel, batch, 4, bounds=(2, ALL, ALL, True))[1:] == (2, 2, 6, True)
    assert encode(kernel, batch, 4, bounds=(ALL, 3, ALL, True))[1:] == (3, 3, 7, True)
    assert encode(kernel, batch, 4, bounds=(6, ALL, ALL, True))[1:] == (6, 6, 10, True)
    for size, count in ((1, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2)):
        found = encode(kernel, batch, 4, bounds=(ALL, ALL, size, True))
        assert found == (b"".join(expected(batch, 4)[:count]), count, count, 4 + count, True)
    assert encode(kernel, batch, 4, bounds=(ALL, ALL, one - 1, False)) == (b"", 0, 0, 4, True)
    tags = frozenset((5,))
    assert encode(kernel, batch, 4, tags, (ALL, 3, ALL, True)) == (b"", 0, 3, 7, True)


@KERNELS
def test_gaps_and_offsets(kernel: ModuleType) -> None:
    batch = batch_of(*[[("TAGS", b"red")]] * 10)
    kept = records.retain(batch, bytes((0, 1, 0, 1, 1, 0, 0, 0, 1, 0)), ALL, None)
    assert kept is not None
    for offset in range(10):
        wanted = expected(bytes(kept), offset)
        assert encode(kernel, bytes(kept), offset)[:2] == (b"".join(wanted), len(wanted))
    moved = bytearray(batch)
    moved[:8] = (1_000).to_bytes(8, "big")
    assert encode(kernel, bytes(moved), 1_007)[1:] == (3, 3, 1_010, False)
    assert encode(kernel, bytes(moved), 1_007)[0] == b"".join(expected(bytes(moved), 1_007))


@KERNELS
def test_records_that_cannot_be_read_are_an_error(kernel: ModuleType) -> None:
    head, body = records.open_head(batch_of([("a", b"b")], []))
    broken = bytes(records.seal(bytearray(61) + bytes(body)[:-3] + b"\xff\xff\xff", head))
    with pytest.raises(InvalidRecords):
        encode(kernel, broken)


names = st.sampled_from(
    ["TAGS", "KEYS", "a", "b", "rocketmq-flag", "rocketmq-sys-flag", "rocketmq-born-time", "ü", "\x01"]
)
contents = st.one_of(st.none(), st.binary(max_size=3), st.sampled_from([b"red", b"1", b"12", "ö".encode(), b"007"]))


@KERNELS
@given(
    headers=st.lists(st.lists(st.tuples(names, contents), max_size=5), min_size=1, max_size=4), offset=st.integers(0, 3)
)
def test_any_headers(kernel: ModuleType, headers: list[Headers], offset: int) -> None:
    batch = batch_of(*headers)
    for tags in (None, frozenset((hash_tag("red"), hash_tag("ö")))):
        assert encode(kernel, batch, offset, tags)[0] == b"".join(expected(batch, offset, tags))
