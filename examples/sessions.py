"""Two days of a site for questions and answers through `headrace pipeline sessions`, and a picture of what came out.

    pip install 'headrace[plots]'
    python examples/sessions.py --questions 2000 --plot sessions.png

It starts a broker in this process, sends what happened to each question (asked, answered, voted on, accepted, closed)
out of order over four partitions, follows the questions in two runs of the job, compares their states with what was
sent, and draws how many were in which state at what time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace
from headrace.client import EARLIEST, Client
from headrace.pipeline.jobs import sessions
from headrace.pipeline.session import session

TOPIC, TO, PARTITIONS = "site", "questions", 4
BEGIN = 1_767_225_600_000  # 2026-01-01 00:00 UTC
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
HOURS = 48
LATENESS, IDLE = 120, 8 * 3_600  # seconds

STATES = ("open", "answered", "accepted", "closed", "idle")
COLORS = ("#ea8a1f", "#4f86e8", "#0d9488", "#8b93a1", "#d5d9e0")
TEXT, FAINT, GRID = "#22262b", "#6b7280", "#e5e7eb"

Happened = dict[str, Any]


def history(number: int, chance: random.Random) -> list[Happened]:
    """What happens to one question, in order. More are asked by day than by night."""
    while True:
        at = BEGIN + chance.randrange(HOURS * HOUR)
        if chance.random() < (1.0 if 8 <= at // HOUR % 24 < 20 else 0.25):
            break
    found = [("asked", at)]
    # Hard questions wait long for their first answer, and some for ever.
    patience = chance.choice([10 * MINUTE, 25 * MINUTE, 3 * HOUR])
    for _ in range(min(5, int(chance.expovariate(0.7) + 0.6))):
        at += int(chance.expovariate(1 / patience)) + SECOND
        found.append(("answered", at))
        for _ in range(chance.randrange(3)):
            at += chance.randrange(SECOND, 10 * MINUTE)
            found.append((chance.choice(["commented", "voted"]), at))
    if len(found) > 1 and chance.random() < 0.6:
        at += int(chance.expovariate(1 / HOUR)) + SECOND
        found.append(("accepted", at))
    if chance.random() < 0.08:
        found.append(("closed", at + chance.randrange(SECOND, 2 * HOUR)))
    return [
        {"question": f"q{number}", "event": event, "at": at, "sequence": index}
        for index, (event, at) in enumerate(found, 1)
        if at < BEGIN + HOURS * HOUR
    ]


async def send(address: str, happened: list[Happened]) -> None:
    async with Client(address) as client, client.producer() as producer:
        for each in happened:
            # Not by the question: no partition has its events in order.
            place = each["sequence"] % PARTITIONS
            await producer.send(TOPIC, json.dumps(each).encode(), each["question"].encode(), partition=place)
        await producer.flush()


async def read(address: str, topic: str) -> list[tuple[str, Any]]:
    """Keys and values of what is committed."""
    async with Client(address) as client, client.consumer(committed=True, max_wait=0.1) as consumer:
        partitions = (await client.cluster.topic(topic)).partitions
        await consumer.assign({(topic, each.index): EARLIEST for each in partitions})
        records = consumer.records(await consumer.end_offsets())
        return [((record.key or b"").decode(), json.loads(record.value or b"null")) async for record in records]


async def make_topic(address: str) -> None:
    async with Client(address) as client:
        await client.admin.create_topic(TOPIC, PARTITIONS)


def run(spark: SparkSession, count: int, picture: Path, runs: int = 2) -> dict[str, int]:
    chance = random.Random(7)
    questions = [history(number, chance) for number in range(count)]
    happened = [each for question in questions for each in question]
    # As they arrive: up to a minute out of order.
    happened.sort(key=lambda each: each["at"] + chance.randrange(MINUTE))
    each = -(-len(happened) // runs)
    with tempfile.TemporaryDirectory() as folder, headrace.Broker(data=f"{folder}/broker") as broker:
        asyncio.run(make_topic(broker.kafka))
        for at in range(0, len(happened), each):
            asyncio.run(send(broker.kafka, happened[at : at + each]))
            began = time.monotonic()
            done = sessions(
                spark,
                topics=[TOPIC],
                bootstrap=broker.kafka,
                to=TO,
                checkpoint=f"{folder}/checkpoint",
                lateness=LATENESS,
                idle=IDLE,
            )
            print(f"{done.events:,} events in {time.monotonic() - began:.1f} s, {done.late} late: {dict(done.states)}")
        states = dict(asyncio.run(read(broker.kafka, f"{TO}.state")))
        changes = [value for _, value in asyncio.run(read(broker.kafka, f"{TO}.changes"))]
    compare(questions, states, dict(done.states))
    draw(states, changes, picture)
    print(f"drawn to {picture}")
    return dict(done.states)


def compare(questions: list[list[Happened]], states: dict[str, Any], counts: dict[str, int]) -> None:
    """What was sent beside what was found; raises where they differ."""
    sent = {question[0]["question"]: question for question in questions if question}
    assert states.keys() == sent.keys()
    for name, question in sent.items():
        found = states[name]
        assert found["events"] == len(question)
        assert found["answers"] == sum(each["event"] == "answered" for each in question)
        assert found["asked"] == question[0]["at"]
    assert {state: count for state, count in counts.items() if count} == Counter(
        each["state"] for each in states.values()
    )


def draw(states: dict[str, Any], changes: list[dict[str, Any]], picture: Path) -> None:
    """How many questions were in which state, and how long first answers took."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.dates import DateFormatter, HourLocator

    plt.rcParams.update(
        {
            "font.family": "DejaVu Sans", "font.size": 10, "axes.edgecolor": GRID, "axes.labelcolor": FAINT,
            "text.color": TEXT, "xtick.color": FAINT, "ytick.color": FAINT, "axes.titlesize": 11,
            "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.grid": True, "grid.color": GRID,
            "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 9,
        }
    )  # fmt: skip
    figure = plt.figure(figsize=(10.5, 8.5), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(1.25, 1))
    over_time, first, how_many = (
        figure.add_subplot(grid[0, :]),
        figure.add_subplot(grid[1, 0]),
        figure.add_subplot(grid[1, 1]),
    )

    steps = [BEGIN + step * 10 * MINUTE for step in range(HOURS * 6 + 1)]
    layers = [_level(changes, state, steps) for state in STATES]
    times = [datetime.fromtimestamp(each / 1_000, UTC) for each in steps]
    over_time.stackplot(times, layers, colors=COLORS, labels=STATES, lw=0)
    over_time.set_title("Questions by state")
    over_time.set_ylabel("questions")
    over_time.set_xlim(times[0], times[-1])
    over_time.xaxis.set_major_locator(HourLocator(byhour=range(0, 24, 6), tz=UTC))
    over_time.xaxis.set_major_formatter(DateFormatter("%a %H:%M", tz=UTC))
    handles, names = over_time.get_legend_handles_labels()
    over_time.legend(handles[::-1], names[::-1], loc="upper left")

    waits = sorted(each["first_answer_after"] / MINUTE for each in states.values() if each["first_answer_after"])
    total = max(1, len(states))
    first.plot(waits, [100 * (index + 1) / total for index in range(len(waits))], color="#2563eb", lw=2)
    first.set_xscale("log")
    first.set_xticks([1, 10, 60, 600], ["1 min", "10 min", "1 h", "10 h"])
    first.minorticks_off()
    first.set_ylim(0, 100)
    first.set_title("Answered within")
    first.set_ylabel("% of all questions")

    answers = Counter(each["answers"] for each in states.values())
    shown = range(max(answers, default=0) + 1)
    how_many.bar(list(shown), [answers[each] for each in shown], color="#4f86e8", width=0.7)
    how_many.set_title("Answers of a question")
    how_many.set_ylabel("questions")
    how_many.set_xticks(list(shown))
    how_many.grid(axis="x", visible=False)
    for axes in (over_time, first, how_many):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
    figure.suptitle(f"{len(states):,} questions in {HOURS} hours", x=0.01, ha="left", fontsize=14, fontweight="bold")
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def _level(changes: list[dict[str, Any]], state: str, steps: list[int]) -> list[int]:
    """How many questions are in a state at each step: what came into it, without what left it."""
    moved: Counter[int] = Counter()
    for each in changes:
        slot = min(len(steps) - 1, max(0, -(-(each["at"] - BEGIN) // (10 * MINUTE))))
        moved[slot] += (each["to"] == state) - (each["from"] == state)
    return list(accumulate(moved[slot] for slot in range(len(steps))))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=2_000)
    parser.add_argument("--plot", default="sessions.png")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    spark = session("headrace examples", given.master, {"spark.driver.memory": "1g"})
    try:
        run(spark, given.questions, Path(given.plot))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
