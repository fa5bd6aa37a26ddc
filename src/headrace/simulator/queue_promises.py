"""What queues have promised, written down beside them, and held against what consumers get after a restart.

Messages are told apart by their values, each of which is sent once: so an offset that a power cut took back and that
was given out again is another message here, whatever the queue thinks of it. A *fact* is what a queue knows of a
message when a flush begins; once the flush is over a crash may not take it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.broker import dead_letters
from headrace.simulator.promises import require
from headrace.simulator.world import Ending


@dataclass(frozen=True, slots=True)
class Fact:
    """What must hold of a message after a crash."""

    settled: bool = False
    attempts: int = 0
    """That were made and are over: the one under way may be forgotten."""
    due: int = 0
    """Not before this time (ms) is it delivered again."""


NOTHING = Fact()


@dataclass(slots=True)
class QueueAccount:
    """What all lives of a run know."""

    queues: dict[tuple[str, str], QueuePromise] = field(default_factory=dict)
    passing: dict[str, bool | None] = field(default_factory=dict)
    """Queues that come and go: whether they are there; None: that was under way when a life ended."""
    acknowledged: dict[bytes, None] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def message(self, topic: str) -> bytes:
        """The value of a new message."""
        self._numbers[topic] += 1
        return f"{topic}-{self._numbers[topic]}".encode()

    def all_of(self, topic: str) -> list[bytes]:
        """Every message that was ever sent to a topic."""
        return [f"{topic}-{number}".encode() for number in range(1, self._numbers[topic] + 1)]


class QueuePromise:
    """One queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings: dict[str, Any] = {}
        """As they were given last."""
        self._changing: dict[str, Any] = {}
        self._exists: bool | None = False
        self._facts: dict[bytes, Fact] = {}
        """As consumers see them now."""
        self._sure: dict[bytes, Fact] = {}
        """As they were when the last flush began."""
        self._dead: dict[bytes, None] = {}
        self.being_emptied = False
        self._may_be_settled: dict[bytes, None] = {}
        self._attempts: dict[bytes, int] = {}
        """Of the last delivery in this life."""
        self._deliveries: Counter[bytes] = Counter()
        self._keys: dict[tuple[int, bytes], dict[int, bytes]] = {}
        """By lane and key, the messages that were delivered, by offset."""

    # --- the queue itself ---

    def making(self) -> None:
        self._exists = self._exists or None

    def made(self) -> None:
        self._exists = True

    def configuring(self, changes: Mapping[str, object]) -> None:
        self._changing = dict(changes)

    def configured(self) -> None:
        self.settings.update(self._changing)
        self._changing = {}

    def found(self, there: bool, settings: dict[str, Any] | None) -> None:
        """After a start."""
        require(self._exists in (None, there), f"the queue {self.name} was made and is not there after a start")
        self._exists = there
        if settings is None:
            return
        old = {name: settings[name] for name in self.settings}
        new = {name: settings[name] for name in self._changing}
        changed = bool(self._changing) and new == self._changing
        require(
            old == self.settings or changed, f"{self.name} has the settings {old} after a start, not {self.settings}"
        )
        if changed:
            self.configured()
        self._changing = {}

    # --- what happens to messages ---

    def delivered(self, value: bytes, key: bytes | None, where: tuple[int, int, int], now: int) -> None:
        """A consumer got a message."""
        lane, offset, attempt = where
        what = f"{self.name}: {value.decode()} at {lane}/{offset}, attempt {attempt},"
        sure = self._sure.get(value, NOTHING)
        require(not sure.settled, f"{what} was settled, and that was written down")
        require(value not in self._dead, f"{what} is dead, and its letter was written")
        now_known = self._facts.get(value, NOTHING)
        require(not now_known.settled, f"{what} was settled in this life")
        require(now >= now_known.due, f"{what} was to come {now_known.due - now} ms later")
        last = self._attempts.get(value)
        if last is not None:
            require(attempt == last + 1, f"{what} came after attempt {last}")
        else:
            least, most = sure.attempts + 1, self._deliveries[value] + 1
            require(least <= attempt <= most, f"{what} should be attempt {least} to {most}")
        self._attempts[value] = attempt
        self._deliveries[value] += 1
        # Attempts before this one are over; whether this one counts is seen when it is given back.
        self._facts[value] = Fact(attempts=attempt - 1)
        if self.settings.get("order_by_key") and key is not None:
            self._check_order(lane, key, offset, value, what)

    def _check_order(self, lane: int, key: bytes, offset: int, value: bytes, what: str) -> None:
        of_key = self._keys.setdefault((lane, key), {})
        for other, known in of_key.items():
            # What was handed out in the last life is ready again: one before it may have been settled too shortly
            # before the crash, and come once more.
            if known == value or (other > offset and known not in self._attempts):
                continue
            settled = self._facts.get(known, NOTHING).settled or known in self._dead
            settled = settled or (known in self._may_be_settled and known not in self._attempts)
            spent = self._deliveries[known] >= self.settings["max_attempts"]
            require(settled or spent, f"{what} came while {known.decode()} at {other}, of its key, was unsettled")
        of_key[offset] = value

    def finished(self, value: bytes) -> None:
        """The queue took a message's settlement."""
        self._facts[value] = Fact(settled=True)

    def given_back(self, value: bytes, due: int) -> None:
        """The queue took a message back."""
        self._facts[value] = Fact(attempts=self._attempts[value], due=due)

    def emptying(self, values: Iterable[bytes]) -> None:
        """These may be settled, being there while the queue is emptied."""
        self.being_emptied = True
        self._may_be_settled.update(dict.fromkeys(values))

    def emptied(self, values: Iterable[bytes]) -> None:
        """These are settled, having been there before."""
        self.being_emptied = False
        for value in values:
            self._facts[value] = self._sure[value] = Fact(settled=True)

    def buried(self, letters: list[tuple[bytes, dict[str, bytes | None]]]) -> None:
        """Dead letters that were read."""
        for value, count in Counter(value for value, _ in letters).items():
            require(count == 1, f"{self.name}: {value.decode()} has {count} dead letters")
            sure = self._sure.get(value, NOTHING)
            settled = sure.settled and value not in self._may_be_settled
            require(not settled or value in self._dead, f"{self.name}: {value.decode()} was settled before it died")
        for value, headers in letters:
            attempts = int(headers[dead_letters.ATTEMPTS] or b"0")
            least = self.settings.get("max_attempts", 0)
            require(bool(least), f"{self.name}: {value.decode()} died on a queue that never gives up")
            require(
                least <= attempts <= self._deliveries[value],
                f"{self.name}: {value.decode()} died after {attempts} attempts, having been delivered "
                f"{self._deliveries[value]} times",
            )
            topic, _, name = self.name.partition("/")
            found = (headers[dead_letters.ORIGIN_TOPIC], headers[dead_letters.ORIGIN_QUEUE])
            require(found == (topic.encode(), name.encode()), f"{self.name}: a letter says that it comes from {found}")
            self._dead[value] = None

    def must_be_settled(self, value: bytes, partition: int, offset: int) -> None:
        """At the end of a run: a message that the log has."""
        settled = self._facts.get(value, NOTHING).settled or value in self._dead or value in self._may_be_settled
        require(settled, f"{self.name}: {value.decode()} at {partition}/{offset} was never settled: it is lost")

    # --- flushes and endings ---

    def facts(self) -> dict[bytes, Fact]:
        """What a flush that begins now will make sure."""
        return dict(self._facts)

    def flushed(self, facts: dict[bytes, Fact]) -> None:
        self._sure.update(facts)

    def ended(self, ending: Ending) -> None:
        """A life is over: what was not flushed may be forgotten, and what was in flight is ready again."""
        if ending is not Ending.DONE:
            for value, fact in list(self._facts.items()):
                if fact.settled and not self._sure.get(value, NOTHING).settled:
                    # It may come again; or not, and then it is settled all the same.
                    self._may_be_settled[value] = None
            self._facts = {value: replace(self._sure.get(value, NOTHING)) for value in self._facts}
        self.being_emptied = False
        self._attempts.clear()
