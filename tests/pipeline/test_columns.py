"""Some columns and no others: which they can be, without Spark, and queries that ask for them, with a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.draining import drain
from tests.pipeline.topics import Topics

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
    VariantType,
)

from headrace.pipeline.columns import build_ddl, select_columns
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import ColumnSelection, ValueOptions, parse_values
from headrace.pipeline.value_columns import ValueColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.timeout(240)]

SCHEMA = "id BIGINT COMMENT 'a, b', price DECIMAL(8,2), `my, column` MAP<STRING, INT>, `where` STRUCT<x: INT, y: INT>"
JSON = {"valueFormat": "json", "schema": SCHEMA}


def said(**options: str) -> ValueOptions:
    return parse_values({"kafka.bootstrap.servers": "x:1", "subscribe": "t", **options})


def test_columns_come_in_the_order_that_was_asked_for() -> None:
    assert build_ddl(said(columns="timestamp,VALUE"), False) == "timestamp timestamp, value binary"
    assert build_ddl(said(columns="headers"), False) == "headers array<struct<key:string,value:binary>>"
    some = said(**JSON, columns="`my, column`,offset,PRICE,_corrupt_record")
    assert build_ddl(some, False) == (
        "`my, column` MAP<STRING, INT>, offset bigint, price DECIMAL(8,2), `_corrupt_record` BINARY"
    )
    nested = said(**JSON, columns="value,key", valueColumns="struct")
    assert build_ddl(nested, False) == f"value STRUCT<{SCHEMA}>, key binary"
    text = StructType([StructField("a", LongType()), StructField("b`", StringType())]).json()
    assert build_ddl(said(valueFormat="json", schema=text, columns="`b```"), False) == "`b``` string"


@pytest.mark.parametrize(
    ("given", "headers", "reason"),
    [
        ({"columns": "value,size"}, False, "no column 'size'. Use key, value, topic, .*timestampType, headers"),
        ({"columns": "value"}, True, "headers is not among the columns value"),
        ({"columns": "value", **JSON}, False, "no column 'value'. Use topic, .*, my, column, where"),
        ({"columns": "_corrupt_reason", **JSON, "badRows": "drop"}, False, "no column '_corrupt_reason'"),
        ({"columns": "key", "valueFormat": "json", "schema": "key INT"}, False, "'key' is there twice"),
        ({"valueFormat": "json"}, False, "needs a schema"),
    ],
)
def test_columns_that_are_not_there_are_named(given: dict[str, str], headers: bool, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        build_ddl(said(**given), headers)


def test_bytes_may_be_taken_for_text() -> None:
    wanted = StructType([StructField("value", StringType()), StructField("key", BinaryType())])
    assert select_columns(said(), False, wanted) == ColumnSelection(("value", "key"), frozenset({"value"}))


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({}, StructField("valu", BinaryType()), "no column 'valu'"),
        ({}, StructField("value", LongType()), "'value' cannot be BIGINT: it is BINARY OR STRING"),
        ({}, StructField("offset", StringType()), "'offset' cannot be STRING: it is BIGINT"),
        ({"columns": "value,key"}, StructField("value", BinaryType()), "give one of them"),
    ],
)
def test_columns_that_a_query_gives_are_looked_at(given: dict[str, str], field: StructField, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        select_columns(said(**given), False, StructType([field]))


def test_rows_are_judged_by_columns_that_are_there() -> None:
    own = StructType([StructField("offset", LongType())])
    for bad in ("drop", "fail"):
        with pytest.raises(InvalidOption, match=f"badRows={bad} needs a column of the value's schema"):
            ValueColumns.from_schema(said(**JSON, badRows=bad), False, own)
    # Where bad rows stay, nothing is decoded that nobody asked for.
    assert ValueColumns.from_schema(said(**JSON), False, own).reads == ColumnSelection(("offset",))
    with pytest.raises(InvalidOption, match="it is a STRUCT: not 'id'"):
        ValueColumns.from_schema(
            said(**JSON, valueColumns="struct"), False, StructType([StructField("id", LongType())])
        )


@pytest.mark.parametrize("kind", [VariantType(), VarcharType(3), MapType(StringType(), ArrayType(CharType(2)))])
def test_a_type_that_no_json_gives_is_refused(kind: DataType) -> None:
    own = StructType([StructField("it", StructType([StructField("inner", kind)]))])
    with pytest.raises(InvalidOption, match=r"(VARIANT|CHAR|VARCHAR).* is not supported. Use STRING"):
        ValueColumns.from_schema(said(**JSON), False, own)


def read(spark: SparkSession, topics: Topics, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", topics.address)
    return reader.options(subscribe=topic, **options).load()


@pytest.mark.spark
def test_a_query_gets_the_columns_that_it_names(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"a", b"b", None], key=b"k", headers=[("h", b"1")], timestamp=1_700_000_000_123)
    topics.fill(topic, [b"\xff"], timestamp=1_700_000_100_000)
    frame = read(spark, topics, topic, columns="value,offset")
    assert frame.schema.simpleString() == "struct<value:binary,offset:bigint>"
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(b"a", 0), (b"b", 1), (None, 2), (b"\xff", 3)]
    assert frame.count() == 4
    # In any order, and those that are the same in all rows alone.
    names = ["headers", "timestampType", "timestamp", "partition", "topic", "key", "offset"]
    some = read(spark, topics, topic, columns=",".join(names)).orderBy("offset").collect()
    assert some == read(spark, topics, topic, includeHeaders="true").select(*names).orderBy("offset").collect()
    assert read(spark, topics, topic, columns="partition").count() == 4
    # Times and filters count with fewer columns, too.
    late = read(spark, topics, topic, columns="value,offset", startingTimestamp="1700000050000", pushFilters="true")
    assert [row.value for row in late.filter("offset > 1").collect()] == [b"\xff"]


@pytest.mark.spark
def test_a_query_gives_its_own_columns(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, ["grün".encode(), None, b"\xff"], key=b"k")
    reader = spark.read.format("headrace").options(**{"kafka.bootstrap.servers": topics.address}, subscribe=topic)
    frame = reader.schema("value STRING, key STRING, offset BIGINT").load()
    assert frame.schema.simpleString() == "struct<value:string,key:string,offset:bigint>"
    # Bytes that are no text are kept as they are, as by CAST(value AS STRING).
    rows = frame.selectExpr("IF(offset = 2, hex(value), value)", "key", "offset").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [("grün", "k", 0), (None, "k", 1), ("FF", "k", 2)]
    with pytest.raises(Exception, match="'value' cannot be INT"):
        reader.schema("value INT").load().count()


@pytest.mark.spark
def test_a_slip_in_the_columns_is_named(spark: SparkSession, topics: Topics) -> None:
    with pytest.raises(Exception, match=r"there is no column 'vale'\. Use key, value"):
        read(spark, topics, "t", columns="vale")


@pytest.mark.spark
def test_decoded_values_have_the_columns_that_are_named(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    good = [json.dumps({"id": number, "name": f"n{number}", "price": 1.5}).encode() for number in range(50)]
    topics.fill(topic, [*good, b"{", b'{"id": 50, "price": "x"}'], key=b"k")
    schema = "id BIGINT, name STRING, price DOUBLE"
    frame = read(spark, topics, topic, valueFormat="json", schema=schema, columns="name,offset,id")
    assert frame.columns == ["name", "offset", "id"]
    rows = frame.orderBy("offset").collect()
    assert [tuple(row) for row in rows[:50]] == [(f"n{number}", number, number) for number in range(50)]
    # What is not asked for is not looked at: that row is bad by its price alone.
    assert (rows[50].id, rows[51].id) == (None, 50)
    aside = read(spark, topics, topic, valueFormat="json", schema=schema, columns="price,_corrupt_record")
    found = aside.where("_corrupt_record IS NOT NULL").collect()
    assert [tuple(row) for row in found] == [(None, b"{"), (None, b'{"id": 50, "price": "x"}')]
    assert read(spark, topics, topic, valueFormat="json", schema=schema, columns="partition").count() == 52
    # The columns of a query are a schema, too.
    reader = spark.read.format("headrace").options(
        **{"kafka.bootstrap.servers": topics.address}, subscribe=topic, valueFormat="json", badRows="drop"
    )
    own = reader.schema("offset BIGINT, price DOUBLE").load()
    assert [tuple(row) for row in own.orderBy("offset").collect()] == [(number, 1.5) for number in range(50)]


@pytest.mark.spark
def test_a_stream_has_the_columns_that_it_names(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    topics.fill(topic, (b"%d" % number for number in range(300)), codec="lz4", key=b"k")
    topics.fill(topic, (b"%d" % number for number in range(300, 400)), partition=1)
    stream = spark.readStream.format("headrace").option("kafka.bootstrap.servers", topics.address)
    stream = stream.options(subscribe=topic, startingOffsets="earliest", columns="value", maxOffsetsPerTrigger="250")
    drain(stream.load().selectExpr("INT(STRING(value)) AS value"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.value for row in rows) == list(range(400))
