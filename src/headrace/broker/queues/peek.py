"""Looking into a queue without touching it: what would be handed out next, and how old the oldest message is.

A batch may unpack to a thousand times its size, so it is unpacked off the loop, looked at a little at a time, and left
once enough was found. Few look at once (`Queues.looks`): each may hold one unpacked batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.queues.delivery import Look
from headrace.broker.queues.lane import READ_BYTES, QueueLane
from headrace.broker.queues.ledger import DONE, READY
from headrace.broker.reading import POISON, batches
from headrace.format.batch import BatchHeader
from headrace.format.records import Record

if TYPE_CHECKING:
    from headrace.broker.queues.queue import Queue

# What is looked at together: about so many bytes of messages, found in at most so many bytes of unpacked batches, or a
# filter that nothing meets would have all of the log read.
LOOK_BYTES = 8_388_608
SCAN_BYTES = 67_108_864
# What is looked at between two turns of the loop.
STEP_RECORDS = 128
STEP_BYTES = 262_144
# A batch that is not compressed and no larger than this is opened on the loop.
INLINE_BYTES = 262_144


class Message(NamedTuple):
    """A message as `peek` shows it."""

    lane: int
    offset: int
    attempts: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        headers = sum(len(name) + len(content or b"") for name, content in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


class Peeked(NamedTuple):
    """Messages that would be handed out next."""

    messages: list[Message]
    next: tuple[int, int] | None
    """QueueLane and offset where to go on; None: all was looked at."""


async def peek(queue: Queue, limit: int, begin: tuple[int, int] | None, max_bytes: int) -> Peeked:
    """See `Queue.peek`."""
    found: list[Message] = []
    lanes = [lane for lane in queue.lanes.values() if lane.open]
    if begin is not None:
        numbers = [lane.index for lane in lanes]
        lanes = lanes[numbers.index(begin[0]) :] if begin[0] in numbers else []
    size = 0
    async with queue.looks:
        for lane in lanes:
            first = lane.ledger.next_ready(0)
            start = lane.ledger.cursor if first < 0 else first
            if begin is not None and lane.index == begin[0]:
                start = max(start, begin[1])
            keys: set[bytes] = set()
            walk = Walk(queue, lane, start)
            async with aclosing(walk.records()) as records:
                async for each, timestamp, key, value, headers in records:
                    state, attempts, _ = lane.ledger.state_of(each)
                    if state != READY or not lane.is_free(each, key, keys):
                        continue
                    message = Message(lane.index, each, attempts, timestamp, key, value, headers)
                    size += message.size
                    if found and size > max_bytes:
                        return Peeked(found, (lane.index, each))
                    found.append(message)
                    if len(found) == limit:
                        return Peeked(found, (lane.index, each + 1))
            # Where nothing could be read, going on from there would not get further either.
            if start < walk.offset < lane.partition.last_stable:
                return Peeked(found, (lane.index, walk.offset))
    return Peeked(found, None)


async def age_ms(queue: Queue) -> int:
    """See `Queue.age_ms`."""
    oldest = 0
    now = queue.runtime.clock.now_ms()
    for lane in list(queue.lanes.values()):
        if lane.open and lane.ledger.floor < lane.partition.last_stable:
            async with queue.looks, aclosing(Walk(queue, lane, lane.ledger.floor).records()) as records:
                async for offset, timestamp, *_ in records:
                    if lane.ledger.state_of(offset)[0] != DONE:
                        if timestamp >= 0:
                            oldest = max(oldest, now - timestamp)
                        break
    return oldest


class Walk:
    """Over the records of a lane that its queue wants."""

    def __init__(self, queue: Queue, lane: QueueLane, offset: int) -> None:
        self._queue = queue
        self._lane = lane
        self.offset = offset
        """Behind the last batch that was looked at."""

    async def records(self) -> AsyncGenerator[Record, None]:
        """Those from the offset on, in at most `SCAN_BYTES`."""
        lane, partition, runtime = self._lane, self._lane.partition, self._queue.runtime
        scanned = 0
        while scanned < SCAN_BYTES and (start := max(self.offset, partition.start)) < partition.last_stable:
            for header, batch in await batches(runtime, partition, start, READ_BYTES):
                if header.last_offset < start:
                    continue
                look = None if batch is None else await self._open(header, batch)
                scanned += header.size if look is None else look.size
                while look is not None and not look.done:
                    try:
                        some = look.some(lane.rules, lane.ledger.cursor, STEP_RECORDS, STEP_BYTES)
                    except POISON:
                        break
                    for record in some:
                        if record[0] >= start:
                            yield record
                    await asyncio.sleep(0)
                self.offset = header.last_offset + 1
                if scanned >= SCAN_BYTES:
                    break
            if self.offset <= start:
                break

    async def _open(self, header: BatchHeader, batch: bytes) -> Look | None:
        """A batch to look at; None where it cannot be read."""
        try:
            if header.compression or header.size > INLINE_BYTES:
                return await self._queue.runtime.offload.run(Look, batch, self._queue.unpacked_max)
            return Look(batch, self._queue.unpacked_max)
        except POISON:
            return None
