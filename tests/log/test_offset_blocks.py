"""Offsets of `memory` topics in a group: one never means two messages, whoever leads."""

from __future__ import annotations

from pathlib import Path

from tests.doors.replicated import ReplicatedBroker, leading
from tests.log import batches

from headrace.format import records
from headrace.log.interface import Appended, Durability, Partition, TopicSettings, Write
from headrace.log.offset_blocks import BLOCK_OFFSETS

MEMORY = TopicSettings(durability=Durability.MEMORY)


def batch(value: bytes, count: int = 1) -> bytearray:
    return bytearray(records.build([(1, None, value, ())] * count))


async def turns(node: ReplicatedBroker) -> None:
    """Let what is appended reach the disk, and what is committed take effect."""
    await node.log.committer.barrier()
    await node.log.settle()


async def made(node: ReplicatedBroker, block: int = 10) -> Partition:
    node.log.blocks.size = block
    topic = await node.log.create("t", 1, {}, MEMORY)
    partition = topic.partitions[0]
    await partition.load()
    return partition


async def test_only_the_first_append_waits_for_its_block(tmp_path: Path) -> None:
    async with leading(tmp_path) as node:
        partition = await made(node)
        answers: list[Exception | None] = []
        (first,) = node.log.append([Write(partition, batch(b"a"))], answers.append)
        assert (first.durable, partition.high_watermark) == (False, 0), "readers wait for the block"
        await turns(node)
        assert (partition.high_watermark, answers) == (1, [None])
        # The next block is asked for while half of this one is left.
        for offset in range(1, 50):
            appended = partition.append(batch(b"a"))
            assert appended == Appended(offset, -1, True)
            assert partition.high_watermark == offset + 1
            await turns(node)


async def test_a_batch_beyond_its_block_waits(tmp_path: Path) -> None:
    async with leading(tmp_path) as node:
        partition = await made(node)
        partition.append(batch(b"a"))
        await turns(node)
        node.commits = False
        assert not partition.append(batch(b"b", 30)).durable
        assert not partition.append(batch(b"c")).durable, "what comes behind it waits too"
        assert (partition.high_watermark, partition.end) == (1, 32)
        node.commits = True
        node.commit()
        await turns(node)
        assert partition.high_watermark == 32
        assert len(batches.read(partition)) == 3


async def test_the_next_leader_goes_on_behind_the_block(tmp_path: Path) -> None:
    async with leading(tmp_path) as node:
        partition = await made(node)
        partition.append(batch(b"a"))
        await turns(node)
        node.follow(2, 2)
        assert (partition.start, partition.high_watermark, partition.end) == (11, 11, 11)
        node.lead()
        assert partition.append(batch(b"b")).base_offset == 11
        await turns(node)
        assert len(batches.read(partition)) == 1


async def test_a_block_that_is_not_committed_is_not_used(tmp_path: Path) -> None:
    async with leading(tmp_path) as node:
        partition = await made(node)
        node.commits = False
        partition.append(batch(b"a"))
        node.follow(2, 2)
        assert partition.end == 0, "no reader and no producer knows of the batch"
        node.commits = True


async def test_a_restart_goes_on_behind_the_block(tmp_path: Path) -> None:
    for saved in (False, True, False):
        async with leading(tmp_path) as node:
            partition = node.log.topics["t"].partitions[0] if "t" in node.log.topics else await made(node)
            before = partition.end
            partition.append(batch(b"a"))
            await turns(node)
            assert (partition.end, partition.start) == (before + 1, before)
            if saved:
                await node.log.upkeep.checkpoint()
            reserved = before + 1 + (10 if not before else BLOCK_OFFSETS)
        async with leading(tmp_path) as node:
            assert node.log.topics["t"].partitions[0].end == reserved
