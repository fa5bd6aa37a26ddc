from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.longer import examples

from headrace.format import records
from headrace.format.batch import DELETE_HORIZON, TRANSACTIONAL, header_at
from headrace.format.markers import control_type
from headrace.log import compaction, swap
from headrace.log.compaction import Cleaned, CleanPlan
from headrace.log.files import OpenFiles
from headrace.log.interface import TopicSettings
from headrace.log.loading import stable_after
from headrace.log.producers import ProducerStates
from headrace.log.segment import Segment
from headrace.runtime.disk import Buffer, Disk, File, SystemDisk

FOLDER = "t-0"


def put_in_place(disk: Disk, folder: str, cleaned: Cleaned) -> None:
    """All steps of the cleaner, with no reader between them."""
    swap.commit(disk, folder, cleaned.groups)
    swap.install(disk, folder, cleaned.groups)
    swap.settle(disk, folder, cleaned.clean_up_to)


INTERVAL = 200
MAX = 1 << 20
SETTINGS = TopicSettings(
    compact=True,
    segment_bytes=2_000,
    index_interval_bytes=INTERVAL,
    min_cleanable_dirty_ratio=0,
    delete_retention_ms=100,
)
Stored = tuple[int, int, bytes | None, bytes | None]


class Log:
    """A partition, as much of one as compaction needs."""

    def __init__(self, root: str) -> None:
        self.disk: Disk = SystemDisk(root)
        self.disk.mkdir(FOLDER)
        self.files = OpenFiles(self.disk, 8)
        self.segments = [Segment.create(self.disk, self.files, FOLDER, 0, INTERVAL)]
        self.producers = ProducerStates()
        self.sequences: dict[int, int] = {}
        # No power cut takes anything from below this.
        self.settled = 1 << 40
        self.end = 0
        self.now = 1_000

    def append(self, batch: bytearray) -> None:
        batch[0:8] = self.end.to_bytes(8, "big")
        header = header_at(batch)
        active = self.segments[-1]
        active.append([batch], [(header.base_offset, header.last_offset, header.size, header.max_timestamp)])
        if header.is_control:
            committed, coordinator_epoch = control_type(batch)
            ended = self.producers.end_transaction(header, committed, coordinator_epoch)
            if ended and not committed:
                active.add_aborted(*ended, stable_after(self.producers, header))
        elif header.producer_id >= 0:
            self.producers.update(header)
        self.end = header.last_offset + 1

    def write(
        self,
        pairs: Sequence[tuple[bytes | None, bytes | None]],
        *,
        codec: int = 0,
        producer: int = -1,
        txn: bool = False,
    ) -> None:
        self.now += 1
        sequence = self.sequences.get(producer, 0)
        self.append(
            records.build(
                [(self.now + i, key, value, []) for i, (key, value) in enumerate(pairs)],
                compression=codec,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                base_sequence=sequence if producer >= 0 else -1,
                attributes=TRANSACTIONAL if txn else 0,
            )
        )
        if producer >= 0:
            self.sequences[producer] = sequence + len(pairs)

    def finish(self, producer: int, committed: bool) -> None:
        self.now += 1
        self.append(records.control(int(committed), 0, producer, 0, self.now))

    def roll(self) -> None:
        if self.segments[-1].size:
            self.segments.append(Segment.create(self.disk, self.files, FOLDER, self.end, INTERVAL))

    def sync(self) -> None:
        for segment in self.segments:
            segment.sync_job()()

    def plan(self, config: TopicSettings = SETTINGS, cleaned_up_to: int | None = None) -> CleanPlan | None:
        known = swap.read_checkpoint(self.disk, FOLDER) if cleaned_up_to is None else cleaned_up_to
        unstable = self.producers.first_unstable()
        stable = self.end if unstable is None else unstable
        return compaction.plan(self.segments, config, self.now, known, stable, self.producers, MAX, self.settled)

    def reopen(self) -> None:
        self.files.close()
        swap.finish_swaps(self.disk, FOLDER)
        names = [name for name in self.disk.listdir(FOLDER) if name.endswith(".log")]
        self.segments = [
            Segment.open(self.disk, self.files, FOLDER, int(name.removesuffix(".log")), INTERVAL) for name in names
        ]

    def clean(self, plan: CleanPlan) -> Cleaned:
        self.sync()
        cleaned: Cleaned = pickle.loads(
            pickle.dumps(compaction.clean(self.disk, FOLDER, pickle.loads(pickle.dumps(plan))))
        )
        assert cleaned.broken is None
        put_in_place(self.disk, FOLDER, cleaned)
        self.reopen()
        return cleaned

    def batches(self) -> Iterator[bytes]:
        for segment in self.segments:
            for position, _ in segment.headers():
                yield segment.batch_at(position)

    def committed(self, upto: int | None = None) -> list[Stored]:
        """What a reader of committed records gets, as Kafka's consumer finds it out."""
        end = self.end if upto is None else upto
        aborted = {each for segment in self.segments for each in segment.aborted(0, end)}
        ahead = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        aborting: set[int] = set()
        found: list[Stored] = []
        for batch in self.batches():
            header = header_at(batch)
            if header.base_offset >= end:
                break
            while ahead and ahead[-1].first_offset <= header.last_offset:
                aborting.add(ahead.pop().producer_id)
            if header.is_control:
                if header.record_count and not control_type(batch)[0]:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                found += [(offset, time, key, value) for offset, time, key, value, _ in records.parse(batch, MAX)]
        return found


