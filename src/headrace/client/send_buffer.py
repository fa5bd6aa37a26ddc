"""A producer's state for one partition: the send buffer, its batches, and the deliveries that callers await.

A batch is in one state at a time: filling with records, queued, in flight to the leader, or set aside for a
retry. `headrace.client.sender` moves it.
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
        return Delivered(self._batch.buffer.topic, self._batch.buffer.partition, offset)


class Batch:
    """Records for one partition."""

    __slots__ = ("buffer", "count", "created", "done", "encoded", "records", "sequence", "size")

    def __init__(self, buffer: SendBuffer, now: float, loop: asyncio.AbstractEventLoop) -> None:
        self.buffer = buffer
        self.records: list[Any] = []
        self.encoded: bytearray | None = None
        self.count = 0
        self.size = 0
        self.created = now
        self.sequence = -1
        """The first record's sequence number; -1 as long as the batch has none."""
        self.done: asyncio.Future[int] = loop.create_future()

    def number(self, producer_id: int, epoch: int, transactional: bool) -> None:
        """Take the buffer's next sequence numbers, and write producer and number into the batch."""
        assert self.encoded is not None
        self.sequence = self.buffer.sequence
        self.buffer.sequence = (self.buffer.sequence + self.count) & 0x7FFFFFFF
        PRODUCER.pack_into(self.encoded, PRODUCER_AT, producer_id, epoch, self.sequence)
        if transactional:
            self.encoded[ATTRIBUTES_AT + 1] |= TRANSACTIONAL
        CRC.pack_into(self.encoded, CRC_AT, crc32c(memoryview(self.encoded)[CRC_FROM:]))


class SendBuffer:
    """The batches for one partition."""

    __slots__ = (
        "broken",
        "failing",
        "filling",
        "in_flight",
        "node",
        "partition",
        "paused",
        "proven",
        "queued",
        "retries",
        "rounds",
        "sequence",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.filling: Batch | None = None
        self.queued: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.retries: list[Batch] = []
        self.node = -1
        """The broker that the batches in flight are sent to."""
        self.sequence = 0
        self.failing = False
        """A batch in flight has failed: no new one is sent until the rest is answered."""
        self.rounds = 0
        """Failures in a row, for the back-off."""
        self.broken = False
        """The sequence numbers of the batches in flight behind a refused one are never valid."""
        self.paused = False
        self.proven = False
        """The broker knows the producer: it has acknowledged a batch of this buffer under the present id."""
