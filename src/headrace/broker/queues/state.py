"""The state of queues in the log: how it is written to `__queues`, and read back after a start.

A partition of `__queues` (a *shard*) keeps the state of the lanes that hash to it. Its records:

    key     kind (1 byte: Q a queue, L a lane), queue id (8 bytes), lane (4 bytes)
    value   Q: JSON: topic id, name, settings, paused, parked keys; a null: the queue was deleted
            L: the log's epoch (4 bytes), then what `Ledger.drain`, `begin` or `images` gave

Deltas of all lanes that changed are written together some times a second. Once they amount to more than a snapshot of
everything would, one is written, page by page between the deltas (an image of a page holds at the place where it
stands, so that nothing has to stop for it), and what precedes it is trimmed: a start reads about one snapshot and its
deltas, however long the queues have lived.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from functools import partial
from struct import Struct
from typing import Any
from uuid import UUID

from headrace.broker.queues.ledger import BEGIN, LAST_IMAGE, Ledger
from headrace.broker.store import Change, StateTopic
from headrace.format.batch import BatchHeader
from headrace.format.records import Record
from headrace.log.interface import Appended, Partition, Write

TOPIC = "__queues"
TOPIC_CONFIG = {
    "retention.ms": "-1",
    "segment.bytes": str(16 << 20),
    # The state must fit, whatever messages do.
    "max.message.bytes": str((1 << 31) - 1),
}

KEY = Struct(">cqi")
EPOCH = Struct(">i")
QUEUE = b"Q"
LANE = b"L"

# One record of a snapshot is about this large at most.
RECORD_BYTES = 131_072


class StoredLane:
    """A lane as it was read back. A snapshot counts once all of it is there: until then, and for ever if a crash cut it
    short, the one before it holds, with every word since."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self.epoch = 0
        """In which the last word was written."""
        self._next: Ledger | None = None

    def apply(self, value: bytes) -> None:
        """Take one word."""
        if len(value) <= EPOCH.size:
            raise ValueError(f"the state of a lane has {len(value)} bytes")
        written = value[EPOCH.size :]
        kind = written[0]
        if kind == BEGIN:
            self._next = Ledger(0)
            self._next.apply(written)
            if self.ledger is not None:
                self.ledger.cut(self._next.cursor)
        else:
            if self.ledger is not None:
                self.ledger.apply(written)
            if self._next is not None:
                self._next.apply(written)
                if kind == LAST_IMAGE:
                    self.ledger, self._next = self._next, None
        self.epoch = EPOCH.unpack_from(value)[0]


class StoredQueue:
    """A queue as it was read back."""

    def __init__(self, described: dict[str, Any]) -> None:
        self.described = described
        self.lanes: dict[int, StoredLane] = {}

    def lane(self, number: int) -> tuple[Ledger, int] | None:
        """The state of a lane, and the epoch in which it was written; None where nothing is known of it."""
        lane = self.lanes.get(number)
        if lane is None or lane.ledger is None:
            return None
        lane.ledger.arrange()
        return lane.ledger, lane.epoch


def queue_key(number: int) -> bytes:
    return KEY.pack(QUEUE, number, 0)


def lane_key(number: int, lane: int) -> bytes:
    return KEY.pack(LANE, number, lane)


def described(
    topic: UUID, name: str, settings: dict[str, Any], paused: bool, parked: Mapping[int, Iterable[bytes]]
) -> bytes:
    """The value of a queue's record. `parked`: the keys that are parked, by lane."""
    keys = {str(lane): [b64encode(key).decode() for key in of_lane] for lane, of_lane in parked.items()}
    return json.dumps(
        {"topic": str(topic), "name": name, "settings": settings, "paused": paused, "parked": keys}
    ).encode()


def parked_keys(described: dict[str, Any]) -> dict[int, dict[bytes, None]]:
    """The parked keys of a queue's record."""
    return {
        int(lane): dict.fromkeys(b64decode(key) for key in of_lane)
        for lane, of_lane in described.get("parked", {}).items()
    }


def apply(stored: dict[int, StoredQueue], record: Record, header: BatchHeader) -> None:
    """Take one record. A lane may be met before the queue that it belongs to, in another shard."""
    key, value = record[2] or b"", record[3]
    if len(key) != KEY.size:
        raise ValueError(f"a key of {len(key)} bytes")
    kind, number, lane = KEY.unpack(key)
    if kind == QUEUE:
        if value is None:
            stored.pop(number, None)
        elif number in stored:
            stored[number].described = json.loads(value)
        else:
            stored[number] = StoredQueue(json.loads(value))
    elif kind == LANE:
        queue = stored.get(number)
        if value is None:
            if queue is not None:
                queue.lanes.pop(lane, None)
            return
        if queue is None:
            queue = stored[number] = StoredQueue({})
        queue.lanes.setdefault(lane, StoredLane()).apply(value)
    else:
        raise ValueError(f"a record of kind {kind!r}")


class Shard:
    """One partition of `__queues`, and a count of what a snapshot would save."""

    def __init__(self, topic: StateTopic, partition: Partition) -> None:
        self.partition = partition
        self._topic = topic
        self.written = 0
        """Bytes since the last snapshot began."""
        self.snapshot_bytes = 0
        """Bytes of the last snapshot."""

    def worth_a_snapshot(self, least: int) -> bool:
        """Whether what was written since the last snapshot is more than a new one would be, twice over."""
        return self.written > max(least, 2 * self.snapshot_bytes)

    async def load(self, stored: dict[int, StoredQueue]) -> None:
        """Read back what was written."""
        await self._topic.load(self.partition, partial(apply, stored))

    def encode(self, changes: Iterable[Change]) -> Write:
        """Changes as a part of an append that is about to be made."""
        write = self._topic.write(self.partition, changes)
        self.written += len(write.batches)
        return write

    def write(self, changes: Iterable[Change]) -> asyncio.Future[list[Appended]]:
        """Write changes, now and in the order of the calls; the future is done once they are durable."""
        return self._topic.submit([self.encode(changes)])

    async def trim(self, before: int) -> None:
        """Forget what a snapshot has made needless."""
        await self._topic.forget(self.partition, before)
