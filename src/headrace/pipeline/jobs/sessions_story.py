"""The story of one question: its events in order, what they make of it, and what is told of that.

Events come in any order, and the state is what they make of it in theirs: by number, where they have one, and by time.
So a story is kept in two parts. What lies behind the watermark is settled: nothing can come before it any more, and its
events are told, once and in order. The rest is pending: it counts for the state that is shown, and is put in order
anew with each event that comes.

Nothing here knows Spark. A story is a function of its events and the watermark, so a batch that is run again tells the
same.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

ASKED, ANSWERED, COMMENTED, VOTED = "asked", "answered", "commented", "voted"
ACCEPTED, CLOSED, REOPENED = "accepted", "closed", "reopened"
EVENTS = (ASKED, ANSWERED, COMMENTED, VOTED, ACCEPTED, CLOSED, REOPENED)

# States. `accepted` and `closed` are called like the events that lead there, and so is `answered`.
UNASKED, OPEN, IDLE = "unasked", "open", "idle"
STATES = (UNASKED, OPEN, ANSWERED, ACCEPTED, CLOSED, IDLE)

# Kinds of what is told.
EVENT, STATE, CHANGE, BROKEN = "event", "state", "change", "broken"
KINDS = (EVENT, STATE, CHANGE, BROKEN)


@dataclass(frozen=True)
class Event:
    """Something that happened to a question."""

    name: str
    at: int
    """Milliseconds."""
    sequence: int | None
    """Its number in the question, where the producer counts; then it alone says the order."""
    place: tuple[int, int]
    """Partition and offset: what is alike otherwise comes in the order of the log."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What else the event says."""

    @property
    def order(self) -> tuple[int, int, tuple[int, int]]:
        return (self.at if self.sequence is None else self.sequence, self.at, self.place)

    @classmethod
    def loaded(cls, values: Sequence[Any]) -> Event:
        name, at, sequence, place, data = values
        return cls(name, at, sequence, tuple(place), data)

    def dumped(self) -> list[Any]:
        return [self.name, self.at, self.sequence, list(self.place), dict(self.data)]


@dataclass(frozen=True)
class Question:
    """What the events so far have made of a question. Times are in milliseconds."""

    state: str = UNASKED
    asked: int | None = None
    answers: int = 0
    comments: int = 0
    votes: int = 0
    first_answer: int | None = None
    accepted: int | None = None
    closed: int | None = None
    events: int = 0
    sequence: int | None = None
    """The number of the last event."""
    last: int | None = None
    """The time of the latest event."""

    @property
    def first_answer_after(self) -> int | None:
        """How long the first answer took."""
        if self.asked is None or self.first_answer is None:
            return None
        return self.first_answer - self.asked

    def after(self, event: Event) -> Question:
        """What an event makes of it."""
        changed: dict[str, Any] = {
            "events": self.events + 1,
            "sequence": event.sequence,
            "last": event.at if self.last is None else max(self.last, event.at),
        }
        # Whatever happens ends the idling.
        state = self._resting() if self.state == IDLE else self.state
        if event.name == ASKED:
            changed["asked"] = event.at if self.asked is None else self.asked
            state = OPEN if state == UNASKED else state
        elif event.name == ANSWERED:
            changed["answers"] = self.answers + 1
            changed["first_answer"] = event.at if self.first_answer is None else self.first_answer
            state = ANSWERED if state in (UNASKED, OPEN) else state
        elif event.name == COMMENTED:
            changed["comments"] = self.comments + 1
        elif event.name == VOTED:
            changed["votes"] = self.votes + _vote(event.data)
        elif event.name == ACCEPTED:
            changed["accepted"] = event.at
            state = state if state == CLOSED else ACCEPTED
        elif event.name == CLOSED:
            changed["closed"] = event.at
            state = CLOSED
        elif event.name == REOPENED:
            changed["closed"] = None
            state = self._resting()
        return replace(self, state=state, **changed)

    def idle_at(self, idle: int | None) -> int | None:
        """When it becomes idle, if it hears nothing; None where it cannot."""
        if idle is None or self.last is None or self.state not in (UNASKED, OPEN, ANSWERED):
            return None
        return self.last + idle

    def resting_at(self, at: int, idle: int | None) -> Question:
        """What it is at that time, with nothing heard since."""
        due = self.idle_at(idle)
        return self if due is None or at < due else replace(self, state=IDLE)

    def _resting(self) -> str:
        """Where a question stands that nobody has closed."""
        if self.accepted is not None:
            return ACCEPTED
        if self.answers:
            return ANSWERED
        return UNASKED if self.asked is None else OPEN


