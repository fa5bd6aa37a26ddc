"""The pipeline in Spark: `python -m bench.spark [ROWS]`.

Records of a data folder, so that no broker takes part, through one task each: as they are, decoded by Spark's own
`from_json`, decoded by the source, and archived. What counts is the CPU time of Spark and all its Python processes
together; each line is the better of two runs after one that warms up.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.config import Config
from headrace.format import records
from headrace.log.interface import Durability, TopicSettings
from headrace.log.native import NativeLog
from headrace.pipeline.jobs import archive
from headrace.pipeline.session import session
from headrace.runtime.real import real_runtime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "id BIGINT, user STRING, at TIMESTAMP, amount DOUBLE, tags ARRAY<STRING>, geo STRUCT<lat: DOUBLE, lon: DOUBLE>"
BATCH = 1_000
NOON = 1_704_110_400_000


def value(number: int) -> bytes:
    return json.dumps(
        {
            "id": number,
            "user": f"user-{number % 977}",
            "at": "2024-01-02T03:04:05.123Z",
            "amount": number / 7,
            "tags": ["a", "bc"],
            "geo": {"lat": 1.5, "lon": -2.25},
            "unknown": "ignored",
        }
    ).encode()


async def fill(data: str, rows: int) -> None:
    """A folder with one topic of one partition."""
    runtime = real_runtime(data)
    log = NativeLog(runtime, Config())
    await log.start()
    topic = await log.create("t", 1, {}, TopicSettings(durability=Durability.ASYNC))
    for first in range(0, rows, BATCH):
        numbers = range(first, min(first + BATCH, rows))
        topic.partitions[0].append(records.build([(NOON + first, None, value(each), []) for each in numbers]))
        await asyncio.sleep(0)
    await log.stop()
    runtime.offload.close()


def cpu_below(root: int, *, itself: bool = True) -> float:
    """Seconds of a process and all below it, those that have ended included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(name))
            ticks[int(name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [root] if itself else list(children.get(root, []))
    while waiting:
        each = waiting.pop()
        total += ticks[each]
        waiting += children.get(each, [])
    return total / os.sysconf("SC_CLK_TCK")


def measure(work: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds."""
    work()
    found = []
    for _ in range(2):
        cpu, wall = cpu_below(os.getpid(), itself=False), time.perf_counter()
        work()
        found.append((cpu_below(os.getpid(), itself=False) - cpu, time.perf_counter() - wall))
    return min(found)


def main(arguments: Iterable[str]) -> None:
    rows = int(next(iter(arguments), 500_000))
    data = tempfile.mkdtemp(prefix="headrace-bench-")
    asyncio.run(fill(data, rows))
    size = sum(map(len, map(value, range(rows)))) // rows
    spark = session("bench", "local[1]", {"spark.driver.memory": "1g"})

    def read(**options: str) -> DataFrame:
        return spark.read.format("headrace").options(subscribe="t", **options).load(data)

    def drop(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def keep() -> None:
        shutil.rmtree(f"{data}.archive", ignore_errors=True)
        archive(spark, to=f"{data}.archive", topics=["t"], data=data)

    theirs = f"from_json(STRING(value), '{SCHEMA}') AS v"
    work: dict[str, Callable[[], None]] = {
        "records as they are": lambda: drop(read()),
        "from_json": lambda: drop(read().selectExpr("offset", theirs).selectExpr("offset", "v.*")),
        "valueFormat=json": lambda: drop(read(valueFormat="json", schema=SCHEMA)),
        "archive": keep,
    }
    print(f"{rows:,} rows of {size} bytes, one task")
    found = {}
    try:
        for name, each in work.items():
            cpu, wall = found[name] = measure(each)
            print(f"{name:22} {cpu:6.2f} CPU s  {rows / cpu / 1e6:5.2f} M rows/CPU s  {wall:6.1f} s", flush=True)
        print(f"from_json takes {found['from_json'][0] / found['valueFormat=json'][0]:.1f} times the CPU")
    finally:
        spark.stop()
        for folder in (data, f"{data}.archive"):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
