"""Push notifications: a burst of 50 times the normal rate is absorbed at once and drained at a fixed rate."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from examples.demo.report import Report
from examples.demo.stage import Bars, Stage
from headrace.sdk import App

TOPIC = "push"
NORMAL_RATE = 200
TIMES = 50
NORMAL_SECONDS = 3.0
BURST_SECONDS = 1.0
DRAIN_RATE = 1_500


async def play(stage: Stage) -> Report:
    report = Report("Push notifications", "burst")
    calm = stage.count(round(NORMAL_RATE * NORMAL_SECONDS))
    burst = stage.count(round(NORMAL_RATE * TIMES * BURST_SECONDS))
    total = calm + burst
    app = App("push.gateway", stage.url)
    pushed: Counter[int] = Counter()
    times: list[float] = []

    @app.subscribe(TOPIC, scenario="burst", rate=DRAIN_RATE)
    async def push(number: int) -> None:
        pushed[number] += 1
        times.append(time.monotonic())

    sent = 0
    backlog = 0
    took = 0.0
    bars = Bars(stage.console)
    bars.watch("notifications asked for", total, lambda: sent)
    bars.watch(f"pushed, {DRAIN_RATE:,} a second", total, lambda: len(times))
    async with app:

        async def publish() -> None:
            nonlocal sent, backlog, took
            sent = await steadily(app, 0, calm, NORMAL_RATE)
            begun = time.monotonic()
            sent += await steadily(app, calm, burst, NORMAL_RATE * TIMES)
            took = time.monotonic() - begun
            backlog = sent - len(times)

        publishing = asyncio.create_task(publish())
        await bars.until_full()
        await publishing
    drained = times[calm:]
    rate = (len(drained) - 1) / (drained[-1] - drained[0]) if len(drained) > 1 else 0.0
    report.figure("notifications", total)
    report.figure("normal rate", f"{NORMAL_RATE}/s")
    report.figure("burst", f"{burst:,} in {took:.2f} s, {burst / took:,.0f}/s")
    report.figure("waiting behind the burst", backlog)
    report.figure("drained at", f"{rate:,.0f}/s")
    report.check("nothing lost", total, len(pushed))
    report.check("nothing pushed twice", [], [number for number, count in pushed.items() if count > 1])
    report.check(f"never above {DRAIN_RATE:,} a second", True, rate <= DRAIN_RATE * 1.01)
    report.look += [f"headrace queue show {TOPIC} push.gateway", "headrace scenario show burst"]
    return report


async def steadily(app: App, first: int, count: int, rate: int) -> int:
    """Send so many messages at a rate; returns when all are durable."""
    begun = time.monotonic()
    waiting = []
    for index in range(count):
        waiting.append(await app.send(TOPIC, first + index))
        ahead = index / rate - (time.monotonic() - begun)
        if ahead > 0.005:
            await asyncio.sleep(ahead)
    await asyncio.gather(*waiting)
    return count
