"""What queues have promised, written down beside them, and held against what consumers get after a restart.

Messages are known by their values, each of which is sent once: so an offset that a power cut took back and that
was given out again is another message here, whatever the queue thinks of it. A dead letter that was sent back is
another message too (`identity`), while one that moved to its queue's parking is still the same. A *fact* is what a
queue knows of a message when a flush begins; once the flush is over a crash may not take it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.broker.queues import Handle
from headrace.format import headers as header_names
from simulation.history import require


@dataclass(frozen=True, slots=True)
class Fact:
    """What must hold of a message after a crash."""

    settled: bool = False
    attempts: int = 0
    """That were made and are over: the one under way may be forgotten."""
    due: int = 0
    """Not before this time (ms) is it delivered again."""
    lease: int = 0
    """When its lease ends; 0: it has none."""


@dataclass(frozen=True, slots=True)
class Held:
    """A handle that a client has."""

    value: bytes
    handle: Handle
    delivery: int
    """Of all deliveries of the message, in all lives, the one that it is of."""


NOTHING = Fact()
# The filter that queues have here, and the keys that it lets through.
FILTER = "$key in (a, b)"
FILTERED = (b"a", b"b")
# Handles that clients remember.
HANDLES_MAX = 40


def identity(value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """What a message is called: its value, and how often it was sent back to which queue."""
    given = dict(headers)
    queue = given.get(header_names.FOR_QUEUE) or given.get(header_names.ORIGIN_QUEUE) or b""
    return sent_back(value, given.get(header_names.REDRIVEN) or b"", queue)


def sent_back(value: bytes | None, times: bytes, queue: bytes) -> bytes:
    """The same by its parts."""
    return (value or b"") + (b"+%b@%b" % (times, queue) if times else b"")


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it was read."""

    value: bytes
    """The identity of the message that died."""
    key: bytes | None
    headers: dict[str, bytes | None]

    @property
    def origin(self) -> tuple[int, int]:
        """Partition and offset."""
        return (
            int(self.headers[header_names.ORIGIN_PARTITION] or b"-1"),
            int(self.headers[header_names.ORIGIN_OFFSET] or b"-1"),
        )


