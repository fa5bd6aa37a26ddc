"""Batches to the leaders of their partitions, retried without duplicates.

Each partition has a send buffer: batches that are queued, and batches in flight. The idea that keeps order and avoids
duplicates: when a batch fails, its buffer sends no new one until all in flight are answered. Then the failed ones are
retried, in their order and with their sequence numbers, by which the broker recognizes what it has. A batch gets its
numbers when it is first sent. Where they can no longer be right (a batch was refused for good, or the broker does not
know the producer), the producer takes a new id once no batch of the old one is in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.client import wire
from headrace.client.admin import Admin
from headrace.client.cluster import BACKOFF_FIRST, BACKOFF_MAX, Cluster
from headrace.client.errors import BrokerError, ClientError, error_code
from headrace.client.send_buffer import Batch, SendBuffer
from headrace.format.error_codes import ErrorCode

CHANNEL = "produce"

# The batch is certainly not in the log, and its sequence number will never be valid.
SEQUENCE_LOST = {
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.invalid_producer_epoch,
}
# A retry elsewhere would not help.
NOT_THE_LEADER = {*SEQUENCE_LOST, ErrorCode.concurrent_transactions}


class Sender:
    """Sends what send buffers hold, and resolves every batch by its offset or by an error."""

    backoff = BACKOFF_FIRST
    """Seconds until a batch goes again that was refused for the first time."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int,
        idempotent: bool | None,
        max_in_flight: int,
        request_bytes: int,
        buffer_bytes: int,
        delivery_timeout: float,
    ) -> None:
        if acks not in (-1, 0, 1):
            raise ClientError(f"acks must be -1 (all), 1 (the leader) or 0 (none) (got {acks})")
        if idempotent and acks != -1:
            raise ClientError("an idempotent producer needs acks=-1")
        if idempotent and max_in_flight > 5:
            raise ClientError("an idempotent producer needs max_in_flight <= 5: brokers remember five batches")
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._acks = acks
        self._idempotent = acks == -1 if idempotent is None else idempotent
        self._max_in_flight = max_in_flight
        self._request_bytes = request_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout = delivery_timeout
        self._loop = asyncio.get_running_loop()
        self._topics: dict[str, list[SendBuffer]] = {}
        self._ready: dict[SendBuffer, None] = {}
        self._scheduled = False
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: dict[int, int] = {}
        self._unresolved = 0
        self._buffered = 0
        self._room: list[asyncio.Future[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._first_error: ClientError | None = None
        self._form = wire.FIXED
        self._transactional_id: str | None = None
        self._producer: tuple[int, int] | None = None
        self._renew = False
        self._numbered = 0
        """Batches with a sequence number that are not resolved."""
        self._closed = False

    async def _wait_idle(self) -> None:
        """Return when all batches are resolved."""
        while self._unresolved:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    # --- sending ---

    def _schedule(self, buffer: SendBuffer) -> None:
        """Send soon, if this buffer has something to send."""
        if buffer.queued and not buffer.paused and not buffer.failing and not self._closed:
            self._ready[buffer] = None
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Give every leader that has something to get a sender."""
        self._scheduled = False
        if self._closed:
            return
        if not self._prepare():
            return
        # In order, not in a set: a simulated run must replay exactly.
        unknown: dict[str, None] = {}
        for buffer in self._ready:
            node = self._cluster.known_leader(buffer.topic, buffer.partition)
            if node is None:
                unknown[buffer.topic] = None
            elif node not in self._senders:
                self._senders[node] = self._loop.create_task(self._send_to(node))
        if unknown:
            self._start_task(self._look_up(list(unknown)), "look up")

    def _prepare(self) -> bool:
        """Start what must precede batches. Whether any may be sent meanwhile."""
        if self._idempotent and (self._producer is None or self._renew) and not self._numbered:
            self._start_task(self._take_producer_id(), "producer id")
        return self._producer is not None or not self._idempotent

    def _start_task(self, work: Any, name: str) -> None:
        """Run a coroutine in the background, one of a name at a time."""
        if any(task.get_name() == name for task in self._tasks):
            work.close()
            return
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._ready and not self._closed and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    async def _look_up(self, topics: list[str]) -> None:
        for topic in topics:
            try:
                await self._cluster.topic(topic)
            except ClientError as error:
                for buffer in [buffer for buffer in self._ready if buffer.topic == topic]:
                    self._give_up(buffer, error)
        for buffer in list(self._ready):
            if buffer.topic in topics and self._cluster.known_leader(buffer.topic, buffer.partition) is None:
                self._cluster.forget([buffer.topic])
                await asyncio.sleep(BACKOFF_FIRST)
                self._give_up(buffer, BrokerError(ErrorCode.leader_not_available, f"{buffer.topic}-{buffer.partition}"))

    async def _take_producer_id(self) -> None:
        try:
            self._adopt(await self._admin.producer_id())
        except ClientError as error:
            for buffer in list(self._ready):
                self._give_up(buffer, error)

    def _adopt(self, producer: tuple[int, int]) -> None:
        """Go on under this id and epoch, with sequence numbers from 0."""
        self._producer = producer
        self._renew = False
        for buffers in self._topics.values():
            for buffer in buffers:
                buffer.sequence = 0
                buffer.proven = False

    def _give_up(self, buffer: SendBuffer, error: ClientError) -> None:
        """Fail queued batches: all, or for a retriable error those that are overdue."""
        while buffer.queued and (not error.retriable or self._is_overdue(buffer.queued[0])):
            self._resolve(buffer.queued.popleft(), error)
        if not buffer.queued:
            self._ready.pop(buffer, None)

    def _is_overdue(self, batch: Batch) -> bool:
        return self._loop.time() - batch.created > self._delivery_timeout

    async def _send_to(self, node: int) -> None:
        """Send to one broker as long as something is ready for it and not too much is in flight."""
        try:
            while not self._closed and self._in_flight.get(node, 0) < self._max_in_flight:
                try:
                    connection = await self._cluster.node(node, CHANNEL)
                    connection.require(wire.PRODUCE, self._form.version)
                    await connection.wait_drained()
                except ClientError as error:
                    batches = self._take(node)
                    self._take_outcomes(batches, error)
                    if not batches:
                        return
                    continue
                batches = self._take(node)
                if not batches:
                    return
                body = self._form.encode(
                    [(each.buffer.topic, each.buffer.partition, each.encoded or b"") for each in batches],
                    self._acks,
                    int(self._cluster.timeout * 1000),
                    self._transactional_id,
                )
                if self._acks == 0:
                    connection.send_unanswered(wire.PRODUCE, self._form.version, body)
                    self._take_outcomes(batches, [(0, -1, None)] * len(batches))
                    continue
                self._in_flight[node] = self._in_flight.get(node, 0) + 1
                # Longer than the timeout in the request, so that the broker's error comes first.
                answer = connection.send(
                    wire.PRODUCE, self._form.version, body, self._form.decode, self._cluster.timeout + 5
                )
                answer.add_done_callback(lambda future, sent=batches: self._on_answer(node, sent, future))  # type: ignore[misc]
        except ClientError as error:
            self._take_outcomes(batches, error)
        finally:
            self._senders.pop(node, None)

    def _take(self, node: int) -> list[Batch]:
        """One batch of each ready buffer that this broker leads, up to the size of a request."""
        taken: list[Batch] = []
        size = 0
        for buffer in list(self._ready):
            if self._cluster.known_leader(buffer.topic, buffer.partition) != node or not self._admits(buffer):
                continue
            if buffer.in_flight and (buffer.node != node or not self._idempotent or not buffer.proven or buffer.rounds):
                # Only one batch may be in flight where two could change their order: without sequence numbers, to
                # another broker, or to one that may not know the producer, which takes any number for the first.
                del self._ready[buffer]
                continue
            batch = buffer.queued[0]
            assert batch.encoded is not None
            if taken and size + len(batch.encoded) > self._request_bytes:
                break
            if self._idempotent and batch.sequence < 0:
                if self._renew or self._producer is None:
                    continue
                self._number(batch)
            buffer.queued.popleft()
            # To the back of the line: with more buffers than fit in a request, each gets its turn.
            del self._ready[buffer]
            if buffer.queued:
                self._ready[buffer] = None
            buffer.node = node
            buffer.in_flight.append(batch)
            taken.append(batch)
            size += len(batch.encoded)
        return taken

    def _admits(self, buffer: SendBuffer) -> bool:
        """Whether batches of a buffer may leave already."""
        return True

    def _number(self, batch: Batch) -> None:
        """Give a batch the buffer's next sequence numbers."""
        assert self._producer is not None
        batch.number(*self._producer, self._transactional_id is not None)
        self._numbered += 1

    # --- answers ---

    def _on_answer(self, node: int, batches: list[Batch], future: asyncio.Future[list[wire.Produced]]) -> None:
        self._in_flight[node] -= 1
        if future.cancelled():
            return
        error = future.exception()
        if self._closed:
            return
        if error is not None:
            broken = error if isinstance(error, ClientError) else ClientError(str(error))
            self._take_outcomes(batches, broken)
        else:
            found = {(each.topic, each.partition): each for each in future.result()}
            outcomes = []
            for batch in batches:
                each = found.get((batch.buffer.topic, batch.buffer.partition))
                missing = int(ErrorCode.unknown_server_error), -1, "the broker's answer does not name the partition"
                outcomes.append((each.error, each.base_offset, each.message) if each is not None else missing)
            self._take_outcomes(batches, outcomes)
        if self._ready and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._dispatch)

    def _take_outcomes(
        self, batches: list[Batch], outcome: ClientError | Sequence[tuple[int, int, str | None]]
    ) -> None:
        """Resolve batches that were in flight, or set them aside for a retry."""
        for index, batch in enumerate(batches):
            buffer = batch.buffer
            if batch not in buffer.in_flight:
                continue
            buffer.in_flight.remove(batch)
            if isinstance(outcome, ClientError):
                self._on_failure(batch, outcome)
            else:
                number, base, message = outcome[index]
                code = error_code(number)
                if code is ErrorCode.none or code is ErrorCode.duplicate_sequence_number:
                    buffer.proven = True
                    self._resolve(batch, base)
                else:
                    self._on_failure(batch, BrokerError(code, f"{buffer.topic}-{buffer.partition}", message))
            if not buffer.in_flight:
                self._regroup(buffer)

    def _on_failure(self, batch: Batch, error: ClientError) -> None:
        buffer = batch.buffer
        code = error.error if isinstance(error, BrokerError) else None
        lost = self._idempotent and code in SEQUENCE_LOST
        behind = buffer.failing and code is ErrorCode.out_of_order_sequence_number
        again = (error.retriable or lost) and not self._is_overdue(batch)
        # Behind a refused batch a broken connection leaves open what happened; a new number could write it twice.
        if buffer.broken and self._idempotent and code is None:
            again = False
        if lost and not behind:
            buffer.broken = True
            self._renew = True
        if again:
            if code is None or code not in NOT_THE_LEADER:
                self._cluster.forget([buffer.topic])
            buffer.retries.append(batch)
        else:
            if self._idempotent and batch.sequence >= 0:
                buffer.broken = True
                self._renew = True
            self._resolve(batch, error)
        buffer.failing = True

    def _regroup(self, buffer: SendBuffer) -> None:
        """No batch of the buffer is in flight any more: queue the failed ones again in front, and continue."""
        if not buffer.failing:
            buffer.rounds = 0
            self._schedule(buffer)
            return
        again, buffer.retries = buffer.retries, []
        if buffer.broken:
            for batch in again:
                self._unnumber(batch)
        buffer.broken = False
        buffer.queued.extendleft(reversed(again))
        buffer.paused = bool(again)
        buffer.failing = False
        if buffer.paused:
            self._loop.call_later(min(BACKOFF_MAX, self.backoff * 2**buffer.rounds), self._resume, buffer)
            buffer.rounds = min(buffer.rounds + 1, 10)
        else:
            self._schedule(buffer)

    def _resume(self, buffer: SendBuffer) -> None:
        buffer.paused = False
        self._schedule(buffer)

    def _unnumber(self, batch: Batch) -> None:
        if batch.sequence >= 0:
            batch.sequence = -1
            self._numbered -= 1

    def _resolve(self, batch: Batch, outcome: int | ClientError) -> None:
        if batch.done.done():
            return
        self._unnumber(batch)
        if isinstance(outcome, int):
            batch.done.set_result(outcome)
        else:
            batch.done.set_exception(outcome)
            # Retrieved here, because flush raises it even where the delivery is not awaited.
            batch.done.exception()
            self._first_error = self._first_error or outcome
        self._unresolved -= 1
        self._buffered -= batch.size
        batch.encoded = None
        if self._room and self._buffered < self._buffer_bytes:
            _wake(self._room)
        if not self._unresolved:
            _wake(self._idle)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()
