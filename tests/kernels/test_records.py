"""Records in and out of batches: round trips, the two builds against each other, real clients' encoders, and damage."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

import headrace.format.records as installed
from headrace.errors import (
    CorruptBatch,
    HeadraceError,
    InvalidRecords,
    InvalidTimestamp,
    UnsupportedBatch,
)
from headrace.format.batch import HEADER, LOG_APPEND_TIME
from headrace.format.head import open_head

MAX = 1 << 24
CODECS = range(5)
# kafka-python needs a library of its own for each of the others.
KAFKA_PYTHON_CODECS = (0, 1)
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

times = st.integers(-1, 1 << 45)
maybe_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=12), maybe_bytes), max_size=4)
record_lists = st.lists(st.tuples(times, maybe_bytes, maybe_bytes, header_lists), min_size=1, max_size=30)


def resealed(batch: bytes | bytearray, **changes: int) -> bytearray:
    """The batch with header fields changed, its length and checksum made right."""
    names = ["base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta"]
    names += ["base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count"]
    fields = dict(zip(names, HEADER.unpack_from(batch), strict=True))
    fields["length"] = len(batch) - 12
    fields.update(changes)
    out = bytearray(batch)
    HEADER.pack_into(out, 0, *fields.values())
    if "crc" not in changes:
        struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return out


def with_body(body: bytes, count: int, attributes: int = 0, last: int | None = None) -> bytearray:
    """A batch around records made by hand."""
    batch = installed.build([(0, None, None, [])])
    last = max(count - 1, 0) if last is None else last
    return resealed(batch[:61] + body, attributes=attributes, record_count=count, last_offset_delta=last)


def picked(
    module: ModuleType, batch: bytes | bytearray, max_bytes: int, offsets: Any, size: int, steps: int
) -> tuple[list[Any], type[Exception] | None]:
    """What a picker gives for offsets, asked again and again; and what it ends with."""
    picker = module.Picker(batch, max_bytes)
    found: list[Any] = []
    left = list(offsets)
    try:
        for _ in range(200):
            found += picker.pick(left, size, steps, True)
            left = [offset for offset in left if offset >= picker.after]
    except HeadraceError as error:
        return found, type(error)
    return found, None


def outcome(call: Any) -> Any:
    """What a kernel answered, or the class of what it raised."""
    try:
        return call()
    except HeadraceError as error:
        return type(error)


def everything(module: ModuleType, batch: bytes | bytearray, max_bytes: int = 1 << 16) -> list[Any]:
    """The outcome of every kernel that reads a batch."""
    count = struct.unpack_from(">i", batch, 57)[0] if len(batch) >= 61 else 0
    keep = bytes(number % 2 for number in range(count)) if 0 <= count < 10_000 else b""
    return [
        outcome(lambda: module.parse(batch, max_bytes)),
        outcome(lambda: module.parse(batch, max_bytes, 1, 2)),
        outcome(lambda: picked(module, batch, max_bytes, range(0, 40, 3), 64, 5)),
        outcome(lambda: module.check(batch, True, max_bytes)),
        outcome(lambda: module.check(batch, False, max_bytes)),
        outcome(lambda: module.keys(batch, max_bytes)),
        outcome(lambda: module.latest(batch, max_bytes)),
        outcome(lambda: module.first_at_or_after(batch, 1000, max_bytes)),
        outcome(lambda: module.empty(batch)),
        outcome(lambda: module.retain(batch, keep, max_bytes, None)) if keep else None,
        outcome(lambda: module.retain(batch, keep, max_bytes, 123_456)) if keep else None,
    ]


@given(record_lists, st.sampled_from(CODECS))
@RELAXED
def test_round_trip(given_records: list[Any], codec: int) -> None:
    batch = installed.build(given_records, compression=codec)
    expected = [(offset, *record) for offset, record in enumerate(given_records)]
    assert installed.parse(batch, MAX) == expected
    assert installed.keys(batch, MAX) == [(o, r[1], r[2] is None) for o, r in enumerate(given_records)]
    installed.check(batch, False, MAX)
    highest = max(record[0] for record in given_records)
    assert installed.latest(batch, MAX) == ([r[0] for r in given_records].index(highest), highest)
    assert HEADER.unpack_from(batch)[7:9] == (given_records[0][0], highest)


@given(record_lists, st.sampled_from(CODECS), st.integers(0, 31), st.integers(-1, 31))
@RELAXED
def test_a_budget_resumes(given_records: list[Any], codec: int, start: int, limit: int) -> None:
    batch = installed.build(given_records, compression=codec)
    whole = installed.parse(batch, MAX)
    assert installed.parse(batch, MAX, start, limit) == whole[start:][: limit if limit >= 0 else None]


@RELAXED
@given(
    given_records=record_lists, codec=st.sampled_from(CODECS), keep=st.integers(0), wanted=st.sets(st.integers(-2, 40)),
    size=st.integers(1, 2_000), steps=st.integers(1, 7),
)  # fmt: skip
def test_a_picker_finds_what_parse_finds(
    given_records: Any, codec: int, keep: int, wanted: set[int], size: int, steps: int
) -> None:
    """However it is asked, of a batch with gaps too."""
    batch = installed.build(given_records, compression=codec)
    kept = installed.retain(batch, bytes(keep >> n & 1 for n in range(len(given_records))), MAX, None)
    if kept is None:
        return
    expected = [record for record in installed.parse(kept, MAX) if record[0] in wanted]
    assert picked(installed, kept, MAX, sorted(wanted), size, steps) == (expected, None)


def test_a_picker_gives_what_stands_before_the_place_where_a_batch_breaks() -> None:
    whole = installed.build([(0, None, b"%d" % number, []) for number in range(4)])
    body = bytearray(whole[61:])
    # The length of the third record's value.
    body[2 * len(body) // 4 + 5] = 0x7E
    broken = with_body(bytes(body), 4)
    found, error = picked(installed, broken, MAX, [0, 1, 2, 3], 1_000, 100)
    assert ([record[3] for record in found], error) == ([b"0", b"1"], InvalidRecords)
    picker = installed.Picker(broken, MAX)
    picker.pick([1, 2], 1_000, 100, True)
    for _ in range(2):
        with pytest.raises(InvalidRecords):
            picker.pick([2], 1_000, 100, True)


def test_a_picker_takes_one_large_record_only_where_it_may_be_alone() -> None:
    batch = installed.build([(0, None, b"x" * 100, []), (0, None, b"y" * 100, [])])
    picker = installed.Picker(batch, MAX)
    assert picker.pick([0, 1], 50, 10, False) == []
    assert [record[0] for record in picker.pick([0, 1], 50, 10, True)] == [0]
    assert [record[0] for record in picker.pick([1], 50, 10, True)] == [1]


@given(record_lists, st.sampled_from(CODECS), st.data())
@RELAXED
def test_both_builds_agree(
    source_records: ModuleType, given_records: list[Any], codec: int, data: st.DataObject
) -> None:
    batch = installed.build(given_records, compression=codec)
    assert source_records.build(given_records, compression=codec) == batch
    assert everything(source_records, batch) == everything(installed, batch)
    # Damage under a right checksum is what an attacker sends.
    damaged = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(16, len(batch) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(61, len(damaged))) :]
    damaged = resealed(damaged)
    assert everything(source_records, damaged) == everything(installed, damaged)


@given(st.binary(max_size=300), st.integers(-2, 60), st.integers(0, 7), st.integers(-2, 60))
@RELAXED
def test_both_builds_agree_on_garbage(
    source_records: ModuleType, body: bytes, count: int, attributes: int, last: int
) -> None:
    batch = with_body(body, count, attributes, last)
    assert everything(source_records, batch) == everything(installed, batch)
    assert everything(source_records, body) == everything(installed, body)


@given(record_lists, st.sampled_from(CODECS))
@RELAXED
def test_the_clients_read_ours(given_records: list[Any], codec: int) -> None:
    given_records = [(max(0, time), *rest) for time, *rest in given_records]
    batch = bytes(installed.build(given_records, compression=codec, producer_id=7, producer_epoch=1, base_sequence=3))
    for client in (DefaultRecordBatch, KafkaPythonBatch)[: 2 if codec in KAFKA_PYTHON_CODECS else 1]:
        reader = client(bytearray(batch))
        assert reader.validate_crc()
        found = [(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in reader]
        assert found == [(offset, *record) for offset, record in enumerate(given_records)]


@given(record_lists, st.sampled_from(CODECS))
@RELAXED
def test_we_read_the_clients(given_records: list[Any], codec: int) -> None:
    given_records = [(max(0, time), *rest) for time, *rest in given_records]
    for client in (DefaultRecordBatchBuilder, KafkaPythonBuilder)[: 2 if codec in KAFKA_PYTHON_CODECS else 1]:
        builder = client(
            magic=2,
            compression_type=codec,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 20,
        )
        for offset, (time, key, value, headers) in enumerate(given_records):
            assert builder.append(offset, time, key, value, headers=headers)
        batch = bytes(builder.build())
        assert installed.parse(batch, MAX) == [(offset, *record) for offset, record in enumerate(given_records)]
        installed.check(batch, False, MAX)


@given(record_lists, st.sampled_from(CODECS), st.data())
@RELAXED
def test_retain(given_records: list[Any], codec: int, data: st.DataObject) -> None:
    keep = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(given_records), max_size=len(given_records))))
    horizon = data.draw(st.none() | st.integers(0, 1 << 45))
    batch = installed.build(given_records, compression=codec, producer_id=9, producer_epoch=2, base_sequence=5)
    batch = resealed(batch, base_offset=1000, leader_epoch=4)
    expected = [record for record, kept in zip(installed.parse(batch, MAX), keep, strict=True) if kept]
    cleaned = installed.retain(batch, keep, MAX, horizon)
    if not expected:
        assert cleaned is None
        return
    assert cleaned is not None
    assert installed.parse(cleaned, MAX) == expected
    before, after = HEADER.unpack_from(batch), HEADER.unpack_from(cleaned)
    assert after[0] == 1000
    assert after[2] == 4
    assert after[6] == before[6], "the last offset delta stays, so that the next batch's offset follows"
    assert after[9:12] == before[9:12]
    assert after[12] == len(expected)
    assert after[8] == max(record[1] for record in expected)
    assert after[7] == (expected[0][1] if horizon is None else horizon)
    assert bool(after[5] & 0x40) == (horizon is not None)
    assert [(r.offset, r.timestamp) for r in DefaultRecordBatch(cleaned)] == [(r[0], r[1]) for r in expected]
    # A horizon that is set stays.
    again = installed.retain(cleaned, bytes([1] * len(expected)), MAX, 5)
    assert again is not None
    assert installed.parse(again, MAX) == expected
    assert HEADER.unpack_from(again)[7] == (5 if horizon is None else horizon)


def test_retain_copies_numbers_that_are_longer_than_they_must_be(records: ModuleType) -> None:
    # The key's length 1 as two bytes: 0x82 0x00 instead of 0x02.
    body = bytes([18, 0, 0, 0, 0x82, 0, ord("k"), 2, ord("v"), 0])
    batch = with_body(body, 1)
    assert records.parse(batch, MAX) == [(0, 0, b"k", b"v", [])]
    cleaned = records.retain(batch, b"\x01", MAX, 3)
    assert records.parse(cleaned, MAX) == [(0, 0, b"k", b"v", [])]


def test_empty_keeps_the_producer(records: ModuleType) -> None:
    batch = installed.build(
        [(5, b"k", b"v", []), (9, b"k", b"w", [])], compression=4, producer_id=3, producer_epoch=1, base_sequence=8
    )
    batch = resealed(batch, base_offset=40)
    header = HEADER.unpack_from(records.empty(batch))
    assert header[0] == 40
    assert header[5] == 0
    assert header[6:] == (1, -1, 9, 3, 1, 8, 0)
    assert records.parse(records.empty(batch), MAX) == []
    assert records.latest(records.empty(batch), MAX) is None


def test_log_append_time_is_everyones_time(records: ModuleType) -> None:
    batch = installed.build([(5, b"k", b"v", []), (6, b"k", b"w", [])])
    batch = resealed(batch, attributes=LOG_APPEND_TIME, max_timestamp=99)
    assert [record[1] for record in records.parse(batch, MAX)] == [99, 99]
    assert records.latest(batch, MAX) == (0, 99)
    assert records.first_at_or_after(batch, 50, MAX) == (0, 99)
    assert records.first_at_or_after(batch, 100, MAX) is None


def test_by_time(records: ModuleType) -> None:
    batch = resealed(installed.build([(t, None, b"", []) for t in (10, 30, 20, 30)]), base_offset=7)
    assert records.first_at_or_after(batch, 0, MAX) == (7, 10)
    assert records.first_at_or_after(batch, 11, MAX) == (8, 30)
    assert records.first_at_or_after(batch, 31, MAX) is None
    assert records.first_at_or_after(batch, 0, MAX, 8) == (8, 30)
    assert records.first_at_or_after(batch, 21, MAX, 9) == (10, 30)
    assert records.first_at_or_after(batch, 0, MAX, 11) is None
    assert records.latest(batch, MAX) == (8, 30)


@pytest.mark.parametrize("kind", [installed.ABORT, installed.COMMIT])
def test_control(records: ModuleType, kind: int) -> None:
    batch = records.control(kind, 12, 77, 3, 1_700_000_000_000)
    reader = DefaultRecordBatch(batch)
    assert reader.is_control_batch
    assert reader.is_transactional
    assert (reader.producer_id, reader.producer_epoch, reader.base_sequence) == (77, 3, -1)
    [record] = list(reader)
    assert record.key == struct.pack(">hh", 0, kind)
    assert record.value == struct.pack(">hi", 0, 12)
    with pytest.raises(ValueError, match="marker"):
        records.control(2, 0, 0, 0, 0)


def test_check(records: ModuleType) -> None:
    batch = installed.build([(1, b"k", b"v", []), (1, None, b"v", [])])
    records.check(batch, False, MAX)
    with pytest.raises(InvalidRecords, match="record 1 of the batch has no key"):
        records.check(batch, True, MAX)
    with pytest.raises(InvalidRecords, match="last offset delta is 5"):
        records.check(resealed(batch, last_offset_delta=5), False, MAX)
    with pytest.raises(InvalidRecords, match="claims 0 records"):
        records.check(with_body(b"", 0), False, MAX)
    twice = with_body(bytes([12, 0, 0, 0, 1, 1, 0]) * 2, 2)
    with pytest.raises(InvalidRecords, match="offset delta 0"):
        records.check(twice, False, MAX)


@RELAXED
@given(st.lists(st.sampled_from(["good", "keyless", "old", "new", "timeless"]), min_size=1, max_size=40), st.data())
def test_check_names_each_bad_record(records: ModuleType, kinds: list[str], data: st.DataObject) -> None:
    time = {"old": 9, "new": 21, "timeless": -1}
    made = [(time.get(kind, 15), None if kind == "keyless" else b"k", b"v", []) for kind in kinds]
    batch = installed.build(made, compression=data.draw(st.sampled_from(CODECS)))
    bad = [index for index, kind in enumerate(kinds) if kind in ("keyless", "old", "new")]
    if data.draw(st.booleans()):
        # As it is left once the broker has taken records out: those that stay have their deltas.
        keep = bytes(data.draw(st.lists(st.booleans(), min_size=len(kinds), max_size=len(kinds))))
        batch = installed.retain(batch, keep, MAX, None) or installed.empty(batch)
        bad = [index for index in bad if keep[index]]
        sparse = True
    else:
        sparse = False
    if not bad:
        assert records.check(batch, True, MAX, 10, 20, sparse) == open_head(batch)[0].max_timestamp
        return
    dated = any(kinds[index] != "keyless" for index in bad)
    with pytest.raises(InvalidTimestamp if dated else InvalidRecords) as refused:
        records.check(batch, True, MAX, 10, 20, sparse)
    assert [index for index, _ in refused.value.records] == bad


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "1 records in 0 bytes"),
        (b"\x0c" + b"\x00" * 5, "1 records in 6 bytes"),
        (b"\x0a" + b"\x00" * 6, "claims 5 bytes"),
        (b"\x7e" + b"\x00" * 6, "claims 63 bytes"),
        (b"\xff\xff\xff\xff\x7f\x00\x00", "more than 32 bits"),
        (b"\x80" * 11, "more than 64 bits"),
        (b"\x80" * 9, "ends inside a number"),
        (bytes([12, 0, 0, 0, 1, 1, 0, 0]), "1 bytes are left behind the 1 records"),
        (bytes([14, 0, 0, 0, 1, 1, 0, 0]), "left behind its headers"),
        (bytes([12, 0, 0, 0, 3, 1, 0]), "a field of -2 bytes"),
        (bytes([12, 0, 0, 0, 8, 1, 0]), "a field of 4 bytes"),
        (bytes([12, 0, 0, 0, 1, 8, 0]), "a field of 4 bytes"),
        (bytes([12, 0, 0, 2, 1, 1, 0]), "offset delta 1"),
        (bytes([12, 0, 0, 1, 1, 1, 0]), "offset delta -1"),
        (bytes([12, 0, 0, 0, 1, 1, 1]), "announces -1 headers"),
        (bytes([12, 0, 0, 0, 1, 1, 4]), "announces 2 headers in 0 bytes"),
        (bytes([16, 0, 0, 0, 1, 1, 2, 1, 1]), "header without a key"),
    ],
)
def test_what_is_wrong_is_said(records: ModuleType, body: bytes, words: str) -> None:
    batch = with_body(body, 1)
    for call in (lambda: records.parse(batch, MAX), lambda: records.check(batch, False, MAX)):
        with pytest.raises(InvalidRecords, match=words):
            call()


def test_the_envelope_is_checked_first(records: ModuleType) -> None:
    batch = installed.build([(1, b"k", b"v", [])])
    with pytest.raises(CorruptBatch, match="do not hold the header"):
        records.parse(batch[:60], MAX)
    with pytest.raises(CorruptBatch, match="are there"):
        records.parse(batch + b"x", MAX)
    with pytest.raises(CorruptBatch, match="checksum"):
        records.parse(batch[:-1] + b"x", MAX)
    with pytest.raises(UnsupportedBatch, match="format 1"):
        records.parse(resealed(batch, magic=1), MAX)
    with pytest.raises(UnsupportedBatch, match="compression 5"):
        records.parse(resealed(batch, attributes=5), MAX)
    for changes in ({"base_offset": -1}, {"last_offset_delta": -1}, {"record_count": -1}, {"record_count": 2}):
        with pytest.raises(InvalidRecords, match="claims"):
            records.parse(resealed(batch, **changes), MAX)
    with pytest.raises(InvalidRecords, match="claims the offsets"):
        records.parse(resealed(batch, base_offset=(1 << 63) - 1, last_offset_delta=1), MAX)


def test_times_beyond_64_bits(records: ModuleType) -> None:
    later = with_body(bytes([12, 0, 2, 0, 1, 1, 0]), 1)
    with pytest.raises(InvalidRecords, match="more than 64 bits"):
        records.parse(resealed(later, base_timestamp=(1 << 63) - 1), MAX)
    earlier = with_body(bytes([12, 0, 1, 0, 1, 1, 0]), 1)
    with pytest.raises(InvalidRecords, match="more than 64 bits"):
        records.parse(resealed(earlier, base_timestamp=-(1 << 63)), MAX)
    largest = resealed(earlier, base_timestamp=(1 << 63) - 1)
    assert records.latest(largest, MAX) == (0, (1 << 63) - 2)
    with pytest.raises(InvalidRecords, match="64 bits apart"):
        records.retain(largest, b"\x01", MAX, -2)
    with pytest.raises(InvalidRecords, match="has the time"):
        records.build([(-2, None, None, [])])
    with pytest.raises(InvalidRecords, match="at least one record"):
        records.build([])


def test_buffers_of_every_kind(records: ModuleType) -> None:
    batch = records.build(
        iter([(1, bytearray(b"k"), memoryview(b"v"), ((b"h", bytearray(b"w")), ("n", None)))]), compression=2
    )
    for form in (batch, bytes(batch), memoryview(batch)):
        assert records.parse(form, MAX) == [(0, 1, b"k", b"v", [("h", b"w"), ("n", None)])]
    with pytest.raises(TypeError):
        records.build([(1, "text", None, [])])
    with pytest.raises(ValueError, match="2 are marked"):
        records.retain(batch, b"\x01\x01", MAX, None)


def test_header_names_that_are_not_utf8_survive(records: ModuleType) -> None:
    batch = records.build([(1, None, b"v", [(b"\xff\xfe", b"1")])])
    [(_, _, _, _, [(name, _)])] = records.parse(batch, MAX)
    assert records.build([(1, None, b"v", [(name, b"1")])]) == batch


def test_a_large_record(records: ModuleType) -> None:
    value = bytes(range(256)) * 40_960
    batch = records.build([(1, b"k", value, [("h", value)])])
    assert records.parse(batch, 1 << 25) == [(0, 1, b"k", value, [("h", value)])]
