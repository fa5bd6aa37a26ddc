"""Questions and answers: the events of each question strictly in order, read by four teams at their own pace.

Audit fails now and then and tries again; recommendation is slow; search reads in batches, from the log. Each must see
every event of every question once, in the order in which it happened.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import msgspec

from examples.demo.report import Report
from examples.demo.stage import Bars, Stage
from headrace.sdk import App, Message

TOPIC = "qa-events"
QUESTIONS = 1_500
EVENTS = ("asked", "answered", "voted", "commented", "answered", "voted", "edited", "voted", "accepted", "closed")


class Event(msgspec.Struct):
    """Something that happened to a question."""

    question: str
    number: int
    """The how-manieth event of its question."""
    what: str

    @property
    def fails_at_first(self) -> bool:
        """Whether audit's first try of it fails."""
        return (int(self.question[1:]) * 7 + self.number) % 20 == 0


class Reader:
    """A team, and what it saw."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.count = 0
        self.failures = 0

    def note(self, event: Event) -> None:
        self.seen[event.question].append(event.number)
        self.count += 1

    def check(self, report: Report, name: str, questions: int) -> None:
        whole = list(range(len(EVENTS)))
        report.check(
            f"{name}: every event once, in order", questions, sum(each == whole for each in self.seen.values())
        )


async def play(stage: Stage) -> Report:
    report = Report("Questions and answers", "ordered, stream")
    questions = stage.count(QUESTIONS)
    total = questions * len(EVENTS)
    audit, operations, recommendation, search = readers = [Reader() for _ in range(4)]
    names = ("qa.audit", "qa.operations", "qa.recommendation", "qa.search")
    apps = [App(name, stage.url) for name in names]

    @apps[0].subscribe(TOPIC, scenario="ordered", ordered_by="question", ladder=(0.05,))
    async def on_audit(event: Event, message: Message) -> None:
        if event.fails_at_first and message.attempt == 1:
            audit.failures += 1
            raise_unavailable()
        audit.note(event)

    @apps[1].subscribe(TOPIC, scenario="ordered", ordered_by="question")
    async def on_operations(event: Event) -> None:
        operations.note(event)

    @apps[2].subscribe(TOPIC, scenario="ordered", ordered_by="question", workers=32)
    async def on_recommendation(event: Event) -> None:
        await asyncio.sleep(0.02)
        recommendation.note(event)

    @apps[3].subscribe(TOPIC, scenario="stream")
    async def on_search(events: list[Event]) -> None:
        for event in events:
            search.note(event)

    bars = Bars(stage.console)
    sent = 0
    bars.watch("events published", total, lambda: sent)
    for name, reader in zip(names, readers, strict=True):
        bars.watch(f"read by {name}", total, lambda reader=reader: reader.count)  # type: ignore[misc]
    async with App("qa.web", stage.url) as web, apps[0], apps[1], apps[2], apps[3]:
        web.topic(TOPIC, key="question")

        async def publish() -> None:
            nonlocal sent
            # Every question goes through its events at its own time.
            draw = random.Random(1)
            turns = [number for number in range(questions) for _ in EVENTS]
            draw.shuffle(turns)
            happened = [0] * questions
            waiting = []
            for number in turns:
                event = Event(f"q{number}", happened[number], EVENTS[happened[number]])
                happened[number] += 1
                waiting.append(await web.send(TOPIC, event))
                if len(waiting) == 100:
                    await asyncio.gather(*waiting)
                    sent += len(waiting)
                    waiting.clear()
            await asyncio.gather(*waiting)
            sent += len(waiting)

        publishing = asyncio.create_task(publish())
        await bars.until_full()
        await publishing
    report.figure("events", total)
    report.figure("of questions", questions)
    report.figure("readers", len(apps))
    report.figure("tries of audit that failed", audit.failures)
    for name, reader in zip(names, readers, strict=True):
        reader.check(report, name, questions)
    events = (Event(f"q{number}", index, "") for number in range(questions) for index in range(len(EVENTS)))
    report.check("exactly the failed ones tried again", sum(each.fails_at_first for each in events), audit.failures)
    report.look += [f"headrace queue list {TOPIC}", "headrace group describe qa.search", "docs/sdk.md"]
    return report


def raise_unavailable() -> None:
    raise ConnectionError("the audit store did not answer")
