"""Leases: messages of a queue that are received, and settled later by a handle, over any connection.

What is received belongs to no connection: one consumer of the queue has it for all clients of the group, and this
follows the time of each message. Until that is over, whoever has the handle settles the message, or lets its lease end
sooner or later; then the message is ready again. A handle names the attempt and the end of its lease, so one that is
stale settles nothing.

Leases are kept in memory: they end with the broker, and what was not settled then is received again after its start.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from headrace.broker.broker import Broker
from headrace.broker.queues.consumer import REJECTED
from headrace.broker.queues.delivery import Claimed
from headrace.broker.queues.ledger import TIMEOUT_MAX_MS
from headrace.broker.queues.queue import Queue
from headrace.doors.rocketmq.grpc.protocol import Code
from headrace.doors.rocketmq.grpc.status import ResponseError
from headrace.format.records import Record

RECEIVE_MAX = 32
# Receives that wait on one queue.
RECEIVERS_MAX = 10_000
# A receive that may not wait waits so long for messages that are being read.
READ_MS = 100
# A queue's consumer is kept this long after its last lease.
IDLE_SECONDS = 30.0

_HANDLE = struct.Struct(">BQqiqiq")
_VERSION = 1


class Handle(NamedTuple):
    """One lease of one message."""

    start: int
    """Of the broker: another one has none of its leases."""
    queue: int
    lane: int
    offset: int
    attempt: int
    until_ms: int
    """When the lease ends, in milliseconds since 1970."""

    def encode(self) -> str:
        """As text that a client can keep."""
        return urlsafe_b64encode(_HANDLE.pack(_VERSION, *self)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Handle:
        """The handle that a client kept. Raises ResponseError."""
        try:
            version, *parts = _HANDLE.unpack(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, struct.error):
            version = 0
        if version != _VERSION:
            raise ResponseError(
                Code.INVALID_RECEIPT_HANDLE,
                f"{text[:80]!r} is no receipt handle. Send that of the message.",
            )
        return cls(*parts)


class Lease(NamedTuple):
    """A message that was received."""

    handle: Handle
    record: Record


class _Receiver:
    """A receive under way."""

    def __init__(self, limit: int, invisible_ms: int, accepts: Callable[[Record], bool] | None) -> None:
        self.limit = limit
        self.invisible_ms = invisible_ms
        self.accepts = accepts
        self.got: list[Lease] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _QueueLeases:
    """The leases of one queue. It is there while there are any, or receives wait, and a while longer."""

    def __init__(self, leases: Leases, queue: Queue) -> None:
        self._leases = leases
        self._queue = queue
        self._consumer = queue.subscribe(self, label="rocketmq-grpc", timeout_ms=TIMEOUT_MAX_MS)
        self.receivers: deque[_Receiver] = deque()
        # By lane and offset: the attempt, and until when it is leased.
        self._held: dict[tuple[int, int], tuple[int, int]] = {}
        self._ends: list[tuple[int, int, int, int]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._unwanted = array("q")
        self._is_due = False
        self._idle: asyncio.TimerHandle | None = None

    # --- what the queue calls -----------------------------------------------------------------------------------------

    def deliver(self, claimed: Claimed) -> None:
        """Take messages, for those that wait."""
        now = self._leases.now()
        for offset, attempt, timestamp, key, value, headers in claimed.messages():
            record = (offset, timestamp, key, value, headers)
            receiver = next((each for each in self.receivers if len(each.got) < each.limit), None)
            if receiver is not None and receiver.accepts is not None and not receiver.accepts(record):
                self._unwanted.extend((claimed.lane, offset, attempt))
                continue
            # Where no receive wants it any longer the lease ends at once.
            until = now if receiver is None else now + receiver.invisible_ms
            self._hold(claimed.lane, offset, attempt, until)
            if receiver is not None:
                handle = Handle(self._leases.start, self._queue.id, claimed.lane, offset, attempt, until)
                receiver.got.append(Lease(handle, record))
        self._look_soon()

    def gone(self, reason: str) -> None:
        """The queue is deleted."""
        self._held.clear()
        self._ends.clear()
        for receiver in self.receivers:
            receiver.finish()
        self._look_soon()

    # --- what clients ask for -----------------------------------------------------------------------------------------

    def add(self, receiver: _Receiver) -> None:
        """Wait for messages."""
        self.receivers.append(receiver)
        self._set_credit()

    def remove(self, receiver: _Receiver) -> None:
        """Wait no longer."""
        if receiver in self.receivers:
            self.receivers.remove(receiver)
        self._set_credit()
        self._look_soon()

    def take(self, handle: Handle) -> bool:
        """End a lease, for what is then done to its message; False where the handle is stale."""
        if self._held.get((handle.lane, handle.offset)) != (handle.attempt, handle.until_ms):
            return False
        del self._held[handle.lane, handle.offset]
        self._look_soon()
        return True

    def finish(self, handle: Handle) -> bool:
        """Settle a message."""
        return self.take(handle) and self._consumer.finish(handle.lane, handle.offset, handle.attempt)

    def give_back(self, handle: Handle, delay_ms: int = 0, error: str = "") -> bool:
        """Let a message be ready again, or dead."""
        return self.take(handle) and self._consumer.requeue(handle.lane, handle.offset, handle.attempt, delay_ms, error)

    def extend(self, handle: Handle, until: int) -> bool:
        """Let a lease end at another time."""
        if not self.take(handle):
            return False
        self._hold(handle.lane, handle.offset, handle.attempt, until)
        return True

    def close(self) -> None:
        """End all."""
        for timer in (self._alarm, self._idle):
            if timer is not None:
                timer.cancel()
        for receiver in self.receivers:
            receiver.finish()
        self._consumer.close()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _hold(self, lane: int, offset: int, attempt: int, until: int) -> None:
        self._held[lane, offset] = attempt, until
        heappush(self._ends, (until, lane, offset, attempt))
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        # What was settled, or ends later by now.
        while self._ends and self._held.get(self._ends[0][1:3]) != (self._ends[0][3], self._ends[0][0]):
            heappop(self._ends)
        if self._ends:
            seconds = max(self._ends[0][0] - self._leases.now(), 0) / 1_000
            self._alarm = asyncio.get_running_loop().call_later(min(seconds, 60.0), self._expire)

    def _expire(self) -> None:
        now = self._leases.now()
        while self._ends and self._ends[0][0] <= now:
            until, lane, offset, attempt = heappop(self._ends)
            if self._held.get((lane, offset)) == (attempt, until):
                del self._held[lane, offset]
                self._consumer.requeue(lane, offset, attempt, 0)
        self._alarm = None
        self._set_alarm()
        self._look_soon()

    # --- turns --------------------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        """Not within a call of the queue's."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_due = False
        unwanted, self._unwanted = self._unwanted, array("q")
        if unwanted:
            self._consumer.finish_many(unwanted)
        for receiver in [each for each in self.receivers if each.got]:
            self.receivers.remove(receiver)
            receiver.finish()
        self._set_credit()
        if not self.receivers and not self._held and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._leave)

    def _leave(self) -> None:
        self._idle = None
        if not self.receivers and not self._held:
            self._leases.forget(self._queue)

    def _set_credit(self) -> None:
        wanted = sum(each.limit - len(each.got) for each in self.receivers)
        self._consumer.ready(self._consumer.in_flight + wanted if wanted > 0 else 0)