def _vote(data: Mapping[str, Any]) -> int:
    value = data.get("value", 1)
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


@dataclass(frozen=True)
class Told:
    """A record to be written."""

    kind: str
    key: str
    value: str


class Story:
    """A question, settled and pending."""

    def __init__(self, name: str, settled: Question, pending: list[Event], timer: int | None) -> None:
        self.name = name
        self.timer = timer
        """The moment of the watermark at which something is to be told, or None."""
        self._settled = settled
        self._pending = pending

    @classmethod
    def loaded(cls, name: str, kept: str | None) -> Story:
        """As it was kept between two batches."""
        if kept is None:
            return cls(name, Question(), [], None)
        values = json.loads(kept)
        pending = [Event.loaded(each) for each in values["pending"]]
        return cls(name, Question(**values["settled"]), pending, values["timer"])

    def kept(self) -> str:
        pending = [each.dumped() for each in self._pending]
        return _text({"settled": asdict(self._settled), "pending": pending, "timer": self.timer})

    @property
    def question(self) -> Question:
        """What all events make of it that have come."""
        found = self._settled
        for event in self._pending:
            found = found.after(event)
        return found

    def take(self, events: Sequence[Event], watermark: int, idle: int | None) -> list[Told]:
        """What is to be told when these events have come, and the watermark stands there. A question that is open for
        `idle` milliseconds of the events' time and hears nothing becomes idle."""
        before, known = self.question, list(self._pending)
        told: list[Told] = []
        for event in events:
            told += self._add(event)
        if self._pending[: len(known)] == known:
            steps = list(_steps(before, self._pending[len(known) :], idle))
        else:
            # What was shown has been put right: there is no way from the one to the other.
            steps = [self.question]
        told += self._settle(watermark, idle)
        if not self._pending:
            self._settled = self._settled.resting_at(watermark, idle)
            steps.append(self._settled)
        after = self.question
        if after != before:
            told.append(Told(STATE, self.name, self._state(after)))
        told += self._changes(before, steps, idle)
        self.timer = self._pending[0].at if self._pending else self._settled.idle_at(idle)
        return told

    def _changes(self, before: Question, steps: Sequence[Question], idle: int | None) -> Iterator[Told]:
        state = before.state if before.events else None
        for step in steps:
            if step.events and step.state != state:
                # Becoming idle has no event of its own: its time is when it was due.
                at = (step.last or 0) + (idle or 0 if step.state == IDLE else 0)
                change = {"question": self.name, "from": state, "to": step.state, "at": at}
                yield Told(CHANGE, self.name, _text(change))
                state = step.state

    def _add(self, event: Event) -> list[Told]:
        number = event.sequence
        if number is not None:
            passed = self._settled.sequence is not None and number <= self._settled.sequence
            if passed or any(each.sequence == number for each in self._pending):
                reason = f"number {number} of the question came before, or too late to be put in order"
                return [Told(BROKEN, self.name, _text({"question": self.name, "reason": reason, **event.data}))]
        insort(self._pending, event, key=lambda each: each.order)
        return []

    def _settle(self, watermark: int, idle: int | None) -> list[Told]:
        """Tell what nothing can come before any more."""
        told = []
        while self._pending and self._pending[0].at <= watermark:
            event = self._pending.pop(0)
            before = self._settled.resting_at(event.at, idle)
            self._settled = before.after(event)
            told.append(Told(EVENT, self.name, self._enriched(event, before, self._settled)))
        return told

    def _state(self, question: Question) -> str:
        return _text({"question": self.name, **asdict(question), "first_answer_after": question.first_answer_after})

    def _enriched(self, event: Event, before: Question, after: Question) -> str:
        return _text(
            {
                "question": self.name,
                "event": event.name,
                "at": event.at,
                "sequence": event.sequence,
                "number": after.events,
                "before": before.state if before.events else None,
                "state": after.state,
                "since_asked": None if after.asked is None else event.at - after.asked,
                "since_last": None if before.last is None else event.at - before.last,
                "answers": after.answers,
                "comments": after.comments,
                "votes": after.votes,
                "first_answer_after": after.first_answer_after,
                "data": dict(event.data),
            }
        )


def _steps(question: Question, events: Sequence[Event], idle: int | None) -> Iterator[Question]:
    """What becomes of a question, step by step."""
    for event in events:
        question = question.resting_at(event.at, idle)
        yield question
        question = question.after(event)
        yield question


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))
