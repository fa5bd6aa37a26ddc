"""Records as rows, without Spark: headers that are not there, and times that no calendar has."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest
from tests.pipeline.topics import Topics

pytest.importorskip("pyspark")

import pyarrow as pa
from tests.pipeline.micro_batches import Query

from headrace.pipeline.arrow_schema import clip_times
from headrace.pipeline.options import SourceOptions, parse
from headrace.pipeline.origin import Range
from headrace.pipeline.range_reader import read_range
from headrace.pipeline.tables import State

NOW = 1_700_000_000_123
# Microseconds and nanoseconds, each taken for milliseconds.
MICROS, NANOS = NOW * 1_000, NOW * 1_000_000
AHEAD = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
LAST = datetime.max.replace(tzinfo=UTC)


def here(write, tasks):
    return [file for each in tasks for file in write(each)]


def archive(topics: Topics, topic: str, folder: Path, kind: str) -> State:
    given = {"kafka.bootstrap.servers": topics.address, "subscribe": topic}
    job = Query(given, folder / "out", kind, checkpoint=folder / "checkpoint")
    job.run()
    return job.state()


def source(topics: Topics, topic: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": topics.address, "subscribe": topic, "includeHeaders": "true"}
    return parse(given, streaming=False)


def rows(options: SourceOptions, topic: str, count: int):
    blocks = read_range(options, Range(topic, 0, 0, count))
    return [row for block in blocks for row in block.to_pylist()]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_records_without_headers_have_none_from_the_log_and_from_archives(
    topics: Topics, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}.get(kind, "pyarrow"))
    topic = topics.create(1)
    topics.fill(topic, [b"a"], headers=[("h", b"1"), ("n", None)])
    topics.fill(topic, [b"b"])
    topics.fill(topic, [b"c"], headers=[("h", b"2")])
    options = source(topics, topic)
    archive(topics, topic, tmp_path, kind)
    if kind == "iceberg":
        # By the names that docs/pipeline.md gives.
        from pyiceberg.catalog.sql import SqlCatalog

        where = f"sqlite:///{tmp_path}/out/_headrace/catalog.db"
        catalog = SqlCatalog("headrace", uri=where, warehouse=f"file://{tmp_path}/out")
        assert catalog.load_table("headrace.archive").scan(row_filter=f"topic = '{topic}'").to_arrow().num_rows == 3
    archived = parse({"path": str(tmp_path / "out"), "subscribe": topic, "includeHeaders": "true"}, streaming=False)
    for given in (options, archived):
        assert [row["headers"] for row in rows(given, topic, 3)] == [
            [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
            None,
            [{"key": "h", "value": b"2"}],
        ]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_time_beyond_the_calendar_ends_neither_a_query_nor_an_archive(
    topics: Topics, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}.get(kind, "pyarrow"))
    topic = topics.create(1, **AHEAD)
    for time in (NOW, MICROS, NANOS):
        topics.fill(topic, [b"x"], timestamp=time)
    options = source(topics, topic)
    assert archive(topics, topic, tmp_path, kind).rows == 3
    archived = parse({"path": str(tmp_path / "out"), "subscribe": topic}, streaming=False)
    for given in (options, archived):
        found = sorted(rows(given, topic, 3), key=lambda row: row["offset"])
        assert [row["timestamp"] for row in found] == [datetime.fromtimestamp(NOW / 1_000, UTC), LAST, LAST]


def test_lines_with_such_times_are_broken_and_counted(topics: Topics, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from tests.pipeline.jobs.log_batches import job_of

    topic = topics.create(1, **AHEAD)
    for time in (NOW, MICROS, NANOS):
        topics.fill(topic, [b"level=info msg=hello"], timestamp=time)
    done = job_of(topics.address, topic, tmp_path / "out").run(None, lambda _: None, Event())
    assert (done.rows, done.parsed, done.broken) == (3, 1, 2)


def test_blocks_that_are_all_within_dates_are_left_alone() -> None:
    stamps = pa.timestamp("us", tz="UTC")
    block = pa.record_batch({"timestamp": pa.array([0, 1], stamps)})
    assert clip_times(block) is block
    assert clip_times(block.slice(0, 0)).num_rows == 0
    assert clip_times(pa.record_batch({"value": pa.array([b""])})).num_columns == 1
    far = pa.record_batch({"timestamp": pa.array([(1 << 63) - 1, 5, -(1 << 63)], stamps)})
    assert clip_times(far.slice(1)).column(0).to_pylist() == [
        datetime.fromtimestamp(5e-6, UTC),
        datetime.min.replace(tzinfo=UTC),
    ]
