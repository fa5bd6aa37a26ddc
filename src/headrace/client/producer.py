"""A producer: records into batches, which `headrace.client.sender` takes to the leaders of their partitions.

Records fill a batch in the send buffer of their partition until it is full, or has lingered; the caller of each gets a
`Delivery`. Batches that were built elsewhere take their place in the buffer as they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerError, ClientClosed, ClientError, RecordTooLarge
from headrace.client.send_buffer import Batch, Delivery, SendBuffer
from headrace.client.sender import Sender
from headrace.format.batch import HEADER_BYTES, header_at
from headrace.format.compression import NAMES
from headrace.format.error_codes import ErrorCode
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
            raise ClientError(f"{compression!r} is not a compression. Use one of {', '.join(NAMES)}")
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
        self._unsealed: dict[SendBuffer, None] = {}
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
        buffers = self._topics.get(topic) or await self._load_buffers(topic)
        if partition is None:
            partition = partition_of(key, len(buffers)) if key is not None else self._turn[topic]
        elif not 0 <= partition < len(buffers):
            buffers = await self._buffers_with(topic, partition)
        self._accept()
        buffer = buffers[partition]
        size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        headers = list(headers)
        for name, content in headers:
            size += len(name) + len(content or b"") + 4
        batch = buffer.filling
        if batch is not None and batch.size + size > self._batch_bytes:
            self._seal(buffer)
            # A caller that only ever sends would otherwise never let a batch go.
            await asyncio.sleep(0)
            batch = buffer.filling
        if batch is None:
            batch = buffer.filling = Batch(buffer, self._loop.time(), self._loop)
            self._unsealed[buffer] = None
            self._unresolved += 1
            if self._linger_timer is None:
                self._linger_timer = self._loop.call_later(self._linger, self._on_linger)
        batch.records.append((time.time_ns() // 1_000_000 if timestamp is None else timestamp, key, value, headers))
        batch.count += 1
        batch.size += size
        self._buffered += size
        delivery = Delivery(batch, batch.count - 1)
        if batch.size >= self._batch_bytes:
            self._seal(buffer)
        return delivery

    async def send_all(
        self,
        topic: str,
        records: Iterable[Sendable],
        limit: int = NO_LIMIT,
        places: list[tuple[Batch, int] | None] | None = None,
    ) -> list[asyncio.Future[int]]:
        """Send records of one topic at once. Returns a future per batch, with its base offset or its error. Futures are
        shared: shield them. No batch is larger than `limit`; a record that is larger by itself is not sent, and has a
        future of its own with RecordTooLarge. `places` gets the batch of each record and its index there; None for one
        that is not sent."""
        buffers = self._topics.get(topic) or await self._load_buffers(topic)
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
                    partition = partition_of(key, len(buffers)) if key is not None else self._turn[topic]
                elif not 0 <= partition < len(buffers):
                    buffers = await self._buffers_with(topic, partition)
                if headers is not last:
                    last = headers
                    headers_size = sum([len(name) + len(content) + 4 for name, content in headers])
                buffer = buffers[partition]
                size = RECORD_OVERHEAD + len(value) + headers_size + (len(key) if key is not None else 0)
                if size > most and size + HEADER_BYTES > limit:
                    # The sizes are guesses, a little too large.
                    exactly = len(build([(now, key, value, headers)]))
                    if exactly > limit:
                        refused.append(self._fail_future(RecordTooLarge(topic, index, exactly, limit)))
                        if places is not None:
                            places.append(None)
                        continue
                batch = buffer.filling
                if batch is not None and batch.size + size > most:
                    self._seal(buffer)
                    if anywhere:
                        buffer = buffers[self._turn[topic]]
                    batch = buffer.filling
                if batch is None:
                    batch = buffer.filling = Batch(buffer, self._loop.time(), self._loop)
                    self._unsealed[buffer] = None
                    self._unresolved += 1
                batches[batch] = None
                batch.records.append((now, key, value, headers))
                if places is not None:
                    places.append((batch, batch.count))
                batch.count += 1
                batch.size += size
                self._buffered += size
        finally:
            # Also the records before one with an unknown partition: no later call would seal their batches.
            for batch in batches:
                if batch.buffer.filling is batch:
                    self._seal(batch.buffer)
            # At once, not in the next turn of the loop: the caller has no more records for these batches.
            self._dispatch()
        return [*(batch.done for batch in batches), *refused]

    async def send_batch(self, topic: str, partition: int, batch: bytearray) -> Delivery:
        """Take a batch that is built already (base offset 0, no producer). It is the producer's from now on."""
        if self._buffered >= self._buffer_bytes:
            await self._wait_for_room()
        buffers = self._topics.get(topic) or await self._load_buffers(topic)
        if not 0 <= partition < len(buffers):
            buffers = await self._buffers_with(topic, partition)
        self._accept()
        buffer = buffers[partition]
        if buffer.filling is not None:
            self._seal(buffer)
        whole = Batch(buffer, self._loop.time(), self._loop)
        whole.encoded = batch
        whole.count = header_at(batch).record_count
        whole.size = len(batch)
        self._unresolved += 1
        self._buffered += whole.size
        buffer.queued.append(whole)
        self._schedule(buffer)
        return Delivery(whole, 0)

    async def flush(self) -> None:
        """Wait until everything has been delivered. Raises the first error of a delivery since the last flush."""
        for buffer in list(self._unsealed):
            self._seal(buffer)
        await self._wait_idle()
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
            for task in (*self._senders.values(), *self._tasks):
                task.cancel()
            closed = ClientClosed("the producer was closed before the record was delivered")
            for buffers in self._topics.values():
                for buffer in buffers:
                    unsealed = [buffer.filling] if buffer.filling is not None else []
                    for batch in (*unsealed, *buffer.queued, *buffer.in_flight, *buffer.retries):
                        self._resolve(batch, closed)

    def _accept(self) -> None:
        """Raise unless a record may be taken now."""
        if self._closed:
            raise ClientClosed("the producer is closed")

    def _fail_future(self, error: ClientError) -> asyncio.Future[int]:
        done: asyncio.Future[int] = self._loop.create_future()
        done.set_exception(error)
        # Retrieved here, because the caller need not await it.
        done.exception()
        return done

    # --- batches ---

    async def _load_buffers(self, topic: str) -> list[SendBuffer]:
        state = await self._cluster.topic(topic, create=True)
        buffers = self._topics.setdefault(topic, [])
        buffers += [SendBuffer(topic, index) for index in range(len(buffers), len(state.partitions))]
        self._turn.setdefault(topic, time.time_ns() // 1000 % len(buffers))
        return buffers

    async def _buffers_with(self, topic: str, partition: int) -> list[SendBuffer]:
        self._cluster.forget([topic])
        buffers = await self._load_buffers(topic)
        if not 0 <= partition < len(buffers):
            raise BrokerError(
                ErrorCode.unknown_topic_or_partition, f"{topic}-{partition}", f"the topic has {len(buffers)} partitions"
            )
        return buffers

    async def _wait_for_room(self) -> None:
        for buffer in list(self._unsealed):
            self._seal(buffer)
        while self._buffered >= self._buffer_bytes and not self._closed:
            waiter = self._loop.create_future()
            self._room.append(waiter)
            await waiter

    def _on_linger(self) -> None:
        self._linger_timer = None
        for buffer in list(self._unsealed):
            self._seal(buffer)

    def _seal(self, buffer: SendBuffer) -> None:
        """Encode the batch that is filling, and queue it."""
        batch = buffer.filling
        assert batch is not None
        buffer.filling = None
        self._unsealed.pop(buffer, None)
        if not self._unsealed and self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        # Records without a key stay on one partition for a batch, so that batches are full.
        if self._turn[buffer.topic] == buffer.partition:
            self._turn[buffer.topic] = (buffer.partition + 1) % len(self._topics[buffer.topic])
        try:
            batch.encoded = build(batch.records, compression=self._codec)
        except Exception as error:
            refused = ClientError(f"records for {buffer.topic}-{buffer.partition} cannot be encoded: {error}")
            self._resolve(batch, refused)
            return
        batch.records = []
        buffer.queued.append(batch)
        self._schedule(buffer)
