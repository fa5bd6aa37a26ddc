"""Looking a time up: the first record at or after it, in files and in memory.

The time index leads to a batch; inside it a kernel looks at the records. What is read here is bounded: a segment whose
largest timestamp is too small is passed over without being opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headrace.format import records
from headrace.log.interface import MAX_TIMESTAMP
from headrace.log.segment import Segment
from headrace.log.tail import TIME, TailBatch
from headrace.runtime.offload import Offload

# Offset and timestamp of a record.
Found = tuple[int, int]


async def at_time(
    offload: Offload,
    segments: Collection[Segment],
    tail: Collection[TailBatch],
    timestamp: int,
    start: int,
    unpacked_max: int,
) -> Found | None:
    """The first record at or behind offset `start` that is not older than `timestamp`, or (MAX_TIMESTAMP) one with the
    largest timestamp of all."""
    if timestamp == MAX_TIMESTAMP:
        timestamp = max((segment.max_timestamp for segment in segments), default=-1)
        timestamp = max(timestamp, max((batch[TIME] for batch in tail), default=-1))
        if timestamp < 0:
            return None
    # Both as of now: a batch may move from memory to a file while the files are searched.
    segments, tail = list(segments), list(tail)
    found = await offload.run(in_segments, segments, timestamp, start, unpacked_max)
    # Off the loop, too: a batch in memory can unpack to many times its size.
    return found if found is not None else await offload.run(in_tail, tail, timestamp, start, unpacked_max)


def in_segments(segments: Iterable[Segment], timestamp: int, start: int, unpacked_max: int) -> Found | None:
    """The first such record in files. Blocks."""
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        position = segment.locate_time(timestamp)
        while position is not None and position < segment.size:
            batch = segment.batch_at(position)
            # A trim may leave the end of a batch.
            found = records.first_at_or_after(batch, timestamp, unpacked_max, start)
            if found is not None:
                return found
            position += len(batch)
    return None


def in_tail(tail: Iterable[TailBatch], timestamp: int, start: int, unpacked_max: int) -> Found | None:
    """The same among batches in memory."""
    for _, _, data, max_timestamp in tail:
        if max_timestamp >= timestamp:
            found = records.first_at_or_after(data, timestamp, unpacked_max, start)
            if found is not None:
                return found
    return None
