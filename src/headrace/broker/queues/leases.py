"""Leases: messages that belong to a queue's group and to no connection, until they are settled or their time is over.

A consumer (`consumer.py`) has its messages while its connection lasts. What is received here belongs to the group: a
client with the handle of a message settles it, from any connection, or changes the end of its lease to any time. Leases
are in the ledger (`ledger.py`) with the rest of a queue's state, and so outlive the broker: a stop keeps all, and a
crash those that were received one `queue_flush_ms` before it.

A handle names the attempt and the end of the lease, and the last bits of that end are those of the log's epoch, which
every unclean start raises. So a handle is stale once its message was settled, given back, delivered again, or its lease
was changed, and stays so: a crash that forgets the attempt cannot make it fit a later one.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NoBase64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.queues.consumer import REJECTED
from headrace.errors import InvalidHandle, InvalidQueue, TooManyLeases
from headrace.format.records import Record

if TYPE_CHECKING:
    from headrace.broker.queues.lane import QueueLane
    from headrace.broker.queues.queue import Queue
    from headrace.broker.queues.queues import Queues

RECEIVE_MAX = 32
# About how many bytes of messages one receive gets.
RECEIVE_BYTES = 1_048_576
LABEL = "lease"
# A receive that may not wait waits so long for messages that are being read.
READ_MS = 100
# Of a lease's end, for the epoch: so many bits, and as many milliseconds.
EPOCH_MASK = 31
# A claim is turned into leases at once: this never passes.
CLAIM_MS = 60_000

_HANDLE = struct.Struct(">BqiqHqB")
_VERSION = 2
HANDLE_CHARACTERS = -(-_HANDLE.size * 4 // 3)


class Handle(NamedTuple):
    """One lease of one message."""

    queue: int
    lane: int
    offset: int
    attempt: int
    until_ms: int
    """When the lease ends, in milliseconds since 1970."""
    is_renewed: bool = False
    """It names the attempt, however often its lease is extended by whatever watches over its consumer."""

    def encode(self) -> str:
        """As text that a client can keep."""
        fields = (self.queue, self.lane, self.offset, self.attempt, self.until_ms, self.is_renewed)
        return urlsafe_b64encode(_HANDLE.pack(_VERSION, *fields)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Handle:
        """The handle that a client kept. Raises InvalidHandle."""
        try:
            if len(text) != HANDLE_CHARACTERS:
                raise ValueError
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            version, queue, lane, offset, attempt, until_ms, renewed = _HANDLE.unpack(raw)
            if version != _VERSION or renewed > 1:
                raise ValueError
        except (ValueError, NoBase64, struct.error):
            raise InvalidHandle(f"{text[:80]!r} is not a receipt handle. Send the message's own.") from None
        return cls(queue, lane, offset, attempt, until_ms, bool(renewed))


class Lease(NamedTuple):
    """A message that was received."""

    handle: Handle
    record: Record


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a receive asks for."""

    limit: int
    """Messages, at most; 0: only whether there are any."""
    invisible_ms: int
    """How long they are leased."""
    accepts: Callable[[Record], bool] | None = None
    """Whether the client wants a message; others are settled unseen. None: all."""
    lane: int | None = None
    """Of this lane alone."""
    in_order: bool = False
    """One batch of a lane is out at a time, and what comes back comes before what follows."""
    is_renewed: bool = False
    """The leases are extended while the consumer lives: see `Handle`."""
    highest_first: bool = False
    """Lanes of a higher number come first; else they take turns."""


class _Owner:
    """Who claims what becomes a lease."""

    id = 0
    sample = 100


_OWNER = _Owner()


class _Receiver:
    """A receive under way."""

    __slots__ = ("done", "got", "is_served", "size", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.got: list[Lease] = []
        self.is_served = False
        self.size = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self) -> None:
        self.is_served = True
        if not self.done.done():
            self.done.set_result(None)


