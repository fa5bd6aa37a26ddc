"""Questions and answers: histories, and the records in which they arrive, out of order."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from headrace.pipeline.jobs.sessions_story import Event, Question

NOON = 1_704_110_400_000
SECOND = 1_000


@dataclass(frozen=True)
class Happened:
    """One event."""

    question: str
    name: str
    at: int
    sequence: int

    @property
    def value(self) -> bytes:
        said: dict[str, Any] = {
            "question": self.question, "event": self.name, "at": self.at, "sequence": self.sequence, "by": "u1",
        }  # fmt: skip
        return json.dumps(said).encode()


def histories(count: int, seed: int, begin: int = NOON) -> list[Happened]:
    """Questions that are asked, answered, voted on, and sometimes accepted, closed or reopened; in order of time."""
    chance = random.Random(seed)
    happened = []
    for number in range(count):
        at = begin + chance.randrange(60 * SECOND)
        names = ["asked"]
        for _ in range(chance.randrange(6)):
            names.append(chance.choice(["answered", "commented", "voted", "answered"]))
        names += chance.choice([[], ["accepted"], ["closed"], ["accepted", "closed"], ["closed", "reopened"]])
        for index, name in enumerate(names, 1):
            happened.append(Happened(f"q{seed}-{number}", name, at, index))
            at += chance.randrange(1, 5 * SECOND)
    return sorted(happened, key=lambda each: each.at)


def disordered(happened: list[Happened], seed: int, by: int) -> list[Happened]:
    """As they arrive: none later than `by` milliseconds behind its time."""
    chance = random.Random(seed)
    return sorted(happened, key=lambda each: each.at + chance.randrange(by))


def told(happened: list[Happened]) -> dict[str, Question]:
    """What they make of each question."""
    by_question: dict[str, list[Happened]] = defaultdict(list)
    for each in happened:
        by_question[each.question].append(each)
    found = {}
    for name, own in by_question.items():
        question = Question()
        for each in sorted(own, key=lambda each: each.sequence):
            question = question.after(Event(each.name, each.at, each.sequence, (0, 0)))
        found[name] = question
    return found
