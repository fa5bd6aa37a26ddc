"""Source, sink and a job as a user with just the rights that they need, with a real Spark."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.guarded import PASSWORD, Guarded, guarded_broker

from headrace.client import EARLIEST
from headrace.pipeline.broker import make_client
from headrace.pipeline.options import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as found:
        asyncio.run(_fill(found))
        yield found


async def _fill(guarded: Guarded) -> None:
    async with make_client(parse({**guarded.admin, "subscribe": "t"}, streaming=False)) as client:
        for topic in ("events", "payroll"):
            await client.admin.ensure_topic(topic, 2)
            async with client.producer() as producer:
                for number in range(10):
                    await producer.send(topic, b"%d" % number, partition=number % 2)


def values(guarded: Guarded, topic: str) -> list[int]:
    async def read() -> list[int]:
        async with (
            make_client(parse({**guarded.admin, "subscribe": topic}, streaming=False)) as client,
            client.consumer(committed=True, max_wait=0.1) as consumer,
        ):
            partitions = [(topic, each.index) for each in (await client.cluster.topic(topic)).partitions]
            await consumer.assign(dict.fromkeys(partitions, EARLIEST))
            ends = await consumer.end_offsets()
            return sorted([int(record.value or b"") async for record in consumer.records(ends)])

    return asyncio.run(read())


def test_a_stream_comes_and_goes_as_its_user(
    spark: SparkSession, guarded: Guarded, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = (
        spark.readStream.format("headrace")
        .options(**guarded.login, **{"kafka.group.id": "spark-copy"})
        .options(subscribe="events", startingOffsets="earliest")
        .load()
        .selectExpr("value")
    )
    writing: Any = frame.writeStream.format("headrace").options(**guarded.login)
    checkpoint = tmp_path / "checkpoint"
    writing = writing.option("topic", "copies").option("applicationId", "copy")
    query = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert values(guarded, "copies") == list(range(10))

    # The secret is in nothing that Spark keeps or shows.
    read = spark.read.format("headrace").options(**guarded.login, subscribe="events").load()
    read.explain(True)
    plans: Any = read._jdf.queryExecution().toString()
    kept = b"".join(each.read_bytes() for each in checkpoint.rglob("*") if each.is_file())
    shown = "".join(capfd.readouterr()) + plans + str(query.lastProgress) + str(spark.sparkContext.getConf().getAll())
    assert "RelationV2" in shown
    assert PASSWORD not in shown
    assert PASSWORD.encode() not in kept


def test_what_the_user_may_not_is_refused(spark: SparkSession, guarded: Guarded) -> None:
    read = spark.read.format("headrace").options(**guarded.login)
    with pytest.raises(Exception, match="payroll") as refused:
        read.options(subscribe="payroll").load().collect()
    assert PASSWORD not in str(refused.value)
    frame = spark.createDataFrame([("x",)], "value STRING")
    writer: Any = frame.write.format("headrace").options(**guarded.login, applicationId="copy-2").mode("append")
    with pytest.raises(Exception, match="topic authorization failed") as refused:
        writer.option("topic", "payroll").save()
    assert PASSWORD not in str(refused.value)
    with pytest.raises(Exception, match=r"kafka\.sasl\.jaas\.config is not taken") as refused:
        read.options(subscribe="events", **{"kafka.sasl.jaas.config": f'x password="{PASSWORD}";'}).load().collect()
    assert PASSWORD not in str(refused.value)


def test_the_archive_comes_as_its_user_by_the_command(guarded: Guarded, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli", "pipeline", "archive", "--topics", "events", "--to"]
    command += [str(tmp_path / "archive"), "--bootstrap", guarded.broker.kafka, "--group", "spark-archive"]
    command += ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    refused = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 1, refused.stderr
    login = {"HEADRACE_USER": "spark", "HEADRACE_PASSWORD_FILE": str(guarded.password_file)}
    done = subprocess.run(command, env=clean | login, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert '"rows": 10' in done.stdout
    assert PASSWORD not in done.stdout + done.stderr
