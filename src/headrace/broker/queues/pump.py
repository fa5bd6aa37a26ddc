"""Handing out: the messages of a queue's lanes are shared out among its consumers.

Consumers with room take a part each, in turn, and what came back takes turns with what is new. The pump runs once a
turn of the loop at most and is kicked by whatever could let it get further: an append, a settlement, more credit, a
passed deadline. Between these nothing happens, so an idle queue costs nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.queues.consumer import Consumer
from headrace.broker.queues.lane import QueueLane
from headrace.broker.queues.leases import LABEL
from headrace.broker.queues.ledger import NEVER

if TYPE_CHECKING:
    from headrace.broker.queues.queue import Queue
    from headrace.broker.queues.queues import Queues

# Messages that one turn hands out: about a millisecond.
TURN_MESSAGES = 2_048


class Pump:
    """Delivers the messages of one queue, and watches their deadlines."""

    def __init__(self, queue: Queue, queues: Queues) -> None:
        self._queue = queue
        self._queues = queues
        self._clock = queues.runtime.clock
        self._kicked: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._turn = 0

    def stop(self) -> None:
        if self._kicked is not None:
            self._kicked.cancel()
            self._kicked = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = NEVER

    def kick(self) -> None:
        """Something may have changed what can be handed out: look in the next turn of the loop."""
        if self._kicked is None and (self._queue.consumers or self._queue.leases.receivers):
            self._kicked = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._kicked = None
        if self._stands_still():
            return
        if self._queue.leases.receivers and self._queue.leases.serve(TURN_MESSAGES // 2):
            self.kick()
        left = TURN_MESSAGES
        now = self._clock.now_ms()
        while left > 0:
            takers = [consumer for consumer in self._queue.consumers.values() if consumer.room > 0]
            if not takers:
                return
            available = sum(lane.available for lane in self._queue.lanes.values())
            share = max(1, min(left, -(-available // len(takers))))
            # The first of the last round comes last in this one.
            self._turn += 1
            first = self._turn % len(takers)
            served = False
            for consumer in takers[first:] + takers[:first]:
                count = self._serve(consumer, min(consumer.room, share), now)
                served = served or count > 0
                left -= count
                if left <= 0:
                    break
            if not served:
                return
        self.kick()

    def _stands_still(self) -> bool:
        queue = self._queue
        return queue.gone or queue.paused or self._queues.topic_paused(queue.topic.name)

    def serve_leases(self) -> None:
        """Hand messages to receives that wait, now."""
        if not self._stands_still() and self._queue.leases.serve(TURN_MESSAGES):
            self.kick()

    def _serve(self, consumer: Consumer, limit: int, now: int) -> int:
        """Give a consumer up to `limit` messages; how many it got."""
        deadline = now + consumer.timeout_ms
        lanes = list(self._queue.lanes.values())
        first = self._turn % len(lanes)
        given = 0
        for step in range(len(lanes)):
            lane = lanes[(first + step) % len(lanes)]
            while given < limit:
                claimed = lane.claim(consumer, limit - given, deadline)
                if claimed is None:
                    break
                count = claimed.count
                given += count
                consumer.in_flight += count
                consumer.delivered += count
                self._queue.delivered += count
                if self._queue.settings.deliveries:
                    self._queues.deliveries.note_delivered(self._queue, claimed, consumer.label)
                consumer.sink.deliver(claimed)
                if consumer.held or consumer.closed:
                    limit = given
            if lane.ledger.condemned:
                self._queue.changed(lane)
        if given:
            self.wake_at(deadline)
        return given

    # --- time ---

    def wake_at(self, when: int) -> None:
        """Look at the clock at `when` (ms), unless that will happen before anyway."""
        if when >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        delay = max(0.0, (when - self._clock.now_ms()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def watch_clock(self) -> None:
        """Look at the clock when something next wants it."""
        when = min((lane.ledger.next_time() for lane in self._queue.lanes.values()), default=NEVER)
        if when < NEVER:
            self.wake_at(when)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = NEVER
        now = self._clock.now_ms()
        woken = False
        for lane in self._queue.lanes.values():
            if lane.ledger.next_time() > now:
                continue
            due = lane.ledger.wake(now)
            lane.block_followers(due)
            woken = bool(due) or woken
            expired = lane.ledger.expire(now, self._queue.settings.backoff_ms)
            for offset, owner, attempt in expired:
                self._timed_out(lane, offset, owner, attempt)
            if expired:
                lane.block_followers([offset for offset, _, _ in expired])
                woken = True
                self._queue.changed(lane)
            woken = self._end_leases(lane, now) or woken
        self.watch_clock()
        if woken:
            self.kick()

    def _end_leases(self, lane: QueueLane, now: int) -> bool:
        ended = lane.ledger.end_leases(now, self._queue.settings.backoff_ms)
        for offset, attempt in ended:
            self._timed_out(lane, offset, 0, attempt)
        if ended:
            lane.block_followers([offset for offset, _ in ended])
            self._queue.changed(lane)
        return bool(ended)

    def _timed_out(self, lane: QueueLane, offset: int, owner: int, attempt: int) -> None:
        self._queue.timed_out += 1
        consumer = self._queue.consumers.get(owner)
        if consumer is not None:
            consumer.in_flight -= 1
            consumer.timed_out += 1
            consumer.touched.pop((lane.index, offset), None)
        label = consumer.label if consumer else "" if owner else LABEL
        run = (offset, offset)
        self._queues.deliveries.note(self._queue, "timed-out", lane.index, [run], consumer=label, attempt=attempt)
