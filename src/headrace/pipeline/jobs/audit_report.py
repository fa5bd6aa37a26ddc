"""What an audit found, and what is to be thought of it.

Spark counts; here the counts of producers are laid beside those of the log, instance by instance, and the whole is
judged. There are three verdicts, because silence is not proof: all is well, something is wrong, or it cannot be said
and why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headrace.errors import HeadraceError

WELL, WRONG, UNKNOWN = 0, 1, 2
"""Verdicts, as exit codes."""

# What can be judged.
STORED, DUPLICATES, DELIVERED, ACKNOWLEDGED = "stored", "duplicates", "delivered", "acknowledged"
JUDGED = (STORED, DUPLICATES, DELIVERED, ACKNOWLEDGED)


@dataclass(frozen=True)
class Threshold:
    """How many may be wrong: a number, or a share of all."""

    count: int = 0
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """`0`, `25`, `0.1%`."""
        try:
            if text.endswith("%"):
                found = cls(share=float(text[:-1]) / 100)
            else:
                found = cls(count=int(text))
        except ValueError:
            found = cls(count=-1)
        if found.count < 0 or not 0 <= found.share <= 1:
            raise HeadraceError(f"{text!r} is not a threshold. Give a number of messages (25) or a share (0.1%).")
        return found

    def allows(self, wrong: int, of: int) -> bool:
        return wrong <= max(self.count, self.share * of)


@dataclass(frozen=True)
class Kept:
    """What the log has of one topic, minute and producing instance ('' where the messages do not say)."""

    topic: str
    minute: int
    instance: str
    stored: int
    distinct: int
    """Without the further copies of the same id."""
    identified: int
    """Those that have an id."""


@dataclass(frozen=True)
class Sent:
    """What an instance says that it sent."""

    topic: str
    minute: int
    instance: str
    ids: bool
    """Whether its messages carry its name, so that they can be told from those of others."""
    sent: int
    failed: int


@dataclass(frozen=True)
class Instance:
    """The reports of one instance in the range."""

    name: str
    first: int
    """The number of its first report."""
    last: int
    reports: int
    """How many different ones there are."""
    heard_ms: int
    """The time of the last one."""
    within_ms: int
    """How soon it promised the next."""
    ended: bool


@dataclass(frozen=True)
class Minute:
    """One topic in one minute; over the whole range, where `minute` is None."""

    topic: str
    minute: int | None
    produced: int | None
    """By the producers' count; None where none has reported."""
    failed: int
    """Sends of which the producer does not know whether they are stored."""
    stored: int
    lost: int
    """Produced, and not in the log, though it has given up nothing that they could be."""
    duplicates: int
    unreported: int
    """In the log, and in no producer's report."""
    identified: int
    """Stored messages that have an id by which duplicates can be told."""
    deleted: int = 0
    """Produced and not in the log, which has given up so many: they may have been there."""


@dataclass(frozen=True)
class GivenUp:
    """What the log of a topic has had and let go: by retention, `DeleteRecords`, or compaction."""

    offsets: int | None
    """How many at most; None where that cannot be said."""
    until: int | None
    """No message of this time or younger was among them; None where that cannot be said."""
    words: tuple[str, ...]
    """How that is known."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds."""

    p50: int
    p95: int
    p99: int


@dataclass(frozen=True)
class QueueMinute:
    """One queue, or consumer group, in one minute of its topic; over the whole range, where `minute` is None."""

    topic: str
    queue: str
    minute: int | None
    stored: int
    watched: int
    """Those of the stored messages that are judged here."""
    delivered: int
    redelivered: int
    """Deliveries behind the first of a message."""
    acknowledged: int
    dead: int
    passed: int
    """Settled and never delivered: by a filter, by emptying the queue, or before it was watched."""
    undelivered: int
    unacknowledged: int
    """Delivered, and neither acknowledged nor dead."""
    delivery: Latency | None
    """From the message's time to its first delivery."""
    acknowledgement: Latency | None


@dataclass(frozen=True)
class Watched:
    """How a queue is judged."""

    topic: str
    queue: str
    share: float | None
    """Of its messages, those that have events; None where it is judged by its position alone."""
    filtered: bool = False
    """It has a filter: what it does not deliver may not be meant for it."""
    placed: bool = True
    """How far it is settled is known."""