@dataclass(slots=True)
class QueuesModel:
    """What all lives of a run know."""

    queues: dict[tuple[str, str], QueueModel] = field(default_factory=dict)
    passing: dict[str, bool | None] = field(default_factory=dict)
    """Queues that come and go: whether they are there; None: that was under way when a life ended."""
    acknowledged: dict[bytes, None] = field(default_factory=dict)
    keys: dict[bytes, bytes | None] = field(default_factory=dict)
    """Of every message that was sent, and of every letter that was sent back for certain."""
    partitions: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How many each topic has, and how many it may have got since."""
    broken: str = ""
    """The first violation in a callback: if a crash comes before that is seen, it is not lost."""
    _numbers: Counter[str] = field(default_factory=Counter)

    def message(self, topic: str) -> bytes:
        """The value of a new message."""
        self._numbers[topic] += 1
        return f"{topic}-{self._numbers[topic]}".encode()

    def all_of(self, topic: str) -> list[bytes]:
        """Every message that was ever sent to a topic."""
        return [f"{topic}-{number}".encode() for number in range(1, self._numbers[topic] + 1)]


class QueueModel:
    """One queue."""

    def __init__(self, name: str, is_safe: bool = True) -> None:
        self.name = name
        self.is_safe = is_safe
        """Its topic loses nothing, and nothing is trimmed from it."""
        self.settings: dict[str, Any] = {}
        """As they were given last."""
        self._changing: list[dict[str, Any]] = []
        """Changes that may have been stored or not."""
        self._exists: bool | None = False
        self._facts: dict[bytes, Fact] = {}
        """As consumers see them now."""
        self._sure: dict[bytes, Fact] = {}
        """As they were when the last flush began."""
        self._dead: dict[bytes, None] = {}
        self.is_being_purged = False
        self._may_be_settled: dict[bytes, None] = {}
        self._handles: list[Held] = []
        """That were given out, the last ones."""
        self._attempts: dict[bytes, int] = {}
        """Of the last delivery in this life."""
        self._deliveries: Counter[bytes] = Counter()
        self._keys: dict[tuple[int, bytes], dict[int, bytes]] = {}
        """By lane and key, the messages that were delivered, by offset."""
        self._parked: dict[tuple[int, bytes], int] = {}
        """By lane and key, the first message that died, where those behind it follow."""

    # --- the queue itself ---

    def start_create(self) -> None:
        self._exists = self._exists or None

    def create(self) -> None:
        self._exists = True

    def start_configure(self, changes: Mapping[str, object]) -> None:
        self._changing.append(dict(changes))

    def configure(self) -> None:
        self.settings.update(self._changing[-1])
        self._changing.clear()

    def check_found(self, there: bool, settings: dict[str, Any] | None) -> None:
        """After a start."""
        require(self._exists in (None, there), f"the queue {self.name} was made and is not there after a start")
        self._exists = there
        if settings is None:
            return
        names = {*self.settings, *(name for changes in self._changing for name in changes)}
        found = {name: settings[name] for name in sorted(names)}
        possible = [self.settings, *({**self.settings, **changes} for changes in self._changing)]
        fitting = [each for each in possible if each.items() <= found.items()]
        require(bool(fitting), f"{self.name} has the settings {found} after a start, which is none of {possible}")
        self.settings = dict(fitting[-1])
        self._changing.clear()

    def wants(self, key: bytes | None) -> bool:
        """Whether a message of that key is the queue's to deliver."""
        return self.settings.get("filter") != FILTER or key in FILTERED

    # --- what happens to messages ---

    def start_lease(self, value: bytes) -> None:
        """A message is handed to a receive, which hears of it shortly: an ending in between counts as a delivery."""
        self._deliveries[value] += 1

    def deliver(
        self, value: bytes, key: bytes | None, where: tuple[int, int, int], now: int, *, is_counted: bool = False
    ) -> None:
        """A consumer got a message."""
        if not is_counted:
            self._deliveries[value] += 1
        lane, offset, attempt = where
        what = f"{self.name}: {value.decode()} at {lane}/{offset}, attempt {attempt},"
        sure = self._sure.get(value, NOTHING)
        require(not sure.settled, f"{what} was settled, and that was written down")
        require(value not in self._dead, f"{what} is dead, and its letter was written")
        require(self.wants(key), f"{what} does not meet the filter, its key being {key!r}")
        dead = self._parked.get((lane, key)) if key is not None else None
        require(dead is None or offset <= dead, f"{what} came, though its key was parked by the one at {dead}")
        now_known = self._facts.get(value, NOTHING)
        require(not now_known.settled, f"{what} was settled in this life")
        require(now >= now_known.due, f"{what} was to come {now_known.due - now} ms later")
        last = self._attempts.get(value)
        if last is not None:
            require(attempt == last + 1, f"{what} came after attempt {last}")
        else:
            least, most = sure.attempts + 1, self._deliveries[value]
            require(least <= attempt <= most, f"{what} should be attempt {least} to {most}")
        self._attempts[value] = attempt
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

    def hold(self, value: bytes, handle: Handle) -> Held:
        """A client got a handle: the message comes to no other before its lease ends."""
        self._weaken(value, handle.until_ms)
        self._facts[value] = Fact(attempts=handle.attempt, due=handle.until_ms, lease=handle.until_ms)
        held = Held(value, handle, self._deliveries[value])
        self._handles.append(held)
        del self._handles[:-HANDLES_MAX]
        return held

    def handles(self) -> list[Held]:
        """What clients have, of earlier lives too."""
        return list(self._handles)

    def check_taken(self, held: Held, taken: bool, now: int) -> bool:
        """A handle was used; whether it was taken."""
        value, until = held.value, held.handle.until_ms
        known, sure = self._facts.get(value, NOTHING), self._sure.get(value, NOTHING)
        what = f"{self.name}: {value.decode()} by the handle {held.handle}"
        if taken:
            later = self._deliveries[value] - held.delivery
            require(not later, f"{what} was taken, though the message was delivered {later} times since")
            require(not known.settled, f"{what} was taken, though it was settled")
        else:
            is_held = sure.lease == until and known.lease == until and sure.due == until and now < until
            spared = value in self._may_be_settled or value in self._dead or not self.is_safe
            require(not is_held or spared, f"{what} was refused, {until - now} ms before its lease ends")
        return taken

    def _weaken(self, value: bytes, due: int) -> None:
        """A lease may end sooner than was made sure."""
        sure = self._sure.get(value)
        if sure is not None and sure.due > due:
            self._sure[value] = replace(sure, due=due)

    def finish(self, value: bytes) -> None:
        """The queue took a message's settlement."""
        self._facts[value] = Fact(settled=True)

    def requeue(self, value: bytes, due: int, attempt: int = 0) -> None:
        """The queue took a message back, by a handle of an attempt that may be of an earlier life."""
        self._weaken(value, due)
        self._facts[value] = Fact(attempts=attempt or self._attempts[value], due=due)

    def start_purge(self, values: Iterable[bytes]) -> None:
        """These may be settled, being there while the queue is emptied."""
        self.is_being_purged = True
        self._may_be_settled.update(dict.fromkeys(values))

    def purge(self, values: Iterable[bytes]) -> None:
        """These are settled, having been there before."""
        self.stop_purge()
        for value in values:
            self._facts[value] = self._sure[value] = Fact(settled=True)

    def stop_purge(self) -> None:
        """Nothing is being emptied any more, whatever became of it."""
        self.is_being_purged = False

    def check_dead_letters(self, letters: list[Letter]) -> None:
        """Dead letters that were read."""
        for value, count in Counter(letter.value for letter in letters).items():
            require(count == 1, f"{self.name}: {value.decode()} has {count} dead letters")
            sure = self._sure.get(value, NOTHING)
            settled = sure.settled and value not in self._may_be_settled
            require(not settled or value in self._dead, f"{self.name}: {value.decode()} was settled before it died")
        parks = self.settings.get("dead_key") == "park"
        for letter in letters if parks else ():
            if letter.key is not None:
                lane, offset = letter.origin
                first = self._parked.get((lane, letter.key), offset)
                self._parked[lane, letter.key] = min(first, offset)
        for letter in letters:
            value, headers = letter.value, letter.headers
            attempts = int(headers[header_names.ATTEMPTS] or b"0")
            least = self.settings.get("max_attempts", 0)
            require(bool(least), f"{self.name}: {value.decode()} died on a queue that never gives up")
            require(self.wants(letter.key), f"{self.name}: {value.decode()} died without meeting the filter")
            lane, offset = letter.origin
            follows = parks and letter.key is not None and self._parked[lane, letter.key] < offset
            require(
                (follows or least <= attempts) and attempts <= self._deliveries[value],
                f"{self.name}: {value.decode()} died after {attempts} attempts, having been delivered "
                f"{self._deliveries[value]} times",
            )
            topic, _, name = self.name.partition("/")
            found = (headers[header_names.ORIGIN_TOPIC], headers[header_names.ORIGIN_QUEUE])
            require(found == (topic.encode(), name.encode()), f"{self.name}: a letter has the origin {found}")
            self._dead[value] = None

    def require_settled(self, value: bytes, key: bytes | None, what: str) -> None:
        """At the end of a run: a message that the log has, or should have."""
        settled = self._facts.get(value, NOTHING).settled or value in self._dead or value in self._may_be_settled
        require(settled or not self.wants(key), f"{self.name}: {value.decode()}, {what}, was never settled: it is lost")

    # --- flushes and endings ---

    def facts(self) -> dict[bytes, Fact]:
        """What a flush that begins now will make sure."""
        return dict(self._facts)

    def flush(self, facts: dict[bytes, Fact]) -> None:
        for value, fact in facts.items():
            # What was shortened meanwhile may be written by now, or not.
            self._sure[value] = replace(fact, due=min(fact.due, self._facts.get(value, NOTHING).due))

    def end_life(self) -> None:
        """A life is over: what was not flushed may be forgotten (a stop flushes all, if the disk lets it), and what was
        in flight is ready again."""
        for value, fact in list(self._facts.items()):
            if fact.settled and not self._sure.get(value, NOTHING).settled:
                # It may come again; or not, and then it is settled all the same.
                self._may_be_settled[value] = None
        self._facts = {value: replace(self._sure.get(value, NOTHING)) for value in self._facts}
        self.is_being_purged = False
        self._attempts.clear()