def newest(found: list[Stored]) -> dict[bytes, Stored]:
    return {key: each for each in found if (key := each[2]) is not None}


KEYS = [b"a", b"b", b"c", b"a key of more than sixteen bytes", b"another one of more than sixteen"]
pairs = st.lists(
    st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=300))), min_size=1, max_size=4
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), pairs, st.integers(0, 4)),
        st.tuples(st.just("idempotent"), pairs, st.integers(1, 2)),
        st.tuples(st.just("transaction"), pairs, st.integers(3, 5)),
        st.tuples(st.just("end"), st.booleans(), st.integers(3, 5)),
        st.tuples(st.just("roll"), st.none(), st.none()),
        st.tuples(st.just("compact"), st.integers(1, 200), st.sampled_from([2, 5, 1_000])),
    ),
    min_size=5,
    max_size=50,
)


def check_clean(log: Log, before: list[Stored], plan: CleanPlan, cleaned: Cleaned) -> None:
    after = log.committed()
    # Nothing is invented or changed.
    assert set(after) <= set(before)
    last_before, last_after = newest(before), newest(after)
    for key, each in last_before.items():
        if each[3] is not None:
            assert last_after.get(key) == each
        else:
            assert last_after.get(key) in (each, None)
    # Segments still end where the next begin, which is how recovery tells that nothing is missing.
    for segment, after_it in pairwise(log.segments):
        assert segment.last_offset() + 1 == after_it.base
    # Of what is clean, only the last of a key is left.
    seen: dict[bytes, int] = {}
    for offset, _, key, _ in after:
        if key is not None and offset < cleaned.clean_up_to:
            assert key not in seen, (key, seen[key], offset)
            seen[key] = offset
    assert [key for key in log.producers.newest() if key not in rebuilt(log).newest()] == []
    assert {k: v for k, v in rebuilt(log).newest().items() if k in log.producers.newest()} == log.producers.newest()


def rebuilt(log: Log) -> ProducerStates:
    states = ProducerStates()
    for batch in log.batches():
        header = header_at(batch)
        if header.producer_id < 0:
            continue
        if header.is_control:
            states.end_transaction(header, *control_type(batch))
        else:
            states.update(header)
    return states