@dataclass(frozen=True)
class Report:
    """An audit."""

    since: int
    until: int
    topics: tuple[Minute, ...]
    minutes: tuple[Minute, ...]
    watched: tuple[Watched, ...]
    queues: tuple[QueueMinute, ...]
    queue_minutes: tuple[QueueMinute, ...]
    wrong: tuple[str, ...]
    """What is not as it should be."""
    unknown: tuple[str, ...]
    """What could not be judged, and why."""
    notes: tuple[str, ...]

    @property
    def code(self) -> int:
        """The exit code."""
        return WRONG if self.wrong else UNKNOWN if self.unknown else WELL

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, **asdict(self)}

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Minutes as flat rows, for files."""
        return {
            "minutes": [asdict(each) for each in self.minutes],
            "queues": [_flat(each) for each in self.queue_minutes],
        }


def _flat(row: QueueMinute) -> dict[str, Any]:
    found = asdict(row)
    for name in ("delivery", "acknowledgement"):
        latency = found.pop(name) or {each.name: None for each in fields(Latency)}
        found |= {f"{name}_{each}": value for each, value in latency.items()}
    return found


def compared(kept: Iterable[Kept], sent: Iterable[Sent], topics: Sequence[str]) -> list[Minute]:
    """The log beside the producers, by topic and minute, in order.

    Messages that carry their producer's name are compared producer by producer: a loss of one is not hidden by what
    another has not reported. What is left of the log is compared with the reports of those that leave no name.
    """
    known = {(each.topic, each.instance) for each in sent if each.ids}
    stored: dict[tuple[str, int], list[Kept]] = defaultdict(list)
    reported: dict[tuple[str, int], list[Sent]] = defaultdict(list)
    for each in kept:
        stored[each.topic, each.minute].append(each)
    for said in sent:
        reported[said.topic, said.minute].append(said)
    anybody = {topic for topic, _ in reported}
    minutes = []
    for topic, minute in sorted({*stored, *reported}):
        if topic not in topics:
            continue
        there, said_of = stored[topic, minute], reported[topic, minute]
        by_name: dict[str, int] = {}
        others = 0
        for each in there:
            if (topic, each.instance) in known:
                by_name[each.instance] = by_name.get(each.instance, 0) + each.distinct
            else:
                others += each.distinct
        lost = unreported = 0
        for said in said_of:
            if said.ids:
                missing, more = _difference(said.sent, said.failed, by_name.pop(said.instance, 0))
                lost, unreported = lost + missing, unreported + more
        unreported += sum(by_name.values())
        nameless = [said for said in said_of if not said.ids]
        missing, more = _difference(sum(said.sent for said in nameless), sum(said.failed for said in nameless), others)
        minutes.append(
            Minute(
                topic,
                minute,
                sum(said.sent for said in said_of) if topic in anybody else None,
                sum(said.failed for said in said_of),
                sum(each.stored for each in there),
                lost + missing,
                sum(each.stored - each.distinct for each in there),
                unreported + more,
                sum(each.identified for each in there),
            )
        )
    return minutes


def _difference(sent: int, failed: int, found: int) -> tuple[int, int]:
    """How many are missing at least, and how many are there unreported: one that failed may be there or not."""
    return max(0, sent - found), max(0, found - sent - failed)


def without_deleted(minutes: Sequence[Minute], given_up: Mapping[str, GivenUp]) -> list[Minute]:
    """The same minutes, in which what the log may have given up is not taken for lost: the oldest first, as retention
    goes, and no more than has gone."""
    left = {topic: each.offsets for topic, each in given_up.items()}
    found = []
    for minute in minutes:
        gone = given_up.get(minute.topic)
        if gone is not None and minute.lost and (gone.until is None or (minute.minute or 0) < gone.until):
            room = left[minute.topic]
            deleted = minute.lost if room is None else min(minute.lost, room)
            left[minute.topic] = None if room is None else room - deleted
            minute = replace(minute, lost=minute.lost - deleted, deleted=deleted)
        found.append(minute)
    return found


def totals(minutes: Sequence[Minute], topics: Sequence[str]) -> list[Minute]:
    """Each topic over the whole range."""
    found = []
    for topic in topics:
        own = [each for each in minutes if each.topic == topic]
        counts = [each.produced for each in own if each.produced is not None]
        sums = {
            name: sum(getattr(each, name) for each in own)
            for name in ("failed", "stored", "lost", "duplicates", "unreported", "identified", "deleted")
        }
        found.append(Minute(topic=topic, minute=None, produced=sum(counts) if counts else None, **sums))
    return found


def doubts(instances: Iterable[Instance], until: int) -> list[str]:
    """Where reports of producers are missing."""
    found = []
    for each in instances:
        expected = each.last - each.first + 1
        if each.reports < expected:
            found.append(f"{expected - each.reports} report(s) of {each.name} are missing")
        # What it sent up to the end of the range would be told by then.
        if not each.ended and each.heard_ms + each.within_ms < until:
            found.append(f"{each.name} stopped reporting without a last report: it was killed, or is cut off")
    return found


def judged(
    topics: Sequence[Minute],
    queues: Sequence[QueueMinute],
    watched: Sequence[Watched],
    silent: Sequence[str],
    *,
    judge: Sequence[str] = JUDGED,
    max_loss: Threshold,
    max_duplicates: Threshold,
    max_deleted: Threshold | None = None,
    told_since: int = 0,
) -> tuple[list[str], list[str]]:
    """What is wrong, and what cannot be said. `silent` are the doubts about reports; what queues say of their messages
    is there from `told_since` on, or from before the range where that is 0."""
    wrong: list[str] = []
    unknown: list[str] = []
    filtered = {(each.topic, each.queue) for each in watched if each.filtered}
    untold = {(each.topic, each.queue) for each in watched if told_since and each.share and not each.placed}
    for total in topics:
        if STORED in judge:
            if total.produced is None:
                unknown.append(f"{total.topic}: no producer has reported what it sent, so loss on the way is not seen")
            elif total.unreported:
                unknown.append(f"{total.topic}: {total.unreported} stored message(s) are in no producer's report")
            if total.lost and not max_loss.allows(total.lost, total.produced or 0):
                wrong.append(f"{total.topic}: {total.lost} of {total.produced} message(s) sent are not in the log")
            if total.deleted and not (max_deleted or Threshold()).allows(total.deleted, total.produced or 0):
                unknown.append(
                    f"{total.topic}: {total.deleted} of {total.produced} message(s) sent are not in the log any more, "
                    "which has given up at least as many: whether they were ever there is not seen"
                )
        if DUPLICATES in judge:
            if total.identified < total.stored:
                unknown.append(
                    f"{total.topic}: {total.stored - total.identified} of {total.stored} message(s) have no id, so "
                    "their duplicates are not seen"
                )
            if total.duplicates and not max_duplicates.allows(total.duplicates, total.stored):
                wrong.append(f"{total.topic}: {total.duplicates} message(s) are in the log more than once")
        here = [each for each in watched if each.topic == total.topic]
        if not here and {DELIVERED, ACKNOWLEDGED} & set(judge):
            unknown.append(f"{total.topic}: no queue and no consumer group of it is looked at")
    for each in queues:
        name = f"{each.topic}/{each.queue}"
        if DELIVERED in judge and each.undelivered and not max_loss.allows(each.undelivered, each.watched):
            if (each.topic, each.queue) in filtered:
                unknown.append(f"{name}: {each.undelivered} message(s) were not delivered; its filter may be why")
            elif (each.topic, each.queue) in untold:
                unknown.append(
                    f"{name}: no delivery is known of {each.undelivered} message(s), and the oldest events are deleted"
                )
            else:
                wrong.append(f"{name}: {each.undelivered} of {each.watched} message(s) were not delivered")
        late = each.unacknowledged
        if ACKNOWLEDGED in judge and late and not max_loss.allows(late, each.watched):
            wrong.append(f"{name}: {late} of {each.watched} message(s) were delivered and not acknowledged")
    if STORED in judge:
        unknown += silent
    return wrong, unknown


def by_queue(rows: Iterable[Mapping[str, Any]]) -> tuple[list[QueueMinute], list[QueueMinute]]:
    """Rows that Spark has counted: those of the whole range, and those of minutes, each in order."""
    made = []
    for row in rows:
        values = dict(row)
        values["delivery"] = _latency(values.pop("delivery"))
        values["acknowledgement"] = _latency(values.pop("acknowledgement"))
        made.append(QueueMinute(**values))
    made.sort(key=lambda each: (each.topic, each.queue, each.minute or 0))
    return [each for each in made if each.minute is None], [each for each in made if each.minute is not None]


def _latency(found: Sequence[int] | None) -> Latency | None:
    return Latency(*found) if found else None
