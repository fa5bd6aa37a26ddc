"""The lives of messages: their records, the events of their deliveries, their dead letters and retries, and the
positions of queues and groups.

Notes report what is not known. Whether a message is in the sample of a queue's events follows from its trace, key and
place, because these choose the sample.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from headrace.broker.deliveries import DEAD, DELIVERED, EMPTIED, FINISHED, RELEASED, REQUEUED, TIMED_OUT
from headrace.broker.deliveries import TOPIC as DELIVERIES
from headrace.broker.lives import client_traces
from headrace.broker.lives.records import Partition, Place, Span, TracedRecord
from headrace.errors import HeadraceError
from headrace.format.headers import ORIGIN, RETRY_AT
from headrace.format.sampling import is_kept, seed_of, threshold

# The clocks of producers and of the broker may differ by this much.
SLACK_MS = 60_000
PUBLISHED, SENT_BACK, PUT_ASIDE, TO_BE_TRIED = "published", "sent back", "put aside", "to be tried again"
ENDS = {
    DELIVERED: "with a consumer",
    FINISHED: "finished",
    REQUEUED: "to be delivered again",
    TIMED_OUT: "to be delivered again",
    RELEASED: "to be delivered again",
    DEAD: "dead",
    EMPTIED: "emptied",
}


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened to a message."""

    t: int
    message: Place
    what: str
    who: str = ""
    """The queue, or the group."""
    consumer: str = ""
    attempt: int = 0
    delay_ms: int | None = None
    error: str = ""
    at: Place | None = None
    """Where it was put."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How far a queue or a group has come with a message."""

    message: Place
    kind: str
    name: str
    state: str
    share: float | None = None
    """Of a queue: the share of messages whose events it keeps."""
    kept: bool | None = None
    """Whether this message is of those."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class SearchRange:
    """The topics and times that were searched for messages of the trace."""

    topics: tuple[str, ...]
    """Empty: all topics."""
    since_ms: int
    until_ms: int


@dataclass
class Lives:
    """The result of a trace."""

    trace: str = ""
    searched: SearchRange | None = None
    messages: dict[Place, TracedRecord] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is not known, and why."""

    @property
    def began(self) -> int:
        """The time of the first step or message, from which the others are counted."""
        times = [each.timestamp for each in self.messages.values() if each.timestamp >= 0]
        return min([*times, *(step.t for step in self.steps)], default=0)


class Source(Protocol):
    """Where lives are read from. What cannot be had raises a HeadraceError, and a trace does without it."""

    async def topics(self) -> list[str]:
        """All topics, the broker's own, too."""
        ...

    async def find_span(self, topics: Sequence[str], since_ms: int, until_ms: int | None) -> Span:
        """The offsets of topics between two times; None: up to now."""
        ...

    def scan(self, span: Span, needle: bytes, advance: Callable[[int], None]) -> AsyncIterator[TracedRecord]:
        """The records of all batches that may contain `needle`. `advance` is called with the number of offsets
        passed."""
        ...

    async def read(self, place: Place) -> TracedRecord | str:
        """The record at a place, or why there is none."""
        ...

    async def queues(self, topic: str) -> list[Mapping[str, Any]]:
        """The queues of a topic, as the API describes them."""
        ...

    async def pending_timers(self) -> int:
        """Delayed messages that are not in their topics yet."""
        ...

    async def dropped_events(self) -> int:
        """The events that the broker could not keep."""
        ...

    async def first_event(self) -> tuple[int, int]:
        """Where the events begin that are kept, and the time of the first; -1 where there is none."""
        ...

    async def positions(self, partitions: Sequence[Partition]) -> Mapping[str, Mapping[Partition, int]]:
        """The positions of groups in partitions."""
        ...


def no_progress(name: str, size: int) -> Callable[[int], None]:
    """Show nothing."""
    del name, size
    return lambda count: None


