"""Dead letters: messages that have had their attempts leave the queue for its dead-letter topic.

A condemned message is read from the log once more and appended to the dead-letter topic with headers that say where it
came from, in one atomic append with its settlement: after a crash it is either still condemned or dead, never both and
never neither. The key decides its partition there, so the dead of one key stay in order.

One that the dead-letter topic does not take is *stuck*: it is counted and named, holds retention, and is tried again
from time to time and whenever the queue's settings change. Those behind it go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from headrace.broker import dead_letters, move
from headrace.broker.queues.parking import PARKING
from headrace.broker.rate_limit import RateLimit
from headrace.broker.reading import Found, RecordFinder
from headrace.errors import AppendOffline, HeadraceError, UnknownTopic
from headrace.format import headers as header_names
from headrace.format.partitioning import murmur2
from headrace.format.records import Record, RecordHeaders
from headrace.log.interface import Partition, Topic

if TYPE_CHECKING:
    from headrace.broker.queues.lane import QueueLane
    from headrace.broker.queues.queue import Queue
    from headrace.broker.queues.queues import Queues

# After a failure of the log or the whole target (a full disk, a name that cannot be a topic) the next try waits this
# long; messages that are refused are tried again after the other time.
RETRY_SECONDS = 1.0
STUCK_SECONDS = 60.0
ERROR_BYTES = 1_024

log = structlog.get_logger("headrace.queues")


class DeadLetterMover:
    """Buries the condemned messages of one queue."""

    def __init__(self, queue: Queue, queues: Queues) -> None:
        self._queue = queue
        self._queues = queues
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        # When what is stuck is tried again, by the loop's clock.
        self._retry_at = 0.0
        self._failures = RateLimit()
        self._refusals = RateLimit()
        # Why nothing moves, and why what is stuck does not.
        self._failure = ""
        self._refusal = ""
        # Messages that were looked at, and an event for each step.
        self._looked_at = 0
        self._stepped = asyncio.Event()

    @property
    def error(self) -> str:
        """Why dead messages do not move; empty while they do."""
        return self._failure or self._refusal

    def begin(self) -> None:
        """There are condemned messages."""
        self._wake.set()
        if self._task is None and not self._queue.gone:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def retry(self) -> None:
        """Something has changed: what is stuck may move now."""
        for lane in self._queue.lanes.values():
            lane.ledger.unstick()
        if any(lane.ledger.condemned for lane in self._queue.lanes.values()):
            self.begin()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def caught_up(self) -> None:
        """Wait until as many messages were buried, or are stuck, as are condemned now, or until nothing can move."""
        end = self._looked_at + sum(lane.ledger.condemned for lane in self._lanes())
        while self._looked_at < end and self._task is not None and self._condemned() and not self._failure:
            self._stepped.clear()
            await self._stepped.wait()

    def _lanes(self) -> list[QueueLane]:
        return [lane for lane in self._queue.lanes.values() if lane.open]

    def _condemned(self) -> bool:
        return any(lane.ledger.condemned for lane in self._lanes())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._wake.clear()
                try:
                    await self._bury_all()
                except (HeadraceError, OSError) as error:
                    self._fail(error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self._failure = ""
                if self._condemned():
                    continue
                if not any(lane.ledger.stuck for lane in self._lanes()):
                    self._refusal = ""
                    return
                try:
                    await asyncio.wait_for(self._wake.wait(), max(0.0, self._retry_at - loop.time()))
                except TimeoutError:
                    for lane in self._lanes():
                        lane.ledger.unstick()
        finally:
            self._task = None
            self._stepped.set()

    def _fail(self, error: Exception) -> None:
        self._failure = str(error)
        self._stepped.set()
        if self._failures.count(asyncio.get_running_loop().time()):
            log.error(
                "dead letters could not be written, and are kept back",
                topic=self._queue.topic.name, queue=self._queue.name,
                dead_letter_topic=self._queue.dead_letter_topic, error=str(error),
            )  # fmt: skip

    async def _bury_all(self) -> None:
        """Bury what is condemned, some of each lane in turn. Raises what keeps all of it back."""
        finders: dict[QueueLane, RecordFinder] = {}
        while lanes := [lane for lane in self._lanes() if lane.ledger.condemned]:
            for lane in lanes:
                if lane not in finders:
                    finders[lane] = RecordFinder(self._queue.runtime, lane.partition, self._queue.unpacking)
                await self._step(lane, finders[lane])
                self._stepped.set()
                await asyncio.sleep(0)

    async def _step(self, lane: QueueLane, finder: RecordFinder) -> None:
        target = await self._queues.dead_letter_topic(self._queue)
        if all(partition.offline for partition in target.partitions):
            raise AppendOffline(f"the topic {target.name} is offline: {target.partitions[0].offline}")
        offsets = lane.ledger.condemned_from(0, move.STEP_MESSAGES)
        if not offsets:
            return
        try:
            found = await finder.find(offsets, move.step_bytes(target))
        except (HeadraceError, OSError) as error:
            # The other lanes go on.
            lane.stall(error)
            return
        self._pass_over(lane, found)
        letters = []
        for record in found.records:
            refusal = move.refusal(_partition(record, target), record[2])
            if refusal is None:
                letters.append(record)
            else:
                self._stick(lane, record[0], refusal)
        for record, why in await move.move_each(letters, partial(self._append, lane, target)):
            if move.is_general(why) or target.deleted:
                raise why
            self._stick(lane, record[0], why)
        self._looked_at += len(found.records) + len(found.gone) + len(found.broken)

    def _pass_over(self, lane: QueueLane, found: Found) -> None:
        """Settle what the log cannot give any more: compaction or a deletion was faster, or its batch is broken."""
        if not found.gone and not found.broken:
            return
        for offset in (*found.gone, *found.broken):
            self._queue.drop(lane, offset)
            lane.release_key(offset)
        lane.lost += len(found.gone)
        lane.poisoned += len(found.broken)
        self._queue.moved_up(lane)
        # Those that waited for their key may go.
        self._queue.kick()
        if found.broken:
            log.error(
                "dead messages cannot be read, and are passed over",
                topic=self._queue.topic.name, queue=self._queue.name, partition=lane.index, offsets=found.broken,
            )  # fmt: skip

    def _stick(self, lane: QueueLane, offset: int, error: Exception) -> None:
        """A message cannot move. It stays where it is, without holding up others."""
        now = asyncio.get_running_loop().time()
        if now >= self._retry_at:
            self._retry_at = now + STUCK_SECONDS
        self._refusal = str(error)
        self._queue.stick(lane, offset)
        if stuck := self._refusals.count(now):
            log.error(
                "dead messages cannot move to their dead-letter topic: they stay, hold retention, and are tried again",
                topic=self._queue.topic.name, queue=self._queue.name, partition=lane.index, offset=offset,
                messages=stuck, dead_letter_topic=self._queue.dead_letter_topic, error=str(error),
            )  # fmt: skip

    async def _append(self, lane: QueueLane, target: Topic, letters: Sequence[Record]) -> None:
        queue = self._queue
        if target.deleted:
            raise UnknownTopic(f"the topic {target.name} was deleted")
        now = queue.runtime.clock.now_ms()
        rows = []
        for record in letters:
            offset, _, key, value, headers = record
            partition = _partition(record, target)
            await move.load(partition)
            rows.append((partition, (now, key, value, self._headers(lane, offset, headers, now))))
        writes = move.writes(rows)
        offsets = [record[0] for record in letters]
        attempts = {offset: lane.ledger.state_of(offset)[1] for offset in offsets}
        errors = {offset: queue.errors.get((lane.index, offset), "") for offset in offsets}
        # Once it is appended the queue must hear of it, even if this stops meanwhile.
        burying = asyncio.get_running_loop().create_task(queue.bury(lane, offsets, writes))
        if not await asyncio.shield(burying):
            return
        for offset in offsets:
            self._queues.deliveries.note(
                queue, "dead", lane.index, [(offset, offset)], attempt=attempts[offset], error=errors[offset]
            )

    def _headers(self, lane: QueueLane, offset: int, headers: RecordHeaders, now: int) -> RecordHeaders:
        queue = self._queue
        attempts = lane.ledger.state_of(offset)[1]
        error = queue.errors.get((lane.index, offset), "") or f"not settled after {attempts} attempts"
        partition, first = _origin(lane, offset, headers)
        return [
            *(
                (name, value)
                for name, value in headers
                if name not in dead_letters.ADDED or name == header_names.REDRIVEN
            ),
            (header_names.ORIGIN_TOPIC, queue.topic.name.encode()),
            (header_names.ORIGIN_PARTITION, partition.encode()),
            (header_names.ORIGIN_OFFSET, first.encode()),
            (header_names.ORIGIN_QUEUE, queue.name.encode()),
            (header_names.ATTEMPTS, str(attempts).encode()),
            (header_names.ERROR, error.encode("utf-8", "replace")[:ERROR_BYTES]),
            (header_names.DEAD_AT, str(now).encode()),
        ]


def _origin(lane: QueueLane, offset: int, headers: RecordHeaders) -> tuple[str, str]:
    """Partition and offset that a message had first: one from the parking has that in a header."""
    for name, value in headers if lane.index == PARKING else ():
        if name != header_names.PARKED_FROM:
            continue
        # Producers can write this header too, with any bytes.
        if place := dead_letters.parked_from((value or b"").decode("ascii", "replace")):
            return str(place[0]), str(place[1])
    return str(lane.index), str(offset)


def _partition(record: Record, target: Topic) -> Partition:
    """As Kafka's producers place a key; without one, by the offset."""
    offset, _, key, _, _ = record
    number = murmur2(key) & 0x7FFFFFFF if key is not None else offset
    return target.partitions[number % len(target.partitions)]
