"""`spark.read.format("headrace").load(FOLDER)`: the same source with no broker running, with a real Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.draining import drain
from tests.pipeline.topics import Topics

import headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a broker that was cut off: most of it is in the journal."""
    data = tmp_path_factory.mktemp("data")
    crashed = tmp_path_factory.mktemp("crashed") / "data"
    with headrace.Broker(data=str(data)) as broker:
        topics = Topics(broker.kafka)
        topic = topics.create(2)
        assert topic == "events-0"
        topics.fill(topic, (b"%d" % number for number in range(500)), key=b"k", headers=[("h", b"1")], timestamp=1_000)
        topics.fill(topic, (b"%d" % number for number in range(500, 600)), partition=1, codec="zstd", timestamp=2_000)
        shutil.copytree(data, crashed)
    return crashed


def read(spark: SparkSession, folder: Path, **options: Any) -> list[int]:
    frame = spark.read.format("headrace").option("subscribe", "events-0").options(**options).load(str(folder))
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_a_folder_reads_as_its_broker_would(spark: SparkSession, topics: Topics, folder: Path) -> None:
    reader = spark.read.format("headrace").option("subscribe", "events-0").option("includeHeaders", "true")
    rows = reader.load(str(folder)).orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset, int(row.value)) for row in rows] == [
        *((0, number, number) for number in range(500)),
        *((1, number, 500 + number) for number in range(100)),
    ]
    assert (rows[0].key, rows[0].topic, rows[0].timestamp.second) == (b"k", "events-0", 1)
    assert [tuple(header) for header in rows[0].headers] == [("h", b"1")]
    assert rows[500].key is None
    assert read(spark, folder, startingTimestamp="1500") == list(range(500, 600))
    assert read(spark, folder, startingOffsets='{"events-0": {"0": 490, "1": -1}}') == list(range(490, 500))
    assert read(spark, folder, minPartitions="5") == list(range(600))
    frame = spark.read.format("headrace").option("subscribePattern", "events.*").load(str(folder))
    assert frame.filter("offset >= 10 and offset < 12").count() == 4


def test_a_stream_takes_what_a_folder_has(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    stream = (
        spark.readStream.format("headrace")
        .options(subscribe="events-0", startingOffsets="earliest", maxOffsetsPerTrigger="400")
        .load(str(folder))
    )
    drain(stream.selectExpr("INT(STRING(value)) AS value"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.value for row in rows) == list(range(600))


def test_an_archive_is_read_like_a_folder(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    from headrace.pipeline.jobs import archive

    archive(spark, to=tmp_path / "out", topics=["events-0"], data=str(folder))
    assert read(spark, tmp_path / "out") == list(range(600))
    assert read(spark, tmp_path / "out", startingTimestamp="1500") == list(range(500, 600))


def test_a_folder_in_use_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.Broker(data=str(tmp_path)) as broker:
        Topics(broker.kafka).create()
        with pytest.raises(Exception, match="a broker runs on"):
            read(spark, tmp_path)
