"""A shop whose messages get lost, come twice or are never acknowledged, and what `headrace pipeline audit` says of it.

    pip install 'headrace[sdk,plots]'
    python examples/audit.py --minutes 20 --plot audit.png

It starts a broker in this process, and applications that send orders and read them from two queues. For some minutes
the connection of the producer is bad, so that it sends again what was stored already. The orders of a till never
arrive. One of the readers is slow for a while, and forgets to acknowledge. The oldest orders are deleted, as retention
does.

So that this takes seconds, the clocks of the broker and of the applications run sixty times as fast as the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace
from headrace.client import Client
from headrace.pipeline.jobs import Report, audit
from headrace.pipeline.jobs.audit import REPORTS
from headrace.pipeline.session import session
from headrace.runtime.clock import SystemClock
from headrace.sdk import App, auditing

TOPIC, PARTITIONS = "orders", 2
QUEUES = ("mail", "stock")
MINUTE = 60_000
A_MINUTE = 600  # orders

TEXT, FAINT, GRID = "#22262b", "#6b7280", "#e5e7eb"
BLUE, TEAL, ORANGE, RED, VIOLET = "#2563eb", "#0d9488", "#ea8a1f", "#d12f3f", "#7c3aed"


class Hurried:
    """A clock that runs sixty times as fast, from a full minute on."""

    def __init__(self) -> None:
        self.began = time.time_ns() // (MINUTE * 1_000_000) * MINUTE
        self._real = time.monotonic_ns()

    def now_ms(self) -> int:
        return self.began + (time.monotonic_ns() - self._real) * 60 // 1_000_000

    def time_ns(self) -> int:
        return self.now_ms() * 1_000_000

    monotonic = staticmethod(time.monotonic)


class Shop:
    """Those who send, and those who read."""

    def __init__(self, broker: headrace.Broker, clock: Hurried, minutes: int) -> None:
        self.broker = broker
        self.clock = clock
        self.minutes = minutes
        self.sent = 0

    def minute(self) -> int:
        return (self.clock.now_ms() - self.clock.began) // MINUTE

    def between(self, first: float, last: float) -> bool:
        """Whether it is between these shares of the whole time."""
        return first * self.minutes <= self.minute() < last * self.minutes

    async def send(self) -> None:
        producer = App("shop", self.broker.url, audit=True, register=False)
        again = False
        async with producer, Client(self.broker.kafka) as client, client.producer() as raw:
            while self.minute() < self.minutes:
                done = []
                for number in range(self.sent, self.sent + A_MINUTE // 20):
                    done.append(await producer.send(TOPIC, {"order": number}, partition=number % PARTITIONS))
                    self.sent += 1
                await producer.flush()
                # On a machine that is busy, that time may pass in one breath.
                if self.between(0.25, 0.4) or (not again and self.minute() >= 0.4 * self.minutes):
                    await self._send_again(client, raw)
                    again = True
                await asyncio.sleep(1 / 20)

    async def _send_again(self, client: Client, raw: Any) -> None:
        """What a producer does that has not heard that its messages are stored."""
        async with client.consumer(max_wait=0.05) as consumer:
            ends = (await client.admin.list_offsets({(TOPIC, 0): -1}))[TOPIC, 0].offset
            await consumer.assign({(TOPIC, 0): max(0, ends - 2)})
            async for record in consumer.records({(TOPIC, 0): ends}):
                await raw.send(TOPIC, record.value, headers=record.headers, partition=0)
        await raw.flush()

    def readers(self) -> App:
        reader = App("readers", self.broker.url, register=False, grace=0.5)

        @reader.subscribe(TOPIC, group="mail", workers=32, traced=1.0)
        async def mail(value: bytes) -> None: ...

        @reader.subscribe(TOPIC, group="stock", workers=400, credit=800, traced=1.0)
        async def stock(value: bytes) -> None:
            if self.between(0.55, 0.7):
                await asyncio.sleep(0.15)
            # A path through the code that ends without a word to the queue.
            if self.between(0.8, 0.9) and json.loads(value)["order"] % 10 == 0:
                await asyncio.sleep(3600)

        return reader

    async def live(self) -> None:
        async with Client(self.broker.kafka) as client:
            await client.admin.create_topic(TOPIC, PARTITIONS)
            async with self.readers():
                await self.send()
                # What is on its way arrives.
                await asyncio.sleep(2)
            await self._report_of_a_till(client)
            # The first orders go, as by retention.
            await client.admin.delete_records({(TOPIC, 1): A_MINUTE // 3})

    async def _report_of_a_till(self, client: Client) -> None:
        """A till whose orders were acknowledged and then dropped."""
        minutes = range(int(0.45 * self.minutes), int(0.55 * self.minutes))
        counts = [{"topic": TOPIC, "minute": self.clock.began + each * MINUTE, "sent": 60} for each in minutes]
        said = {"instance": "till-7", "sequence": 0, "t": self.clock.now_ms(), "within": 60, "ids": True, "last": True}
        async with client.producer() as producer:
            await producer.send(REPORTS, json.dumps({**said, "counts": counts}).encode())
            await producer.flush()


def run(spark: SparkSession, minutes: int, picture: Path) -> Report:
    clock = Hurried()
    SystemClock.now_ms = lambda _: clock.now_ms()  # type: ignore[method-assign]
    auditing.time = clock  # type: ignore[attr-defined]
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            headrace.Broker(data=folder, http="127.0.0.1:0", deliveries_flush_ms=20) as broker,
        ):
            shop = Shop(broker, clock, minutes)
            asyncio.run(shop.live())
            print(f"sent {shop.sent:,} orders in {minutes} minutes")
            report = audit(
                spark,
                topics=[TOPIC],
                bootstrap=broker.kafka,
                http=broker.http,
                since=clock.began,
                until=clock.began + (minutes + 1) * MINUTE,
            )
    finally:
        SystemClock.now_ms = lambda _: time.time_ns() // 1_000_000  # type: ignore[method-assign]
        auditing.time = time  # type: ignore[attr-defined]
    for line in (*report.wrong, *report.unknown, *report.notes):
        print(line)
    draw(report, picture)
    print(f"exit code {report.code}; drawn to {picture}")
    return report


def draw(report: Report, picture: Path) -> None:
    """Three rows: what came how far, what went wrong, and how long it took."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.dates import DateFormatter
    from matplotlib.ticker import LogLocator

    plt.rcParams.update(
        {
            "font.family": "DejaVu Sans", "font.size": 10, "axes.edgecolor": GRID, "axes.labelcolor": FAINT,
            "text.color": TEXT, "xtick.color": FAINT, "ytick.color": FAINT, "axes.titlesize": 11,
            "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.grid": True, "axes.grid.axis": "y",
            "grid.color": GRID, "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 9,
        }
    )  # fmt: skip
    figure, (flow, faults, latency) = plt.subplots(
        3, 1, figsize=(10.5, 9.5), sharex=True, height_ratios=(1.15, 1, 1), layout="constrained"
    )
    width = 0.8 / 1_440
    at = [_time(each.minute) for each in report.minutes]
    flow.bar(at, [each.produced or 0 for each in report.minutes], width, color="#dbe4f5", label="produced")
    flow.step(at, [each.stored for each in report.minutes], where="mid", color=BLUE, lw=1.8, label="stored")
    for queue, color in zip(QUEUES, (TEAL, VIOLET), strict=True):
        own = [each for each in report.queue_minutes if each.queue == queue]
        times = [_time(each.minute) for each in own]
        acknowledged = [each.acknowledged for each in own]
        # One inside the other, so that both are seen where they are equal.
        size, face = (8, "none") if queue == "mail" else (4, color)
        flow.plot(times, acknowledged, "o", color=color, ms=size, mfc=face, mew=1.4, label=f"acknowledged by {queue}")
        for name, style in (("p50", "-"), ("p99", ":")):
            took = [getattr(each.acknowledgement, name) / 1_000 if each.acknowledgement else None for each in own]
            latency.plot(times, took, style, color=color, lw=1.8, label=f"{queue}, {name}")
    flow.set_title("Messages in each minute")
    flow.set_ylabel("messages")
    flow.set_ylim(bottom=0)
    stock = {each.minute: each.unacknowledged for each in report.queue_minutes if each.queue == "stock"}
    wrong = (
        ("lost", [each.lost for each in report.minutes], RED),
        ("deleted", [each.deleted for each in report.minutes], FAINT),
        ("duplicates", [each.duplicates for each in report.minutes], ORANGE),
        ("not acknowledged by stock", [stock.get(each.minute, 0) for each in report.minutes], VIOLET),
    )
    bottom = [0] * len(at)
    for name, counts, color in wrong:
        faults.bar(at, counts, width, bottom=bottom, color=color, label=f"{name}: {sum(counts):,}")
        bottom = [low + count for low, count in zip(bottom, counts, strict=True)]
    faults.set_title("What went wrong")
    faults.set_ylabel("messages")
    latency.set_title("From the message's time to its acknowledgement")
    latency.set_ylabel("seconds of the example's time")
    latency.set_yscale("log")
    latency.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    latency.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    latency.minorticks_off()
    latency.xaxis.set_major_formatter(DateFormatter("%H:%M", tz=UTC))
    for axes in (flow, faults, latency):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)
    verdict = {0: "all is well", 1: "not all is well", 2: "could not be judged"}[report.code]
    figure.suptitle(f"Audit of {TOPIC}: {verdict}", x=0.01, ha="left", fontsize=14, fontweight="bold")
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def _time(minute: int | None) -> datetime:
    return datetime.fromtimestamp((minute or 0) / 1_000, UTC)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--plot", default="audit.png")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    spark = session("headrace examples", given.master, {"spark.driver.memory": "1g"})
    try:
        run(spark, given.minutes, Path(given.plot))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
