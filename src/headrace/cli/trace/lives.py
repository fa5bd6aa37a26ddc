"""The lives of messages, from what the broker keeps of them.

Their records, the events of their deliveries, their dead letters and what is to be tried again, and how far queues and
groups have come. What is not kept is said too: which messages are outside of a queue's sample can be told from their
traces, keys and places, because the sample is chosen by them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import quote

from headrace.broker.deliveries import DEAD, DELIVERED, EMPTIED, FINISHED, RELEASED, REQUEUED, TIMED_OUT
from headrace.broker.deliveries import TOPIC as DELIVERIES
from headrace.cli.trace.records import ORIGIN, RETRY_AT, Found, Place, Span, between, one, scan
from headrace.client import EARLIEST, Client
from headrace.errors import HeadraceError
from headrace.format.sampling import is_kept, seed_of, threshold

# The clocks of those who send and of the broker may differ by so much.
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
class Looked:
    """Where messages of the trace were looked for."""

    topics: tuple[str, ...]
    """None: everywhere."""
    since_ms: int
    until_ms: int


@dataclass
class Lives:
    """All that was found."""

    trace: str = ""
    looked: Looked | None = None
    messages: dict[Place, Found] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is not known, and why."""

    @property
    def began(self) -> int:
        """The time that all others are counted from."""
        times = [each.timestamp for each in self.messages.values() if each.timestamp >= 0]
        return min([*times, *(step.t for step in self.steps)], default=0)


class Asks(Protocol):
    """A broker's HTTP door."""

    def get(self, path: str) -> Any: ...

    def dropped(self) -> int:
        """Events that the broker could not keep."""


