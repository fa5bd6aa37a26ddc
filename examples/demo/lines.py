"""Service logs: millions of lines into the log, through the pipeline on Spark, windows and error rates out.

Half an hour of six services, with an incident in one of them. How many lines each window, service and level has is
counted while they are made, and compared with what Spark counted.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo.report import Report
from examples.demo.stage import Bars, Stage
from headrace.client import Client
from headrace.format import records

if TYPE_CHECKING:
    from headrace.pipeline.jobs import Logs

TOPIC = "service-logs"
RESULTS = "service-windows"
LINES = 2_000_000
PARTITIONS = 4
BATCH = 1_000
MINUTES = 30
# Each as often as it stands here.
SERVICES = (
    *("gateway", "orders", "search", "gateway", "payments", "recommendation"),
    *("gateway", "search", "mail", "gateway", "payments", "orders", "search"),
)
INCIDENT = ("payments", range(12, 18))
CALM_ERRORS, INCIDENT_ERRORS = 0.01, 0.35
BROKEN_EVERY = 5_000
# How long calls took, in milliseconds: drawn once, because there are millions of lines.
CALM_TIMES, INCIDENT_TIMES = (
    [f"{random.Random(mean + index).expovariate(1 / mean):.1f}" for index in range(1_009)] for mean in (25, 400)
)

Counted = Counter[tuple[datetime, str, str]]
"""Lines by window, service and level."""


def missing() -> str:
    """Why this scenario cannot be played; empty where it can."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        return f"Spark is missing: pip install 'headrace[pipeline]' ({error})"
    return "" if shutil.which("java") else "there is no Java: install a Java 17 for Spark"


async def play(stage: Stage) -> Report:
    report = Report("Service logs", "pipeline logs, on Spark")
    batches = max(stage.count(LINES) // BATCH, 1)
    total = batches * BATCH
    # The half hour that ends now.
    begin_ms = (int(time.time()) // 60 - MINUTES) * 60_000
    counted: Counted = Counter()
    sent = 0
    finished: Logs | None = None
    bars = Bars(stage.console)
    bars.watch("lines into the log", total, lambda: sent)
    bars.watch("lines through Spark", total, lambda: 0 if finished is None else finished.rows)
    began = time.perf_counter()
    took = 0.0

    async def work() -> None:
        nonlocal sent, took, finished
        async with Client(stage.kafka) as client:
            await client.admin.create_topic(TOPIC, PARTITIONS)
            async with client.producer() as producer:
                for number in range(batches):
                    await producer.send_batch(TOPIC, number % PARTITIONS, _batch(number, batches, begin_ms, counted))
                    sent += BATCH
                await producer.flush()
        took = time.perf_counter() - began
        finished = await asyncio.to_thread(_through_spark, stage)

    working = asyncio.create_task(work())
    await bars.until_full(working)
    await working
    assert finished is not None
    picture = stage.folder / "service-logs.png"
    await asyncio.to_thread(_draw, finished, picture)
    broken = total // BROKEN_EVERY
    report.figure("lines", total)
    report.figure("into the log", f"{total / took:,.0f}/s")
    report.figure("windows of a minute", finished.windows)
    report.figure("errors", finished.errors)
    report.figure("broken lines kept aside", finished.broken)
    report.check("every line read", total, finished.rows)
    report.check("every window, service and level as sent", counted, _read_windows(finished.to / "windows"))
    report.check("broken lines counted", broken, finished.broken)
    report.check("nothing late", 0, finished.late)
    report.check("results in a topic", finished.windows, await _records(stage.kafka))
    report.look += [str(picture), f"headrace consume {RESULTS}", "docs/jobs.md"]
    return report


def _batch(number: int, of: int, begin_ms: int, counted: Counted) -> bytearray:
    """A batch of lines, all of one minute: the how-manieth of how many."""
    draw = random.Random(number)
    minute = number * MINUTES // of
    begin_ms += minute * 60_000
    window = datetime.fromtimestamp(begin_ms / 1_000, UTC)
    rows: list[tuple[int, None, bytes, list[Any]]] = []
    for index, chance in enumerate(draw.choices(range(1_000), k=BATCH)):
        at_ms = begin_ms + index * 60_000 // BATCH
        if (number * BATCH + index) % BROKEN_EVERY == BROKEN_EVERY - 1:
            rows.append((at_ms, None, b'{"time": "cut off in the middle of', []))
            continue
        service = SERVICES[index % len(SERVICES)]
        incident = service == INCIDENT[0] and minute in INCIDENT[1]
        level, message = "info", "served"
        if chance < (INCIDENT_ERRORS if incident else CALM_ERRORS) * 1_000:
            level, message = "error", f"upstream {chance % 8} timed out after {900 + chance} ms"
        took_ms = (INCIDENT_TIMES if incident else CALM_TIMES)[(number + index * 7) % 1_009]
        line = (
            f'{{"time": {at_ms}, "service": "{service}", "level": "{level}", "message": "{message}", '
            f'"duration_ms": {took_ms}}}'
        )
        rows.append((at_ms, None, line.encode(), []))
        counted[window, service, level.upper()] += 1
    return records.build(rows)


def _through_spark(stage: Stage) -> Logs:
    from headrace.pipeline.jobs import logs
    from headrace.pipeline.session import session

    spark = session("headrace demo", "local[*]", {"spark.driver.memory": "1g"})
    try:
        return logs(
            spark, to=stage.folder / "service-logs", topics=[TOPIC], bootstrap=stage.kafka, into=RESULTS, format="json"
        )
    finally:
        spark.stop()


def _draw(done: Logs, path: Path) -> None:
    from headrace.pipeline.jobs.logs import plot

    plot(done, path)


def _read_windows(folder: Path) -> Counted:
    """What Spark counted."""
    import pyarrow.parquet as pq

    found: Counted = Counter()
    for row in pq.read_table(folder).to_pylist():
        for level, lines in row["levels"]:
            found[row["window"], row["service"], level] += lines
    return found


async def _records(kafka: str) -> int:
    """How many results a reader of the topic finds."""
    async with Client(kafka) as client, client.consumer(committed=True) as consumer:
        count = len((await client.cluster.topic(RESULTS)).partitions)
        await consumer.assign({(RESULTS, index): 0 for index in range(count)})
        return len([record async for record in consumer.records(await consumer.end_offsets())])
