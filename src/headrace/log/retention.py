"""Which segments have had their time. Only whole, closed, durable segments go, always the oldest first."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.log.interface import TopicSettings
from headrace.log.segment import Segment
from headrace.log.segments import Segments


def expired(
    segments: Sequence[Segment],
    settings: TopicSettings,
    now_ms: int,
    start: int,
    high_watermark: int,
    active_bytes: int = 0,
) -> list[Segment]:
    """The closed segments to drop: those wholly before `start`, and, where the topic deletes, those that are too old or
    too much. `segments` are the closed ones, oldest first; `active_bytes` stand behind them."""
    excess = 0
    if settings.delete and settings.retention_bytes >= 0:
        excess = active_bytes + sum(segment.size for segment in segments) - settings.retention_bytes
    gone: list[Segment] = []
    for index, segment in enumerate(segments):
        end = segments[index + 1].base if index + 1 < len(segments) else segment.last_offset() + 1
        if end > high_watermark:
            break
        # As Kafka counts: what is left must still reach the limit, so a segment goes only if all of it is excess.
        if not (end <= start or excess >= segment.size > 0 or too_old(segment, settings, now_ms)):
            break
        gone.append(segment)
        excess -= segment.size
    return gone


def start_at(segments: Segments, settings: TopicSettings, now_ms: int, start: int, high_watermark: int) -> int:
    """Where the log begins once all has gone that is past its time or too much at `now_ms`; -1: nothing goes."""
    active = segments.active
    if active is None or not settings.delete:
        return -1
    gone = expired(segments.closed, settings, now_ms, start, high_watermark, active.size)
    if len(gone) == len(segments.closed) and active.size and too_old(active, settings, now_ms):
        # It is closed first, and then goes like the others.
        return high_watermark
    return segments.behind(gone[-1]) if gone else -1


def start_without(segments: Segments, excess: int, high_watermark: int) -> int:
    """Where the log begins without the oldest segments that hold `excess` bytes, as far as they are closed and durable;
    -1: nothing goes."""
    start = -1
    for segment in segments.closed:
        behind = segments.behind(segment)
        if excess <= 0 or behind > high_watermark:
            break
        start = behind
        excess -= segment.size
    return start


def too_old(segment: Segment, settings: TopicSettings, now_ms: int) -> bool:
    """Whether all of a segment is past its time."""
    if not settings.delete or settings.retention_ms < 0:
        return False
    # Batches without a time have no age. A segment without batches has nothing to keep.
    return not segment.size or (segment.max_timestamp >= 0 and now_ms - segment.max_timestamp > settings.retention_ms)
