"""What the search indexes of a partition know, segment by segment; what is in memory, or above the recovery point, none
of them does."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from headrace.errors import PartitionOffline
from headrace.log import search_index
from headrace.log.interface import Durability
from headrace.log.local import Question, Suspects

if TYPE_CHECKING:
    from headrace.log.partition import NativePartition
    from headrace.log.segment import Segment


async def suspects(partition: NativePartition, question: Question, offset: int, *, backwards: bool = False) -> Suspects:
    """See `LocalPartition.suspects`."""
    runtime = partition.log.runtime
    while True:
        if partition.offline:
            raise PartitionOffline(f"{partition.folder} is offline: {partition.offline}")
        found = _segment_of(partition, offset - 1 if backwards else offset)
        if found is None:
            return _unknown(partition, offset, backwards)
        segment, behind = found
        truncations = partition.truncations
        look = (runtime.disk, partition.folder, segment.base, partition.topic_bytes, question, offset)
        reached = segment.base
        try:
            answer = await runtime.offload.run(_look_up, *look, backwards)
            if isinstance(answer, int):
                reached = answer
            elif _is_current(partition, segment, truncations):
                return Suspects(max(answer.first, partition.start), min(answer.after, behind), answer.batches)
        except search_index.DamagedIndex as error:
            if _is_current(partition, segment, truncations):
                partition.log.upkeep.indexer.report_damage(partition, segment, error)
        if not _is_current(partition, segment, truncations):
            continue  # another file may have had its name
        if backwards:
            return Suspects(max(reached, partition.start), offset, None)
        return Suspects(offset, behind, None)


def _look_up(*look: object) -> search_index.Answer | int:
    *rest, backwards = look
    return search_index.look_up(*rest, backwards=backwards)  # type: ignore[arg-type]


def _segment_of(partition: NativePartition, offset: int) -> tuple[Segment, int] | None:
    """The segment that an offset is in, and where what is stored in it ends."""
    segments = partition.segments
    if partition.topic.settings.durability is Durability.MEMORY or offset < segments.first or offset >= segments.end:
        return None
    bases = [segment.base for segment in segments.all]
    index = bisect_right(bases, offset) - 1
    behind = bases[index + 1] if index + 1 < len(bases) else segments.end
    return segments.all[index], min(behind, partition.high_watermark)


def _unknown(partition: NativePartition, offset: int, backwards: bool) -> Suspects:
    """No segment has it."""
    if not backwards:
        return Suspects(offset, partition.high_watermark, None)
    is_in_memory = partition.topic.settings.durability is Durability.MEMORY
    first = partition.start if is_in_memory else min(partition.segments.end, offset - 1)
    return Suspects(max(first, partition.start), offset, None)


def _is_current(partition: NativePartition, segment: Segment, truncations: int) -> bool:
    return not segment.closed and partition.truncations == truncations and segment in partition.segments.all
