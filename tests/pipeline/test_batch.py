"""`spark.read.format("headrace")` with a real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def read(spark: SparkSession, topics: Topics, **options: Any) -> DataFrame:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", topics.address)
    return reader.options(**options).load()


def test_rows_are_those_of_sparks_own_source(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(2)
    topics.fill(topic, [b"a", b"b"], key=b"k", headers=[("h", b"1"), ("n", None)], timestamp=1_700_000_000_123)
    topics.fill(topic, [b"c"], partition=1, codec="lz4")
    frame = read(spark, topics, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.orderBy("partition", "offset").collect()
    assert [(row.value, row.topic, row.partition, row.offset) for row in rows] == [
        (b"a", topic, 0, 0),
        (b"b", topic, 0, 1),
        (b"c", topic, 1, 0),
    ]
    assert (rows[0].key, rows[2].key) == (b"k", None)
    assert [tuple(header) for header in rows[0].headers] == [("h", b"1"), ("n", None)]
    assert rows[2].headers is None
    assert rows[0].timestamp.microsecond == 123_000
    assert rows[0].timestampType == 0
    assert "headers" not in read(spark, topics, subscribe=topic).columns


def test_from_and_to_offsets_times_and_groups(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    for step in range(10):
        topics.fill(topic, [b"%d" % step], timestamp=1_000_000 + step * 1000)

    def values(**options: Any) -> list[int]:
        return sorted(int(row.value) for row in read(spark, topics, subscribe=topic, **options).collect())

    assert values() == list(range(10))
    assert values(startingOffsets=f'{{"{topic}": {{"0": 3}}}}', endingOffsets=f'{{"{topic}": {{"0": 7}}}}') == [
        3,
        4,
        5,
        6,
    ]
    assert values(startingTimestamp="1004000", endingTimestamp="1006500") == [4, 5, 6]
    assert values(startingTimestamp="9000000") == []
    topics.ask(lambda client: client.admin.commit("readers", {(topic, 0): 8}))
    assert values(startingGroup="readers") == [8, 9]


def test_a_pattern_and_single_partitions(spark: SparkSession, topics: Topics) -> None:
    one, two = topics.create(2), topics.create()
    topics.fill(one, [b"x"], partition=1)
    topics.fill(two, [b"y"])
    found = read(spark, topics, subscribePattern=f"({one}|{two})").collect()
    assert sorted(row.value for row in found) == [b"x", b"y"]
    assert read(spark, topics, assign=f'{{"{one}": [0]}}').count() == 0


def test_finer_partitions_read_the_same_rows_once(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, (b"%06d" % number for number in range(5_000)), codec="zstd")
    frame = read(spark, topics, subscribe=topic, minPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(5_000))
    assert read(spark, topics, subscribe=topic, maxRecordsPerPartition="1000").rdd.getNumPartitions() == 5


def test_filters_on_offset_and_time_reach_the_log(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, (b"%d" % number for number in range(50)), timestamp=1_700_000_000_000)
    topics.fill(topic, (b"%d" % number for number in range(50, 100)), timestamp=1_700_000_100_000)
    few = read(spark, topics, subscribe=topic, pushFilters="true").filter("offset >= 10 and offset < 13")
    assert sorted(int(row.value) for row in few.collect()) == [10, 11, 12]
    # Spark keeps what was planned for them, which shows that it was: the promise of one query is broken here.
    late = read(spark, topics, subscribe=topic, pushFilters="true")
    assert late.filter("timestamp > timestamp'2023-11-14 22:14:00'").count() == 50
    assert late.count() == 50
    # What is read, not only what is left of it.
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    from headrace.pipeline.options import parse
    from headrace.pipeline.readers import FilteringReader

    reader = FilteringReader(parse({"kafka.bootstrap.servers": topics.address, "subscribe": topic}, streaming=False))
    list(reader.pushFilters([GreaterThanOrEqual(("offset",), 10), LessThan(("offset",), 13)]))
    assert [(piece.wanted.start, piece.wanted.end) for piece in reader.partitions()] == [(10, 14)]


def test_queries_of_one_frame_do_not_meet_in_their_filters(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, (b"%d" % number for number in range(50)))
    frame = read(spark, topics, subscribe=topic)
    assert frame.filter("offset >= 48").count() == 2
    assert frame.count() == 50
    both = frame.filter("offset < 2").union(frame.filter("offset >= 48"))
    assert sorted(row.offset for row in both.collect()) == [0, 1, 48, 49]
    # What was planned is kept, and is what was there then.
    topics.fill(topic, [b"late"])
    assert frame.count() == 50


def test_filters_work_where_spark_does_not_push_them(spark: SparkSession, topics: Topics) -> None:
    """Its switch is off unless somebody turns it on."""
    topic = topics.create()
    topics.fill(topic, (b"%d" % number for number in range(50)))
    switch = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(switch, "false")
    try:
        assert read(spark, topics, subscribe=topic).filter("offset >= 48").count() == 2
    finally:
        spark.conf.set(switch, "true")


def test_what_retention_took_is_said_or_skipped(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, (b"%d" % number for number in range(10)))
    topics.ask(lambda client: client.admin.delete_records({(topic, 0): 6}))
    offsets = f'{{"{topic}": {{"0": 2}}}}'
    with pytest.raises(Exception, match="the log begins at 6"):
        read(spark, topics, subscribe=topic, startingOffsets=offsets).count()
    assert read(spark, topics, subscribe=topic, startingOffsets=offsets, failOnDataLoss="false").count() == 4


def test_a_slip_in_an_option_is_named(spark: SparkSession, topics: Topics) -> None:
    with pytest.raises(Exception, match="no option 'subscrybe'"):
        read(spark, topics, subscrybe="x").count()
    with pytest.raises(Exception, match="there is no topic 'nowhere'"):
        read(spark, topics, subscribe="nowhere").count()
