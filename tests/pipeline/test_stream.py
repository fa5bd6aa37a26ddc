"""`spark.readStream.format("headrace")` with a real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.draining import drain
from tests.pipeline.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def drained(spark: SparkSession, topics: Topics, folder: Path, **options: Any) -> StreamingQuery:
    """Everything that is available, as files."""
    stream = spark.readStream.format("headrace").option("kafka.bootstrap.servers", topics.address)
    frame = stream.options(startingOffsets="earliest", **options).load()
    return drain(frame.selectExpr("CAST(value AS STRING) AS value", "partition", "offset"), folder)


def test_a_stream_takes_each_record_once_over_restarts(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    group = f"{topic}-query"
    topics.fill(topic, (b"%d" % number for number in range(1_000)))
    topics.fill(topic, (b"%d" % number for number in range(1_000, 1_500)), partition=1, codec="lz4")
    options = {"subscribe": topic, "kafka.group.id": group, "maxOffsetsPerTrigger": "600"}
    query = drained(spark, topics, tmp_path, **options)
    # The limit is kept, and the progress shows where the query and the log are.
    assert len([each for each in query.recentProgress if each["numInputRows"]]) == 3
    assert all(each["numInputRows"] <= 600 for each in query.recentProgress)
    assert json.loads(query.lastProgress["sources"][0]["latestOffset"]) == {topic: {"0": 1_000, "1": 500}}
    # The group follows, the last batch included, which Spark does not tell its sources about.
    assert topics.committed(group) == {(topic, 0): 1_000, (topic, 1): 500}

    topics.fill(topic, (b"%d" % number for number in range(1_500, 1_600)))
    drained(spark, topics, tmp_path, **options)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(row.value) for row in rows) == list(range(1_600))
    assert topics.committed(group) == {(topic, 0): 1_100, (topic, 1): 500}


def test_partitions_that_come_later_are_read_from_their_beginning(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"1"])
    drained(spark, topics, tmp_path, subscribe=topic)
    topics.ask(lambda client: client.admin.create_partitions(topic, 2))
    topics.fill(topic, [b"2"], partition=1)
    drained(spark, topics, tmp_path, subscribe=topic)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.value for row in rows) == ["1", "2"]
