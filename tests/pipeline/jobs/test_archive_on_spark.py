"""`archive` with a real Spark. Kills of the driver and failed tasks are in ../test_killed_driver.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

NOON = 1_704_110_400_000
HOUR = 3_600_000


def test_an_archive_is_read_by_spark_and_by_others(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    from headrace.pipeline.jobs import archive

    topic = topics.create(3)
    for partition in range(3):
        topics.fill(topic, (b"%d" % number for number in range(100)), partition=partition, timestamp=NOON)
        topics.fill(topic, [b"late"], partition=partition, timestamp=NOON + 30 * HOUR, headers=[("h", b"1")])
    done = archive(spark, to=tmp_path / "out", topics=[topic], bootstrap=topics.address, group="keeper")
    assert (done.rows, done.lag) == (303, 0)
    assert topics.committed("keeper") == {(topic, partition): 101 for partition in range(3)}
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.count() == 303
    assert frame.where("date = '2024-01-02' AND hour = 18").count() == 3
    assert frame.selectExpr("count(DISTINCT partition, offset) AS count").collect()[0]["count"] == 303
    table = ds.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table()
    assert table.num_rows == 303
    # Nothing new, nothing done; and no Spark for nothing.
    assert archive(spark, to=tmp_path / "out", topics=[topic], bootstrap=topics.address, group="keeper").rounds == 0
