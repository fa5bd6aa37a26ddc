"""When compaction begins: as soon as it is due, not when a checkpoint happens to come."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import SECONDS

from headrace.format import records
from headrace.log.interface import Durability, TopicSettings

from .test_native import NOW, SMALL, append, batch, contents, opened

# Checkpoints do not come by the clock.
UNCHECKED = replace(SMALL, checkpoint_ms=1 << 40, tail_bytes=1_000)
COMPACTED = TopicSettings(compact=True, delete=False, segment_bytes=2_000, min_cleanable_dirty_ratio=0.01)


@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.ASYNC])
async def test_compaction_that_is_due_has_the_recovery_point_saved(tmp_path: Path, durability: Durability) -> None:
    async with opened(tmp_path, replace(UNCHECKED, compaction_check_ms=20)) as log:
        partition = (await log.create("t", 1, {}, replace(COMPACTED, durability=durability))).partitions[0]
        for number in range(100):
            await append(partition, batch(b"%d" % number, b"key %d" % (number % 5)))
        async with asyncio.timeout(SECONDS):
            while len(contents(partition)) >= 60:
                await asyncio.sleep(0.01)


async def test_a_segment_that_is_overdue_is_closed_and_compacted_in_one_round(tmp_path: Path) -> None:
    settings = replace(COMPACTED, segment_bytes=1 << 30, max_compaction_lag_ms=1)
    async with opened(tmp_path, replace(UNCHECKED, compaction_check_ms=1 << 40)) as log:
        partition = (await log.create("t", 1, {}, settings)).partitions[0]
        for number in range(20):
            await append(partition, batch(b"%d" % number, b"key"))
        await log.upkeep.cleaner.run()
        assert log.upkeep.cleaner.runs == 1


async def test_nothing_is_asked_for_where_nothing_is_due(tmp_path: Path) -> None:
    async with opened(tmp_path, replace(UNCHECKED, compaction_check_ms=1 << 40)) as log:
        partition = (await log.create("t", 1, {}, COMPACTED)).partitions[0]
        await append(partition, batch(b"one", b"key"))
        await log.upkeep.cleaner.run()
        assert partition.saved_point == 0  # type: ignore[attr-defined]


async def test_a_segment_does_not_grow_older_than_compaction_may_be_late(tmp_path: Path) -> None:
    """As it is appended to, so that a partition that is never at rest is compacted in time too."""
    settings = TopicSettings(compact=True, max_compaction_lag_ms=1_000)
    async with opened(tmp_path, replace(UNCHECKED, compaction_check_ms=1 << 40)) as log:
        for name, each, segments in (("lag", settings, 2), ("plain", replace(settings, compact=False), 1)):
            partition = (await log.create(name, 1, {}, each)).partitions[0]
            for time in (NOW, NOW + 1_000, NOW + 1_001):
                await append(partition, records.build([(time, b"key", b"value", [])]))
                partition.write_back()  # type: ignore[attr-defined]
            assert len(list(tmp_path.glob(f"{name}-0/*.log"))) == segments
