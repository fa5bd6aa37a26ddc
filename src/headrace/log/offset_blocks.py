"""Offsets of `memory` topics in a group, in blocks: what such a topic holds goes with its leader, its offsets do not.

A leader gives an offset only below an end that every replica knows of: an entry of the journal that moves the start
there, where the others have nothing. Where the leader changes, all go on at that end, empty. So no offset ever means
two messages. The next block is asked for while half of the last is left: but for the first, no append waits for one.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from headrace.log.frames import Kind
from headrace.log.interface import Durability

if TYPE_CHECKING:
    from headrace.log.partition import NativePartition
    from headrace.log.replicated import ReplicatedLog

BLOCK_OFFSETS = 1 << 16


class OffsetBlocks:
    """What the leader has reserved of each `memory` partition. The end that is committed is the partition's point: the
    checkpoint keeps it, and a start goes on there."""

    def __init__(self, log: ReplicatedLog) -> None:
        self._log = log
        self.size = BLOCK_OFFSETS
        # Ends of blocks that are on their way, or committed.
        self._asked: dict[NativePartition, int] = {}

    def reserve(self, partition: NativePartition, end: int) -> bool:
        """The partition is about to end at `end`; False if that counts only once the journal has its block."""
        asked = self._asked.get(partition, partition.point)
        if end + self.size // 2 > asked:
            asked = self._asked[partition] = end + self.size
            noted = self._log.committer.add_note(Kind.START, partition.topic_bytes, partition.index, asked)
            noted.add_done_callback(partial(self._on_noted, partition, asked))
        return end <= partition.point

    def _on_noted(self, partition: NativePartition, end: int, noted: asyncio.Future[None]) -> None:
        if noted.cancelled() or noted.exception() is not None:
            return
        partition.point = max(partition.point, end)
        if not self._log.replicated.leads:
            partition.begin_again()

    def on_deposed(self) -> None:
        """This node leads no more: nothing that its `memory` topics hold is on another."""
        self._asked.clear()
        for topic in self._log.topics.values():
            if topic.settings.durability is Durability.MEMORY:
                for partition in self._log.partitions_of(topic):
                    partition.begin_again()
