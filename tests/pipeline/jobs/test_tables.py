"""The table sink, batch by batch as Spark runs it, and its tables read by the packages that others read them with."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from tests.pipeline.topics import Topics

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("pyspark")

import pyarrow.dataset as ds  # noqa: E402 -- the packages above may be missing
from tests.pipeline.micro_batches import Query, commit_before  # noqa: E402

import headrace  # noqa: E402
from headrace.pipeline import delta, iceberg, manifest, parquet, tables  # noqa: E402
from headrace.pipeline.arrow_schema import FIELDS, HEADERS  # noqa: E402
from headrace.pipeline.jobs.archive import check, sink_options  # noqa: E402
from headrace.pipeline.manifest import ArchiveInUse, newest, take_lock  # noqa: E402
from headrace.pipeline.options import parse  # noqa: E402
from headrace.pipeline.origin import Range  # noqa: E402
from headrace.pipeline.parquet import Layout  # noqa: E402
from headrace.pipeline.range_reader import read_range  # noqa: E402
from headrace.pipeline.table_sink import TableWriter  # noqa: E402
from headrace.pipeline.tables import TableInvalid, table_of  # noqa: E402
from headrace.pipeline.target import Target  # noqa: E402

KINDS = ("parquet", "delta", "iceberg")
HOUR = 3_600_000
NOON = 1_704_110_400_000  # 2024-01-01 12:00 UTC


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as running:
        yield Topics(running.kafka)


def query(topics: Topics, root: Path, topic: str, kind: str = "parquet", **sink: str) -> Query:
    source = {"kafka.bootstrap.servers": topics.address, "subscribe": topic, "kafka.group.id": f"archive-{topic}"}
    source |= {
        name: sink.pop(name) for name in ("failOnDataLoss", "maxOffsetsPerTrigger", "bytesPerPartition") if name in sink
    }
    return Query(source, root, kind, checkpoint=root / "_headrace" / "checkpoint", **sink)


def rows(kind: str, root: Path) -> list[dict[str, Any]]:
    """What a reader of such tables finds, who knows nothing of Headrace: of a folder, one that lists it."""
    if kind == "parquet":
        table = ds.dataset(root, format="parquet", partitioning="hive").to_table()
    elif kind == "delta":
        table = deltalake.DeltaTable(str(root)).to_pyarrow_table()
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("headrace", uri=f"sqlite:///{root}/_headrace/catalog.db")
        table = catalog.load_table("headrace.archive").scan().to_arrow()
    if not table.num_rows:
        return []
    return sorted(table.to_pylist(), key=lambda row: (row["topic"], row["partition"], row["offset"]))


def values(kind: str, root: Path) -> list[int]:
    return [int(row["value"]) for row in rows(kind, root)]


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_filed_by_topic_date_and_hour(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic, root = topics.create(2), tmp_path / "out"
    topics.fill(topic, [b"0", b"1"], key=b"k", headers=[("h", b"x")], timestamp=NOON)
    topics.fill(topic, [b"2"], timestamp=NOON + HOUR)
    topics.fill(topic, [b"3"], partition=1, timestamp=NOON - 13 * HOUR)
    assert query(topics, root, topic, kind).run() == 1
    if kind == "parquet":
        places = sorted(str(path.relative_to(root)) for path in root.rglob("*.parquet"))
        assert places == [
            f"topic={topic}/date=2023-12-31/hour=23/0000000001-00000.parquet",
            f"topic={topic}/date=2024-01-01/hour=12/0000000001-00001.parquet",
            f"topic={topic}/date=2024-01-01/hour=13/0000000001-00002.parquet",
        ]
    # Another run takes what is new, and the group says how far it is.
    topics.fill(topic, [b"4"], timestamp=NOON)
    assert query(topics, root, topic, kind).run() == 1
    assert query(topics, root, topic, kind).run() == 0
    assert values(kind, root) == [0, 1, 2, 4, 3]
    assert topics.committed(f"archive-{topic}") == {(topic, 0): 4, (topic, 1): 1}
    state = query(topics, root, topic, kind).state()
    assert (state.batch, state.commits, state.rows, state.files) == (1, 2, 5, 4)
    assert state.offsets == {(topic, 0): (0, 4), (topic, 1): (0, 1)}
    first = rows(kind, root)[0]
    assert (first["topic"], first["key"], first["headers"]) == (topic, b"k", [{"key": "h", "value": b"x"}])
    if kind == "parquet":
        assert (first["date"], first["hour"]) == ("2024-01-01", 12)
    elif kind == "delta":
        table = deltalake.DeltaTable(str(root))
        assert table.metadata().partition_columns == ["topic", "date", "hour"]
        assert (str(first["date"]), first["hour"]) == ("2024-01-01", 12)
        assert len(table.file_uris(file_pruning_predicate="date = '2023-12-31' AND hour = 23")) == 1
        said = table.history()[0]
        assert json.loads(said["headrace.offsets"]) == {topic: {"0": [0, 4], "1": [0, 1]}}
        # As Spark's own Delta sink has it.
        assert table.transaction_version(said["headrace.query"]) == 1
        stated = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        assert sorted((each["min.offset"], each["max.offset"]) for each in stated) == [(0, 0), (0, 1), (2, 2), (3, 3)]
    else:
        loaded = iceberg.IcebergTarget(Target(str(root))).load()
        plan = list(loaded.scan(row_filter="timestamp < '2024-01-01T00:00:00+00:00'").plan_files())
        assert [task.file.record_count for task in plan] == [1]
    other = next(each for each in KINDS if each != kind)
    with pytest.raises(TableInvalid, match=f"as {kind}, not {other}"):
        check(sink_options(root, other), None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_with_a_time_that_no_date_has_does_not_stop_a_table(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic, root = topics.create(message_timestamp_after_max_ms=str((1 << 63) - 1)), tmp_path / "out"
    for number, time in enumerate((NOON, NOON * 1_000, NOON * 1_001, 1)):
        topics.fill(topic, [b"%d" % number], timestamp=time)
    assert query(topics, root, topic, kind).run() == 1
    assert query(topics, root, topic, kind).run() == 0
    if kind == "iceberg":
        assert [row["timestamp"].year for row in rows(kind, root)] == [2024, 9999, 9999, 1970]
        return
    names = ["value", "date", "hour", "timestamp"]
    files = table_of(kind, Target(str(root))).files(topic)
    found = ds.dataset(files, format="parquet", partitioning="hive", partition_base_dir=str(root))
    whole = found.to_table(columns=names).sort_by("value")
    assert whole.column("timestamp").cast(pa.int64()).to_pylist() == [
        NOON * 1_000, NOON * 1_000_000, NOON * 1_001_000, 1_000,
    ]  # fmt: skip
    assert list(zip(*(whole.column(name).to_pylist() for name in names[1:3]), strict=True)) == [
        ("2024-01-01", 12), ("9999-12-31", 23), ("9999-12-31", 23), ("1970-01-01", 0),
    ]  # fmt: skip


def test_files_are_rolled_by_size_and_batches_are_bounded(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, (b"%d " % number + os.urandom(900) for number in range(2_000)), timestamp=NOON)
    monkeypatch.setattr(parquet, "GATHERED_BYTES", 20_000)
    job = query(topics, root, topic, fileSize="50000", bytesPerPartition="50000", maxOffsetsPerTrigger="700")
    assert job.run() == 3
    sizes = [path.stat().st_size for path in root.rglob("*.parquet")]
    state = job.state()
    assert (len(sizes), sum(sizes)) == (state.files, state.bytes)
    assert sorted(sizes)[len(sizes) // 2] > 20_000
    assert max(sizes) < 200_000
    found = [int(row["value"].split()[0]) for row in rows("parquet", root)]
    assert found == list(range(2_000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["topic", "topic,date", ""])
def test_tables_may_be_partitioned_otherwise(topics: Topics, tmp_path: Path, kind: str, by: str) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, [b"0"], timestamp=NOON)
    topics.fill(topic, [b"1"], timestamp=NOON + HOUR)
    topics.fill(topic, [b"2"], timestamp=NOON + 24 * HOUR)
    job = query(topics, root, topic, kind, partitionBy=by)
    job.run()
    assert job.state().files == (2 if "date" in by else 1)
    if kind == "parquet" and not by:
        found = ds.dataset(root / "0000000001-00000.parquet").to_table().to_pylist()
        assert [row["topic"] for row in found] == [topic] * 3
    else:
        assert values(kind, root) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_that_is_partitioned_otherwise_is_refused(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, [b"0"], timestamp=NOON)
    query(topics, root, topic, kind).run()
    for by in ("topic", "topic,date", ""):
        with pytest.raises(TableInvalid, match=r"is partitioned by .*topic.*, not by .*Give partitionBy as the table"):
            query(topics, root, topic, kind, partitionBy=by).writer().prepare()
    query(topics, root, topic, kind).writer().prepare()


def test_an_iceberg_table_that_lies_elsewhere_is_refused(topics: Topics, tmp_path: Path) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, [b"0"], timestamp=NOON)
    query(topics, root, topic, "iceberg").run()
    shutil.copytree(root, tmp_path / "moved")
    with pytest.raises(TableInvalid, match=r"the catalogue has headrace\.archive at file://.*/out, not at"):
        query(topics, tmp_path / "moved", topic, "iceberg").writer().prepare()


@pytest.mark.parametrize("kind", KINDS)
def test_the_source_reads_it(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic, root = topics.create(2), tmp_path / "out"
    for hour in range(3):
        topics.fill(topic, [b"%d" % hour] * 10, timestamp=NOON + hour * HOUR, headers=[("h", None)])
    query(topics, root, topic, kind).run()
    given = parse({"path": str(root), "subscribe": topic, "includeHeaders": "true"}, streaming=False)
    blocks = list(read_range(given, Range(topic, 0, 5, 25)))
    assert {block.schema for block in blocks} == {blocks[0].schema}
    assert list(blocks[0].schema) == [*FIELDS, HEADERS]
    assert sorted(row["offset"] for block in blocks for row in block.to_pylist()) == list(range(5, 25))
    if kind == "delta":
        # Who compacts the table takes nothing away, though the query's own files are no longer in it.
        table = deltalake.DeltaTable(str(root))
        topics.fill(topic, [b"more"], timestamp=NOON)
        query(topics, root, topic, kind).run()
        table.update_incremental()
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        topics.fill(topic, [b"more"], timestamp=NOON)
        query(topics, root, topic, kind).run()
        blocks = list(read_range(given, Range(topic, 0, 0, 32)))
        assert sorted(row["offset"] for block in blocks for row in block.to_pylist()) == list(range(32))


class Killed(BaseException):
    """The process is gone from here on."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the process die at its `step`th change of the file system or the table, before or after it."""
    steps, mine = 0, get_ident()

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            raise Killed

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            # The broker is in this process, too, and is not to die.
            if get_ident() != mine:
                return real(*arguments, **named)
            count()
            found = real(*arguments, **named)
            count()
            return found

        return call

    for name in ("link", "rename", "replace", "fsync"):
        monkeypatch.setattr(os, name, dying(getattr(os, name)))
    monkeypatch.setattr(manifest.shutil, "rmtree", dying(shutil.rmtree))
    for table in (delta.DeltaTarget, iceberg.IcebergTarget):
        monkeypatch.setattr(table, "add", dying(table.add))
        monkeypatch.setattr(table, "discard", dying(table.discard))


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_dies_anywhere_neither_loses_nor_repeats(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic = topics.create()
    topics.fill(topic, (b"%d" % number for number in range(20)), timestamp=NOON)
    topics.fill(topic, (b"%d" % number for number in range(20, 40)), timestamp=NOON + HOUR)
    # Every other: behind one change is before the next.
    step, died, again = -1, True, 0
    while died:
        step += 2
        root = tmp_path / f"{step}"
        # The table is there: that it can be made is not what is asked.
        query(topics, root, topic, kind).writer().prepare()
        with pytest.MonkeyPatch.context() as patching:
            crash_at(patching, step)
            try:
                query(topics, root, topic, kind, maxOffsetsPerTrigger="20").run()
                died = False
            except Killed:
                pass
        # No reader ever sees a record twice, nor a batch in part unless it lists a folder.
        seen = values(kind, root) if kind != "parquet" or any(root.glob("topic=*/**/*.parquet")) else []
        assert len(seen) == len(set(seen))
        assert kind == "parquet" or seen in ([], list(range(20)), list(range(40)))
        job = query(topics, root, topic, kind, maxOffsetsPerTrigger="20")
        before = job.state().commits
        job.run()
        # A batch that the table had, and Spark did not know of, was run again.
        again += bool(before and job.tasks and job.state().commits - before < len(job.tasks) // 2)
        assert values(kind, root) == list(range(40))
        assert job.state().offsets == {(topic, 0): (0, 40)}
        assert job.state().rows == 40
        if kind == "parquet":
            assert not any((root / "_headrace" / "staging").iterdir())
        assert topics.committed(f"archive-{topic}") == {(topic, 0): 40}
    assert step > 20
    assert again >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_checkpoint_goes_on_behind_the_table_or_is_refused(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, [b"0", b"1"], timestamp=NOON)
    query(topics, root, topic, kind).run()
    shutil.rmtree(root / "_headrace" / "checkpoint")
    topics.fill(topic, [b"2"], timestamp=NOON)
    # From the beginning again, records would be there twice.
    with pytest.raises(TableInvalid, match=f"has the records of {topic}-0 up to offset 2, and the batch begins at 0"):
        query(topics, root, topic, kind).run()
    assert values(kind, root) == [0, 1]
    shutil.rmtree(root / "_headrace" / "checkpoint")
    given = {"kafka.bootstrap.servers": topics.address, "subscribe": topic}
    given["startingOffsets"] = json.dumps({topic: {"0": 2}})
    Query(given, root, kind, checkpoint=root / "_headrace" / "checkpoint").run()
    assert values(kind, root) == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_that_is_older_than_the_table_is_refused(topics: Topics, tmp_path: Path, kind: str) -> None:
    """A power cut, or a backup: Spark plans a batch again that the table has, and plans it longer."""
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, [b"0"], timestamp=NOON)
    query(topics, root, topic, kind).run()
    for folder in ("offsets", "commits"):
        (root / "_headrace" / "checkpoint" / folder / "0").unlink()
    topics.fill(topic, [b"1"], timestamp=NOON)
    with pytest.raises(TableInvalid, match="the checkpoint is older than the table"):
        query(topics, root, topic, kind).run()
    assert values(kind, root) == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_that_commit_a_batch_one_does(topics: Topics, tmp_path: Path, kind: str) -> None:
    """Where no lock keeps them apart, and both have looked before either wrote."""
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, [b"0"], timestamp=NOON)
    job = query(topics, root, topic, kind)
    kept: list[Any] = []
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(TableWriter, "commit", lambda self, messages, batch: kept.append((messages, batch)))
        job.run()
    [(messages, batch)] = kept
    made, looked = tables.State.after, False

    def looking(self: Any, *given: Any) -> Any:
        nonlocal looked
        found = made(self, *given)
        if not looked:
            looked = True
            job.writer().commit(messages, batch)
        return found

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(tables.State, "after", looking)
        # The files of both are the same ones: what the loser drops would be the winner's.
        for each in (delta.DeltaTarget, iceberg.IcebergTarget):
            patching.setattr(each, "discard", lambda *_: None)
        job.writer().commit(messages, batch)
    assert looked
    assert (job.state().commits, values(kind, root)) == (1, [0])


