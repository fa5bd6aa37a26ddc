from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.format.batch import header_at
from headrace.log.files import OpenFiles
from headrace.log.interface import TopicSettings
from headrace.log.retention import expired
from headrace.log.segment import Segment
from headrace.runtime.disk import SystemDisk

from .batches import batch

FOREVER = TopicSettings(retention_ms=-1, retention_bytes=-1)


def closed(root: Path, timestamps: list[int]) -> list[Segment]:
    """Segments of ten offsets and the same size, with these times; none for -2."""
    disk = SystemDisk(str(root))
    disk.mkdir("t-0")
    files = OpenFiles(disk, 4)
    segments = []
    for i, timestamp in enumerate(timestamps):
        segment = Segment.create(disk, files, "t-0", i * 10, 4096)
        if timestamp != -2:
            whole = batch(i * 10, 10, timestamp=timestamp)
            header = header_at(whole)
            segment.append([whole], [(header.base_offset, header.last_offset, header.size, header.max_timestamp)])
        segments.append(segment)
    return segments


def bases(segments: list[Segment]) -> list[int]:
    return [segment.base for segment in segments]


def test_by_time_the_oldest_first(tmp_path: Path) -> None:
    segments = closed(tmp_path, [100, 300, 200, 900])
    config = replace(FOREVER, retention_ms=500)
    assert bases(expired(segments, config, 600, 0, 40)) == []
    assert bases(expired(segments, config, 601, 0, 40)) == [0]
    assert bases(expired(segments, config, 701, 0, 40)) == [0]  # an older one behind a younger one waits
    assert bases(expired(segments, config, 801, 0, 40)) == [0, 10, 20]
    assert bases(expired(segments, config, 9_999, 0, 40)) == [0, 10, 20, 30]
    assert bases(expired(segments, config, 9_999, 0, 39)) == [0, 10, 20]  # not durable yet
    assert bases(expired(segments, replace(config, delete=False), 9_999, 0, 40)) == []
    assert bases(expired(segments, FOREVER, 9_999, 0, 40)) == []


def test_by_size_whole_segments_only(tmp_path: Path) -> None:
    segments = closed(tmp_path, [1, 2, 3, 4])
    size = segments[0].size
    for limit, gone in [(4 * size, 0), (4 * size - 1, 0), (3 * size, 1), (2 * size + 1, 1), (2 * size, 2), (0, 4)]:
        config = replace(FOREVER, retention_bytes=limit)
        assert len(expired(segments, config, 10, 0, 40)) == gone, limit
    assert len(expired(segments, replace(FOREVER, retention_bytes=4 * size), 10, 0, 40, active_bytes=size)) == 1


def test_by_the_start_of_the_log(tmp_path: Path) -> None:
    segments = closed(tmp_path, [1, 2, 3, 4])
    compacted = replace(FOREVER, delete=False, compact=True)
    for start, gone in [(0, []), (9, []), (10, [0]), (29, [0, 10]), (40, [0, 10, 20, 30])]:
        assert bases(expired(segments, compacted, 10, start, 40)) == gone, start


def test_batches_without_a_time_stay_and_empty_segments_go(tmp_path: Path) -> None:
    segments = closed(tmp_path, [-2, 5, -1, 5])
    assert bases(expired(segments, replace(FOREVER, retention_ms=1), 100, 0, 40)) == [0, 10]
    assert expired([], FOREVER, 100, 0, 0) == []
