"""A day and a half of orders, archived to Parquet by date and hour, read back without the broker, and a picture of it.

    pip install 'headrace[plots]'
    python examples/archive.py --records 200000 --plot archive.png

It starts a broker in this process, lets Spark write records with their times, archives them in two goes, stops the
broker, and reads the archive alone: by Spark, and by anything that reads Parquet.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyspark.sql import SparkSession

import headrace
from headrace.pipeline.jobs import Archived, archive
from headrace.pipeline.session import session

HOURS = 36
HOUR = 3_600
# It ends now: what is older than a topic's retention may be gone at any time.
BEGIN = int(time.time()) // HOUR * HOUR - HOURS * HOUR


def write(spark: SparkSession, address: str, first: int, behind: int, of: int) -> None:
    """Orders, by their numbers: few at night, many at noon."""
    share = f"(id / {of} * {HOURS})"
    frame = spark.range(first, behind, 1, 2).selectExpr(
        "concat('customer-', id % 500) AS key",
        "concat('order ', id) AS value",
        f"timestamp_micros(CAST(1000000 * ({BEGIN} + {HOUR} * ({share} + 2 * sin({share} / 3.82))) AS BIGINT)) "
        "AS timestamp",
    )
    sink = frame.write.format("headrace").mode("append")
    sink.option("kafka.bootstrap.servers", address).option("topic", "orders").save()


def sizes(folder: Path) -> Counter[str]:
    """Bytes of files by hour, as their folders say it."""
    found: Counter[str] = Counter()
    for file in folder.rglob("*.parquet"):
        names = dict(part.split("=", 1) for part in file.relative_to(folder).parts if "=" in part)
        found[f"{names['date']} {int(names['hour']):02}"] += file.stat().st_size
    return found


def draw(rows: Counter[str], files: Counter[str], path: Path) -> None:
    hours = sorted(rows)
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    total = f"{sum(rows.values()):,} records, {sum(files.values()) / 1e6:.1f} MB of Parquet, {len(hours)} hours"
    figure.suptitle(f"What is in the archive: {total}", fontweight="bold")
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.bar(hours, [rows[hour] for hour in hours], color="tab:blue", alpha=0.75)
    upper.set_title("Records", loc="left")
    lower.bar(hours, [files[hour] / 1e3 for hour in hours], color="tab:green", alpha=0.75)
    lower.set_title("Files, kB", loc="left")
    lower.set_xticks(hours[::4], [hour[5:] + ":00" for hour in hours[::4]], rotation=30)
    for axes in (upper, lower):
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def run(spark: SparkSession, count: int, picture: Path) -> Archived:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "archive"
        with headrace.Broker(data=Path(scratch) / "data", num_partitions=2) as broker:
            told = {"to": folder, "topics": ["orders"], "bootstrap": broker.kafka}
            write(spark, broker.kafka, 0, count // 2, count)
            first = archive(spark, **told)
            write(spark, broker.kafka, count // 2, count, count)
            done = archive(spark, **told)
        print(f"{first.rows:,} records, then {done.rows:,}, in {done.files} files, {done.bytes / 1e6:.1f} MB")
        # The broker is gone; the archive is a source of its own.
        frame = spark.read.format("headrace").option("subscribe", "orders").load(str(folder))
        times = frame.selectExpr("CAST(value AS STRING)", "unix_millis(timestamp)").collect()
        assert sorted(row[0] for row in times) == sorted(f"order {number}" for number in range(count))
        rows = Counter(f"{datetime.fromtimestamp(row[1] / 1_000, UTC):%Y-%m-%d %H}" for row in times)
        draw(rows, sizes(folder), picture)
        print(f"drawn to {picture}")
        return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--plot", default="archive.png")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    spark = session("headrace examples", given.master, {"spark.driver.memory": "1g"})
    try:
        run(spark, given.records, Path(given.plot))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
