"""Scenarios: what a service needs, in one word, and what that means for the queue under it.

Each maps to a wire and to tuned values, with the reason for each. A subscription's own options win.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from headrace.sdk.values import Duration, seconds_of

KAFKA, NSQ = "kafka", "nsq"


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a subscription is served."""

    workers: int = 8
    """Handlers that run at a time."""
    credit: int = 200
    """Messages that are fetched ahead and not yet settled."""
    batch: int = 1
    """The most messages that a handler of lists is given at once."""
    batch_wait: float = 0.05
    """Seconds that a handler of lists waits for its batch to fill."""
    rate: float = 0.0
    """Messages a second, for all workers of this instance together; 0: no limit."""
    timeout: float = 60.0
    """The visibility timeout, in seconds: what is not settled goes to another consumer after it. It is extended while a
    handler runs."""
    timeout_max: float = 900.0
    """Seconds for which a handler may run before the visibility timeout of its messages is not extended any more."""
    attempts: int = 5
    """Deliveries before a message is dead; 0: no limit."""
    ladder: tuple[float, ...] = (1.0, 5.0, 30.0, 120.0)
    """Seconds before each further delivery; the last holds for all beyond."""
    ordered: bool = False
    """Messages of one key one after the other."""
    replay: bool = True
    """A group that is new begins with what is there already."""
    private: bool = False
    """Each instance gets everything, and leaves nothing behind."""
    at_most_once: bool = False
    """Settled before the handler runs: what fails is lost."""
    exactly_once: bool = False
    """What a handler sends, and that its message is done, become known together or not at all."""
    partitions: tuple[int, ...] = ()
    """Only these, chosen by hand, on Kafka's wire; none: the system shares them out."""
    traced: float = 0.01
    """The share of messages whose deliveries Headrace's queue keeps, for `headrace trace`."""

    def __post_init__(self) -> None:
        for name in ("workers", "credit", "batch", "attempts"):
            if type(getattr(self, name)) is not int:
                raise TypeError(f"{name} must be an integer (got {getattr(self, name)!r})")
        for name in ("ordered", "replay", "private", "at_most_once", "exactly_once"):
            if type(getattr(self, name)) is not bool:
                raise TypeError(f"{name} must be True or False (got {getattr(self, name)!r})")
        for name in ("rate", "traced"):
            if type(getattr(self, name)) not in (int, float):
                raise TypeError(f"{name} must be a number (got {getattr(self, name)!r})")
        for name, least in (("workers", 1), ("credit", 1), ("batch", 1), ("attempts", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more (got {getattr(self, name)})")
        for name in ("batch_wait", "timeout", "timeout_max"):
            seconds_of(name, getattr(self, name))
        if self.rate < 0:
            raise ValueError(f"rate must be 0 or more (got {self.rate})")
        if not 0 <= self.traced <= 1:
            raise ValueError(f"traced must be a share from 0 to 1 (got {self.traced})")
        for step in self.ladder:
            seconds_of("a step of the ladder", step)
        if self.exactly_once and (self.private or self.at_most_once):
            raise ValueError("exactly_once cannot be combined with private or at_most_once")
        if self.partitions and (self.exactly_once or min(self.partitions) < 0):
            raise ValueError(f"partitions must be 0 or more, and not with exactly_once (got {self.partitions})")

    def changed(self, overrides: Mapping[str, Any]) -> Tuning:
        """With some values overridden. Raises TypeError and ValueError."""
        known = {each.name for each in fields(self)}
        unknown = sorted(set(overrides) - known)
        if unknown:
            raise TypeError(f"a subscription has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        return replace(self, **{name: _read(name, value) for name, value in overrides.items()})

    def backoff(self, attempt: int) -> float:
        """Seconds before the delivery that follows an attempt (1: the first); the last step holds for all beyond."""
        return self.ladder[min(attempt, len(self.ladder)) - 1] if self.ladder else 0.0

    def is_spent(self, attempt: int) -> bool:
        """Whether a message that fails at this attempt is dead."""
        return 0 < self.attempts <= attempt


def _read(name: str, value: Any) -> Any:
    """What a caller gave, as a Tuning has it. Raises TypeError and ValueError."""
    if name in ("batch_wait", "timeout", "timeout_max"):
        return seconds_of(name, value)
    if name in ("ladder", "partitions"):
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise TypeError(f"{name} must be a list (got {value!r})")
        steps = tuple(value)
        if name == "ladder":
            return tuple(seconds_of("a step of the ladder", step) for step in steps)
        for step in steps:
            if type(step) is not int:
                raise TypeError(f"partitions must be integers (got {step!r})")
        return steps
    return value


class Options(TypedDict, total=False):
    """The options of a subscription: the values of a Tuning."""

    workers: int
    credit: int
    batch: int
    batch_wait: Duration
    rate: float
    timeout: Duration
    timeout_max: Duration
    attempts: int
    ladder: Sequence[Duration]
    ordered: bool
    replay: bool
    private: bool
    at_most_once: bool
    exactly_once: bool
    partitions: Sequence[int]
    traced: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One word for what a service needs."""

    name: str
    meaning: str
    wire: str
    """The wire that Headrace serves it best by."""
    tuning: Tuning
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why the values are what they are, for those that differ from the plain ones, and for the wire."""


TRACED = "one in a hundred costs the broker 0.1 us a message (of 0.9); the log samples the same ones"

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "task",
            "jobs: each to one worker, acknowledged, retried, delayed, put aside when it is hopeless",
            NSQ,
            Tuning(),
            {
                "wire": "queues settle each message by itself: one that fails or is slow blocks no other",
                "credit": "200 in flight keep 8 workers busy over a network of 1 ms with handlers of 40 us and more",
                "ladder": "one second outlives a restart of what is called, two minutes most incidents",
                "traced": TRACED,
            },
        ),
        Scenario(
            "ordered",
            "events of one thing strictly in order, of many things at once, with many consumers",
            NSQ,
            Tuning(ordered=True, workers=16, attempts=0, ladder=(0.2, 1.0, 5.0)),
            {
                "wire": "a queue holds back a key, not a partition: consumers can be more than partitions, and a key "
                "that fails does not stop the others",
                "attempts": "no limit: to skip an event would break the order that was asked for",
                "ladder": "short, because everything behind it of the same key waits",
                "traced": TRACED,
            },
        ),
        Scenario(
            "burst",
            "absorb a spike at once, work it off at a steady rate",
            NSQ,
            Tuning(workers=4, credit=50, rate=1_000.0),
            {
                "wire": "the log takes the spike at disk speed; a backlog of ten million costs a queue nothing",
                "rate": "to be set to what the system behind can bear",
                "credit": "little is fetched ahead, so that further instances find work",
                "traced": TRACED,
            },
        ),
        Scenario(
            "fanout",
            "every running instance gets every message, and none from before it came",
            NSQ,
            Tuning(private=True, replay=False, attempts=1, ladder=()),
            {
                "wire": "an ephemeral channel for each instance goes with its last connection",
                "attempts": "the instance that failed is the only one that it was for",
            },
        ),
        Scenario(
            "stream",
            "everything in the order of the log, fast, in batches, from any place again",
            KAFKA,
            Tuning(workers=1, batch=500, credit=10_000, timeout=300.0, attempts=3, ladder=(0.5, 2.0)),
            {
                "wire": "a group's offset costs the same for a thousand messages as for one",
                "batch": "500 messages share what a call of the handler costs",
                "workers": "one for each instance: partitions are what is divided",
            },
        ),
        Scenario(
            "exactly-once",
            "read, work out, send on: what is sent and what is done become known together or not at all",
            KAFKA,
            Tuning(exactly_once=True, workers=8, credit=1_000, batch=500, ladder=(0.2, 1.0, 5.0)),
            {
                "wire": "Kafka's transactions commit a group's offsets and messages to any topics as one act",
                "credit": "up to 1,000 messages share one transaction, which costs about what three requests cost",
                "ladder": "short: a message that fails is retried in its place, and its transaction waits",
            },
        ),
    )
}


def scenario(name: str) -> Scenario:
    """The scenario of that name."""
    try:
        return SCENARIOS[name]
    except KeyError:
        raise ValueError(f"there is no scenario {name!r}. Use one of {', '.join(sorted(SCENARIOS))}") from None