class Gathering:
    """Looks for the lives of messages."""

    def __init__(self, client: Client, door: Asks, progress: Callable[[str, int], Callable[[int], None]]) -> None:
        """`progress` begins something of so many offsets, and gives what is to be told of each step."""
        self.lives = Lives()
        self._client = client
        self._door = door
        self._progress = progress
        self._queues: dict[str, list[dict[str, Any]]] = {}

    # --- which messages -----------------------------------------------------------------------------------------------

    async def message(self, place: Place) -> int:
        """Begin with one message; its time."""
        await self._take(place)
        record = self.lives.messages.get(place)
        if record is None:
            return 0
        if record.origin is not None:
            await self._take(record.origin)
        self.lives.trace = record.trace
        if not record.trace:
            self.lives.notes.append(f"{place} carries no traceparent: what its handlers sent cannot be found")
        return record.timestamp

    async def trace(self, trace: str, topics: Sequence[str], since_ms: int, until_ms: int | None, limit: int) -> None:
        """Add the messages of a trace."""
        self.lives.trace = trace
        span = await between(self._client, topics, since_ms, until_ms)
        count = 0
        async for each in self._scan("looking for the trace", span, trace.encode()):
            if each.trace != trace:
                continue
            count += 1
            if count > limit:
                self.lives.notes.append(f"the trace has more than {limit} messages: the others are left out (--limit)")
                break
            self.lives.messages[each.place] = each
        self._note_delayed()
        for each in list(self.lives.messages.values()):
            if each.origin is not None and each.origin not in self.lives.messages:
                await self._take(each.origin)

    def _note_delayed(self) -> None:
        try:
            pending = int(self._door.get("/v1/timers?limit=1")["pending"])
        except HeadraceError:
            return
        if pending:
            self.lives.notes.append(f"{pending} delayed messages are not in their topics yet: the trace may have more")

    async def _take(self, place: Place) -> None:
        record = await one(self._client, place)
        if isinstance(record, str):
            self.lives.notes.append(record)
        else:
            self.lives.messages[place] = record

    # --- what became of them ------------------------------------------------------------------------------------------

    async def follow(self, topics: Sequence[str], places: Iterable[Place] = ()) -> None:
        """Find what happened to the messages, also to those in `places` whose records are gone."""
        lives = self.lives
        wanted = {*places, *(each.place for each in lives.messages.values() if each.origin is None)}
        wanted |= {each.origin for each in lives.messages.values() if each.origin is not None}
        self._ask_queues({place.topic for place in wanted}, set(topics))
        since = max(0, lives.began - SLACK_MS)
        await self._find_copies(wanted, topics, since)
        lives.steps += _told_once(lives.messages.values())
        await self._read_events(wanted, set(topics), since)
        lives.steps.sort(key=lambda step: step.t)
        self._judge_queues(wanted)
        await self._judge_groups(wanted)

    def _ask_queues(self, of: set[str], known: set[str]) -> None:
        for topic in sorted(of & known):
            path = f"/v1/topics/{quote(topic, safe='')}/queues"
            try:
                names = [each["queue"] for each in self._door.get(path)["queues"]]
                self._queues[topic] = [self._door.get(f"{path}/{quote(name, safe='')}") for name in names]
            except HeadraceError as error:
                self.lives.notes.append(f"the queues of {topic} are not known: {error}")

    async def _find_copies(self, wanted: set[Place], topics: Sequence[str], since: int) -> None:
        """Dead letters, and what is to be tried again."""
        origins = {place.topic for place in wanted}
        named = {queue["dead_letter_topic"] for queues in self._queues.values() for queue in queues}
        named |= {
            topic
            for topic in topics
            for origin in origins
            if topic.startswith(f"{origin}.") and topic.endswith((".dead", ".retry"))
        }
        span = await between(self._client, sorted(named & set(topics)), since, None)
        async for each in self._scan("looking for dead letters", span, ORIGIN.encode()):
            if each.origin in wanted:
                self.lives.messages.setdefault(each.place, each)

    async def _read_events(self, wanted: set[Place], topics: set[str], since: int) -> None:
        if DELIVERIES not in topics:
            if self._queues:
                self.lives.notes.append(f"there are no events: {DELIVERIES} was never written")
            return
        by_partition: dict[tuple[str, int], set[int]] = {}
        for place in wanted:
            by_partition.setdefault(place[:2], set()).add(place.offset)
        span = await between(self._client, [DELIVERIES], since, None)
        # Each record is of one topic; with the quotation marks its name is no part of another one.
        names = {topic for topic, _ in by_partition}
        needle = f'"topic":{json.dumps(next(iter(names)), ensure_ascii=False)}'.encode() if len(names) == 1 else b""
        async for each in self._scan("reading events", span, needle):
            try:
                event = json.loads(each.value or b"")
                offsets = by_partition.get((event["topic"], event["partition"]))
                if offsets:
                    hit = [o for o in offsets if any(first <= o <= last for first, last in event["runs"])]
                    self.lives.steps += [_happened(event, offset) for offset in hit]
            except (ValueError, KeyError, TypeError):
                # Anybody may write to a topic.
                continue
        await self._note_missing(since)

    async def _note_missing(self, since: int) -> None:
        """What of the events is not there any more, or never was."""
        partition = (DELIVERIES, 0)
        [start] = (await self._client.admin.list_offsets({partition: EARLIEST})).values()
        [first] = (await self._client.admin.list_offsets({partition: 0})).values()
        if start.offset > 0 and (first.offset < 0 or first.timestamp > since + SLACK_MS):
            self.lives.notes.append(
                f"events from before {moment(first.timestamp) if first.offset >= 0 else 'now'} are deleted already: "
                f"the topic {DELIVERIES} has its retention.ms"
            )
        try:
            dropped = self._door.dropped()
        except HeadraceError:
            return
        if dropped:
            self.lives.notes.append(
                f"the broker has dropped the events of {dropped} messages since it started (deliveries_runs_max): "
                "what is missing may be of those"
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
                self.lives.readers.append(_judged(place, record, queue, last.get((place, queue["queue"]))))
            for (message, name), step in last.items():
                if message == place and name not in shown:
                    self.lives.readers.append(Reader(place, "queue", name, ENDS[step.what], note="the queue is gone"))

    async def _judge_groups(self, wanted: set[Place]) -> None:
        partitions = sorted({place[:2] for place in wanted})
        if not partitions:
            return
        for group in await self._client.admin.groups():
            stands = await self._client.admin.committed(group.group, partitions)
            for place in sorted(wanted):
                committed = stands.get(place[:2])
                if committed is not None:
                    past = "past it" if committed.offset > place.offset else "not there yet"
                    note = f"at {committed.offset}"
                    self.lives.readers.append(Reader(place, "group", group.group, past, note=note))

    async def _scan(self, name: str, span: Span, needle: bytes) -> AsyncIterator[Found]:
        passed = self._progress(name, span.size)
        async for each in scan(self._client, span, needle, passed):
            yield each


def _told_once(records: Iterable[Found]) -> list[Step]:
    """What records say. While it waits for a try, a message may have gone from partition to partition."""
    found: dict[tuple[Any, ...], Step] = {}
    for record in sorted(records, key=lambda each: each.timestamp):
        step = _told(record)
        place = record.place if step.what != TO_BE_TRIED else None
        found.setdefault((step.message, step.who, step.attempt, place), step)
    return list(found.values())


def _told(record: Found) -> Step:
    """What a record itself says of a message."""
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


def _happened(event: dict[str, Any], offset: int) -> Step:
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


def _judged(place: Place, record: Found | None, queue: dict[str, Any], last: Step | None) -> Reader:
    share = float(queue["settings"]["deliveries"])
    # What chooses is in the record, if that is still there.
    by = (record.key, record.headers.items()) if record is not None else ()
    kept = is_kept(place.offset, seed_of(place.topic, place.partition), threshold(share), *by)
    floors = {each["partition"]: each["settled_below"] for each in queue["partitions"]}
    settled = place.offset < floors.get(place.partition, 0)
    if last is not None:
        state, note = ENDS[last.what], ""
        if settled and last.what not in (FINISHED, DEAD, EMPTIED):
            # Said by the queue itself, and so for certain.
            state, note = "settled", "its last events are missing"
        return Reader(place, "queue", queue["queue"], state, share, kept, note)
    state = "settled" if settled else "not settled, or out of turn"
    if share == 0:
        note = "it keeps no events (deliveries is 0)"
    elif not kept:
        note = (
            f"sampled out: it keeps the events of {share:.4g} of all messages, and failures of all; this is not one of "
            "those, and did not fail"
        )
    elif settled:
        note = "it is in the sample, but there are no events: they are deleted or dropped, or were kept only later"
    else:
        state, note = "not delivered yet", ""
    return Reader(place, "queue", queue["queue"], state, share, kept, note)


def moment(milliseconds: int) -> str:
    """A time for people."""
    try:
        return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


async def every_topic(client: Client) -> list[str]:
    """The names of all topics."""
    return sorted(topic.name for topic in await client.cluster.topics())