class Tracer:
    """Finds the lives of messages."""

    def __init__(self, source: Source, progress: Callable[[str, int], Callable[[int], None]] = no_progress) -> None:
        """`progress` begins a bar of this name and number of offsets, and returns the function that advances it."""
        self.lives = Lives()
        self._source = source
        self._progress = progress
        self._queues: dict[str, list[Mapping[str, Any]]] = {}

    # --- which messages -----------------------------------------------------------------------------------------------

    async def message(self, place: Place) -> int:
        """Add one message. Returns its time."""
        await self._take(place)
        record = self.lives.messages.get(place)
        if record is None:
            return 0
        if record.origin is not None:
            await self._take(record.origin)
        self.lives.trace = record.trace
        if not record.trace:
            self.lives.notes.append(f"{place} has no traceparent: messages that its handlers sent cannot be found")
        return record.timestamp

    async def trace(self, trace: str, topics: Sequence[str], since_ms: int, until_ms: int | None, limit: int) -> None:
        """Add the messages of a trace."""
        self.lives.trace = trace
        span = await self._source.find_span(topics, since_ms, until_ms)
        count = 0
        async for each in self._scan("searching for the trace", span, trace.encode()):
            if each.trace != trace:
                continue
            count += 1
            if count > limit:
                self.lives.notes.append(f"the trace has more than {limit} messages: the rest is left out (--limit)")
                break
            self.lives.messages[each.place] = each
        await self._note_delayed()
        for each in list(self.lives.messages.values()):
            if each.origin is not None and each.origin not in self.lives.messages:
                await self._take(each.origin)

    async def _note_delayed(self) -> None:
        try:
            pending = await self._source.pending_timers()
        except HeadraceError:
            return
        if pending:
            self.lives.notes.append(
                f"{pending} delayed messages are not in their topics yet: the trace may have more messages"
            )

    async def _take(self, place: Place) -> None:
        record = await self._source.read(place)
        if isinstance(record, str):
            self.lives.notes.append(record)
        else:
            self.lives.messages[place] = record

    async def unique(self, id: str, topics: Sequence[str], since_ms: int, until_ms: int | None, limit: int) -> None:
        """Add the messages with a unique id of RocketMQ's: where it was sent to, and where it came again or died."""
        span = await self._source.find_span(
            [each for each in topics if each != client_traces.TOPIC], since_ms, until_ms
        )
        async for each in self._scan("searching for the message", span, id.encode()):
            if each.text(client_traces.UNIQUE_KEY) == id and len(self.lives.messages) < limit:
                self.lives.messages[each.place] = each
                self.lives.trace = self.lives.trace or each.trace
        await self._note_delayed()

    # --- what became of them ------------------------------------------------------------------------------------------

    async def follow(self, topics: Sequence[str], places: Iterable[Place] = ()) -> None:
        """Find what happened to the messages, also to those in `places` whose records are deleted."""
        lives = self.lives
        wanted = {*places, *(each.place for each in lives.messages.values() if each.origin is None)}
        wanted |= {each.origin for each in lives.messages.values() if each.origin is not None}
        await self._load_queues({place.topic for place in wanted}, set(topics))
        since = max(0, lives.began - SLACK_MS)
        await self._find_copies(wanted, topics, since)
        lives.steps += _record_steps(lives.messages.values())
        await self._read_events(wanted, set(topics), since)
        await self._read_client_traces(wanted, topics, since)
        lives.steps.sort(key=lambda step: step.t)
        self._judge_queues(wanted)
        await self._judge_groups(wanted)

    async def _load_queues(self, of: set[str], known: set[str]) -> None:
        for topic in sorted(of & known):
            try:
                self._queues[topic] = await self._source.queues(topic)
            except HeadraceError as error:
                self.lives.notes.append(f"the queues of {topic} are not known: {error}")

    async def _find_copies(self, wanted: set[Place], topics: Sequence[str], since: int) -> None:
        """Find dead letters and retries."""
        origins = {place.topic for place in wanted}
        named = {queue["dead_letter_topic"] for queues in self._queues.values() for queue in queues}
        named |= {
            topic
            for topic in topics
            for origin in origins
            if topic.startswith(f"{origin}.") and topic.endswith((".dead", ".retry"))
        }
        span = await self._source.find_span(sorted(named & set(topics)), since, None)
        async for each in self._scan("searching for dead letters", span, ORIGIN.encode()):
            if each.origin in wanted:
                self.lives.messages.setdefault(each.place, each)

    async def _read_events(self, wanted: set[Place], topics: set[str], since: int) -> None:
        if DELIVERIES not in topics:
            if self._queues:
                self.lives.notes.append(f"there are no events: the topic {DELIVERIES} does not exist")
            return
        by_partition: dict[tuple[str, int], set[int]] = {}
        for place in wanted:
            by_partition.setdefault(place[:2], set()).add(place.offset)
        span = await self._source.find_span([DELIVERIES], since, None)
        # Each record is of one topic; with the quotation marks its name is no part of another one.
        names = {topic for topic, _ in by_partition}
        needle = f'"topic":{json.dumps(next(iter(names)), ensure_ascii=False)}'.encode() if len(names) == 1 else b""
        settled: set[tuple[Place, str]] = set()
        async for each in self._scan("reading events", span, needle):
            try:
                event = json.loads(each.value or b"")
                offsets = by_partition.get((event["topic"], event["partition"]))
                if offsets:
                    hit = [o for o in offsets if any(first <= o <= last for first, last in event["runs"])]
                    steps = [_event_step(event, offset) for offset in hit]
                    if event["event"] == EMPTIED:
                        # Its runs go over messages that were settled before.
                        steps = [step for step in steps if (step.message, step.who) not in settled]
                    elif event["event"] in (FINISHED, DEAD):
                        settled.update((step.message, step.who) for step in steps)
                    self.lives.steps += steps
            except (ValueError, KeyError, TypeError):
                # Any client may write to the topic.
                continue
        await self._note_missing(since)

    async def _read_client_traces(self, wanted: set[Place], topics: Sequence[str], since: int) -> None:
        """Find what RocketMQ's clients have recorded of the messages that have a unique id."""
        by_id: dict[str, Place] = {}
        for place in sorted(wanted & self.lives.messages.keys(), key=lambda each: self.lives.messages[each].timestamp):
            if unique_id := self.lives.messages[place].text(client_traces.UNIQUE_KEY):
                # One that came again has the id of the first.
                by_id.setdefault(unique_id, place)
        if not by_id or client_traces.TOPIC not in topics:
            return
        span = await self._source.find_span([client_traces.TOPIC], since, None)
        needle = next(iter(by_id)).encode() if len(by_id) == 1 else b""
        async for each in self._scan("reading clients' traces", span, needle):
            for found in client_traces.parse(each.value or b""):
                if found.unique_id in by_id:
                    place = by_id[found.unique_id]
                    self.lives.steps.append(
                        Step(found.t, place, found.what, found.group, attempt=found.attempt, error=found.error)
                    )

    async def _note_missing(self, since: int) -> None:
        """Note which events are deleted, or were dropped."""
        start, first_ms = await self._source.first_event()
        if start > 0 and (first_ms < 0 or first_ms > since + SLACK_MS):
            self.lives.notes.append(
                f"events from before {moment(first_ms) if first_ms >= 0 else 'now'} are deleted, by "
                f"retention.ms of the topic {DELIVERIES}"
            )
        try:
            dropped = await self._source.dropped_events()
        except HeadraceError:
            return
        if dropped:
            self.lives.notes.append(
                f"the broker has dropped the events of {dropped} messages since it started (deliveries_runs_max): "
                "missing events may be among them"
            )

    def _judge_queues(self, wanted: set[Place]) -> None:
        last: dict[tuple[Place, str], Step] = {}
        for step in self.lives.steps:
            if step.what in ENDS:
                last[step.message, step.who] = step
        for place in sorted(wanted):
            shown = set()
            for queue in self._queues.get(place.topic, ()):
                shown.add(queue["queue"])
                record = self.lives.messages.get(place)
                self.lives.readers.append(_queue_reader(place, record, queue, last.get((place, queue["queue"]))))
            for (message, name), step in last.items():
                if message == place and name not in shown:
                    self.lives.readers.append(
                        Reader(place, "queue", name, ENDS[step.what], note="the queue is deleted")
                    )

    async def _judge_groups(self, wanted: set[Place]) -> None:
        partitions = sorted({place[:2] for place in wanted})
        if not partitions:
            return
        for group, stands in (await self._source.positions(partitions)).items():
            for place in sorted(wanted):
                committed = stands.get(place[:2])
                if committed is not None:
                    past = "past it" if committed > place.offset else "not there yet"
                    self.lives.readers.append(Reader(place, "group", group, past, note=f"at {committed}"))

    async def _scan(self, name: str, span: Span, needle: bytes) -> AsyncIterator[TracedRecord]:
        advance = self._progress(name, span.size)
        async for each in self._source.scan(span, needle, advance):
            yield each


