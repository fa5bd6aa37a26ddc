"""What replication needs of the log: leader epochs of partitions, batches as they are, and truncation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.log.test_native import append, batch, live, opened

from headrace import errors
from headrace.format.batch import batches_in
from headrace.log.interface import Durability, Partition, TopicSettings
from headrace.log.native import NativeLog

DURABILITIES = pytest.mark.parametrize("durability", list(Durability))
ENDINGS = pytest.mark.parametrize("clean", [True, False], ids=["clean", "crash"])


def epochs_of(partition: Partition) -> list[int]:
    """The leader epoch of each batch that a reader gets."""
    chunk = partition.read(partition.start, 1 << 20)
    data = chunk.read()
    chunk.release()
    return [header.leader_epoch for _, header in batches_in(data)]


@DURABILITIES
async def test_a_partition_has_a_leader_epoch_of_its_own(tmp_path: Path, durability: Durability) -> None:
    async with opened(tmp_path) as log:
        topic = await log.create("t", 2, {}, TopicSettings(durability=durability))
        raised, other = map(log.local, topic.partitions)
        for partition in (raised, other):
            await append(partition, batch())
        await raised.raise_epoch(5)
        await raised.raise_epoch(5)
        for partition in (raised, other):
            await append(partition, batch())
        assert (raised.epoch, other.epoch) == (5, 0)
        assert (epochs_of(raised), epochs_of(other)) == ([0, 5], [0, 0])
        assert [raised.epoch_end(epoch) for epoch in (0, 3, 5, 6)] == [(0, 1), (0, 1), (5, 2), (-1, -1)]
        with pytest.raises(errors.OwnerFenced, match="leader epoch 4 of t-0 has passed: it is 5"):
            await raised.raise_epoch(4)


@DURABILITIES
@ENDINGS
@pytest.mark.parametrize("saved", [True, False], ids=["checkpoint", "journal"])
async def test_leader_epochs_survive_a_restart(
    tmp_path: Path, durability: Durability, clean: bool, saved: bool
) -> None:
    async def fill(log: NativeLog) -> None:
        topic = await log.create("t", 2, {}, TopicSettings(durability=durability))
        await log.local(topic.partitions[1]).raise_epoch(5)
        if saved:
            await log.upkeep.checkpoint()

    await live(tmp_path, fill, clean)
    async with opened(tmp_path) as log:
        rise = 0 if clean else 1
        assert [partition.epoch for partition in log.topics["t"].partitions] == [rise, 5 + rise]
        grown = await log.alter("t", partitions=3)
        assert grown.partitions[2].epoch == log.epoch == rise
