"""Archives that are a Delta or an Iceberg table, read by the packages that others read them with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.pipeline.jobs.test_archive import HOUR, NOON, Killed, archiver, crash_at, drain
from tests.pipeline.topics import Topics

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import headrace  # noqa: E402 -- the packages above may be missing
from headrace.pipeline import delta, iceberg, tables  # noqa: E402
from headrace.pipeline.arrow_schema import FIELDS, HEADERS  # noqa: E402
from headrace.pipeline.manifest import ArchiveInvalid, newest  # noqa: E402
from headrace.pipeline.options import parse  # noqa: E402
from headrace.pipeline.origin import Range  # noqa: E402
from headrace.pipeline.range_reader import read_range  # noqa: E402

KINDS = ("delta", "iceberg")


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as running:
        yield Topics(running.kafka)


def rows(kind: str, root: Path) -> list[dict[str, Any]]:
    """What a reader of such tables finds, who knows nothing of Headrace."""
    if kind == "delta":
        table = deltalake.DeltaTable(str(root)).to_pyarrow_table()
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("any", uri=f"sqlite:///{root}/_headrace/catalog.db")
        # SQLite's catalogue has the name of its own in each row.
        catalog.name = "headrace"
        table = catalog.load_table("headrace.archive").scan().to_arrow()
    return sorted(table.to_pylist(), key=lambda row: (row["topic"], row["partition"], row["offset"]))


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_filed_by_topic_date_and_hour(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic, root = topics.create(2), tmp_path / "out"
    topics.fill(topic, [b"0", b"1"], key=b"k", headers=[("h", b"x")], timestamp=NOON)
    topics.fill(topic, [b"2"], timestamp=NOON + HOUR)
    topics.fill(topic, [b"3"], partition=1, timestamp=NOON - 13 * HOUR)
    assert drain(topics, root, topic, table=kind).rows == 4
    topics.fill(topic, [b"4"], timestamp=NOON)
    assert drain(topics, root, topic, table=kind).rows == 1
    assert drain(topics, root, topic, table=kind).rounds == 0
    found = rows(kind, root)
    assert [int(row["value"]) for row in found] == [0, 1, 2, 4, 3]
    first = found[0]
    assert (first["topic"], first["key"], first["headers"]) == (topic, b"k", [{"key": "h", "value": b"x"}])
    assert topics.committed(f"archive-{topic}") == {(topic, 0): 4, (topic, 1): 1}
    if kind == "delta":
        table = deltalake.DeltaTable(str(root))
        assert table.metadata().partition_columns == ["topic", "date", "hour"]
        assert (str(first["date"]), first["hour"]) == ("2024-01-01", 12)
        assert len(table.file_uris(file_pruning_predicate="date = '2023-12-31' AND hour = 23")) == 1
        said = json.loads(table.history()[0]["headrace.offsets"])
        assert said == {topic: {"0": [0, 4], "1": [0, 1]}}
        stated = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        assert sorted((each["min.offset"], each["max.offset"]) for each in stated) == [(0, 0), (0, 1), (2, 2), (3, 3)]
    else:
        table = iceberg.IcebergArchive(root)._table()
        plan = list(table.scan(row_filter="timestamp < '2024-01-01T00:00:00+00:00'").plan_files())
        assert [task.file.record_count for task in plan] == [1]
    with pytest.raises(ArchiveInvalid, match=f"as {kind}, not parquet"):
        drain(topics, root, topic)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_with_a_time_that_no_date_has_does_not_stop_a_table(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic, root = topics.create(message_timestamp_after_max_ms=str((1 << 63) - 1)), tmp_path / "out"
    for number, time in enumerate((NOON, NOON * 1_000)):
        topics.fill(topic, [b"%d" % number], timestamp=time)
    assert drain(topics, root, topic, table=kind).rows == 2
    assert drain(topics, root, topic, table=kind).rounds == 0
    if kind == "iceberg":
        assert [row["timestamp"].year for row in rows(kind, root)] == [2024, 9999]


@pytest.mark.parametrize("kind", KINDS)
def test_the_source_reads_it(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic, root = topics.create(2), tmp_path / "out"
    for hour in range(3):
        topics.fill(topic, [b"%d" % hour] * 10, timestamp=NOON + hour * HOUR, headers=[("h", None)])
    drain(topics, root, topic, table=kind)
    given = parse({"path": str(root), "subscribe": topic, "includeHeaders": "true"}, streaming=False)
    blocks = list(read_range(given, Range(topic, 0, 5, 25)))
    assert {block.schema for block in blocks} == {blocks[0].schema}
    assert list(blocks[0].schema) == [*FIELDS, HEADERS]
    assert sorted(row["offset"] for block in blocks for row in block.to_pylist()) == list(range(5, 25))
    if kind == "delta":
        # Whoever compacts the table takes nothing away, though the job's own files are no longer in it.
        table = deltalake.DeltaTable(str(root))
        topics.fill(topic, [b"more"], timestamp=NOON)
        drain(topics, root, topic, table=kind)
        table.update_incremental()
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        topics.fill(topic, [b"more"], timestamp=NOON)
        drain(topics, root, topic, table=kind)
        blocks = list(read_range(given, Range(topic, 0, 0, 32)))
        assert sorted(row["offset"] for block in blocks for row in block.to_pylist()) == list(range(32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_dies_anywhere_neither_loses_nor_repeats(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic = topics.create()
    topics.fill(topic, (b"%d" % number for number in range(20)), timestamp=NOON)
    topics.fill(topic, (b"%d" % number for number in range(20, 40)), timestamp=NOON + HOUR)
    # Every other: behind one change is before the next.
    step, died, behind = -1, True, 0
    while died:
        step += 2
        root = tmp_path / f"{step}"
        # The table is there: that it can be made is not what is asked.
        with archiver(topics, root, topic, table=kind):
            pass
        with pytest.MonkeyPatch.context() as patching:
            count = crash_at(patching, step)
            dying_table(patching, count)
            try:
                drain(topics, root, topic, table=kind)
                died = False
            except Killed:
                pass
        last = newest(root)
        seen = [int(row["value"]) for row in rows(kind, root)]
        # All of it, or nothing; and once it is decided, the next run finishes it.
        assert seen in ([], list(range(40)))
        behind += last is not None and not seen
        with archiver(topics, root, topic, table=kind) as job:
            if last is not None:
                assert len(rows(kind, root)) == 40
            job.run(None, lambda _: None, Event())
        assert [int(row["value"]) for row in rows(kind, root)] == list(range(40))
        assert not any((root / "_headrace" / "staging").iterdir())
        assert topics.committed(f"archive-{topic}") == {(topic, 0): 40}
    assert step > 20
    assert behind > 5


def dying_table(monkeypatch: pytest.MonkeyPatch, count: Callable[[], None]) -> None:
    """Die at the table's own commit, too: before it, and behind it."""
    for kind in (delta.DeltaArchive, iceberg.IcebergArchive):

        def dying(self: Any, commit: Any, take: Any = kind.take) -> None:
            count()
            take(self, commit)
            count()

        monkeypatch.setattr(kind, "take", dying)


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_that_finish_a_commit_one_does(topics: Topics, tmp_path: Path, kind: str) -> None:
    """Where no lock keeps them apart, and both have looked before either wrote."""
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, [b"0"], timestamp=NOON)
    with archiver(topics, root, topic, table=kind):
        one, two = tables.table_of(kind, root), tables.table_of(kind, root)
    assert one is not None
    assert two is not None
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(type(one), "take", lambda *_: None)
        drain(topics, root, topic, table=kind)
    commit = newest(root)
    assert commit is not None
    assert (one.number(), rows(kind, root)) == (0, [])
    number, looked = type(one)._number, False

    def looking(table: Any) -> int:
        nonlocal looked
        found = number(table)
        if not looked:
            looked = True
            two.take(commit)
        return found

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(type(one), "_number", staticmethod(looking))
        one.take(commit)
    assert looked
    assert (one.number(), len(rows(kind, root))) == (1, 1)


def test_what_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tables.TableMissing, match="one of parquet, delta, iceberg"):
        tables.table_of("hudi", tmp_path)
    monkeypatch.setitem(sys.modules, "headrace.pipeline.delta", None)
    with pytest.raises(tables.TableMissing, match=r"pip install 'headrace\[delta\]'"):
        tables.table_of("delta", tmp_path)
