"""Batches to the leaders of their partitions, retried without duplicates.

Each partition has a lane: batches that wait, batches that fly. The idea that keeps order and avoids duplicates: when a
batch of a lane fails, the lane sends nothing new until everything that flies has landed; then what failed goes again,
in its old order and with its old sequence numbers, by which the broker knows what it has. Sequence numbers are given
when a batch first leaves; where they can no longer be right (a batch was refused for good, or the broker has forgotten
the producer), the producer takes a new id once nothing with the old one is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.client import wire
from headrace.client.admin import Admin
from headrace.client.cluster import BACKOFF_FIRST, BACKOFF_MAX, Cluster
from headrace.client.codes import ErrorCode
from headrace.client.errors import BrokerError, ClientError, error_code
from headrace.client.lane import Batch, Lane

CHANNEL = "produce"

# The batch is certainly not in the log, and its sequence number will never do.
SEQUENCE_LOST = {
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.invalid_producer_epoch,
}
# A retry elsewhere would not help.
NOT_THE_LEADER = {*SEQUENCE_LOST, ErrorCode.concurrent_transactions}


class Sender:
    """What waits in lanes goes out, and every batch is resolved: by its offset, or by an error."""

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
            raise ClientError(f"acks={acks} means nothing: use -1 (all), 1 (the leader) or 0 (none)")
        if idempotent and acks != -1:
            raise ClientError("an idempotent producer needs acks=-1: otherwise it never knows what arrived")
        if idempotent and max_in_flight > 5:
            raise ClientError("brokers remember five batches of an idempotent producer: use max_in_flight <= 5")
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._acks = acks
        self._idempotent = acks == -1 if idempotent is None else idempotent
        self._max_in_flight = max_in_flight
        self._request_bytes = request_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout = delivery_timeout
        self._loop = asyncio.get_running_loop()
        self._topics: dict[str, list[Lane]] = {}
        self._ready: dict[Lane, None] = {}
        self._kicked = False
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._chores: set[asyncio.Task[None]] = set()
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

    async def _settled(self) -> None:
        """Return when nothing is on its way."""
        while self._unresolved:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    # --- sending ---

    def _kick(self, lane: Lane) -> None:
        """This lane may have something to send."""
        if lane.waiting and not lane.paused and not lane.failing and not self._closed:
            self._ready[lane] = None
            if not self._kicked:
                self._kicked = True
                self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Give every leader that has something to get a sender."""
        self._kicked = False
        if self._closed:
            return
        if not self._prepare():
            return
        # In order, not in a set: a simulated run must replay exactly.
        unknown: dict[str, None] = {}
        for lane in self._ready:
            node = self._cluster.known_leader(lane.topic, lane.partition)
            if node is None:
                unknown[lane.topic] = None
            elif node not in self._senders:
                self._senders[node] = self._loop.create_task(self._send_to(node))
        if unknown:
            self._chore(self._look_up(list(unknown)), "look up")

    def _prepare(self) -> bool:
        """See to what must come before batches; whether any may leave meanwhile."""
        if self._idempotent and (self._producer is None or self._renew) and not self._numbered:
            self._chore(self._take_producer_id(), "producer id")
        return self._producer is not None or not self._idempotent

    def _chore(self, work: Any, name: str) -> None:
        """Run something beside, one of a kind at a time."""
        if any(task.get_name() == name for task in self._chores):
            work.close()
            return
        task = self._loop.create_task(work, name=name)
        self._chores.add(task)
        task.add_done_callback(self._chore_done)

    def _chore_done(self, task: asyncio.Task[None]) -> None:
        self._chores.discard(task)
        if self._ready and not self._closed and not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._dispatch)

    async def _look_up(self, topics: list[str]) -> None:
        for topic in topics:
            try:
                await self._cluster.topic(topic)
            except ClientError as error:
                for lane in [lane for lane in self._ready if lane.topic == topic]:
                    self._give_up(lane, error)
        for lane in list(self._ready):
            if lane.topic in topics and self._cluster.known_leader(lane.topic, lane.partition) is None:
                self._cluster.forget([lane.topic])
                await asyncio.sleep(BACKOFF_FIRST)
                self._give_up(lane, BrokerError(ErrorCode.leader_not_available, f"{lane.topic}-{lane.partition}"))

    async def _take_producer_id(self) -> None:
        try:
            self._adopt(await self._admin.producer_id())
        except ClientError as error:
            for lane in list(self._ready):
                self._give_up(lane, error)

    def _adopt(self, producer: tuple[int, int]) -> None:
        """Go on under this id and epoch, with sequence numbers from 0."""
        self._producer = producer
        self._renew = False
        for lanes in self._topics.values():
            for lane in lanes:
                lane.sequence = 0
                lane.proven = False

    def _give_up(self, lane: Lane, error: ClientError) -> None:
        """Fail what waits: all of it, or where the error may pass only what has waited too long."""
        while lane.waiting and (not error.retriable or self._overdue(lane.waiting[0])):
            self._resolve(lane.waiting.popleft(), error)
        if not lane.waiting:
            self._ready.pop(lane, None)

    def _overdue(self, batch: Batch) -> bool:
        return self._loop.time() - batch.created > self._delivery_timeout

    async def _send_to(self, node: int) -> None:
        """Send to one broker as long as something is ready for it and not too much is in flight."""
        try:
            while not self._closed and self._in_flight.get(node, 0) < self._max_in_flight:
                try:
                    connection = await self._cluster.node(node, CHANNEL)
                    connection.require(wire.PRODUCE, self._form.version)
                    await connection.drained()
                except ClientError as error:
                    batches = self._take(node)
                    self._landed(batches, error)
                    if not batches:
                        return
                    continue
                batches = self._take(node)
                if not batches:
                    return
                body = self._form.encode(
                    [(each.lane.topic, each.lane.partition, each.encoded or b"") for each in batches],
                    self._acks,
                    int(self._cluster.timeout * 1000),
                    self._transactional_id,
                )
                if self._acks == 0:
                    connection.send_unanswered(wire.PRODUCE, self._form.version, body)
                    self._landed(batches, [(0, -1, None)] * len(batches))
                    continue
                self._in_flight[node] = self._in_flight.get(node, 0) + 1
                # Longer than the broker's own patience, so that its word comes before ours.
                answer = connection.send(
                    wire.PRODUCE, self._form.version, body, self._form.decode, self._cluster.timeout + 5
                )
                answer.add_done_callback(lambda future, sent=batches: self._answered(node, sent, future))  # type: ignore[misc]
        except ClientError as error:
            self._landed(batches, error)
        finally:
            self._senders.pop(node, None)

    def _take(self, node: int) -> list[Batch]:
        """One batch of each ready lane that this broker leads, up to the size of a request."""
        taken: list[Batch] = []
        size = 0
        for lane in list(self._ready):
            if self._cluster.known_leader(lane.topic, lane.partition) != node or not self._admits(lane):
                continue
            if lane.flying and (lane.node != node or not self._idempotent or not lane.proven or lane.rounds):
                # Only one batch may fly where the order of two could not be told: without sequence numbers, to another
                # broker, or to one that may not know the producer, which takes any number for the first.
                del self._ready[lane]
                continue
            batch = lane.waiting[0]
            assert batch.encoded is not None
            if taken and size + len(batch.encoded) > self._request_bytes:
                break
            if self._idempotent and batch.sequence < 0:
                if self._renew or self._producer is None:
                    continue
                self._number(batch)
            lane.waiting.popleft()
            # To the back of the line: with more lanes than fit in a request, each gets its turn.
            del self._ready[lane]
            if lane.waiting:
                self._ready[lane] = None
            lane.node = node
            lane.flying.append(batch)
            taken.append(batch)
            size += len(batch.encoded)
        return taken

    def _admits(self, lane: Lane) -> bool:
        """Whether batches of a lane may leave already."""
        return True

    def _number(self, batch: Batch) -> None:
        """Give a batch the lane's next sequence numbers."""
        assert self._producer is not None
        batch.number(*self._producer, self._transactional_id is not None)
        self._numbered += 1

    # --- landing ---

    def _answered(self, node: int, batches: list[Batch], future: asyncio.Future[list[wire.Produced]]) -> None:
        self._in_flight[node] -= 1
        if future.cancelled():
            return
        error = future.exception()
        if self._closed:
            return
        if error is not None:
            broken = error if isinstance(error, ClientError) else ClientError(str(error))
            self._landed(batches, broken)
        else:
            found = {(each.topic, each.partition): each for each in future.result()}
            outcomes = []
            for batch in batches:
                each = found.get((batch.lane.topic, batch.lane.partition))
                missing = int(ErrorCode.unknown_server_error), -1, "the broker's answer does not name the partition"
                outcomes.append((each.error, each.base_offset, each.message) if each is not None else missing)
            self._landed(batches, outcomes)
        if self._ready and not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._dispatch)

    def _landed(self, batches: list[Batch], outcome: ClientError | Sequence[tuple[int, int, str | None]]) -> None:
        """Take note of what became of batches that flew."""
        for index, batch in enumerate(batches):
            lane = batch.lane
            if batch not in lane.flying:
                continue
            lane.flying.remove(batch)
            if isinstance(outcome, ClientError):
                self._failed(batch, outcome)
            else:
                number, base, message = outcome[index]
                code = error_code(number)
                if code is ErrorCode.none or code is ErrorCode.duplicate_sequence_number:
                    lane.proven = True
                    self._resolve(batch, base)
                else:
                    self._failed(batch, BrokerError(code, f"{lane.topic}-{lane.partition}", message))
            if not lane.flying:
                self._regroup(lane)

    def _failed(self, batch: Batch, error: ClientError) -> None:
        lane = batch.lane
        code = error.error if isinstance(error, BrokerError) else None
        lost = self._idempotent and code in SEQUENCE_LOST
        behind = lane.failing and code is ErrorCode.out_of_order_sequence_number
        again = (error.retriable or lost) and not self._overdue(batch)
        # Behind a refused batch a broken connection leaves open what happened; a new number could write it twice.
        if lane.broken and self._idempotent and code is None:
            again = False
        if lost and not behind:
            lane.broken = True
            self._renew = True
        if again:
            if code is None or code not in NOT_THE_LEADER:
                self._cluster.forget([lane.topic])
            lane.retries.append(batch)
        else:
            if self._idempotent and batch.sequence >= 0:
                lane.broken = True
                self._renew = True
            self._resolve(batch, error)
        lane.failing = True

    def _regroup(self, lane: Lane) -> None:
        """Nothing of the lane flies any more: put what failed back in front, and go on."""
        if not lane.failing:
            lane.rounds = 0
            self._kick(lane)
            return
        again, lane.retries = lane.retries, []
        if lane.broken:
            for batch in again:
                self._unnumber(batch)
        lane.broken = False
        lane.waiting.extendleft(reversed(again))
        lane.paused = bool(again)
        lane.failing = False
        if lane.paused:
            self._loop.call_later(min(BACKOFF_MAX, self.backoff * 2**lane.rounds), self._resume, lane)
            lane.rounds = min(lane.rounds + 1, 10)
        else:
            self._kick(lane)

    def _resume(self, lane: Lane) -> None:
        lane.paused = False
        self._kick(lane)

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
            # Seen through flush, even where nobody awaits the delivery.
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
