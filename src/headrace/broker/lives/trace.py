"""A trace: from an id to the lives of its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.broker.lives.client_traces import UNIQUE_ID
from headrace.broker.lives.records import TRACE, place_of
from headrace.broker.lives.tracer import Lives, SearchRange, Source, Tracer, no_progress
from headrace.errors import InvalidSearch, UnknownTopic


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be traced, and where messages of the same trace are looked for."""

    id: str
    """A message (TOPIC/PARTITION/OFFSET, or RocketMQ's unique id), or a trace id."""
    topics: Sequence[str] = ()
    """Empty: all but the broker's own."""
    since_ms: int | None = None
    until_ms: int | None = None
    around_ms: int = 3_600_000
    """So long before and after the message, or before now, where no times are given."""
    limit: int = 1_000
    """Messages of the trace."""


async def trace(
    source: Source,
    wanted: Wanted,
    now_ms: int,
    progress: Callable[[str, int], Callable[[int], None]] = no_progress,
) -> Lives:
    """The life of a message, and of all messages of its trace. Raises InvalidSearch or UnknownTopic."""
    id = wanted.id
    place, traced, unique = place_of(id), TRACE.fullmatch(id), UNIQUE_ID.fullmatch(id)
    if place is None and traced is None and unique is None:
        raise InvalidSearch(
            f"{id!r} is neither a message (TOPIC/PARTITION/OFFSET, or RocketMQ's id: capital hex digits) nor a "
            "trace id (32 small ones)"
        )
    tracer = Tracer(source, progress)
    topics = await source.topics()
    middle, trace_id = now_ms, traced[1] if traced is not None else ""
    if place is not None:
        if place.topic not in topics:
            raise UnknownTopic(f"there is no topic {place.topic}")
        middle = await tracer.message(place)
        trace_id = tracer.lives.trace
    first = middle - wanted.around_ms if wanted.since_ms is None else wanted.since_ms
    last = middle + wanted.around_ms if wanted.until_ms is None else wanted.until_ms
    chosen = wanted.topics or [each for each in topics if not each.startswith("__")]
    until = last if last < now_ms else None
    if unique is not None:
        await tracer.unique(id, chosen, first, until, wanted.limit)
        trace_id = trace_id or tracer.lives.trace
    if trace_id:
        await tracer.trace(trace_id, chosen, first, until, wanted.limit)
    if unique is not None or trace_id:
        tracer.lives.searched = SearchRange(tuple(wanted.topics), first, min(last, now_ms))
    await tracer.follow(topics, [place] if place is not None else [])
    return tracer.lives
