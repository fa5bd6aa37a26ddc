"""The start of a partition's log: where it is, where it could be, and moving it.

The new start is durable before anything goes: a power cut may bring back any file that was removed, and the start tells
what is left over from what is missing. Only whole segments are removed, so records before the start may still be in
files. A `memory` topic has no files, and keeps its newest bytes.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import OffsetOutOfRange, PartitionOffline
from headrace.log import retention
from headrace.log.frames import Kind
from headrace.log.interface import Durability
from headrace.log.tail import DATA, LAST

if TYPE_CHECKING:
    from headrace.log.partition import NativePartition

# What a `memory` topic keeps where it does not say.
MEMORY_BYTES = 67_108_864


async def trim(partition: NativePartition, before: int) -> int:
    """See `Partition.trim`."""
    if before == -1:
        before = partition.high_watermark
    if before < 0 or before > partition.high_watermark:
        raise OffsetOutOfRange(before, partition.start, partition.high_watermark)
    if not partition.writable:
        raise PartitionOffline(f"{partition.folder} is being truncated: try again in a moment")
    if before > partition.start:
        if partition.topic.settings.durability is Durability.MEMORY:
            move_start(partition, before)
        else:
            noted = partition.log.committer.add_note(Kind.START, partition.topic_bytes, partition.index, before)
            # Also if the caller goes: other replicas do it.
            noted.add_done_callback(partial(_on_noted, partition, before))
            await asyncio.shield(noted)
    return partition.start


def _on_noted(partition: NativePartition, before: int, noted: asyncio.Future[None]) -> None:
    if not noted.cancelled() and noted.exception() is None:
        move_start(partition, before)


def move_start(partition: NativePartition, before: int) -> None:
    """The records before `before` are forgotten, durably: let them go."""
    was, partition.start = partition.start, max(partition.start, before)
    if partition.topic.settings.durability is Durability.MEMORY:
        partition.cache.forget_before(partition.start)
        partition.state.forget_aborted(partition.start)
    if partition.start == partition.end:
        # Nothing of the newest segment is left either.
        partition.close_active()
    partition.log.upkeep.drop_expired(partition)
    _report_trimmed(partition, was)


async def shrink(partition: NativePartition, limit: int) -> int:
    """See `LocalPartition.shrink`."""
    if partition.topic.settings.durability is Durability.MEMORY:
        keep_newest(partition, limit)
        return partition.start
    segments = partition.segments
    excess = partition.size() - limit
    if excess > sum(segment.size for segment in segments.closed):
        partition.close_active()
    return await trim(
        partition, max(partition.start, retention.start_without(segments, excess, partition.high_watermark))
    )


def keep_newest(partition: NativePartition, limit: int) -> None:
    """Let a `memory` topic keep its newest bytes, at most `limit` (-1: it does not say)."""
    limit = limit if limit >= 0 else MEMORY_BYTES
    if partition.cache.memory_bytes <= limit:
        return
    was = partition.start
    start = partition.cache.keep_newest(limit, partition.high_watermark)
    if start is not None:
        partition.start = start
    partition.state.forget_aborted(partition.start)
    _report_trimmed(partition, was)


def _report_trimmed(partition: NativePartition, was: int) -> None:
    if partition.start > was:
        for call in partition.log.on_trimmed:
            call(partition, was)


def expires_within(partition: NativePartition, ahead_ms: int) -> int:
    """See `LocalPartition.expires_within`."""
    then = partition.log.runtime.clock.now_ms() + ahead_ms
    start = retention.start_at(
        partition.segments, partition.topic.settings, then, partition.start, partition.high_watermark
    )
    held_from = partition.log.held_from(partition)
    return max(partition.start, start if held_from is None else min(start, held_from))


def freed_by(partition: NativePartition, before: int) -> int:
    """See `LocalPartition.freed_by`."""
    if before >= partition.end:
        return partition.size()
    if partition.topic.settings.durability is Durability.MEMORY:
        return sum(len(batch[DATA]) for batch in partition.cache.batches if batch[LAST] < before)
    return sum(segment.size for segment in partition.segments.before(before))