def _record_steps(records: Iterable[TracedRecord]) -> list[Step]:
    """The steps that records tell of, each once: a message that waits for a retry may move between partitions."""
    found: dict[tuple[Any, ...], Step] = {}
    for record in sorted(records, key=lambda each: each.timestamp):
        step = _record_step(record)
        place = record.place if step.what != TO_BE_TRIED else None
        found.setdefault((step.message, step.who, step.attempt, place), step)
    return list(found.values())


def _record_step(record: TracedRecord) -> Step:
    origin = record.origin
    if origin is None:
        what = SENT_BACK if record.redriven else PUBLISHED
        return Step(record.timestamp, record.place, what)
    if record.is_letter:
        return Step(
            record.dead_at,
            origin,
            PUT_ASIDE,
            record.queue,
            attempt=record.attempts,
            error=record.error,
            at=record.place,
        )
    group = record.place.topic.removeprefix(f"{origin.topic}.").removesuffix(".retry")
    delay = max(0, record.number(RETRY_AT) - record.timestamp)
    return Step(record.timestamp, origin, TO_BE_TRIED, group, attempt=record.attempts, delay_ms=delay, at=record.place)


def _event_step(event: dict[str, Any], offset: int) -> Step:
    return Step(
        int(event["t"]),
        Place(event["topic"], event["partition"], offset),
        str(event["event"]),
        str(event["queue"]),
        str(event.get("consumer", "")),
        int(event.get("attempt", 0)),
        event.get("delay_ms"),
        str(event.get("error", "")),
    )


