"""The search index of one segment: what it knows, what it does not, and that damage never makes it wrong."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.format import records
from headrace.format.batch import HEADER, header_at
from headrace.format.terms import digest
from headrace.log import search_index
from headrace.log.files import OpenFiles
from headrace.log.local import Question
from headrace.log.search_index import Answer, BuildJob, DamagedIndex, build, cut, look_up, reached
from headrace.log.segment import Segment
from headrace.runtime.disk import SystemDisk

TOPIC = bytes(15) + b"t"
BASE = 100
FIELDS = ("key", "tags")
MAX = 1 << 20
RELAXED = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Batch(NamedTuple):
    """A batch as the model knows it."""

    first: int
    last: int
    times: tuple[int, ...]
    keys: frozenset[bytes]


class Built:
    """A segment on a disk, and its batches."""

    def __init__(self, root: Path, keys: list[list[int]]) -> None:
        self.disk = SystemDisk(str(root))
        self.disk.mkdir("t-0")
        self.batches: list[Batch] = []
        self.path = root / "t-0" / f"{BASE:020d}.search"
        offset = BASE
        with closing(OpenFiles(self.disk, 4)) as files:
            segment = Segment.create(self.disk, files, "t-0", BASE, 100)
            for number, each in enumerate(keys):
                times = tuple(1_000 + number + index for index in range(len(each)))
                rows = [(time, b"k%d" % key, b"", []) for time, key in zip(times, each, strict=True)]
                whole = records.build(rows)
                # Compaction leaves gaps.
                offset += number % 3
                whole[:8] = offset.to_bytes(8, "big")
                header = header_at(whole)
                segment.append([whole], [(offset, header.last_offset, header.size, header.max_timestamp)])
                self.batches.append(Batch(offset, header.last_offset, times, frozenset(row[1] for row in rows)))
                offset = header.last_offset + 1
            segment.sync_job()()
            self.size, self.end = segment.size, offset

    def build(
        self, upto: int = -1, *, is_sealed: bool = True, fields: tuple[str, ...] = FIELDS, size: int = 300
    ) -> int:
        end = self.size if upto < 0 else upto
        (found,) = build(self.disk, [BuildJob("t-0", BASE, end, is_sealed, TOPIC, fields, size, MAX)])
        return found

    def look(self, key: bytes, offset: int, limit: int = 1_000, *, backwards: bool = False) -> Answer | int:
        question = Question((("id", 5), ("key", digest("key", key))), 0, 1 << 40, limit)
        return look_up(self.disk, "t-0", BASE, TOPIC, question, offset, backwards=backwards)

    def expected(self, key: bytes, first: int, after: int) -> list[int]:
        """The batches that reach into a range and have a key."""
        return [each.first for each in self.batches if each.last >= first and each.first < after and key in each.keys]


segments = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=40)


@RELAXED
@given(keys=segments, offset=st.integers(0, 120), limit=st.integers(1, 6), size=st.integers(1, 3_000))
def test_both_ways_lead_to_all_batches_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, keys: list[list[int]], offset: int, limit: int, size: int
) -> None:
    built = Built(tmp_path_factory.mktemp("x"), keys)
    assert built.build(size=size) == built.size
    for number in range(11):
        key = b"k%d" % number
        at, found = min(BASE + offset, built.end - 1), set()
        first = at
        while at < built.end:
            answer = built.look(key, at, limit)
            assert isinstance(answer, Answer)
            assert answer.first == at < answer.after <= built.end
            assert len(answer.batches) <= limit
            assert answer.batches == built.expected(key, at, answer.after)
            found |= set(answer.batches)
            at = answer.after
        assert found == set(built.expected(key, first, built.end))
        at, found = built.end, set()
        while at > BASE:
            answer = built.look(key, at, limit, backwards=True)
            assert isinstance(answer, Answer)
            assert BASE <= answer.first < at == answer.after
            assert len(answer.batches) <= limit
            assert answer.batches == [each for each in built.expected(key, answer.first, at) if each >= answer.first]
            found |= set(answer.batches)
            at = answer.first
        assert found == set(built.expected(key, BASE, built.end))


@RELAXED
@given(keys=segments, data=st.data())
def test_damage_is_noticed_where_it_would_make_an_answer_wrong(
    tmp_path_factory: pytest.TempPathFactory, keys: list[list[int]], data: st.DataObject
) -> None:
    built = Built(tmp_path_factory.mktemp("x"), keys)
    built.build()
    sound = built.path.read_bytes()
    damaged = bytearray(sound)
    match data.draw(st.sampled_from(["bits", "zeros", "cut"])):
        case "bits":
            damaged[data.draw(st.integers(0, len(sound) - 1))] ^= data.draw(st.integers(1, 255))
        case "zeros":
            at = data.draw(st.integers(0, len(sound) - 1))
            damaged[at : at + 64] = bytes(len(damaged[at : at + 64]))
        case "cut":
            del damaged[data.draw(st.integers(0, len(sound) - 1)) :]
    built.path.write_bytes(damaged)
    for number in range(11):
        key = b"k%d" % number
        for at, backwards in ((BASE, False), (built.end, True)):
            try:
                answer = built.look(key, at, backwards=backwards)
            except DamagedIndex:
                continue
            if isinstance(answer, Answer):
                expected = built.expected(key, answer.first, answer.after)
                assert answer.batches == [each for each in expected if not backwards or each >= answer.first]
            else:
                assert BASE <= answer <= built.end
    assert built.build() == built.size, "it is made whole again from the first block that cannot be read"


def many(count: int = 3_000) -> list[list[int]]:
    return [[number * 2, number * 2 + 1] for number in range(count)]


def test_it_grows_with_its_segment_and_is_believed_as_far_as_it_goes(tmp_path: Path) -> None:
    built = Built(tmp_path, many(100))
    assert built.look(b"k1", BASE) == BASE
    assert reached(built.disk, "t-0", BASE, TOPIC, FIELDS) == 0
    half = built.build(built.size // 2, is_sealed=False, size=1_000)
    assert 0 < half <= built.size // 2
    assert reached(built.disk, "t-0", BASE, TOPIC, FIELDS) == half
    answer = built.look(b"k1", BASE)
    assert isinstance(answer, Answer)
    assert built.look(b"k1", answer.after) == answer.after
    assert built.look(b"k1", built.end, backwards=True) == answer.after
    before = built.path.read_bytes()
    assert built.build(size=1_000) == built.size
    assert built.path.read_bytes().startswith(before), "what was there stays"
    assert built.look(b"k190", BASE) == Answer(BASE, built.end, built.expected(b"k190", BASE, built.end))


def test_one_of_other_fields_or_of_another_topic(tmp_path: Path) -> None:
    built = Built(tmp_path, many(50))
    built.build(fields=("tags",))
    assert built.look(b"k1", BASE) == BASE
    assert reached(built.disk, "t-0", BASE, TOPIC, ("key",)) == 0
    built.build(fields=("key",))
    assert isinstance(built.look(b"k1", BASE), Answer)
    assert reached(built.disk, "t-0", BASE, TOPIC, ("key",)) == built.size
    assert reached(built.disk, "t-0", BASE, bytes(16), ("key",)) == 0
    question = Question((("key", 1),), 0, 1 << 40, 5)
    with pytest.raises(DamagedIndex):
        look_up(built.disk, "t-0", BASE, bytes(16), question, BASE, backwards=False)


def test_what_was_cut_takes_its_blocks_along(tmp_path: Path) -> None:
    built = Built(tmp_path, many(100))
    built.build(size=1_000)
    whole = built.path.stat().st_size
    cut(built.disk, "t-0", BASE, built.size)
    assert built.path.stat().st_size == whole
    cut(built.disk, "t-0", BASE, built.size - 1)
    least = reached(built.disk, "t-0", BASE, TOPIC, FIELDS)
    assert built.size - 1_200 < least < built.size
    cut(built.disk, "t-0", BASE, 0)
    assert (reached(built.disk, "t-0", BASE, TOPIC, FIELDS), built.look(b"k1", BASE)) == (0, BASE)
    (tmp_path / "t-0" / f"{BASE:020d}.search").unlink()
    cut(built.disk, "t-0", BASE, 0)


@pytest.mark.parametrize("how", ["truncated", "recovered"])
def test_a_segment_that_goes_back_takes_its_blocks_along(tmp_path: Path, how: str) -> None:
    built = Built(tmp_path, many(100))
    built.build(size=1_000)
    half = built.batches[50]
    with closing(OpenFiles(built.disk, 4)) as files:
        segment = Segment.open(built.disk, files, "t-0", BASE, 100)
        segment.load()
        position = segment.locate(half.first)
        assert reached(built.disk, "t-0", BASE, TOPIC, FIELDS) > position > 0
        if how == "truncated":
            segment.truncate_to(position)
        else:
            # Nothing is lost, but what the index says of it is from a life that may have had other batches there.
            assert segment.recover(position, lambda header: None) == 0
    assert reached(built.disk, "t-0", BASE, TOPIC, FIELDS) <= position


def test_a_segment_that_is_another_by_now(tmp_path: Path) -> None:
    built = Built(tmp_path / "a", many(60))
    other = Built(tmp_path / "b", [[number * 2 + 1, number * 2] for number in range(60)])
    built.build()
    other.path.write_bytes(built.path.read_bytes())
    with pytest.raises(DamagedIndex, match="does not end with the batch"):
        other.look(b"k1", BASE)


def test_terms_by_the_hundred_thousand(tmp_path: Path) -> None:
    """More pages than one, digests on the edges of pages, blocks that end by their entries."""
    built = Built(tmp_path, many())
    assert built.build(size=1 << 30) == built.size
    (block,) = contents(built).blocks
    assert block.entries == 6_000
    for number in range(0, 6_000, 7):
        answer = built.look(b"k%d" % number, BASE)
        assert isinstance(answer, Answer)
        assert set(answer.batches) >= set(built.expected(b"k%d" % number, BASE, built.end))
        assert len(answer.batches) <= 2


def test_one_term_of_every_batch(tmp_path: Path) -> None:
    """Its entries fill pages."""
    built = Built(tmp_path, [[1, number] for number in range(2, 2_002)])
    built.build(size=1 << 30)
    at, count = BASE, 0
    while at < built.end:
        answer = built.look(b"k1", at, 300)
        assert isinstance(answer, Answer)
        count, at = count + len(answer.batches), answer.after
    assert count == 2_000


def test_times_pass_blocks_over(tmp_path: Path) -> None:
    built = Built(tmp_path, many(200))
    built.build(size=1_000)
    blocks = contents(built).blocks
    assert len(blocks) > 5
    question = Question((("key", digest("key", b"k0")),), blocks[0].newest + 1, 1 << 40, 5)
    assert look_up(built.disk, "t-0", BASE, TOPIC, question, BASE, backwards=False) == Answer(BASE, built.end, [])
    question = Question((("key", digest("key", b"k0")),), blocks[0].newest, 1 << 40, 5)
    assert look_up(built.disk, "t-0", BASE, TOPIC, question, BASE, backwards=False) == Answer(BASE, built.end, [BASE])


def test_a_batch_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    built = Built(tmp_path, [[1], [2], [3]])
    log = tmp_path / "t-0" / f"{BASE:020d}.log"
    whole = bytearray(log.read_bytes())
    second = header_at(whole).size
    whole[second + HEADER.size + 3] ^= 0xFF
    log.write_bytes(whole)
    assert built.build() == built.size
    assert built.look(b"k2", BASE) == Answer(BASE, built.end, [])
    assert built.look(b"k3", BASE) == Answer(BASE, built.end, built.expected(b"k3", BASE, built.end))


def contents(built: Built) -> search_index.Contents:
    with closing(built.disk.open(f"t-0/{BASE:020d}.search")) as file:
        found = search_index.read_contents(file, TOPIC)
    assert found is not None
    return found
