"""PendingMessages into the timer: what waits, page by page, and taking single messages out of it.

Neither is on the path of a message, so both simply read the buckets in question. They go from the highest level down:
a message only ever moves down, so one that moves meanwhile is seen twice at worst, never missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from headrace.broker.durable import submit
from headrace.broker.timer.bucket import Bucket, State, candidates
from headrace.broker.timer.chunks import chunk_at, read_all
from headrace.broker.timer.heap import NEVER
from headrace.broker.timer.scan import Scan, Seek, page
from headrace.broker.timer.wheel import mark
from headrace.log.interface import Log, Write
from headrace.runtime import Runtime

ID_CHARACTERS = 32
# Of longer keys the first bytes are listed.
KEY_SHOWN_BYTES = 1_024
_ALL = (NEVER, NEVER)


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that waits."""

    id: str
    topic: str
    """Empty where the topic has been deleted: the message is dropped when it is due."""
    partition: int
    due_ms: int
    scheduled_ms: int
    key: bytes | None
    """Its first bytes, where it is long."""
    value_bytes: int
    """The size of its value; -1 for a null."""


def id_of(due_ms: int, number: int) -> str:
    """An id as text: sorted, ids are in the order of their due times."""
    return f"{due_ms:016x}{number:016x}"


def parse_id(text: str) -> tuple[int, int] | None:
    """Due time and number; None for a text that is no id."""
    if len(text) != ID_CHARACTERS or not all(letter in "0123456789abcdef" for letter in text):
        return None
    due_ms, number = int(text[:16], 16), int(text[16:], 16)
    return (due_ms, number) if max(due_ms, number) < NEVER else None


class PendingMessages:
    """Lists and cancels."""

    def __init__(self, runtime: Runtime, log: Log, buckets: Sequence[Bucket]) -> None:
        self._runtime = runtime
        self._log = log
        self._buckets = buckets
        self.cancelled = 0

    # --- listing ------------------------------------------------------------------------------------------------------

    async def list(self, topic: str | None, limit: int, after: str) -> list[Pending]:
        """The first messages that wait, by due time, behind the id `after`."""
        topic_id = b""
        if topic is not None:
            known = self._log.topics.get(topic)
            if known is None:
                return []
            topic_id = known.id.bytes
        behind = (parse_id(after) if after else None) or (-1, -1)
        found: dict[tuple[int, int], tuple[bytes, int, int, bytes | None, int]] = {}
        bound = _ALL
        for bucket in sorted(self._buckets, key=lambda each: (-each.level, each.earliest)):
            if bucket.partition.offline or bucket.partition.start >= bucket.partition.high_watermark:
                continue
            first = bucket.earliest - bucket.earliest % bucket.width
            if bucket.earliest != NEVER and first > bound[0]:
                continue
            bound = await self._page(bucket, behind, bound, topic_id, limit, found)
        return [self._pending(each, *found[each]) for each in sorted(found)]

    async def _page(
        self,
        bucket: Bucket,
        after: tuple[int, int],
        before: tuple[int, int],
        topic_id: bytes,
        limit: int,
        found: dict[tuple[int, int], tuple[bytes, int, int, bytes | None, int]],
    ) -> tuple[int, int]:
        """Add what a bucket has for the page; the id that further ones must be below."""
        partition = bucket.partition
        position, end = partition.start, partition.high_watermark
        scan = Scan(position, end, gather=False)
        await read_all(self._runtime, partition, scan)
        while (position := max(position, partition.start)) < end:
            data = await chunk_at(self._runtime, partition, position)
            position, entries = page(data, position, scan, after, before, topic_id)
            for due, number, owner, index, scheduled, key, size in entries:
                # A page holds a thousand keys.
                shown = None if key is None else key[:KEY_SHOWN_BYTES]
                found[due, number] = (owner, index, scheduled, shown, size)
            if len(found) > limit:
                for each in sorted(found)[limit:]:
                    del found[each]
            if found and len(found) == limit:
                before = min(before, max(found))
            await asyncio.sleep(0)
        return before

    def _pending(
        self, each: tuple[int, int], topic_id: bytes, partition: int, scheduled: int, key: bytes | None, size: int
    ) -> Pending:
        topic = self._log.topics.by_id.get(UUID(bytes=topic_id))
        name = "" if topic is None else topic.name
        return Pending(id_of(*each), name, partition, each[0], scheduled, key, size)

    # --- cancelling ---------------------------------------------------------------------------------------------------

    async def cancel(self, id: str) -> bool:
        """Take a message out, durably; False where none of that id waits."""
        parsed = parse_id(id)
        if parsed is None:
            return False
        due_ms, _ = parsed
        likely = [self._buckets[number] for number in candidates(due_ms)]
        # One that came down from a higher level when it was overdue is in the bucket of that time.
        near = [each for each in self._buckets if each.state is not State.FAR and each not in likely and not each.level]
        for bucket in [*likely, *near]:
            if bucket.partition.offline is None and await self._cancel_in(bucket, *parsed):
                self.cancelled += 1
                return True
        return False

    async def _cancel_in(self, bucket: Bucket, due_ms: int, number: int) -> bool:
        while True:
            async with bucket.turn:
                if bucket.state is not State.BUSY:
                    return await self._cancel_now(bucket, due_ms, number)
            # The timer waits to open it or to move it down, and that has its time.
            await asyncio.sleep(0.01)

    async def _cancel_now(self, bucket: Bucket, due_ms: int, number: int) -> bool:
        """With the bucket's turn: it is not opened, moved down or emptied meanwhile, but it may fire."""
        partition = bucket.partition
        seek = Seek(due_ms, number)
        position = partition.start
        while position < partition.high_watermark:
            position = seek.read(await chunk_at(self._runtime, partition, position), position)
            await asyncio.sleep(0)
        offset = seek.offset
        if offset < 0:
            return False
        near = bucket.near
        if near is not None:
            while near.filling is not None:
                await asyncio.wait([near.filling])
            if not (near.index.remove(offset) or near.refused.remove(offset) or near.stage.remove(offset)):
                return False  # it is being fired
            near.flying += 1
        try:
            await submit(self._log, [Write(partition, mark([offset], self._runtime.clock.now_ms()))])
        except BaseException:
            if near is not None:
                near.index.add(due_ms, offset)
            raise
        finally:
            if near is not None:
                near.flying -= 1
        bucket.waiting -= 1
        return True
