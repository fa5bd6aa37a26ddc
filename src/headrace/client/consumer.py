"""A consumer of chosen partitions, without a group: raw batches in order, or the records in them.

Each leader has a fetch loop with one long poll under way, through a connection of its own; what it brings waits in a
short queue, so that the next poll runs while the last one's batches are read. Of a batch only the header is looked at
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import NamedTuple

from headrace.client import wire
from headrace.client.admin import EARLIEST, LATEST, Admin
from headrace.client.cluster import BACKOFF_FIRST, Cluster, Partition
from headrace.client.errors import BrokerError, ClientError, InvalidResponse, check, error_code
from headrace.errors import HeadraceError
from headrace.format import records
from headrace.format.batch import CONTROL, HEADER, HEADER_BYTES, PREFIX_BYTES, TRANSACTIONAL
from headrace.format.error_codes import ErrorCode

CHANNEL = "fetch"
# Replies that wait for the reader, over all leaders.
QUEUED_REPLIES = 2


class Record(NamedTuple):
    """One record, with where it came from."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Chunk(NamedTuple):
    """Consecutive batches of one partition, as the log has them. The first may begin before `offset`."""

    topic: str
    partition: int
    offset: int
    """What was asked for."""
    next_offset: int
    """Where to go on."""
    high_watermark: int
    batches: list[memoryview]
    """Without control batches and, for committed readers, without those of aborted transactions."""


class DamagedBatch(ClientError):
    """A broker has a batch that cannot be read, and sends it as it is."""

    def __init__(self, place: str, first: int, last: int, before: list[Record], reason: str) -> None:
        super().__init__(f"the batch of {place} with offsets {first} to {last} is damaged: {reason}")
        self.last = last
        self.before = before
        """The records of the same chunk that stand before it."""