@settings(max_examples=examples(150), deadline=None)
@given(steps)
def test_against_a_model(script: list[tuple[str, object, object]]) -> None:
    with TemporaryDirectory() as root:
        log = Log(root)
        for kind, what, how in script:
            match kind:
                case "plain":
                    log.write(what, codec=how)  # type: ignore[arg-type]
                case "idempotent":
                    log.write(what, producer=how, codec=4)  # type: ignore[arg-type]
                case "transaction":
                    log.write(what, producer=how, txn=True)  # type: ignore[arg-type]
                case "end":
                    log.finish(how, what)  # type: ignore[arg-type]
                case "roll":
                    log.roll()
                case "compact":
                    log.now += what  # type: ignore[operator]
                    plan = log.plan()
                    if plan is not None:
                        plan = replace(plan, keys_max=how)
                        before = log.committed()
                        check_clean(log, before, plan, log.clean(plan))
        for producer in (3, 4, 5):
            log.finish(producer, False)
        log.roll()
        before = log.committed()
        for _ in range(60):
            plan = log.plan(cleaned_up_to=None)
            if plan is None:
                break
            cleaned = log.clean(plan)
            check_clean(log, before, plan, cleaned)
        else:
            raise AssertionError("compaction does not come to an end")


def test_values_replaced_and_tombstones_kept_until_their_horizon(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    log.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], codec=3)
    log.roll()
    log.write([(b"a", b"2"), (b"b", None)], codec=1)
    log.roll()
    log.write([(b"d", b"1")])
    log.roll()
    plan = log.plan()
    assert plan is not None
    cleaned = log.clean(plan)
    assert cleaned.removed == [0, 3, 5]
    assert cleaned.added == [0]
    assert cleaned.bytes_after < cleaned.bytes_before
    assert swap.read_checkpoint(log.disk, FOLDER) == cleaned.clean_up_to == 6
    assert [(each[0], each[2]) for each in log.committed()] == [(2, b"c"), (3, b"a"), (4, b"b"), (5, b"d")]
    heads = [header_at(batch) for batch in log.batches()]
    assert [(h.base_offset, h.last_offset, h.record_count) for h in heads] == [(0, 2, 1), (3, 4, 2), (5, 5, 1)]
    assert heads[1].attributes & DELETE_HORIZON
    assert heads[1].base_timestamp == log.now + 100
    assert log.plan() is None
    # Readers cross the gaps.
    assert log.segments[0].locate(0) == 0
    assert header_at(log.segments[0].batch_at(log.segments[0].locate(4))).base_offset == 3
    log.now += 100
    log.write([(b"e", b"1")])
    log.roll()
    plan = log.plan()
    assert plan is not None
    log.clean(plan)
    assert [(each[0], each[2]) for each in log.committed()] == [(2, b"c"), (3, b"a"), (5, b"d"), (6, b"e")]


