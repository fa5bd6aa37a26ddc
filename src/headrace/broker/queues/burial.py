"""Dead letters: messages that have had their attempts leave the queue for its dead-letter topic.

A condemned message is read from the log once more and appended to the dead-letter topic with headers that say where it
came from, in one atomic append with its settlement: after a crash it is either still condemned or dead, never both and
never neither. The key decides its partition there, so the dead of one key stay in order.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from headrace.broker import dead_letters
from headrace.broker.reading import batches
from headrace.errors import CorruptBatch, HeadraceError, InvalidRecords, OffsetOutOfRange, UnsupportedBatch
from headrace.kernels import records
from headrace.kernels.partitioning import murmur2
from headrace.kernels.records import Record, RecordHeaders
from headrace.log.interface import Topic, Write

if TYPE_CHECKING:
    from headrace.broker.queues.lane import Lane
    from headrace.broker.queues.queue import Queue
    from headrace.broker.queues.queues import Queues

# Letters of one append: the batch stays small, and a dead-letter topic takes it.
STEP_LETTERS = 64
STEP_BYTES = 262_144
READ_BYTES = 65_536
# After a failure (a full disk, a name that cannot be a topic) the next try waits this long.
RETRY_SECONDS = 1.0

log = structlog.get_logger("headrace.queues")

# What is added to a record for a Kafka batch, generously.
_ROOM = 1_024


class Burial:
    """Buries the condemned messages of one queue."""

    def __init__(self, queue: Queue, queues: Queues) -> None:
        self._queue = queue
        self._queues = queues
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """There are condemned messages."""
        if self._task is None and not self._queue.gone:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        try:
            while any(lane.open and lane.ledger.condemned for lane in self._queue.lanes.values()):
                try:
                    await self._bury()
                except (HeadraceError, OSError) as error:
                    log.error(
                        "dead letters could not be written, and are kept back",
                        topic=self._queue.topic.name, queue=self._queue.name,
                        dead_letter_topic=self._queue.dead_letter_topic, error=str(error),
                    )  # fmt: skip
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._task = None

    async def _bury(self) -> None:
        """Bury some of each lane."""
        queue = self._queue
        target = await self._queues.dead_letter_topic(queue)
        for lane in list(queue.lanes.values()):
            if not lane.ledger.condemned or not lane.open:
                continue
            found = await self._condemned(lane, min(STEP_BYTES, target.settings.max_batch_bytes // 2))
            gone = [offset for offset, record in found if record is None]
            letters = [record for _, record in found if record is not None]
            if gone:
                # Compaction or retention was faster.
                for offset in gone:
                    lane.ledger.settle(offset)
                    queue.release_key(lane, offset)
                lane.lost += len(gone)
                queue.moved_up(lane)
            if letters:
                await self._append(lane, letters, target)
            await asyncio.sleep(0)

    async def _condemned(self, lane: Lane, step_bytes: int) -> list[tuple[int, Record | None]]:
        """Condemned messages with their records, None where the log has none any more."""
        found: list[tuple[int, Record | None]] = []
        ledger = lane.ledger
        offset = ledger.next_condemned(0)
        size = 0
        while offset >= 0 and len(found) < STEP_LETTERS:
            record = await record_at(self._queue, lane, offset)
            if record is not None:
                size += len(record[2] or b"") + len(record[3] or b"") + _ROOM
                if found and size > step_bytes:
                    break
            found.append((offset, record))
            offset = ledger.next_condemned(offset + 1)
        return found

    async def _append(self, lane: Lane, letters: list[Record], target: Topic) -> None:
        queue = self._queue
        now = queue.ground.clock.now_ms()
        by_partition: dict[int, list[Record]] = {}
        for record in letters:
            by_partition.setdefault(_partition(record, len(target.partitions)), []).append(record)
        writes = []
        for index, part in sorted(by_partition.items()):
            partition = target.partitions[index]
            if not partition.loaded:
                await partition.load()
            batch = records.build(
                [
                    (now, key, value, self._headers(lane, offset, headers, now))
                    for offset, _, key, value, headers in part
                ]
            )
            writes.append(Write(partition, batch))
        offsets = [record[0] for record in letters]
        attempts = {offset: lane.ledger.state_of(offset)[1] for offset in offsets}
        errors = {offset: queue.errors.get((lane.index, offset), "") for offset in offsets}
        # Once it is appended the queue must hear of it, even if this stops meanwhile.
        burying = asyncio.get_running_loop().create_task(queue.bury(lane, offsets, writes))
        if not await asyncio.shield(burying):
            return
        for offset in offsets:
            self._queues.note(
                queue, "dead", lane.index, [offset], attempt=attempts[offset], error=errors[offset]
            )  # fmt: skip

    def _headers(self, lane: Lane, offset: int, headers: RecordHeaders, now: int) -> RecordHeaders:
        queue = self._queue
        attempts = lane.ledger.state_of(offset)[1]
        error = queue.errors.get((lane.index, offset), "") or f"not settled after {attempts} attempts"
        partition, first = _origin(lane, offset, headers)
        return [
            *(
                (name, value)
                for name, value in headers
                if name not in dead_letters.ADDED or name == dead_letters.REDRIVEN
            ),
            (dead_letters.ORIGIN_TOPIC, queue.topic.name.encode()),
            (dead_letters.ORIGIN_PARTITION, partition.encode()),
            (dead_letters.ORIGIN_OFFSET, first.encode()),
            (dead_letters.ORIGIN_QUEUE, queue.name.encode()),
            (dead_letters.ATTEMPTS, str(attempts).encode()),
            (dead_letters.ERROR, error.encode("utf-8", "replace")[:_ROOM]),
            (dead_letters.DEAD_AT, str(now).encode()),
        ]


async def record_at(queue: Queue, lane: Lane, offset: int) -> Record | None:
    """The record at an offset; None where the log has none any more."""
    try:
        found = await batches(queue.ground, lane.partition, offset, READ_BYTES)
    except OffsetOutOfRange:
        return None
    for header, batch in found:
        if header.last_offset >= offset:
            if batch is None:
                return None
            # No further than to the record itself: the batch may be broken behind it.
            upto = offset - header.base_offset + 1
            try:
                some = records.parse(batch, queue.unpacked_max, 0, upto)
            except (InvalidRecords, CorruptBatch, UnsupportedBatch):
                return None
            return next((record for record in some if record[0] == offset), None)
    return None


def _origin(lane: Lane, offset: int, headers: RecordHeaders) -> tuple[str, str]:
    """Partition and offset that a message had first: one from the parking says where that was."""
    for name, value in headers:
        if name == dead_letters.PARKED_FROM and value is not None and value.count(b"/") == 1:
            partition, _, at = value.decode("ascii", "replace").partition("/")
            return partition, at
    return str(lane.index), str(offset)


def _partition(record: Record, count: int) -> int:
    """As Kafka's producers place a key; without one, by the offset."""
    offset, _, key, _, _ = record
    return (murmur2(key) & 0x7FFFFFFF) % count if key is not None else offset % count
