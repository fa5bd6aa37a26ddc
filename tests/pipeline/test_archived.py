"""Reading an archive as the source's rows, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.topics import Topics

pytest.importorskip("pyspark")

from tests.pipeline.micro_batches import Query

import headrace
from headrace.client import EARLIEST, LATEST
from headrace.pipeline import read_plan, tables
from headrace.pipeline.archive import table_at
from headrace.pipeline.arrow_schema import FIELDS, HEADERS
from headrace.pipeline.manifest import ParquetFolder
from headrace.pipeline.options import ColumnSelection, SourceOptions, parse
from headrace.pipeline.origin import Range, open_catalogue
from headrace.pipeline.range_reader import read_range
from headrace.pipeline.tables import DataFile, TableInvalid
from headrace.pipeline.target import Target

NOON = 1_704_110_400_000
HOUR = 3_600_000


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An archive, made in three rounds of a topic whose first records were gone, and the folder it came from."""
    data, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("archive") / "out"
    with headrace.Broker(data=str(data)) as broker:
        topics = Topics(broker.kafka)
        topic = topics.create(2)
        assert topic == "events-0"
        topics.fill(topic, [b"gone"] * 5, timestamp=NOON)
        topics.ask(lambda client: client.admin.delete_records({(topic, 0): 5}))
        source = {"kafka.bootstrap.servers": broker.kafka, "subscribe": topic, "failOnDataLoss": "false"}
        for step in range(3):
            topics.fill(topic, [b"%d" % step] * 10, timestamp=NOON + step * HOUR, key=b"k", headers=[("h", None)])
            topics.fill(topic, [b"x"], partition=1, timestamp=NOON)
            Query(source, out, checkpoint=out / "_headrace" / "checkpoint").run()
    return out, data


def options(folder: Path, **more: str) -> SourceOptions:
    return parse({"path": str(folder), "subscribe": "events-0", **more}, streaming=False)


def ask(given: SourceOptions, what: Callable[[Any], Any]) -> Any:
    async def asking() -> Any:
        async with open_catalogue(given) as catalogue:
            return await what(catalogue)

    return asyncio.run(asking())


def rows(given: SourceOptions, *range_: Any, **more: Any) -> list[dict[str, Any]]:
    blocks = list(read_range(given, Range("events-0", *range_), **more))
    return sorted((row for block in blocks for row in block.to_pylist()), key=lambda row: row["offset"])


def test_an_archive_reads_as_the_log_that_it_came_from(archived: tuple[Path, Path]) -> None:
    out, data = archived
    for headers in ("true", "false"):
        of_archive, of_log = (options(folder, includeHeaders=headers) for folder in (out, data))
        for partition, start, end in ((0, 5, 35), (0, 12, 30), (1, 0, 3)):
            assert rows(of_archive, partition, start, end) == rows(of_log, partition, start, end)
        assert len(rows(of_archive, 0, 5, 35)) == 30
        [block, *_] = read_range(of_archive, Range("events-0", 0, 5, 35))
        assert list(block.schema) == ([*FIELDS, HEADERS] if headers == "true" else FIELDS)
        bounded = {"since": NOON + HOUR, "until": NOON + HOUR + 1}
        assert rows(of_archive, 0, 5, 35, **bounded) == rows(of_log, 0, 5, 35, **bounded)


def test_some_columns_of_an_archive(archived: tuple[Path, Path]) -> None:
    for columns in (
        ColumnSelection(("value", "offset"), frozenset({"value"})),
        ColumnSelection(("topic", "offset", "headers")),
        ColumnSelection(("timestampType", "timestamp", "partition", "offset", "key")),
    ):
        of_archive, of_log = (rows(options(folder), 0, 12, 30, columns=columns) for folder in archived)
        assert of_archive == of_log
        assert [list(row) for row in of_archive] == [list(columns.names)] * 18
    for folder in archived:
        blocks = list(read_range(options(folder), Range("events-0", 0, 12, 30), columns=ColumnSelection(("topic",))))
        assert [row["topic"] for block in blocks for row in block.to_pylist()] == ["events-0"] * 18


def test_its_offsets_are_those_of_the_log(archived: tuple[Path, Path]) -> None:
    async def offsets(catalogue: Any) -> list[dict[Any, int]]:
        times = (EARLIEST, LATEST, NOON + HOUR, NOON + 9 * HOUR, 0)
        partitions = (("events-0", 0), ("events-0", 1))
        return [await catalogue.offsets(dict.fromkeys(partitions, time), committed=True) for time in times]

    of_archive, of_log = (ask(options(folder), offsets) for folder in archived)
    assert of_archive == of_log
    assert ask(options(archived[0]), lambda each: each.topics()) == {"events-0": 2}
    split = options(archived[0], bytesPerPartition="100")
    pieces = ask(split, lambda each: read_plan.split_ranges(each, split, {("events-0", 0): 5}, {("events-0", 0): 35}))
    assert len(pieces) > 1


def test_the_results_of_another_job_are_no_archive(tmp_path: Path) -> None:
    results = ParquetFolder(Target(str(tmp_path)))
    results.recover()
    staged = tmp_path / results.staging("q", 0) / "records" / "x.parquet"
    staged.parent.mkdir(parents=True)
    staged.touch()
    tables.commit(results, "q", 0, [DataFile("records/x.parquet", {}, 5, 0)], {("t", 0): (0, 5)})
    with pytest.raises(TableInvalid, match="has the results of another job than `archive`"):
        table_at(str(tmp_path))


def test_an_archive_without_a_commit_is_said(tmp_path: Path) -> None:
    (tmp_path / "_headrace").mkdir()
    with pytest.raises(TableInvalid, match="nothing is archived"):
        ask(options(tmp_path), lambda each: each.topics())