class Leases:
    """The leases of all queues."""

    def __init__(self, broker: Broker) -> None:
        self.now = broker.runtime.clock.now_ms
        self.start = int.from_bytes(broker.runtime.random.bytes(8), "big")
        self._queues: dict[int, _QueueLeases] = {}

    async def receive(
        self,
        queue: Queue,
        limit: int,
        invisible_ms: int,
        wait_ms: int,
        *,
        accepts: Callable[[Record], bool] | None = None,
    ) -> list[Lease]:
        """Up to `limit` messages, leased for `invisible_ms`; none where none came within `wait_ms`. `accepts`: whether
        the client wants a message; others are settled unseen. Raises ResponseError."""
        found = self._queues.get(queue.id)
        if found is None:
            found = self._queues[queue.id] = _QueueLeases(self, queue)
        if len(found.receivers) >= RECEIVERS_MAX:
            raise ResponseError(
                Code.TOO_MANY_REQUESTS, f"{RECEIVERS_MAX} receives wait on the queue {queue.name}, which is the most"
            )
        receiver = _Receiver(max(1, min(limit, RECEIVE_MAX)), invisible_ms, accepts)
        found.add(receiver)
        try:
            async with asyncio.timeout(max(wait_ms, READ_MS) / 1_000):
                await receiver.done
        except TimeoutError:
            pass
        except BaseException:
            for lease in receiver.got:
                found.give_back(lease.handle)
            raise
        finally:
            found.remove(receiver)
        return receiver.got

    def acknowledge_many(self, handles: Sequence[Handle]) -> list[int]:
        """Settle messages; the places of the handles that are stale."""
        return [
            place
            for place, handle in enumerate(handles)
            if (found := self._find(handle)) is None or not found.finish(handle)
        ]

    def change_visibility(self, handle: Handle, invisible_ms: int) -> Handle | None:
        """Let a lease end `invisible_ms` from now; 0: at once. The handle to use from now on, None where the given one
        is stale."""
        found = self._find(handle)
        until = self.now() + invisible_ms
        if found is None or not (found.extend(handle, until) if invisible_ms else found.give_back(handle)):
            return None
        return handle._replace(until_ms=until)

    def reject(self, handle: Handle, error: str) -> bool:
        """Send a message to the dead letters, whatever its attempts; False where the handle is stale."""
        found = self._find(handle)
        return found is not None and found.give_back(handle, REJECTED, error)

    def forget(self, queue: Queue) -> None:
        """Nothing is leased, and no receive waits."""
        found = self._queues.pop(queue.id, None)
        if found is not None:
            found.close()

    def stop(self) -> None:
        """End every receive, and every lease."""
        for found in list(self._queues.values()):
            found.close()
        self._queues.clear()

    def _find(self, handle: Handle) -> _QueueLeases | None:
        return self._queues.get(handle.queue) if handle.start == self.start else None
