"""Log lines of a few services through `headrace pipeline logs`, and a picture of what came out.

    pip install 'headrace[plots]'
    python examples/logs.py --lines 1000000 --plot logs.png

It starts a broker in this process, lets Spark write lines to a topic (one service gets slow and fails for a while, some
lines are broken, and some come late), runs the job, compares the windows with what was sent, and draws them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it

import headrace
from headrace.client import Client
from headrace.pipeline.jobs import Logs, logs
from headrace.pipeline.jobs.logs import plot
from headrace.pipeline.session import session

TOPIC, RESULTS = "services.logs", "services.windows"
PARTITIONS = 4
MINUTES = 60
BEGIN = 1_767_261_600  # 2026-01-01 10:00 UTC

ERRORS = "count_if(level = 'ERROR')"

# The incident: between these minutes `payments` is slow, and fails often.
FROM, TO = 25, 38


def lines(spark: SparkSession, count: int) -> DataFrame:
    """Lines as services log them: in each partition one behind the other in time, over an hour."""
    each = count // PARTITIONS
    frame = spark.range(0, each * PARTITIONS, 1, PARTITIONS).selectExpr(
        f"CAST(id DIV {each} AS INT) AS partition",
        f"(id % {each}) / {each} AS share",
        "rand(7) AS luck",
        "randn(11) AS spread",
        "id",
    )
    frame = frame.selectExpr(
        "*",
        # Sometimes busier.
        f"{BEGIN} + {MINUTES * 60} * (share + 0.04 * sin(share * 12)) / (1 + 0.04 * sin(12)) AS at",
        "element_at(array('gateway', 'orders', 'payments', 'search'), 1 + CAST(pow(luck, 1.4) * 4 AS INT)) AS service",
        "pmod(hash(id), 1000) AS dice",
    ).selectExpr("*", f"service = 'payments' AND at BETWEEN {BEGIN + FROM * 60} AND {BEGIN + TO * 60} AS trouble")
    frame = frame.selectExpr(
        "*",
        "CASE WHEN dice < IF(trouble, 180, 8) THEN 'ERROR' WHEN dice < 40 THEN 'WARN' ELSE 'INFO' END AS level",
        # One line in a thousand is five minutes late.
        "timestamp_micros(CAST(1000000 * (at - IF(dice = 777, 300, 0)) AS BIGINT)) AS time",
        "round(exp(3 + 0.6 * spread) * IF(trouble, 6, 1), 2) AS duration",
    )
    message = (
        "CASE WHEN level != 'ERROR' THEN 'request done' "
        "WHEN trouble THEN concat('timeout after ', CAST(duration AS INT), ' ms: bank at 10.0.3.', id % 9) "
        "WHEN id % 3 = 0 THEN concat('cart ', hex(hash(id)), id, ' not found') "
        "ELSE concat('connection ', id % 64, ' reset by peer') END"
    )
    stamp = """date_format(time, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")"""
    value = f"""
        CASE WHEN dice = 500 THEN concat('{{"time":"', time, '", "serv')
             WHEN service = 'search' THEN concat(
                 {stamp}, ' ', level, ' search ', {message}, ' took ', duration, ' ms')
             ELSE to_json(named_struct('time', {stamp}, 'service', service, 'level', level, 'message', {message},
                 'duration_ms', duration)) END AS value
    """
    return frame.selectExpr("partition", "service", "level", "time", "dice", value)


async def make_topics(address: str) -> None:
    async with Client(address) as client:
        await client.admin.create_topic(TOPIC, PARTITIONS)
        await client.admin.create_topic(RESULTS, 1)


def compare(spark: SparkSession, sent: DataFrame, done: Logs) -> dict[str, int]:
    """What was sent beside what was found; raises where they differ."""
    on_time = sent.where("dice NOT IN (500, 777)").groupBy(
        "service", F.window("time", "1 minute").start.alias("window")
    )
    told = {(row[0], row[1]): (row[2], row[3]) for row in on_time.agg(F.count("*"), F.expr(ERRORS)).collect()}
    windows = spark.read.parquet(f"{done.to}/windows").select("service", "window", "lines", "errors").collect()
    assert {(row[0], row[1]): (row[2], row[3]) for row in windows} == told, "windows differ from what was sent"
    broken, late = sent.selectExpr("count_if(dice = 500)", "count_if(dice = 777)").collect()[0]
    assert (done.broken, done.late) == (broken, late), "other lines are broken or late than were sent so"
    assert done.rows == done.parsed + done.broken + done.late
    return {"rows": done.rows, "parsed": done.parsed, "broken": done.broken, "late": done.late, "errors": done.errors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--plot", default="logs.png")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    spark = session("headrace examples", given.master, {"spark.driver.memory": "1g"})
    try:
        run(spark, given.lines, Path(given.plot))
    finally:
        spark.stop()


def run(spark: SparkSession, count: int, picture: Path) -> Logs:
    with tempfile.TemporaryDirectory() as folder, headrace.Broker(data=f"{folder}/broker") as broker:
        asyncio.run(make_topics(broker.kafka))
        sent = lines(spark, count)
        began = time.monotonic()
        sink = sent.select("value", "partition").write.format("headrace").mode("append")
        sink.option("kafka.bootstrap.servers", broker.kafka).option("topic", TOPIC).save()
        print(f"sent {count:,} lines in {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        done = logs(spark, to=f"{folder}/results", topics=[TOPIC], bootstrap=broker.kafka, into=RESULTS)
        took = time.monotonic() - began
        print(f"counted them in {took:.1f} s, {done.rows / took:,.0f} lines/s: {done.windows} windows")
        print(json.dumps(compare(spark, sent, done)))
        print(f"drawn to {plot(done, picture)}")
        return done


if __name__ == "__main__":
    main()