class QueueLeases:
    """The leases of one queue, and the receives that wait for its messages."""

    def __init__(self, queue: Queue, queues: Queues) -> None:
        self.receivers: dict[_Receiver, None] = {}
        self._queue = queue
        self._queues = queues
        self._turn = 0

    @property
    def count(self) -> int:
        """Messages that are leased now."""
        return sum(lane.ledger.leased for lane in self._queue.lanes.values())

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def receive(self, wanted: Wanted, wait_ms: int) -> list[Lease]:
        """Messages, leased; none where none came within `wait_ms`. Raises TooManyLeases or InvalidQueue."""
        receiver = await self._wait(wanted, wait_ms)
        return receiver.got

    async def await_message(self, wanted: Wanted, wait_ms: int) -> bool:
        """Whether there are messages to receive, or have come within `wait_ms`. Raises TooManyLeases."""
        return (await self._wait(wanted, wait_ms)).is_served

    async def _wait(self, wanted: Wanted, wait_ms: int) -> _Receiver:
        queue = self._queue
        if queue.ephemeral:
            raise InvalidQueue(f"messages of the ephemeral queue {queue.name} cannot be leased. Use another queue.")
        self._check_room(wanted)
        receiver = _Receiver(wanted)
        self.receivers[receiver] = None
        try:
            queue.serve_leases()
            if not wait_ms and any(lane.is_reading for lane in queue.lanes.values()):
                wait_ms = READ_MS
            if not receiver.is_served and wait_ms:
                async with asyncio.timeout(wait_ms / 1_000):
                    await receiver.done
        except TimeoutError:
            pass
        except BaseException:
            for lease in receiver.got:
                self.give_back(lease.handle)
            raise
        finally:
            self.receivers.pop(receiver, None)
        return receiver

    def _check_room(self, wanted: Wanted) -> None:
        waits, leases = self._queues.receives_max, self._queues.leases_max
        if len(self.receivers) >= waits:
            raise TooManyLeases(
                f"{waits} receives wait on the queue {self._queue.name}, the maximum (queue_receives_max). "
                "Try again later."
            )
        if wanted.limit and self.count >= leases:
            raise TooManyLeases(
                f"{leases} messages of the queue {self._queue.name} are leased, the maximum (queue_leases_max). "
                "Settle some."
            )

    # --- serving ------------------------------------------------------------------------------------------------------

    def serve(self, most: int) -> bool:
        """Hand messages to receives that wait, about `most`; whether there may be more to hand out."""
        room = min(most, self._queues.leases_max - self.count)
        self._turn += 1
        lanes = list(self._queue.lanes.values())
        first = self._turn % max(len(lanes), 1)
        ready = [lane for lane in lanes[first:] + lanes[:first] if self._is_ready(lane)]
        for receiver in list(self.receivers):
            if not ready:
                break
            if receiver.wanted.limit and room <= 0:
                continue
            room -= self._serve(receiver, ready, room)
            if receiver.is_served:
                self.receivers.pop(receiver, None)
        return bool(ready and self.receivers) and room <= 0

    @staticmethod
    def _is_ready(lane: QueueLane) -> bool:
        if lane.available > 0:
            return True
        lane.watch()
        return False

    def _serve(self, receiver: _Receiver, ready: list[QueueLane], room: int) -> int:
        wanted, taken = receiver.wanted, 0
        lanes = sorted(ready, key=_index, reverse=True) if wanted.highest_first else list(ready)
        for lane in lanes:
            if wanted.lane is not None and lane.index != wanted.lane:
                continue
            if wanted.in_order and lane.has_outstanding:
                continue
            if not wanted.limit:
                receiver.finish()
                return 0
            limit = min(wanted.limit, RECEIVE_MAX)
            while (left := min(limit - len(receiver.got), room - taken)) > 0 and receiver.size < RECEIVE_BYTES:
                before = len(receiver.got)
                count = self._take(lane, receiver, left)
                if not count:
                    ready.remove(lane)
                    break
                taken += count
                if wanted.in_order and len(receiver.got) > before:
                    break
            if receiver.got and (len(receiver.got) >= limit or taken >= room):
                break
        if receiver.got:
            receiver.finish()
        return taken

    def _take(self, lane: QueueLane, receiver: _Receiver, limit: int) -> int:
        """Lease messages of a lane; how many were claimed."""
        queue, wanted = self._queue, receiver.wanted
        now = queue.runtime.clock.now_ms()
        claimed = lane.claim(_OWNER, limit, now + CLAIM_MS, wanted.in_order)
        if lane.ledger.condemned:
            queue.changed(lane)
        if claimed is None:
            return 0
        until = _stamp(now + wanted.invisible_ms, lane.epoch + lane.rewinds)
        unwanted = array("q")
        for offset, attempt, timestamp, key, value, headers in claimed.messages():
            record = (offset, timestamp, key, value, headers)
            if wanted.accepts is not None and not wanted.accepts(record):
                unwanted.extend((lane.index, offset, attempt))
                continue
            lane.ledger.lease(offset, _OWNER.id, attempt, until)
            handle = Handle(queue.id, lane.index, offset, attempt, until, wanted.is_renewed)
            receiver.got.append(Lease(handle, record))
        receiver.size += claimed.size
        queue.delivered += claimed.count - len(unwanted) // 3
        if queue.settings.deliveries:
            self._queues.deliveries.note_delivered(queue, claimed, LABEL)
        if unwanted:
            lane.ledger.finish_many(unwanted, lane.index, _OWNER.id)
            self._settled(lane, unwanted)
        queue.changed(lane)
        queue.wake_at(until)
        return claimed.count

    def end_receives(self) -> None:
        """The queue stops: answer what waits."""
        for receiver in self.receivers:
            if not receiver.done.done():
                receiver.done.set_result(None)
        self.receivers.clear()

    # --- settling -----------------------------------------------------------------------------------------------------

    def finish_many(self, handles: Sequence[Handle]) -> list[int]:
        """Settle messages; the places of the handles that are stale."""
        stale: list[int] = []
        settled: dict[QueueLane, array[int]] = {}
        for place, handle in enumerate(handles):
            found = self._find(handle)
            if found is None:
                stale.append(place)
                continue
            lane, until = found
            lane.ledger.finish_lease(handle.offset, handle.attempt, until)
            settled.setdefault(lane, array("q")).extend((lane.index, handle.offset, handle.attempt))
        for lane, ids in settled.items():
            self._settled(lane, ids)
            self._queue.finished += len(ids) // 3
        if settled:
            self._queue.kick()
        return stale

    def extend(self, handle: Handle, invisible_ms: int) -> Handle | None:
        """Let a lease end that long from now, be it sooner or later; the handle that is good from now on, None where
        the given one is stale."""
        found = self._find(handle)
        if found is None:
            return None
        lane, until = found
        later = _stamp(self._queue.runtime.clock.now_ms() + invisible_ms, lane.epoch + lane.rewinds)
        lane.ledger.extend_lease(handle.offset, handle.attempt, until, later)
        self._queue.changed(lane)
        self._queue.wake_at(later)
        run = (handle.offset, handle.offset)
        self._queues.deliveries.note(
            self._queue, "touched", lane.index, [run], consumer=LABEL, attempt=handle.attempt
        )  # fmt: skip
        return handle._replace(until_ms=later)

    def give_back(self, handle: Handle, delay_ms: int = 0, error: str = "") -> bool:
        """Let a message be ready again after a delay; 0: at once, or by the queue's retry schedule. False where the
        handle is stale."""
        found = self._find(handle)
        if found is None:
            return False
        lane, until = found
        due, delay = self._queue.due_of(handle.attempt, delay_ms)
        lane.ledger.return_lease(handle.offset, handle.attempt, until, due)
        self._queue.returned(lane, handle.offset, handle.attempt, due, delay, error, LABEL)
        return True

    def reject(self, handle: Handle, error: str) -> bool:
        """Send a message to the dead letters, whatever its attempts; False where the handle is stale."""
        return self.give_back(handle, REJECTED, error)

    def is_current(self, handle: Handle) -> bool:
        """Whether a handle is not stale."""
        return self._find(handle) is not None

    def _find(self, handle: Handle) -> tuple[QueueLane, int] | None:
        """The lane of a lease, and when it ends."""
        lane = self._queue.lanes.get(handle.lane) if handle.queue == self._queue.id else None
        if lane is None or not lane.is_known:
            return None
        attempt, until = lane.ledger.lease_of(handle.offset)
        if not attempt or attempt != handle.attempt:
            return None
        difference = until ^ handle.until_ms
        if difference & EPOCH_MASK if handle.is_renewed else difference:
            return None
        return lane, until

    def _settled(self, lane: QueueLane, ids: array[int]) -> None:
        queue = self._queue
        if lane.keys is not None or queue.errors:
            for offset in ids[1::3]:
                queue.errors.pop((lane.index, offset), None)
                lane.release_key(offset)
        if queue.settings.deliveries:
            self._queues.deliveries.note_finished(queue, lane.index, ids, (), LABEL)
        queue.moved_up(lane)


def _index(lane: QueueLane) -> int:
    return lane.index


def _stamp(until_ms: int, epoch: int) -> int:
    """The first moment from `until_ms` on that has the last bits of the epoch: attempts are counted anew in each, and
    after a queue went back."""
    return until_ms + ((epoch - until_ms) & EPOCH_MASK)