def test_two_writers_do_not_share_a_folder(tmp_path: Path) -> None:
    lock = take_lock(tmp_path)
    with pytest.raises(ArchiveInUse, match="one archive has one writer"):
        take_lock(tmp_path)
    os.close(lock)
    # Where locks mean nothing, as on some shared file systems, the number of the commit decides.
    one, two = (table_of("parquet", Target(str(tmp_path))) for _ in range(2))
    one.prepare(Layout(pa.schema([]), ()))
    state = one.state().after("q", 0, [], {("t", 0): (0, 5)})
    assert state is not None
    assert two.state() == tables.State()
    one.add([], state)
    with pytest.raises(tables.Conflict):
        two.add([], state)
    (tmp_path / "more" / "x").mkdir(parents=True)
    with pytest.raises(TableInvalid, match="not empty"):
        check(sink_options(tmp_path / "more", "parquet"), None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_of_an_older_version_goes_on(topics: Topics, tmp_path: Path, kind: str) -> None:
    """As it was written before there were checkpoints: a log of commits, which a table followed."""
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, [b"0", b"1"], timestamp=NOON)
    target, offsets = Target(str(root)), {topic: {"0": [0, 2]}}
    with pytest.MonkeyPatch.context() as patching:
        before = {"headrace.offsets": json.dumps(offsets), "headrace.commit": "1"}
        patching.setattr(tables.State, "properties", lambda _: before)
        query(topics, root, topic, kind).run()
    shutil.rmtree(root / "_headrace" / "checkpoint")
    if kind == "iceberg":
        # The offsets stood in the snapshot alone.
        with iceberg.IcebergTarget(target).load().transaction() as change:
            change.remove_properties("headrace.offsets")
    commit_before(root, kind, 1, offsets)
    check(sink_options(root, kind), None)
    state = table_of(kind, target).state()
    assert (state.query, state.batch, state.ends) == ("", -1, {(topic, 0): 2})
    topics.fill(topic, [b"2"], timestamp=NOON)
    given = {"kafka.bootstrap.servers": topics.address, "subscribe": topic}
    given["startingOffsets"] = json.dumps(offsets | {topic: {"0": 2}})
    Query(given, root, kind, checkpoint=root / "_headrace" / "checkpoint").run()
    assert values(kind, root) == [0, 1, 2]
    if kind == "parquet":
        return
    # Killed between its own log and the table's commit.
    commit_before(root, kind, 2, {topic: {"0": [0, 9]}})
    with pytest.raises(TableInvalid, match="is not in its table: an older version was killed there"):
        check(sink_options(root, kind), None)


def test_an_unfinished_commit_is_not_read(topics: Topics, tmp_path: Path) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, [b"0"], timestamp=NOON)
    query(topics, root, topic).run()
    last = newest(root)
    assert last is not None
    staged, path = last.files[0]
    (root / staged).parent.mkdir(parents=True)
    (root / path).rename(root / staged)
    with pytest.raises(TableInvalid, match="is being finished, or was cut off"):
        table_of("parquet", Target(str(root))).files(topic)
    query(topics, root, topic).writer().prepare()
    assert values("parquet", root) == [0]


def test_what_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tables.TableMissing, match="one of parquet, delta, iceberg"):
        table_of("hudi", Target(str(tmp_path)))
    monkeypatch.setitem(sys.modules, "headrace.pipeline.delta", None)
    with pytest.raises(tables.TableMissing, match=r"pip install 'headrace\[delta\]'"):
        table_of("delta", Target(str(tmp_path)))
