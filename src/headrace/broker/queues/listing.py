"""The messages of a queue in one state, looked at without touching them.

What is ready is found by `peek`, since most of it lies above the cursor, where the ledger knows of no single message.
The ledger knows all others; their contents are read from the log, a few at a time and off the loop. A message that
leaves its state meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.queues.leases import LABEL
from headrace.broker.queues.ledger import BLOCKED, CONDEMNED, DEFERRED, IN_FLIGHT, LEASED, READY, STUCK
from headrace.broker.queues.peek import Message
from headrace.broker.reading import RecordFinder

if TYPE_CHECKING:
    from headrace.broker.queues.lane import QueueLane
    from headrace.broker.queues.queue import Queue

STATES: Mapping[str, tuple[int, ...]] = {
    "ready": (READY,),
    "in_flight": (IN_FLIGHT, LEASED),
    "deferred": (DEFERRED,),
    "blocked": (BLOCKED,),
    "dead": (CONDEMNED, STUCK),
}
# Messages whose contents are read together.
STEP_MESSAGES = 64


class Listed(NamedTuple):
    """A message, with what its queue knows of it."""

    message: Message
    consumer: str = ""
    """Who has it."""
    deadline_ms: int = 0
    """Until when."""
    due_ms: int = 0
    """When it is ready again."""
    error: str = ""
    """Why it came back last, as its consumer gave it."""
    is_stuck: bool = False
    """It is dead, and cannot be moved to the dead-letter topic."""


class Listing(NamedTuple):
    """Messages in one state."""

    messages: list[Listed]
    next: tuple[int, int] | None
    """Lane and offset where to go on; None: these were all."""


async def list_messages(queue: Queue, state: str, limit: int, begin: tuple[int, int] | None, max_bytes: int) -> Listing:
    """Messages in one of `STATES` by lane and offset: at most so many, and about so large."""
    if state == "ready":
        peeked = await queue.peek(limit, begin, max_bytes)
        return Listing([_describe(queue, each) for each in peeked.messages], peeked.next)
    wanted = STATES[state]
    bits = sum(1 << each for each in wanted)
    found: list[Listed] = []
    size = 0
    async with queue.looks:
        for lane, start in _lanes(queue, begin):
            finder = RecordFinder(queue.runtime, lane.partition, queue.unpacking)
            while offsets := lane.ledger.offsets_in(bits, start, min(STEP_MESSAGES, limit - len(found) + 1)):
                if len(found) == limit or (found and size >= max_bytes):
                    return Listing(found, (lane.index, offsets[0]))
                records = await finder.find(offsets, max(max_bytes - size, 1))
                looked = [*(each[0] for each in records.records), *records.gone, *records.broken]
                start = max(looked, default=offsets[-1]) + 1
                for offset, timestamp, key, value, headers in records.records:
                    if len(found) == limit:
                        start = offset
                        break
                    now, attempts, _ = lane.ledger.state_of(offset)
                    if now in wanted:
                        message = Message(lane.index, offset, attempts, timestamp, key, value, headers)
                        size += message.size
                        found.append(_describe(queue, message))
    return Listing(found, None)


def _lanes(queue: Queue, begin: tuple[int, int] | None) -> Iterator[tuple[QueueLane, int]]:
    """The lanes to look at, each from an offset on."""
    for lane in sorted(queue.lanes.values(), key=lambda each: each.index):
        if lane.open and (begin is None or lane.index >= begin[0]):
            yield lane, begin[1] if begin is not None and lane.index == begin[0] else 0


def _describe(queue: Queue, message: Message) -> Listed:
    ledger = queue.lanes[message.lane].ledger
    state, _, moment = ledger.state_of(message.offset)
    listed = Listed(message, error=queue.errors.get((message.lane, message.offset), ""), is_stuck=state == STUCK)
    if state == IN_FLIGHT:
        consumer = queue.consumers.get(ledger.owner_of(message.offset))
        deadline = ledger.deadline_of(message.offset, queue.runtime.clock.now_ms())
        return listed._replace(consumer="" if consumer is None else consumer.label, deadline_ms=deadline)
    if state == LEASED:
        return listed._replace(consumer=LABEL, deadline_ms=moment)
    return listed._replace(due_ms=moment) if state == DEFERRED else listed