class Consumer:
    """Reads partitions from given offsets. Make it with `Client.consumer` and use it as a context manager."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        committed: bool = False,
        max_wait: float = 0.5,
        min_bytes: int = 1,
        max_bytes: int = 52_428_800,
        partition_bytes: int = 1_048_576,
        out_of_range: int | None = None,
        unpacked_bytes: int = 134_217_728,
    ) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._committed = committed
        self._max_wait = max_wait
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._partition_bytes = partition_bytes
        self._out_of_range = out_of_range
        self._unpacked_bytes = unpacked_bytes
        self.positions: dict[Partition, int] = {}
        """Per partition the next offset that the reader will get."""
        self.ends: dict[Partition, int] = {}
        """Per partition the last known end of the committed (or all) records."""
        self._next: dict[Partition, int] = {}
        self._until: dict[Partition, int] = {}
        self._loops: dict[int, asyncio.Task[None]] = {}
        self._routing: asyncio.Task[None] | None = None
        self._queue: asyncio.Queue[Chunk | HeadraceError] = asyncio.Queue(QUEUED_REPLIES)
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- what to read ---

    async def assign(self, positions: Mapping[Partition, int], until: Mapping[Partition, int] | None = None) -> None:
        """Read these partitions from these offsets (EARLIEST and LATEST are looked up), and no others. Nothing is asked
        for beyond `until`; batches may end behind it."""
        await self.close()
        lookups = {partition: offset for partition, offset in positions.items() if offset in (EARLIEST, LATEST)}
        found = await self._admin.list_offsets(lookups, committed=self._committed) if lookups else {}
        self.positions = {
            partition: found[partition].offset if partition in found else offset
            for partition, offset in positions.items()
        }
        self.ends = {}
        self._next = dict(self.positions)
        self._until = dict(until or {})
        self._queue = asyncio.Queue(QUEUED_REPLIES)
        self._routing = asyncio.create_task(self._route())

    def add(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions too, from these offsets."""
        self.positions.update(positions)
        self._next.update(positions)
        self._moved.set()

    async def assign_at(self, partitions: Iterable[Partition], timestamp: int) -> None:
        """Read these partitions from the first record at or after a time (ms); from the end where all are older."""
        wanted = list(partitions)
        found = await self._admin.list_offsets(dict.fromkeys(wanted, timestamp), committed=self._committed)
        await self.assign({each: found[each].offset if found[each].offset >= 0 else LATEST for each in wanted})

    async def close(self) -> None:
        """Stop reading. `positions` stay."""
        tasks = [*self._loops.values()]
        if self._routing is not None:
            tasks.append(self._routing)
        self._loops, self._routing = {}, None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- reading ---

    async def chunk(self) -> Chunk:
        """The next batches of some partition."""
        found = await self._queue.get()
        if isinstance(found, HeadraceError):
            raise found
        self.positions[found.topic, found.partition] = found.next_offset
        return found

    async def chunks(self, until: Mapping[Partition, int] | None = None) -> AsyncIterator[Chunk]:
        """Batches as they come; with `until`, up to these offsets (see `end_offsets`), else for ever."""
        while until is None or any(self.positions[each] < end for each, end in until.items()):
            yield await self.chunk()

    async def records(self, until: Mapping[Partition, int] | None = None) -> AsyncIterator[Record]:
        """Records as they come; with `until`, up to these offsets, else for ever."""
        async for chunk in self.chunks(until):
            for record in self.parse(chunk):
                if until is None or record.offset < until[chunk.topic, chunk.partition]:
                    yield record

    def parse(self, chunk: Chunk) -> list[Record]:
        """The records of a chunk that were asked for. Raises DamagedBatch, which has those before it."""
        topic, partition, start = chunk.topic, chunk.partition, chunk.offset
        found: list[Record] = []
        for batch in chunk.batches:
            try:
                parsed = records.parse(batch, self._unpacked_bytes)
            except HeadraceError as error:
                base, _, _, _, _, _, last_delta, *_ = HEADER.unpack_from(batch)
                raise DamagedBatch(f"{topic}-{partition}", base, base + last_delta, found, str(error)) from error
            found += [Record(topic, partition, *record) for record in parsed if record[0] >= start]
        return found

    async def end_offsets(self) -> dict[Partition, int]:
        """Where the assigned partitions end now."""
        found = await self._admin.list_offsets(dict.fromkeys(self.positions, LATEST), committed=self._committed)
        return {partition: each.offset for partition, each in found.items()}

    async def commit(self, group: str) -> None:
        """Commit what was read as a group's offsets. The group must have no members."""
        await self._admin.commit(group, self.positions)

    # --- fetching ---

    async def _route(self) -> None:
        """Keep one fetch loop for each leader."""
        try:
            while True:
                self._moved.clear()
                leaders = await self._cluster.retry(lambda: self._cluster.by_leader(self._unread()))
                if not leaders:
                    return
                for node_id in leaders:
                    if node_id not in self._loops:
                        self._loops[node_id] = asyncio.create_task(self._fetch_from(node_id))
                await self._moved.wait()
                await asyncio.sleep(BACKOFF_FIRST)
        except ClientError as error:
            await self._queue.put(error)

    def _unread(self) -> list[Partition]:
        """The partitions of which more is wanted."""
        return [each for each, offset in self._next.items() if each not in self._until or offset < self._until[each]]

    async def _fetch_from(self, node_id: int) -> None:
        turn = 0
        try:
            while True:
                leaders = {each: self._cluster.known_leader(*each) for each in self._unread()}
                if any(leader not in self._loops for leader in leaders.values()):
                    # A refresh by another part of the client may have moved a leader, too.
                    self._moved.set()
                led = [each for each, leader in leaders.items() if leader == node_id]
                if not led:
                    return
                # The broker fills a reply in the order of the request: a new first each time, so that none starves.
                turn = (turn + 1) % len(led)
                await self._fetch(node_id, led[turn:] + led[:turn])
        except ClientError as error:
            if error.retriable:
                self._cluster.forget({topic for topic, _ in self._next})
            else:
                await self._queue.put(error)
        finally:
            self._loops.pop(node_id, None)
            self._moved.set()

    async def _fetch(self, node_id: int, partitions: list[Partition]) -> None:
        connection = await self._cluster.node(node_id, CHANNEL)
        connection.require(wire.FETCH, wire.FETCH_VERSION)
        body = wire.encode_fetch(
            [wire.FetchPosition(*each, self._next[each], self._partition_bytes) for each in partitions],
            max_wait_ms=int(self._max_wait * 1000),
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            committed=self._committed,
        )
        timeout = self._max_wait + self._cluster.timeout
        error, found = await connection.send(wire.FETCH, wire.FETCH_VERSION, body, wire.decode_fetch, timeout)
        check(error, "fetch")
        for each in found:
            await self._take(each)

    async def _take(self, fetched: wire.Fetched) -> None:
        partition = (fetched.topic, fetched.partition)
        if partition not in self._next:
            return
        if fetched.error == ErrorCode.offset_out_of_range and self._out_of_range is not None:
            found = await self._admin.list_offsets({partition: self._out_of_range}, committed=self._committed)
            moved = self._next[partition] = found[partition].offset
            if partition not in self._unread():
                # No fetch follows that would report the new position.
                await self._queue.put(Chunk(*partition, moved, moved, moved, []))
            return
        if fetched.error:
            on = f"{fetched.topic}-{fetched.partition} at offset {self._next[partition]}"
            raise BrokerError(error_code(fetched.error), on)
        self.ends[partition] = fetched.last_stable if self._committed else fetched.high_watermark
        offset = self._next[partition]
        batches, next_offset = _batches(fetched, offset, self._committed)
        if next_offset > offset:
            self._next[partition] = next_offset
            chunk = Chunk(*partition, offset, next_offset, fetched.high_watermark, batches)
            await self._queue.put(chunk)


def _batches(fetched: wire.Fetched, offset: int, committed: bool) -> tuple[list[memoryview], int]:
    """The whole batches that a reader from `offset` wants, and the offset behind the last of them."""
    view = fetched.records
    aborted = sorted(fetched.aborted, key=lambda each: each[1], reverse=True)
    skipped: set[int] = set()
    found = []
    position = 0
    while len(view) - position >= HEADER_BYTES:
        base, length, _, _, _, attributes, last_delta, _, _, producer, *_ = HEADER.unpack_from(view, position)
        if length < HEADER_BYTES - PREFIX_BYTES or last_delta < 0:
            raise InvalidResponse(f"{fetched.topic}-{fetched.partition} has a batch of {length} bytes at offset {base}")
        size = length + PREFIX_BYTES
        if len(view) - position < size:
            break
        batch = view[position : position + size]
        position += size
        last = base + last_delta
        while committed and aborted and aborted[-1][1] <= last:
            skipped.add(aborted.pop()[0])
        if attributes & CONTROL and producer in skipped and _is_abort(batch):
            skipped.discard(producer)
        if last < offset:
            continue
        offset = last + 1
        if not attributes & CONTROL and not (attributes & TRANSACTIONAL and producer in skipped):
            found.append(batch)
    return found, offset


def _is_abort(batch: memoryview) -> bool:
    for _, _, key, _, _ in records.parse(batch, len(batch)):
        if key is not None and len(key) >= records.CONTROL_KEY.size:
            return bool(records.CONTROL_KEY.unpack_from(key)[1] == records.ABORT)
    return False
