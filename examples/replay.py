"""Traffic of a minute with two bursts, replayed at ten times its speed and as fast as possible, and a picture of both.

    pip install 'headrace[plots]'
    python examples/replay.py --records 60000 --plot replay.png

It starts a broker in this process, lets Spark write records with their times, replays them through a function into two
other topics, compares what is there, and draws when records came.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.pipeline.jobs import Replayed, replay
from headrace.pipeline.session import session

PARTITIONS = 2
SECONDS = 60
# A minute that is just over: what is older than a topic's retention may be gone at any time.
BEGIN = int(time.time()) - 2 * SECONDS


def traffic(spark: SparkSession, count: int) -> DataFrame:
    """Records of a minute: busier and busier, and again."""
    each = count // PARTITIONS
    return spark.range(0, each * PARTITIONS, 1, PARTITIONS).selectExpr(
        "concat('user-', id % 50) AS key",
        "concat('order ', id) AS value",
        f"CAST(id DIV {each} AS INT) AS partition",
        f"""timestamp_micros(CAST(1000000 * ({BEGIN} + {SECONDS} * (
            (id % {each}) / {each} + 0.06 * sin((id % {each}) / {each} * 12.566))) AS BIGINT)) AS timestamp""",
    )


def tested(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function that records pass through: their values say that they are a test."""
    for block in blocks:
        values = pc.binary_join_element_wise(b"test: ", block.column("value"), b"")
        yield block.set_column(block.schema.get_field_index("value"), "value", values)


def times(spark: SparkSession, address: str, topic: str) -> list[float]:
    """When the records of a topic came, in seconds since the first."""
    frame = spark.read.format("headrace").option("kafka.bootstrap.servers", address).option("subscribe", topic).load()
    found = sorted(row[0] for row in frame.selectExpr("unix_millis(timestamp)").collect())
    return [(each - found[0]) / 1000 for each in found]


def compare(spark: SparkSession, address: str, topic: str) -> None:
    """Raise unless the topic has every order once, in the order of its partition."""
    frame = spark.read.format("headrace").option("kafka.bootstrap.servers", address)
    sent, there = (frame.option("subscribe", name).load() for name in ("orders", topic))
    columns = ["partition", "offset", "key", "CAST(value AS STRING) AS value"]
    wanted = sent.selectExpr(*columns[:3], "concat('test: ', CAST(value AS STRING)) AS value")
    ranked = "row_number() OVER (PARTITION BY partition ORDER BY offset) AS place"
    left, right = (
        each.selectExpr("partition", "key", "value", ranked) for each in (wanted, there.selectExpr(*columns))
    )
    assert left.exceptAll(right).isEmpty(), f"{topic} has other records than were sent"
    assert right.exceptAll(left).isEmpty(), f"{topic} has other records than were sent"


def draw(series: dict[str, list[float]], path: Path) -> None:
    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("The same records three times", fontweight="bold")
    colors = ("tab:gray", "tab:blue", "tab:red")
    for axes, (title, found), color in zip(figure.subplots(3, 1), series.items(), colors, strict=True):
        length = max(found[-1], 1.0)
        bins = 120
        weights = [bins / length] * len(found)
        axes.hist(found, bins=bins, range=(0, length), weights=weights, color=color, alpha=0.7)
        axes.set_title(f"{title}: {len(found):,} records in {found[-1]:.1f} s", loc="left")
        axes.set_ylabel("records/s")
        axes.set_xlim(0, length)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.get_axes()[-1].set_xlabel("seconds since the first record")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--speed", type=float, default=10.0)
    parser.add_argument("--plot", default="replay.png")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    spark = session("headrace examples", given.master, {"spark.driver.memory": "1g"})
    try:
        run(spark, given.records, given.speed, Path(given.plot))
    finally:
        spark.stop()


def run(spark: SparkSession, count: int, speed: float, picture: Path) -> Replayed:
    with tempfile.TemporaryDirectory() as folder, headrace.Broker(data=folder, num_partitions=PARTITIONS) as broker:
        sink = traffic(spark, count).write.format("headrace").mode("append")
        sink.option("kafka.bootstrap.servers", broker.kafka).option("topic", "orders").save()
        told = {"topics": ["orders"], "bootstrap": broker.kafka, "function": tested, "per": "batches"}
        paced = replay(spark, **told, into="orders-paced", speed=speed)
        print(f"{paced.written:,} records at {speed:g} times their speed, {paced.behind:.2f} s behind at worst")
        fast = replay(spark, **told, into="orders-fast", application="example")
        print(f"{fast.written:,} records as fast as possible, in {fast.rounds} rounds")
        for topic in ("orders-paced", "orders-fast"):
            compare(spark, broker.kafka, topic)
        series = {
            "as they came": times(spark, broker.kafka, "orders"),
            f"at {speed:g} times the speed": times(spark, broker.kafka, "orders-paced"),
            "as fast as possible": times(spark, broker.kafka, "orders-fast"),
        }
        draw(series, picture)
        print(f"drawn to {picture}")
        return fast


if __name__ == "__main__":
    main()
