"""The parking of stragglers: a message that stays behind may not pin the topic's segments for ever.

On a topic that is kept until it is consumed, one message that is deferred for a week would keep a week of segments. So
messages that no consumer holds are moved, with their attempts and the time at which they are due, to a topic of the
queue's own (its parking), in one atomic append with their settlement where they were. The parking is one more lane of
the queue: they are delivered from there like any other. A queue that keeps its keys in order does not move messages:
their order is that of one partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from headrace.broker import move
from headrace.broker.internal import PARKED
from headrace.broker.queues.ledger import BLOCKED, DEFERRED, DONE, READY
from headrace.broker.reading import RecordFinder
from headrace.format.headers import PARKED_FROM
from headrace.format.records import Record

if TYPE_CHECKING:
    from headrace.broker.queues.lane import QueueLane
    from headrace.broker.queues.queue import Queue
    from headrace.broker.queues.queues import Queues

# The number of the lane: the largest that a message id has room for, and above any partition's.
PARKING = (1 << 17) - 1
# What is due sooner is not worth moving, and will not be claimed while it is being moved.
SOON_MS = 10_000

log = structlog.get_logger("headrace.queues")


def parking_topic(queue: int) -> str:
    """Of the queue of that number."""
    return f"{PARKED}{queue}"


async def park_below(queues: Queues, queue: Queue, lane: QueueLane, end: int) -> int:
    """Move the messages of a lane below `end` that are unsettled and that no consumer holds; how many. Raises what
    keeps all of them back. The caller has the queue's turn."""
    if lane.index == PARKING or lane.keys is not None or queue.ephemeral or not lane.open:
        return 0
    moved = 0
    finder = RecordFinder(queue.runtime, lane.partition, queue.unpacking)
    offset = lane.ledger.next_unsettled(0)
    while 0 <= offset < end:
        step: list[int] = []
        while 0 <= offset < end and len(step) < move.STEP_MESSAGES:
            if _movable(queue, lane, offset):
                step.append(offset)
            offset = lane.ledger.next_unsettled(offset + 1)
        while step:
            found = await finder.find(step, move.STEP_BYTES)
            step = step[len(found.records) + len(found.gone) + len(found.broken) :]
            moved += await _move_each(queues, queue, lane, found.records)
    if moved:
        log.info(
            "messages that stayed behind were moved to their queue's parking",
            topic=queue.topic.name, queue=queue.name, partition=lane.index, messages=moved,
        )  # fmt: skip
    return moved


async def _move_each(queues: Queues, queue: Queue, lane: QueueLane, step: list[Record]) -> int:
    moved = 0

    async def attempt(part: Sequence[Record]) -> None:
        nonlocal moved
        moved += await _move(queues, queue, lane, part)

    for record, error in await move.move_each(step, attempt):
        if move.is_general(error):
            raise error
        log.warning(
            "a message that stays behind cannot be moved to its queue's parking",
            topic=queue.topic.name, queue=queue.name, partition=lane.index, offset=record[0], error=str(error),
        )  # fmt: skip
    return moved


def _movable(queue: Queue, lane: QueueLane, offset: int) -> bool:
    state, _, due = lane.ledger.state_of(offset)
    return state == READY or (state == DEFERRED and due > queue.runtime.clock.now_ms() + SOON_MS)


async def _move(queues: Queues, queue: Queue, lane: QueueLane, found: Sequence[Record]) -> int:
    parking = await queues.parking(queue)
    await queues.state_writer.prepare(parking)
    await queues.state_writer.prepare(lane)
    # Reading took a while: a consumer may have taken or settled a message since.
    step = [record for record in found if _movable(queue, lane, record[0])]
    if not step:
        return 0
    offsets = [record[0] for record in step]
    arrivals = [lane.ledger.state_of(offset)[1:] for offset in offsets]
    ready = [offset for offset in offsets if lane.ledger.state_of(offset)[0] == READY]
    for offset in ready:
        lane.ledger.block(offset)
    rows = [
        (timestamp, key, value, [*headers, (PARKED_FROM, f"{lane.index}/{offset}".encode())])
        for offset, timestamp, key, value, headers in step
    ]
    # Nothing else writes there, so where the batch will stand is known.
    start = parking.partition.end
    words = {
        lane.index: lane.ledger.word_of(offsets),
        PARKING: parking.ledger.word_of_arrivals(start, arrivals),
    }
    parking.arriving += 1
    try:
        await queues.state_writer.append_with(queue, words, [move.write(parking.partition, rows)])
    except BaseException:
        parking.arriving -= 1
        for offset in ready:
            lane.ledger.unblock(offset)
        queue.kick()
        raise
    for offset, (attempts, due), place in zip(offsets, arrivals, range(start, start + len(step)), strict=True):
        error = queue.errors.get((lane.index, offset))
        if lane.ledger.state_of(offset)[0] in (READY, DEFERRED, BLOCKED, DONE):
            queue.drop(lane, offset)
        parking.ledger.defer(place, attempts, due)
        if error:
            queue.errors[PARKING, place] = error
    parking.arriving -= 1
    queue.moved_up(lane)
    queue.watch_clock()
    queue.kick()
    return len(step)
