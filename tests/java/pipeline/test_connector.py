"""Spark's own Kafka connector, with its JVM client, in front of Headrace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.topics import Topics
from tests.serve_process import ServeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.usefixtures("connector")]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with ServeProcess(tmp_path_factory.mktemp("connector") / "data") as serving:
        yield Topics(serving.kafka)


def rows(spark: SparkSession, form: str, topics: Topics, topic: str, **options: Any) -> list[Any]:
    frame = spark.read.format(form).option("kafka.bootstrap.servers", topics.address).option("subscribe", topic)
    return frame.options(**options).load().orderBy("partition", "offset").collect()


def test_both_sources_read_the_same(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(2)
    topics.fill(topic, (b"%d" % number for number in range(1_000)), key=b"k", headers=[("h", b"1"), ("n", None)])
    topics.fill(topic, (b"%d" % number for number in range(500)), partition=1, codec="lz4", timestamp=1_700_000_000_123)
    options: Any
    for options in (
        {"includeHeaders": "true"},
        {"startingOffsets": f'{{"{topic}": {{"0": 10, "1": -2}}}}'},
        {"startingTimestamp": "1700000000123"},
        {"endingOffsets": f'{{"{topic}": {{"0": 10, "1": 20}}}}', "minPartitions": "5"},
    ):
        theirs = rows(spark, "kafka", topics, topic, **options)
        assert theirs
        ours = rows(spark, "headrace", topics, topic, **options)
        # An array without headers is theirs null, ours empty.
        assert [_plain(row) for row in ours] == [_plain(row) for row in theirs]


def _plain(row: Any) -> dict[str, Any]:
    return {name: value or None if name == "headers" else value for name, value in row.asDict(recursive=True).items()}


def test_a_stream_from_topic_to_topic(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    source, sink = topics.create(2), topics.create(2)
    sent = 0
    for _ in range(2):
        topics.fill(source, (b"%d" % number for number in range(sent, sent + 500)), partition=sent % 2)
        sent += 500
        stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", topics.address)
        query = (
            stream.option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "300")
            .load()
            .select("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", topics.address)
            .option("topic", sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    assert sorted(int(row.value) for row in rows(spark, "kafka", topics, sink)) == list(range(sent))


def test_committed_reads_leave_out_what_was_aborted(spark: SparkSession, topics: Topics) -> None:
    from headrace.client import Client

    topic = topics.create()

    async def write(client: Client) -> None:
        producer = client.transactional("connector")
        await producer.init()
        for value in (b"kept", b"aborted", b"kept too"):
            producer.begin()
            await producer.send(topic, value, partition=0)
            await (producer.abort() if value == b"aborted" else producer.commit())
        await producer.close()

    topics.ask(write)
    committed = {"kafka.isolation.level": "read_committed"}
    found = [rows(spark, form, topics, topic, **committed) for form in ("kafka", "headrace")]
    assert [[row.value for row in each] for each in found] == [[b"kept", b"kept too"]] * 2
