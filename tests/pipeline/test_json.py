"""Values decoded by a schema, with a real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.draining import drain
from tests.pipeline.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

SCHEMA = "id BIGINT, `when` TIMESTAMP, tags ARRAY<STRING>, `where` STRUCT<x: DOUBLE, day: DATE>, price DECIMAL(8,2)"
GOOD = {"id": 1, "when": "2024-01-02T03:04:05Z", "tags": ["a"], "where": {"x": 0.5, "day": "2024-01-02"}, "price": 1.5}
BAD = [b"{", b'{"id": "x"}', b"\xff", b'{"where": 5}']


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.create()
    good = [json.dumps({**GOOD, "id": number}).encode() for number in range(200)]
    topics.fill(name, [*good[:100], *BAD, None, *good[100:]], key=b"k", headers=[("h", b"1")])
    return name


def read(spark: SparkSession, topics: Topics, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", topics.address)
    return reader.options(subscribe=topic, valueFormat="json", **{"schema": SCHEMA, **options}).load()


def test_columns_of_the_schema_stand_beside_the_records(spark: SparkSession, topics: Topics, topic: str) -> None:
    frame = read(spark, topics, topic)
    assert frame.columns == [
        *("topic", "partition", "offset", "timestamp", "key"),
        *("id", "when", "tags", "where", "price"),
        *("_corrupt_record", "_corrupt_reason"),
    ]
    # As from_json has it, and everything it can say of a good row.
    theirs = (
        spark.read.format("headrace")
        .options(**{"kafka.bootstrap.servers": topics.address}, subscribe=topic)
        .load()
        .selectExpr("offset", f"from_json(STRING(value), '{SCHEMA}') AS v")
        .where("offset < 100 or offset > 104")
        .selectExpr("offset", "v.*")
        .orderBy("offset")
        .collect()
    )
    ours = frame.where("_corrupt_reason IS NULL AND id IS NOT NULL").orderBy("offset")
    assert ours.select("offset", "id", "when", "tags", "where", "price").collect() == theirs
    assert len(theirs) == 200
    bad = frame.where("_corrupt_reason IS NOT NULL").orderBy("offset").collect()
    assert [bytes(row._corrupt_record) for row in bad] == BAD
    assert [row.offset for row in bad] == [100, 101, 102, 103]
    assert "where: 5 is not an object" in bad[3]._corrupt_reason
    # A null is a null, and not bad.
    [null] = frame.where("offset = 104").collect()
    assert (null.key, null.id, null._corrupt_record) == (b"k", None, None)


def test_bad_rows_are_dropped_or_end_the_query(spark: SparkSession, topics: Topics, topic: str) -> None:
    frame = read(spark, topics, topic, badRows="drop", includeHeaders="true")
    assert frame.columns[5:7] == ["headers", "id"]
    assert "_corrupt_record" not in frame.columns
    assert frame.count() == 201
    with pytest.raises(Exception, match=f"{topic}-0 at offset 100: the value does not fit the schema"):
        read(spark, topics, topic, badRows="fail").count()


def test_a_schema_as_json_and_one_column_for_all(spark: SparkSession, topics: Topics, topic: str) -> None:
    from pyspark.sql.types import StructType

    text = StructType.fromDDL(SCHEMA + ", timestamp STRING").json()
    frame = read(
        spark, topics, topic, schema=text, valueColumns="struct", columnNameOfCorruptRecord="_bad", badRows="column"
    )
    assert frame.columns[5:] == ["value", "_bad", "_corrupt_reason"]
    [row] = frame.where("offset = 7").collect()
    assert (row.value.id, row.value.where.x, row.value.timestamp) == (7, 0.5, None)
    with pytest.raises(Exception, match="'timestamp' is there twice"):
        read(spark, topics, topic, schema=text).count()
    with pytest.raises(Exception, match="id is NOT NULL"):
        read(spark, topics, topic, schema="id BIGINT NOT NULL").count()


def test_a_stream_is_decoded_too(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> None:
    stream = (
        spark.readStream.format("headrace")
        .options(**{"kafka.bootstrap.servers": topics.address}, subscribe=topic, startingOffsets="earliest")
        .options(valueFormat="json", schema="id INT")
        .load()
    )
    drain(stream.select("offset", "id", "_corrupt_reason"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in rows if row.id is not None) == list(range(200))
    assert sum(row._corrupt_reason is not None for row in rows) == 3
