"""`retention=consumed`: records are kept until every queue of their topic has settled them.

The queues know the floor of each partition, below which all is settled. From time to time the log's start is moved up
to it, if that frees enough, or if nothing was settled for a while: then a small or quiet topic gives its last bytes
back too. The floor of the look before counts, not the newest one: that one a crash could take back, and a queue would
look for messages that are gone. Where a topic has no queue, nothing goes.

What is settled by all queues goes for all readers: a consumer group that reads the same topic and is behind them loses
what it has not read (`slow_readers.py` reports it).

One message that stays behind (deferred for a week, say) would keep everything that came after it. So what is unsettled
more than a bound of segments behind the place that its queue has reached is moved to the queue's parking.
"""

from __future__ import annotations

import asyncio

import structlog

from headrace.broker.periodic import Periodic
from headrace.broker.queues import Queue, Queues
from headrace.broker.rate_limit import RateLimit
from headrace.broker.settings import BrokerSettings
from headrace.broker.slow_readers import SlowReaders
from headrace.broker.topic_config import SETTINGS
from headrace.errors import HeadraceError
from headrace.log.interface import Partition, Topic
from headrace.log.local import LocalLog, LocalPartition

logger = structlog.get_logger("headrace.consumed")

# Partitions looked at between two turns of the loop.
STEP_PARTITIONS = 128
# Messages that one look moves out of the way of one partition, for one queue.
PARKED_AT_ONCE = 1_000
# A topic to which nothing happened for so many looks is passed over, for twice as many each time, up to a bound: ten
# thousand idle ones must not cost a look each.
IDLE_LOOKS = 4
REST_MAX = 60
PINNED = "consumed.pinned.segments"


class Seen:
    """What the last look at a topic found."""

    __slots__ = ("floors", "idle", "rest")

    def __init__(self) -> None:
        # By partition: the floor, and since when it has been there.
        self.floors: dict[int, tuple[int, float]] = {}
        # Looks since something happened, and those that will pass it over.
        self.idle = 0
        self.rest = 0


class Consumed:
    """Lets go what all queues have settled."""

    def __init__(self, log: LocalLog, queues: Queues, slow_readers: SlowReaders, config: BrokerSettings) -> None:
        self._log = log
        self._queues = queues
        self._slow_readers = slow_readers
        self._worth = config.consumed_free_bytes
        self._quiet = config.consumed_quiet_ms / 1000
        self._seen: dict[Topic, Seen] = {}
        self._stuck = RateLimit()
        self._rounds = Periodic(config.consumed_check_ms / 1000, self.look, "release consumed records", logger)

    async def start(self) -> None:
        """Look from now on."""
        self._rounds.start()

    async def stop(self) -> None:
        """Look no more; a trim under way is waited for."""
        await self._rounds.stop()

    async def look(self) -> None:
        """Let go what has been settled since the look before."""
        before, self._seen = self._seen, {}
        looked_at = 0
        for topic in list(self._log.topics.values()):
            if topic.config.get("retention") != "consumed":
                continue
            seen = self._seen[topic] = before.get(topic) or Seen()
            if seen.rest:
                seen.rest -= 1
                continue
            busy = False
            for partition in topic.partitions:
                if not topic.deleted and not partition.offline and not self._rounds.stopping:
                    busy = await self._look_at(partition, seen) or busy
                looked_at += 1
                if looked_at % STEP_PARTITIONS == 0:
                    await asyncio.sleep(0)
            seen.idle = 0 if busy else seen.idle + 1
            if seen.idle >= IDLE_LOOKS:
                seen.rest = min(1 << (seen.idle - IDLE_LOOKS), REST_MAX)

    async def _look_at(self, partition: Partition, seen: Seen) -> bool:
        """Do for one partition what can be done; whether anything has happened to it."""
        floor = self._queues.floor(partition.topic, partition.index)
        if floor is None:
            seen.floors.pop(partition.index, None)
            return False
        # An archive may have to have the records first.
        held_from = self._log.held_from(partition)
        floor = floor if held_from is None else min(floor, held_from)
        now = asyncio.get_running_loop().time()
        settled, since = seen.floors.get(partition.index, (-1, now))
        if settled != floor:
            since = now
        seen.floors[partition.index] = floor, since
        waits = False
        try:
            if min(settled, floor) > partition.start:
                quiet = settled == floor and now - since >= self._quiet
                waits = await self._let_go(partition, min(settled, floor), quiet)
            return await self._park_stragglers(partition) or settled != floor or waits
        except (HeadraceError, OSError) as error:
            logger.warning("consumed records could not go", topic=partition.topic.name, error=str(error))
            return True

    async def _let_go(self, partition: Partition, settled: int, quiet: bool) -> bool:
        """Trim, if that is worth it; whether something is left for later."""
        await partition.load()
        # A queue's state may be ahead of a log that was cut back.
        settled = min(settled, partition.high_watermark)
        freed = self._log.local(partition).freed_by(settled)
        if not freed or (freed < self._worth and not quiet):
            return bool(freed)
        self._slow_readers.warn(partition, settled, "all queues have settled them (retention=consumed)")
        await partition.trim(settled)
        return False

    async def _park_stragglers(self, partition: Partition) -> bool:
        """Move what stays behind out of the way, for each queue by itself; whether there is any."""
        topic = partition.topic
        setting = topic.config.get(PINNED, SETTINGS[PINNED].default)
        if setting == "-1" or not partition.loaded:
            return False
        found = False
        bound = int(setting) * topic.settings.segment_bytes
        local = self._log.local(partition)
        for queue in list(self._queues.of(topic.name).values()):
            lane = queue.lanes.get(partition.index)
            if lane is None or lane.ledger.floor == lane.ledger.cursor:
                continue
            if local.freed_by(lane.ledger.cursor) - local.freed_by(lane.ledger.floor) <= bound:
                continue
            found = True
            end = _far_behind(local, lane.ledger.floor, lane.ledger.cursor, bound)
            moved = await self._queues.park_below(queue, partition.index, self._first_of(queue, partition.index, end))
            if not moved and self._stuck.count(asyncio.get_running_loop().time()):
                logger.warning(
                    "unsettled messages keep settled ones from going, and cannot be moved now",
                    topic=topic.name,
                    partition=partition.index,
                    queue=queue.name,
                    floor=lane.ledger.floor,
                    cursor=lane.ledger.cursor,
                )
        return found

    def _first_of(self, queue: Queue, lane: int, end: int) -> int:
        """Behind the first messages below `end` that are unsettled: as many as are moved at once."""
        offset = 0
        for _ in range(PARKED_AT_ONCE):
            unsettled = queue.next_unsettled(lane, offset)
            if unsettled >= end:
                return end
            offset = unsettled + 1
        return offset


def _far_behind(partition: LocalPartition, floor: int, cursor: int, bound: int) -> int:
    """The first offset from which no more than `bound` bytes of whole segments lie before the cursor."""
    reached = partition.freed_by(cursor)
    low, high = floor, cursor
    while low < high:
        middle = (low + high) // 2
        if reached - partition.freed_by(middle) > bound:
            low = middle + 1
        else:
            high = middle
    return low
