"""A producer: records into batches, which `headrace.client.sender` takes to the leaders of their partitions.

Records gather in the lane of their partition until a batch is full, or has lingered; each is known to its caller by a
`Delivery`. Batches that were built elsewhere take their place in the lane as they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from headrace.client.cluster import Cluster
from headrace.client.codes import ErrorCode
from headrace.client.errors import BrokerError, ClientClosed, ClientError, RecordTooLarge
from headrace.client.lane import Batch, Delivery, Lane
from headrace.client.sender import Sender
from headrace.format.batch import HEADER_BYTES, header_at
from headrace.format.compression import NAMES
from headrace.format.partitioning import partition_of
from headrace.format.records import build

# Key, value, headers and, unless the key is to choose it, the partition.
Sendable = tuple[bytes | None, bytes, list[tuple[str, bytes]], int | None]
Headers = Iterable[tuple[str | bytes, bytes | None]]

# What a record takes besides its key, value and headers; a guess that is rarely too small.
RECORD_OVERHEAD = 20
NO_LIMIT = 1 << 31


class Producer(Sender):
    """Sends records to topics. Make it with `Client.producer`, use it as a context manager, or `close` it."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = -1,
        idempotent: bool | None = None,
        compression: str = "none",
        batch_bytes: int = 131_072,
        linger: float = 0.005,
        max_in_flight: int = 5,
        request_bytes: int = 1_000_000,
        buffer_bytes: int = 33_554_432,
        delivery_timeout: float = 120.0,
    ) -> None:
        if compression not in NAMES:
            raise ClientError(f"{compression!r} is no compression: use one of {', '.join(NAMES)}")
        super().__init__(
            cluster,
            acks=acks,
            idempotent=idempotent,
            max_in_flight=max_in_flight,
            request_bytes=request_bytes,
            buffer_bytes=buffer_bytes,
            delivery_timeout=delivery_timeout,
        )
        self._codec = NAMES.index(compression)
        self._batch_bytes = batch_bytes
        self._linger = linger
        self._turn: dict[str, int] = {}
        self._gathering: dict[Lane, None] = {}
        self._linger_timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close(flush=kind is None)

    # --- what callers do ---

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Take a record. Waits only for the topic's metadata and for room in the buffer; await the `Delivery` for more.

        Without a partition, the key decides as in Kafka's own clients; without a key, batches go around.
        """
        if self._buffered >= self._buffer_bytes:
            await self._wait_for_room()
        lanes = self._topics.get(topic) or await self._lanes(topic)
        if partition is None:
            partition = partition_of(key, len(lanes)) if key is not None else self._turn[topic]
        elif not 0 <= partition < len(lanes):
            lanes = await self._grown(topic, partition)
        self._accept()
        lane = lanes[partition]
        size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        headers = list(headers)
        for name, content in headers:
            size += len(name) + len(content or b"") + 4
        batch = lane.gathering
        if batch is not None and batch.size + size > self._batch_bytes:
            self._complete(lane)
            # A caller that only ever sends would otherwise never let a batch go.
            await asyncio.sleep(0)
            batch = lane.gathering
        if batch is None:
            batch = lane.gathering = Batch(lane, self._loop.time(), self._loop)
            self._gathering[lane] = None
            self._unresolved += 1
            if self._linger_timer is None:
                self._linger_timer = self._loop.call_later(self._linger, self._linger_over)
        batch.records.append((time.time_ns() // 1_000_000 if timestamp is None else timestamp, key, value, headers))
        batch.count += 1
        batch.size += size
        self._buffered += size
        delivery = Delivery(batch, batch.count - 1)
        if batch.size >= self._batch_bytes:
            self._complete(lane)
        return delivery

    async def send_all(
        self,
        topic: str,
        records: Iterable[Sendable],
        limit: int = NO_LIMIT,
        places: list[tuple[Batch, int] | None] | None = None,
    ) -> list[asyncio.Future[int]]:
        """Take records of one topic, which leave at once. What is given are the batches that they are in: each future
        is done when its batch is delivered, or says why it is not. It is shared: shield it. No batch is larger than
        `limit`; a record that is larger by itself does not leave, and has a future of its own with RecordTooLarge. Into
        `places` go the batch and the place in it of each record; None for one that does not leave."""
        lanes = self._topics.get(topic) or await self._lanes(topic)
        batches: dict[Batch, None] = {}
        refused: list[asyncio.Future[int]] = []
        most = min(self._batch_bytes, limit - HEADER_BYTES)
        now = time.time_ns() // 1_000_000
        last: list[tuple[str, bytes]] = []
        headers_size = 0
        try:
            for index, (key, value, headers, partition) in enumerate(records):
                if self._buffered >= self._buffer_bytes:
                    await self._wait_for_room()
                self._accept()
                anywhere = partition is None and key is None
                if partition is None:
                    partition = partition_of(key, len(lanes)) if key is not None else self._turn[topic]
                elif not 0 <= partition < len(lanes):
                    lanes = await self._grown(topic, partition)
                if headers is not last:
                    last = headers
                    headers_size = sum([len(name) + len(content) + 4 for name, content in headers])
                lane = lanes[partition]
                size = RECORD_OVERHEAD + len(value) + headers_size + (len(key) if key is not None else 0)
                if size > most and size + HEADER_BYTES > limit:
                    # The sizes are guesses, a little too large.
                    exactly = len(build([(now, key, value, headers)]))
                    if exactly > limit:
                        refused.append(self._refused(RecordTooLarge(topic, index, exactly, limit)))
                        if places is not None:
                            places.append(None)
                        continue
                batch = lane.gathering
                if batch is not None and batch.size + size > most:
                    self._complete(lane)
                    if anywhere:
                        lane = lanes[self._turn[topic]]
                    batch = lane.gathering
                if batch is None:
                    batch = lane.gathering = Batch(lane, self._loop.time(), self._loop)
                    self._gathering[lane] = None
                    self._unresolved += 1
                batches[batch] = None
                batch.records.append((now, key, value, headers))
                if places is not None:
                    places.append((batch, batch.count))
                batch.count += 1
                batch.size += size
                self._buffered += size
        finally:
            # Also what came before a partition that there is not: nobody else would let it go.
            for batch in batches:
                if batch.lane.gathering is batch:
                    self._complete(batch.lane)
            # Not in the next turn of the loop: whoever sends this way has gathered what there is.
            self._dispatch()
        return [*(batch.done for batch in batches), *refused]

    async def send_batch(self, topic: str, partition: int, batch: bytearray) -> Delivery:
        """Take a batch that is built already (base offset 0, no producer). It is the producer's from now on."""
        if self._buffered >= self._buffer_bytes:
            await self._wait_for_room()
        lanes = self._topics.get(topic) or await self._lanes(topic)
        if not 0 <= partition < len(lanes):
            lanes = await self._grown(topic, partition)
        self._accept()
        lane = lanes[partition]
        if lane.gathering is not None:
            self._complete(lane)
        whole = Batch(lane, self._loop.time(), self._loop)
        whole.encoded = batch
        whole.count = header_at(batch).record_count
        whole.size = len(batch)
        self._unresolved += 1
        self._buffered += whole.size
        lane.waiting.append(whole)
        self._kick(lane)
        return Delivery(whole, 0)

    async def flush(self) -> None:
        """Wait until everything has been delivered. Raises the first error of a delivery since the last flush."""
        for lane in list(self._gathering):
            self._complete(lane)
        await self._settled()
        error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    async def close(self, *, flush: bool = True) -> None:
        """Deliver what is left (or fail it), and stop."""
        try:
            if flush and not self._closed:
                await self.flush()
        finally:
            self._closed = True
            if self._linger_timer is not None:
                self._linger_timer.cancel()
            for task in (*self._senders.values(), *self._chores):
                task.cancel()
            closed = ClientClosed("the producer was closed before the record was delivered")
            for lanes in self._topics.values():
                for lane in lanes:
                    gathering = [lane.gathering] if lane.gathering is not None else []
                    for batch in (*gathering, *lane.waiting, *lane.flying, *lane.retries):
                        self._resolve(batch, closed)

    def _accept(self) -> None:
        """Raise unless a record may be taken now."""
        if self._closed:
            raise ClientClosed("the producer is closed")

    def _refused(self, error: ClientError) -> asyncio.Future[int]:
        done: asyncio.Future[int] = self._loop.create_future()
        done.set_exception(error)
        # Nobody need wait for it.
        done.exception()
        return done

    # --- gathering ---

    async def _lanes(self, topic: str) -> list[Lane]:
        state = await self._cluster.topic(topic, create=True)
        lanes = self._topics.setdefault(topic, [])
        lanes += [Lane(topic, index) for index in range(len(lanes), len(state.partitions))]
        self._turn.setdefault(topic, time.time_ns() // 1000 % len(lanes))
        return lanes

    async def _grown(self, topic: str, partition: int) -> list[Lane]:
        self._cluster.forget([topic])
        lanes = await self._lanes(topic)
        if not 0 <= partition < len(lanes):
            raise BrokerError(
                ErrorCode.unknown_topic_or_partition, f"{topic}-{partition}", f"the topic has {len(lanes)} partitions"
            )
        return lanes

    async def _wait_for_room(self) -> None:
        for lane in list(self._gathering):
            self._complete(lane)
        while self._buffered >= self._buffer_bytes and not self._closed:
            waiter = self._loop.create_future()
            self._room.append(waiter)
            await waiter

    def _linger_over(self) -> None:
        self._linger_timer = None
        for lane in list(self._gathering):
            self._complete(lane)

    def _complete(self, lane: Lane) -> None:
        """End the gathering of a batch and line it up."""
        batch = lane.gathering
        assert batch is not None
        lane.gathering = None
        self._gathering.pop(lane, None)
        if not self._gathering and self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        # Records without a key stay on one partition for a batch, so that batches are full.
        if self._turn[lane.topic] == lane.partition:
            self._turn[lane.topic] = (lane.partition + 1) % len(self._topics[lane.topic])
        try:
            batch.encoded = build(batch.records, compression=self._codec)
        except Exception as error:
            refused = ClientError(f"records for {lane.topic}-{lane.partition} cannot be encoded: {error}")
            self._resolve(batch, refused)
            return
        batch.records = []
        lane.waiting.append(batch)
        self._kick(lane)
