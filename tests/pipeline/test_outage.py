"""A stream from topic to topic while its broker is killed, and while it is restarted, with a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.test_sink import values
from tests.pipeline.topics import Topics
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def test_a_broker_that_is_away_costs_a_stream_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as broker:
        topics = Topics(broker.kafka)
        source, sink = topics.create(2), topics.create(2)

        def send(first: int, last: int) -> None:
            for partition in range(2):
                numbers = range(first + partition, last, 2)
                topics.fill(source, (b"%d" % number for number in numbers), partition=partition)

        send(0, 240)
        query = (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", topics.address)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("kafka.group.id", "following")
            # Batches are under way whenever the broker goes.
            .option("maxOffsetsPerTrigger", "40")
            .load()
            .select("key", "value")
            .writeStream.format("headrace")
            .option("kafka.bootstrap.servers", topics.address)
            .option("topic", sink)
            .option("applicationId", "pouring")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )

        def written() -> int:
            assert query.isActive, query.exception()
            return sum(int(each["numInputRows"]) for each in query.recentProgress)

        try:
            wait_until(lambda: written() >= 40, seconds=60)
            broker.kill()
            broker.start()
            before = written()
            assert before < 240
            wait_until(lambda: written() >= before + 40, seconds=60)
            send(240, 300)
            broker.stop()
            broker.start()
            # The group follows what is done.
            wait_until(lambda: sum(topics.committed("following").values()) == 300, seconds=60)
        finally:
            query.stop()
        assert values(topics, sink) == list(range(300))
