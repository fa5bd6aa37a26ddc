"""One position for a group of RocketMQ's clients that reads a topic both ways: by offsets and through a queue.

A client that pulls commits an offset; one that pops, or receives over gRPC, settles messages of the group's queue. They
are made one: what the queue has settled from its start on (its floor) is committed as the group's offset, soon after it
moves; and an offset that something else commits moves the queue. What a client commits only moves it on, because a
client that still pulls does not know what was received meanwhile; a reset, or another door's tool, moves it back too.

Whose a commit is stands in its metadata. So a start knows which of the two is right: the queue's own commits are never
ahead of what was settled, and any other is newer than what the queue has committed before it.
"""

from __future__ import annotations

import asyncio

import structlog

from headrace.broker.groups.group_codec import Committed
from headrace.broker.groups.offsets import GroupOffsets
from headrace.broker.groups.protocol import GroupError
from headrace.broker.groups.rocketmq_coordinator import BY_CLIENT, BY_QUEUE, RocketMqCoordinator
from headrace.broker.queues.lane import QueueLane
from headrace.broker.queues.parking import PARKING
from headrace.broker.queues.queue import Queue

# How far the offset of a group may be behind its queue.
BEHIND_SECONDS = 0.05

log = structlog.get_logger("headrace.rocketmq")


class QueuePosition:
    """The position of one group in one topic."""

    def __init__(self, groups: RocketMqCoordinator, queue: Queue, group_id: str) -> None:
        self._groups = groups
        self._queue = queue
        self._group_id = group_id
        # By lane: the commit that was looked at last.
        self._seen: dict[int, Committed | None] = {}
        self._timer: asyncio.TimerHandle | None = None
        queue.on_moved_up = self._moved

    async def begin(self, *, is_new: bool) -> None:
        """Fit queue and offsets together, for the first time. Raises GroupError."""
        offsets = await self._groups.offsets(self._group_id)
        for lane in self._lanes() if offsets is not None else ():
            assert offsets is not None
            # After an unclean start it is checked against the log.
            topic = self._queue.topic.name
            await offsets.current(self._groups.log, self._group_id, topic, lane.index)
        self._fit(offsets, is_new)

    def sync(self) -> None:
        """Fit them together."""
        if not self._queue.gone:
            self._fit(self._groups.known_offsets(self._group_id), False)

    async def settle(self) -> None:
        """Fit them together, durably. Raises GroupError."""
        self.sync()
        await self._groups.settle(self._group_id)
        self.sync()

    def _fit(self, offsets: GroupOffsets | None, is_new: bool) -> None:
        topic = self._queue.topic
        for lane in self._lanes():
            committed = None if offsets is None else offsets.get(topic.name, lane.index)
            if committed is not None and not committed.is_of(topic):
                committed = None
            if committed is not self._seen.get(lane.index):
                self._seen[lane.index] = committed
                if committed is not None:
                    self._take(lane, committed, is_new)
            floor = lane.ledger.floor
            if committed is None or committed.offset != floor:
                self._groups.move(self._group_id, topic, lane.index, floor, BY_QUEUE)

    @staticmethod
    def _take(lane: QueueLane, committed: Committed, is_new: bool) -> None:
        partition, floor = lane.partition, lane.ledger.floor
        offset = min(max(committed.offset, partition.start), partition.last_stable)
        may_go_back = is_new or committed.metadata not in (BY_CLIENT, BY_QUEUE)
        if offset > floor or (offset < floor and may_go_back):
            lane.move_to(offset)

    def _lanes(self) -> list[QueueLane]:
        return [lane for lane in self._queue.lanes.values() if lane.open and lane.index != PARKING]

    def _moved(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BEHIND_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.sync()


class GroupPositions:
    """The positions of all groups that read through queues."""

    def __init__(self, groups: RocketMqCoordinator) -> None:
        self._groups = groups
        self._positions: dict[Queue, QueuePosition] = {}
        self._beginning: dict[Queue, asyncio.Lock] = {}

    async def follow(self, queue: Queue, group_id: str, *, is_new: bool = False) -> None:
        """Keep an open queue and its group's offsets together from now on. Raises GroupError."""
        known = self._positions.get(queue)
        if known is not None:
            known.sync()
            return
        async with self._beginning.setdefault(queue, asyncio.Lock()):
            if queue in self._positions:
                return
            for gone in [each for each in self._positions if each.gone]:
                del self._positions[gone]
            position = QueuePosition(self._groups, queue, group_id)
            await position.begin(is_new=is_new)
            self._positions[queue] = position
        self._beginning.pop(queue, None)

    async def settle(self, queue: Queue | None) -> None:
        """The group's offsets are where its queue is, durably. Raises GroupError."""
        known = None if queue is None else self._positions.get(queue)
        if known is not None:
            await known.settle()

    async def stop(self) -> None:
        """Commit how far all queues have come."""
        for queue, position in self._positions.items():
            try:
                await position.settle()
            except GroupError as error:
                log.warning("the position of a group was not stored", queue=queue.name, error=str(error))
