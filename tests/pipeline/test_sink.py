"""`df.write` and `df.writeStream` to `headrace`, with a real Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.topics import Topics, decided

from headrace.client import EARLIEST, Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def contents(topics: Topics, topic: str) -> list[Any]:
    """The committed records of a topic. Nothing may be open in it."""

    async def read(client: Client) -> list[Any]:
        partitions = [(topic, each.index) for each in (await client.cluster.topic(topic)).partitions]
        await decided(client)
        async with client.consumer(committed=True, max_wait=0.1) as consumer:
            await consumer.assign(dict.fromkeys(partitions, EARLIEST))
            ends = await consumer.end_offsets()
            # Whatever is open would keep readers waiting.
            assert not await client.transactions.list_all(states=["Ongoing"])
            return [record async for record in consumer.records(ends)]

    return topics.ask(read)


def run(folder: Path, module: str, *arguments: str, seconds: float = 300) -> tuple[int, str]:
    """A process's exit code, and what it said. To a file: workers that outlive their driver hold pipes open."""
    with (folder / "said").open("w+") as said:
        command = [sys.executable, "-m", module, *arguments]
        code = subprocess.run(command, timeout=seconds, stdout=said, stderr=subprocess.STDOUT).returncode
        said.seek(0)
        return code, said.read()[-3_000:]


def values(topics: Topics, topic: str) -> list[int]:
    return sorted(int(record.value.split()[0]) for record in contents(topics, topic))


def pour(
    spark: SparkSession,
    topics: Topics,
    source: str,
    sink: str,
    checkpoint: Path,
    *,
    shape: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    name: str = "headrace",
    **options: Any,
) -> StreamingQuery:
    """Everything that is available, from topic to topic."""
    frame = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", topics.address)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "400")
        .load()
        .selectExpr("CAST(value AS STRING) AS value", "CAST(value AS BINARY) AS key")
    )
    query = (
        shape(frame)
        .writeStream.format(name)
        .option("kafka.bootstrap.servers", topics.address)
        .option("topic", sink)
        .option("applicationId", f"{sink}-pour")
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    return query


def test_a_frame_is_written_by_its_columns(spark: SparkSession, topics: Topics) -> None:
    one, two = topics.create(3), topics.create(3)
    frame = spark.range(0, 1_000, numPartitions=3).selectExpr(
        "CAST(id AS STRING) AS value",
        "IF(id % 3 = 0, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS key",
        f"IF(id % 2 = 0, '{one}', '{two}') AS topic",
        "IF(id % 10 = 0, 2, NULL) AS partition",
        "IF(id % 5 = 0, array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))), NULL) AS headers",
    )
    write = frame.write.format("headrace").option("kafka.bootstrap.servers", topics.address).mode("append")
    write.save()
    found = {topic: contents(topics, topic) for topic in (one, two)}
    assert {topic: sorted(int(each.value) for each in there) for topic, there in found.items()} == {
        one: list(range(0, 1_000, 2)),
        two: list(range(1, 1_000, 2)),
    }
    for record in found[one] + found[two]:
        number = int(record.value)
        assert record.key == (None if number % 3 == 0 else b"%d" % number)
        assert [(name, value) for name, value in record.headers] == ([("h", b"x")] if number % 5 == 0 else [])
        assert number % 10 or record.partition == 2
    # The option wins over the column.
    write.option("topic", two).option("kafka.compression.type", "lz4").save()
    assert len(contents(topics, two)) == 1_500


def test_a_stream_is_written_once_over_restarts(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    source, sink = topics.create(2), topics.create(2)
    for partition in range(2):
        topics.fill(source, (b"%d" % number for number in range(partition, 1_000, 2)), partition=partition)
    query = pour(spark, topics, source, sink, tmp_path / "checkpoint")
    assert len([each for each in query.recentProgress if each["numInputRows"]]) == 3
    assert values(topics, sink) == list(range(1_000))
    topics.fill(source, (b"%d" % number for number in range(1_000, 1_100)))
    pour(spark, topics, source, sink, tmp_path / "checkpoint")
    assert values(topics, sink) == list(range(1_100))


@pytest.mark.long
def test_a_driver_that_is_killed_amid_its_commits(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """Before the decision, and behind the commits, is in test_killed_driver.py."""
    from tests.pipeline.dying_driver import AMID

    source, sink = topics.create(2), topics.create(2)
    for partition in range(2):
        topics.fill(source, (b"%d" % number for number in range(partition, 200, 2)), partition=partition)
    died, said = run(tmp_path, "tests.pipeline.dying_driver", topics.address, source, sink, str(tmp_path), AMID)
    assert died == -signal.SIGKILL, said
    [left] = topics.ask(lambda client: client.transactions.list_all(states=["Ongoing"]))
    assert left.transactional_id.startswith(f"{sink}-pour-")
    topics.fill(source, [b"200"])
    pour(spark, topics, source, sink, tmp_path / "checkpoint")
    assert values(topics, sink) == list(range(201))
