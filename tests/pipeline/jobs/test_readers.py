"""Tables while they are written: DuckDB, deltalake, pyiceberg and the source see each record once, and whole batches.

DuckDB reads a folder of Parquet files by itself, and tables through deltalake and pyiceberg: its own extensions for
them come over the network. Spark reads an archive in test_archive_on_spark.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.pipeline.topics import Topics

duckdb = pytest.importorskip("duckdb")
deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("pyspark")

from tests.pipeline.jobs.test_tables import NOON, query  # noqa: E402 -- the packages above may be missing

import headrace  # noqa: E402
from headrace.pipeline.iceberg import IcebergTarget  # noqa: E402
from headrace.pipeline.options import parse  # noqa: E402
from headrace.pipeline.origin import Range  # noqa: E402
from headrace.pipeline.range_reader import read_range  # noqa: E402
from headrace.pipeline.tables import TableInvalid  # noqa: E402
from headrace.pipeline.target import Target  # noqa: E402

RECORDS, BATCH = 200, 20


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as running:
        yield Topics(running.kafka)


def of_folder(root: Path, _: str) -> list[int]:
    if not any(root.glob("topic=*/*/*/*.parquet")):
        return []
    return _numbers(duckdb.connect().sql(f"SELECT value FROM read_parquet('{root}/topic=*/*/*/*.parquet')").fetchall())


def of_delta(root: Path, _: str) -> list[int]:
    found: Any = deltalake.DeltaTable(str(root)).to_pyarrow_dataset()
    return _numbers(duckdb.connect().register("events", found).sql("SELECT value FROM events").fetchall())


def of_deltalake(root: Path, _: str) -> list[int]:
    return _numbers((each,) for each in deltalake.DeltaTable(str(root)).to_pyarrow_table()["value"].to_pylist())


def of_iceberg(root: Path, _: str) -> list[int]:
    connection = IcebergTarget(Target(str(root))).load().scan().to_duckdb("events")
    return _numbers(connection.sql("SELECT value FROM events").fetchall())


def of_pyiceberg(root: Path, _: str) -> list[int]:
    return _numbers((each,) for each in IcebergTarget(Target(str(root))).load().scan().to_arrow()["value"].to_pylist())


def of_source(root: Path, topic: str) -> list[int]:
    options = parse({"path": str(root), "subscribe": topic}, streaming=False)
    try:
        blocks = list(read_range(options, Range(topic, 0, 0, RECORDS)))
    except TableInvalid:
        # Nothing is there yet, or a commit of a folder is just being finished: it says so.
        return []
    return _numbers((each,) for block in blocks for each in block.column("value").to_pylist())


def _numbers(rows: Any) -> list[int]:
    return sorted(int(value) for (value,) in rows)


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("parquet", of_folder),
        ("parquet", of_source),
        ("delta", of_delta),
        ("delta", of_deltalake),
        ("delta", of_source),
        ("iceberg", of_iceberg),
        ("iceberg", of_pyiceberg),
        ("iceberg", of_source),
    ],
)
def test_a_reader_sees_each_record_once_while_a_table_is_written(
    topics: Topics, tmp_path: Path, kind: str, read: Callable[[Path, str], list[int]]
) -> None:
    topic, root = topics.create(), tmp_path / "out"
    topics.fill(topic, (b"%d" % number for number in range(RECORDS)), timestamp=NOON)
    job = query(topics, root, topic, kind, maxOffsetsPerTrigger=str(BATCH))
    job.writer().prepare()
    writer = Thread(target=job.run)
    writer.start()
    seen, reads = 0, 0
    try:
        while writer.is_alive():
            found = read(root, topic)
            # What is there is there once, without a gap, by whole batches, and stays.
            assert found == list(range(len(found)))
            assert len(found) % BATCH == 0
            assert len(found) >= seen or read is of_source
            seen, reads = len(found), reads + 1
    finally:
        writer.join()
    assert reads > 1
    assert read(root, topic) == list(range(RECORDS))