def _queue_reader(place: Place, record: TracedRecord | None, queue: Mapping[str, Any], last: Step | None) -> Reader:
    share = float(queue["settings"]["deliveries"])
    # The sample is chosen by the record, if it is not deleted.
    by = (record.key, record.headers.items()) if record is not None else ()
    kept = is_kept(place.offset, seed_of(place.topic, place.partition), threshold(share), *by)
    floors = {each["partition"]: each["settled_below"] for each in queue["partitions"]}
    settled = place.offset < floors.get(place.partition, 0)
    if last is not None:
        state, note = ENDS[last.what], ""
        if settled and last.what not in (FINISHED, DEAD, EMPTIED):
            # The position of the queue is certain.
            state, note = "settled", "its last events are missing"
        return Reader(place, "queue", queue["queue"], state, share, kept, note)
    state = "settled" if settled else "not settled, or out of turn"
    if share == 0:
        note = "the queue keeps no events (deliveries is 0)"
    elif not kept:
        note = (
            f"sampled out: the queue keeps the events of {share:.4g} of all messages, and failures of all; this "
            "message is not in the sample, and did not fail"
        )
    elif settled:
        note = "the message is in the sample, but has no events: they are deleted or dropped, or were not kept then"
    else:
        state, note = "not delivered yet", ""
    return Reader(place, "queue", queue["queue"], state, share, kept, note)


def moment(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
