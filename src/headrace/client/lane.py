"""A producer's state for one partition: a lane, the batches on it, and the deliveries that callers await.

A batch is in one place at a time: gathering records, waiting for its turn, flying to the leader, or set aside to be
sent again. `headrace.client.sender` moves it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

from crc32c import crc32c

from headrace.format.batch import ATTRIBUTES_AT, CRC, CRC_AT, CRC_FROM, PRODUCER, PRODUCER_AT, TRANSACTIONAL


class Delivered(NamedTuple):
    """Where a record went; offset -1 with acks=0."""

    topic: str
    partition: int
    offset: int


class Delivery:
    """A record's delivery: await it for its place, or for the error."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        return self._batch.done.done()

    def __await__(self) -> Generator[Any, None, Delivered]:
        # Shielded: many records share the future, and one reader that gives up must not cancel it for the others.
        base = yield from asyncio.shield(self._batch.done).__await__()
        offset = base + self._index if base >= 0 else -1
        return Delivered(self._batch.lane.topic, self._batch.lane.partition, offset)


class Batch:
    """Records on their way to one partition."""

    __slots__ = ("count", "created", "done", "encoded", "lane", "records", "sequence", "size")

    def __init__(self, lane: Lane, now: float, loop: asyncio.AbstractEventLoop) -> None:
        self.lane = lane
        self.records: list[Any] = []
        self.encoded: bytearray | None = None
        self.count = 0
        self.size = 0
        self.created = now
        self.sequence = -1
        """The first record's sequence number; -1 as long as the batch has none."""
        self.done: asyncio.Future[int] = loop.create_future()

    def number(self, producer_id: int, epoch: int, transactional: bool) -> None:
        """Take the lane's next sequence numbers, and write producer and number into the batch."""
        assert self.encoded is not None
        self.sequence = self.lane.sequence
        self.lane.sequence = (self.lane.sequence + self.count) & 0x7FFFFFFF
        PRODUCER.pack_into(self.encoded, PRODUCER_AT, producer_id, epoch, self.sequence)
        if transactional:
            self.encoded[ATTRIBUTES_AT + 1] |= TRANSACTIONAL
        CRC.pack_into(self.encoded, CRC_AT, crc32c(memoryview(self.encoded)[CRC_FROM:]))


class Lane:
    """One partition: what gathers, waits and flies."""

    __slots__ = (
        "broken",
        "failing",
        "flying",
        "gathering",
        "node",
        "partition",
        "paused",
        "proven",
        "retries",
        "rounds",
        "sequence",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.gathering: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.flying: list[Batch] = []
        self.retries: list[Batch] = []
        self.node = -1
        """Where the flying ones fly to."""
        self.sequence = 0
        self.failing = False
        """Something that flew has failed: nothing new leaves until the rest has landed."""
        self.rounds = 0
        """Failures in a row, for the backoff."""
        self.broken = False
        """The sequence numbers of what flies behind a refused batch will never do."""
        self.paused = False
        self.proven = False
        """The broker knows the producer: it has acknowledged a batch of this lane under the present id."""