def test_the_last_batch_of_a_segment_stays_without_its_records(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    log.write([(b"a", b"1")])
    log.write([(b"b", None)])
    log.roll()
    for _ in range(2):
        plan = log.plan(cleaned_up_to=0)
        assert plan is not None
        log.clean(plan)
        log.now += 1_000
    heads = [header_at(batch) for batch in log.batches()]
    assert [(h.base_offset, h.last_offset, h.record_count) for h in heads] == [(0, 0, 1), (1, 1, 0)]
    assert log.segments[0].last_offset() == 1


def test_a_batch_that_counts_once_a_power_cut_has_taken_the_newer_ones_stays(tmp_path: Path) -> None:
    log = Log(str(tmp_path))

    def numbered() -> list[tuple[int, int]]:
        heads = [header_at(batch) for batch in log.batches()]
        return [(head.base_offset, head.record_count) for head in heads if head.producer_id == 1]

    def clean(segments: int) -> None:
        plan = log.plan()
        assert plan is not None
        log.clean(replace(plan, sources=plan.sources[:segments]))

    for value in (b"1", b"2"):
        log.write([(b"a", value)], producer=1)
    log.write([(b"a", b"3"), (b"b", b"1")])
    log.roll()
    for value in (b"2", b"3"):
        log.write([(b"b", value)])
        log.roll()
    log.settled = log.end
    for _ in range(6):
        log.write([(b"c", b"c")], producer=1)
    newer = [(offset, 1) for offset in range(log.settled, log.end)]
    clean(2)
    assert numbered() == [(1, 0), *newer]
    # Also in the part that was compacted before.
    clean(2)
    assert numbered() == [(1, 0), *newer]
    log.roll()
    log.settled = log.end
    clean(2)
    assert numbered() == newer[-1:]


def test_so_does_one_behind_the_keys_that_memory_had_room_for(tmp_path: Path) -> None:
    """It was aborted, and has no records any more: a run drops those wherever they are."""
    log = Log(str(tmp_path))
    log.write([(b"a", b"1")], producer=1)
    log.write([(b"b", b"1")])
    log.write([(b"c", b"1")], producer=1, txn=True)
    log.finish(1, False)
    log.write([(b"d", b"1")])
    log.roll()
    log.settled = log.end
    for _ in range(6):
        log.write([(b"e", b"1")], producer=1)
    plan = log.plan()
    assert plan is not None
    assert log.clean(replace(plan, keys_max=2)).clean_up_to == 2
    numbered = [header_at(batch).base_offset for batch in log.batches() if header_at(batch).producer_id == 1]
    assert numbered == [0, 2, 3, *range(log.settled, log.end)]


def test_aborted_records_go_first_and_their_marker_later(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    log.write([(b"a", b"kept")])
    log.write([(b"a", b"aborted")], producer=3, txn=True)
    log.finish(3, False)
    log.write([(b"b", b"committed")], producer=3, txn=True)
    log.finish(3, True)
    log.write([(b"x", b"x")], producer=3)
    log.roll()
    controls = lambda: sum(header_at(batch).is_control for batch in log.batches())  # noqa: E731
    expected = [(0, b"a"), (3, b"b"), (5, b"x")]
    plan = log.plan()
    assert plan is not None
    for left in (2, 2):
        log.clean(replace(plan, sources=tuple(replace(s, size=log.segments[0].size) for s in plan.sources)))
        assert [(each[0], each[2]) for each in log.committed()] == expected
        assert controls() == left
    log.now += 1_000
    log.write([(b"y", b"y")])
    log.roll()
    plan = log.plan()
    assert plan is not None
    log.clean(plan)
    assert controls() == 1  # the commit still has its batch
    assert [(each[0], each[2]) for each in log.committed()] == [*expected, (6, b"y")]


def test_when_it_is_worth_it(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    assert log.plan() is None
    log.write([(b"a", b"1" * 100)])
    assert log.plan() is None  # the growing segment is left alone
    log.roll()
    half = replace(SETTINGS, min_cleanable_dirty_ratio=0.5)
    plan = log.plan(half)
    assert plan is not None
    assert plan.end == 1
    assert plan.first_dirty == 0
    assert log.plan(half, cleaned_up_to=1) is None
    log.write([(b"a", b"1")])
    log.roll()
    assert log.plan(half, cleaned_up_to=1) is None
    assert log.plan(half, cleaned_up_to=0) is not None
    lagging = replace(half, max_compaction_lag_ms=10)
    log.now += 10
    assert log.plan(lagging, cleaned_up_to=1) is None
    log.now += 1
    late = log.plan(lagging, cleaned_up_to=1)
    assert late is not None
    assert late.first_dirty == 1
    log.write([(b"a", b"1")])
    log.roll()
    fresh = log.plan(replace(SETTINGS, min_compaction_lag_ms=5), cleaned_up_to=0)
    assert fresh is not None
    assert fresh.end == 2
    log.write([(b"t", b"1")], producer=3, txn=True)
    log.roll()
    log.write([(b"t", b"1")])
    log.roll()
    stopped = log.plan(cleaned_up_to=0)
    assert stopped is not None
    assert stopped.end == 3  # an open transaction begins there


@pytest.mark.parametrize("where", ["checksum", "records"])
def test_a_broken_batch_stops_the_run_and_is_left_alone(tmp_path: Path, where: str) -> None:
    log = Log(str(tmp_path))
    log.write([(b"a", b"1")])
    log.roll()
    if where == "records":
        bad = records.build([(1, b"a", b"1", [])])
        bad[57:61] = (7).to_bytes(4, "big")
        from crc32c import crc32c

        bad[17:21] = crc32c(bytes(bad[21:])).to_bytes(4, "big")
        log.append(bad)
    else:
        log.write([(b"a", b"2")])
    log.roll()
    log.sync()
    path = Path(log.disk.root) / FOLDER / f"{1:020d}.log"  # type: ignore[attr-defined]
    contents = bytearray(path.read_bytes())
    if where == "checksum":
        contents[-1] ^= 1
        path.write_bytes(contents)
    plan = log.plan()
    assert plan is not None
    cleaned = compaction.clean(log.disk, FOLDER, plan)
    assert cleaned.broken is not None
    assert cleaned.broken[0] == 1
    assert cleaned.groups == ()
    assert path.read_bytes() == contents
    assert not [name for name in log.disk.listdir(FOLDER) if name.endswith(swap.CLEANED)]


class Cut(Exception):
    """The machine stops here."""


class CuttingDisk:
    """A disk that stops for ever after a number of changes."""

    def __init__(self, disk: Disk, left: int) -> None:
        self._disk = disk
        self.left = left

    def spend(self) -> None:
        if self.left == 0:
            raise Cut
        self.left -= 1

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if create:
            self.spend()
        return CuttingFile(self, self._disk.open(path, write=write, create=create))  # type: ignore[return-value]

    def rename(self, old: str, new: str) -> None:
        self.spend()
        self._disk.rename(old, new)

    def remove(self, path: str) -> None:
        self.spend()
        self._disk.remove(path)

    def sync_dir(self, path: str) -> None:
        self.spend()

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)


class CuttingFile:
    def __init__(self, disk: CuttingDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._disk.spend()
        self._file.write(position, buffers)

    def sync(self) -> None:
        self._disk.spend()

    def truncate(self, size: int) -> None:
        self._disk.spend()
        self._file.truncate(size)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def busy(root: str) -> Log:
    log = Log(root)
    for i in range(12):
        log.write([(KEYS[i % 5], b"%d" % i * 200), (b"k%d" % i, b"x" * 300)], producer=1, codec=i % 5)
        log.write([(b"a", b"aborted")], producer=3, txn=True)
        log.finish(3, False)
        if i % 2:
            log.roll()
    log.roll()
    log.sync()
    return log


def test_a_crash_at_any_disk_operation_is_harmless(tmp_path: Path) -> None:
    decided = 0
    for cut in range(10_000):
        root = str(tmp_path / str(cut))
        log = busy(root)
        before = log.committed()
        sizes = sum(segment.size for segment in log.segments)
        plan = log.plan()
        assert plan is not None
        real = log.disk
        disk = CuttingDisk(real, cut)
        done = False
        try:
            cleaned = compaction.clean(disk, FOLDER, plan)  # type: ignore[arg-type]
            assert len(cleaned.groups) > 1
            put_in_place(disk, FOLDER, cleaned)  # type: ignore[arg-type]
            done = True
        except Cut:
            pass
        # The start after it may be cut short as well, a little later each time.
        for again in range(100):
            try:
                swap.finish_swaps(CuttingDisk(real, again), FOLDER)  # type: ignore[arg-type]
                break
            except Cut:
                continue
        log.reopen()
        after = log.committed()
        names = real.listdir(FOLDER)
        assert not [
            name for name in names if name.endswith((swap.CLEANED, swap.DELETED, ".tmp")) or name == swap.LIST_NAME
        ]
        assert newest(after) == newest(before)
        if sum(segment.size for segment in log.segments) == sizes:
            assert after == before
            assert not decided
        else:
            decided += 1
            assert len(after) < len(before)
            # All of the new: a second run would find nothing to do away with.
            assert len(log.segments) == len(cleaned.groups) + 1
            assert len(newest(after)) == len(after)
        for segment in log.segments:
            segment.load()
        if done:
            break
    assert decided > 10
