"""Terms of records: what is collected and what is matched, against a plain model, compiled and interpreted."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted_together
from tests.kernels.test_records import resealed

import headrace.format.records as installed_records
import headrace.format.terms as installed
from headrace.errors import InvalidRecords

MAX = 1 << 24
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
FIELDS = ("key", "id", "tags", "header:x", "header:KEYS")
NAMES = {"id": "UNIQ_KEY", "tags": "TAGS", "header:x": "x", "header:KEYS": "KEYS"}

words = st.sampled_from([b"a", b"b", b"ab", b"", b"a b", b" a", b"b  a ", b"\xff"])
headers = st.lists(st.tuples(st.sampled_from(["KEYS", "UNIQ_KEY", "TAGS", "x", "y"]), st.none() | words), max_size=4)
record_lists = st.lists(
    st.tuples(st.integers(0, 50), st.none() | words, st.none() | st.just(b"v"), headers), min_size=1, max_size=12
)
terms_lists = st.lists(st.tuples(st.sampled_from(FIELDS), words.filter(bool)), min_size=1, max_size=3)


@pytest.fixture(scope="module", params=["installed", "interpreted"])
def terms(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "installed":
        return installed
    return interpreted_together("format.records", "format.terms")["format.terms"]


def terms_of(record: tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]) -> set[tuple[str, bytes]]:
    """All terms of a record, the plain way."""
    _, key, _, headers = record
    found = {("key", key)} if key else set()
    for name, value in headers:
        for field, header in NAMES.items():
            if name == header and value:
                found.add((field, value))
        if name == "KEYS" and value:
            found |= {("key", word) for word in value.split(b" ") if word}
    return found


@RELAXED
@given(records=record_lists, fields=st.sets(st.sampled_from(FIELDS)), codec=st.integers(0, 4))
def test_every_term_is_collected_and_no_other(terms: ModuleType, records: list, fields: set[str], codec: int) -> None:
    batch = bytes(installed_records.build(records, compression=codec))
    collector = terms.Collector(sorted(fields))
    for position in (7, 1 << 30):
        collector.add(batch, MAX, position)
    assert (collector.oldest, collector.newest) == (min(r[0] for r in records), max(r[0] for r in records))
    wanted = {term for record in records for term in terms_of(record) if term[0] in fields}
    digests = {terms.digest(*term) for term in wanted}
    assert collector.take() == sorted((digest << 32) | at for digest in digests for at in (7, 1 << 30))
    assert (collector.count, collector.take()) == (0, [])


@RELAXED
@given(
    records=record_lists,
    wanted=terms_lists,
    codec=st.integers(0, 4),
    times=st.tuples(st.integers(0, 50), st.integers(0, 50)),
    offsets=st.tuples(st.integers(0, 14), st.integers(0, 14)),
    limit=st.integers(1, 5),
)
def test_what_matches(
    terms: ModuleType, records: list, wanted: list, codec: int, times: tuple, offsets: tuple, limit: int
) -> None:
    batch = bytes(installed_records.build(records, compression=codec))
    found = terms.Matcher(wanted, *times).match(batch, MAX, *offsets, limit)
    expected = [
        each
        for each, record in zip(installed_records.parse(batch, MAX), records, strict=True)
        if set(wanted) <= terms_of(record) and times[0] <= record[0] <= times[1] and offsets[0] <= each[0] < offsets[1]
    ]
    assert found == expected[:limit]
    if expected and codec == 0 and limit:
        needle = max((value for _, value in wanted), key=len)
        assert terms.suspects(batch * 2, needle, times[0]) == ([0, len(batch)], len(records))


@RELAXED
@given(
    batches=st.lists(st.tuples(record_lists, st.booleans()), max_size=6),
    needle=words.filter(bool),
    cut=st.integers(0, 60),
)
def test_no_batch_with_the_bytes_is_passed_over(terms: ModuleType, batches: list, needle: bytes, cut: int) -> None:
    chunk, expected, after = b"", [], -1
    for records, packed in batches:
        batch = bytes(installed_records.build(records, compression=3 * packed))
        if max(record[0] for record in records) >= 20 and (packed or needle in batch):
            expected.append(len(chunk))
        chunk += batch
        after = len(records)
    assert terms.suspects(chunk + chunk[:cut], needle, 20) == (expected, after)


def test_the_two_builds_agree_on_digests(terms: ModuleType) -> None:
    """They are on disks."""
    assert terms.digest("key", b"abc") == 161239624
    assert terms.digest("header:\udcff", b"") == installed.digest("header:\udcff", b"")


def test_a_batch_that_breaks_leaves_nothing(terms: ModuleType) -> None:
    good = bytes(installed_records.build([(5, b"a", None, []), (6, b"b", None, [])]))
    collector = terms.Collector(["key"])
    with pytest.raises(InvalidRecords):
        collector.add(bytes(resealed(good[:-1] + b"\x09")), MAX, 0)
    assert (collector.count, collector.oldest > collector.newest) == (0, True)


def test_a_batch_with_too_many_terms_is_looked_at_in_any_case(terms: ModuleType) -> None:
    text = b" ".join(b"%d" % number for number in range(terms.BATCH_TERMS_MAX + 1))
    collector = terms.Collector(["key"])
    collector.add(bytes(installed_records.build([(5, b"a", None, [])])), MAX, 1)
    collector.add(bytes(installed_records.build([(6, None, None, [("KEYS", text)])])), MAX, 2)
    collector.add(bytes(installed_records.build([(7, b"b", None, [])])), MAX, 3)
    assert (collector.crowded, collector.oldest < 0, collector.newest > 1 << 60) == (1, True, True)
    assert collector.take() == sorted(
        [(terms.digest("key", b"a") << 32) | 1, (terms.ANY << 32) | 2, (terms.digest("key", b"b") << 32) | 3]
    )
    exact = text.rpartition(b" ")[0]
    collector.add(bytes(installed_records.build([(6, None, None, [("KEYS", exact)])])), MAX, 2)
    assert (collector.crowded, collector.count) == (0, terms.BATCH_TERMS_MAX)
