"""The story of one question: its events in order, what they make of it, and what is written of that.

Events come in any order, and the state is what they make of it in theirs: by number, where they have one, and by time.
So a story is kept in two parts. What lies behind the watermark is settled: nothing can come before it any more, and its
events are written, once and in order. The rest is pending: it counts for the state that is shown, and is put in order
anew with each event that comes.

A story ends: when nothing has been heard of a question for long, that is written, and nothing is kept of it. An event
that comes behind the watermark and fits nowhere any more is late, which is written, too.

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
# Where a change leads that is the last one.
FORGOTTEN = "forgotten"

# Kinds of what is written.
EVENT, STATE, CHANGE, BROKEN, LATE = "event", "state", "change", "broken", "late"
KINDS = (EVENT, STATE, CHANGE, BROKEN, LATE)


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
        """Where a question stands that is not closed."""
        if self.accepted is not None:
            return ACCEPTED
        if self.answers:
            return ANSWERED
        return UNASKED if self.asked is None else OPEN


def _vote(data: Mapping[str, Any]) -> int:
    value = data.get("value", 1)
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


@dataclass(frozen=True)
class Output:
    """A record to be written."""

    kind: str
    key: str
    value: str | None
    """None deletes what a compacted topic has under the key."""


@dataclass(frozen=True)
class Rules:
    """How questions are followed. Times are in milliseconds, of the events."""

    idle: int | None = None
    """A question that is open, and hears nothing for so long, becomes idle."""
    forget: int | None = None
    """One that hears nothing for so long is forgotten, whatever its state."""
    tombstones: bool = False
    """What is forgotten is deleted from the compacted topic, too."""
    unasked: bool = True
    """Questions are followed of which the asking is not known. Otherwise their events are put aside."""


class Story:
    """A question, settled and pending."""

    def __init__(self, name: str, settled: Question, pending: list[Event], timer: int | None) -> None:
        self.name = name
        self.timer = timer
        """The moment of the watermark at which something is to be written, or None."""
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

    @property
    def empty(self) -> bool:
        """There is nothing to keep of it."""
        return not self._settled.events and not self._pending

    def take(self, events: Sequence[Event], watermark: int, rules: Rules) -> list[Output]:
        """What is to be written when these events have come, and the watermark stands there."""
        # A batch that runs again may have its events in another order: what they are measured by is what was before.
        empty, hidden = self.empty, self._is_hidden(rules)
        before, known = (Question(), []) if hidden else (self.question, list(self._pending))
        outputs: list[Output] = []
        for event in events:
            outputs += self._add(event, watermark, rules, empty)
        if self._is_hidden(rules):
            return outputs + self._give_up(watermark)
        if self._pending[: len(known)] == known:
            steps = list(_steps(before, self._pending[len(known) :], rules.idle))
        else:
            # What was shown has been put right: there is no way from the one to the other.
            steps = [self.question]
        outputs += self._settle(watermark, rules.idle)
        if not self._pending:
            self._settled = self._settled.resting_at(watermark, rules.idle)
            steps.append(self._settled)
        after = self.question
        forgotten = self._forgotten_at(rules)
        ends = forgotten is not None and forgotten <= watermark
        if ends and rules.tombstones:
            outputs.append(Output(STATE, self.name, None))
        elif ends or after != before:
            outputs.append(Output(STATE, self.name, self._state(after, forgotten if ends else None)))
        outputs += self._changes(before, steps, rules.idle, forgotten if ends else None)
        if ends:
            self._settled = Question()
        self.timer = self._pending[0].at if self._pending else self._next(rules)
        return outputs

    def _next(self, rules: Rules) -> int | None:
        """When something becomes of it though nothing comes."""
        return min(
            (at for at in (self._settled.idle_at(rules.idle), self._forgotten_at(rules)) if at is not None),
            default=None,
        )

    def _forgotten_at(self, rules: Rules) -> int | None:
        if rules.forget is None or self._pending or self._settled.last is None:
            return None
        return self._settled.last + rules.forget

    def _is_hidden(self, rules: Rules) -> bool:
        """Nothing is shown of it: it is not known to be asked, and questions that are not are not followed."""
        if rules.unasked or self._settled.events:
            return False
        return all(each.name != ASKED for each in self._pending)

    def _give_up(self, watermark: int) -> list[Output]:
        """Put aside what the asking cannot come before any more."""
        outputs = []
        while self._pending and self._pending[0].at <= watermark:
            outputs.append(
                self._late(self._pending.pop(0), "nothing is known of the question: it is forgotten, or not asked")
            )
        self.timer = self._pending[0].at if self._pending else None
        return outputs

    def _changes(
        self, before: Question, steps: Sequence[Question], idle: int | None, forgotten: int | None
    ) -> Iterator[Output]:
        state = before.state if before.events else None

        def change(to: str, at: int) -> Output:
            return Output(CHANGE, self.name, _text({"question": self.name, "from": state, "to": to, "at": at}))

        for step in steps:
            if step.events and step.state != state:
                # Becoming idle has no event of its own: its time is when it was due.
                yield change(step.state, (step.last or 0) + (idle or 0 if step.state == IDLE else 0))
                state = step.state
        if forgotten is not None:
            yield change(FORGOTTEN, forgotten)

    def _add(self, event: Event, watermark: int, rules: Rules, empty: bool) -> list[Output]:
        if event.at <= watermark and (empty or not self._fits(event, rules.idle)):
            why = "nothing is known of the question" if empty else "the question has gone on"
            return [self._late(event, f"it came {watermark - event.at} ms behind the watermark, and {why}")]
        number = event.sequence
        if number is not None:
            passed = self._settled.sequence is not None and number <= self._settled.sequence
            if passed or any(each.sequence == number for each in self._pending):
                reason = f"number {number} of the question came before, or too late to be put in order"
                return [Output(BROKEN, self.name, _text({"question": self.name, "reason": reason, **event.data}))]
        insort(self._pending, event, key=lambda each: each.order)
        return []

    def _fits(self, event: Event, idle: int | None) -> bool:
        """Whether an event can still be written in order."""
        settled = self._settled
        if event.sequence is not None and settled.sequence is not None:
            return event.sequence > settled.sequence
        if settled.last is None:
            return True
        return event.at > settled.last + (idle or 0 if settled.state == IDLE else 0)

    def _late(self, event: Event, reason: str) -> Output:
        fields = {
            "question": self.name,
            "event": event.name,
            "at": event.at,
            "sequence": event.sequence,
            "reason": reason,
            "partition": event.place[0],
            "offset": event.place[1],
            "data": dict(event.data),
        }
        return Output(LATE, self.name, _text(fields))

    def _settle(self, watermark: int, idle: int | None) -> list[Output]:
        """Tell what nothing can come before any more."""
        outputs = []
        while self._pending and self._pending[0].at <= watermark:
            event = self._pending.pop(0)
            before = self._settled.resting_at(event.at, idle)
            self._settled = before.after(event)
            outputs.append(Output(EVENT, self.name, self._enriched(event, before, self._settled)))
        return outputs

    def _state(self, question: Question, forgotten: int | None) -> str:
        fields = {"question": self.name, **asdict(question), "first_answer_after": question.first_answer_after}
        return _text(fields if forgotten is None else {**fields, "forgotten": forgotten})

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
