"""Readers that are so slow that retention takes what they have not read: logged before, logged after, and counted.

Whatever moves the start of a partition (retention, `retention=consumed`, `drop-oldest`, a deletion of records), the log
reports it, and the groups whose committed offsets lie before the new start have lost what is between. Retention by
time and size can be foreseen: from time to time it is asked where it will have put the start some time from now. Queues
count what they lose themselves; they are warned here.

Groups that no client has asked for since the start are not in memory, and are not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog

from headrace.broker.groups import GroupCoordinator
from headrace.broker.internal import is_internal
from headrace.broker.metrics import Metrics
from headrace.broker.periodic import Periodic
from headrace.broker.queues import Queues
from headrace.broker.rate_limit import RateLimit
from headrace.broker.settings import BrokerSettings
from headrace.log.interface import Durability, Partition
from headrace.log.local import LocalLog

logger = structlog.get_logger("headrace.retention")

# Partitions looked at between two turns of the loop.
STEP_PARTITIONS = 64
# A full `memory` topic moves its start with every append: its groups are looked at this much later, for all of them.
LATER_SECONDS = 0.1
# Groups and topics whose losses are logged apart; of more, every loss is.
LIMITS_MAX = 10_000


class SlowReaders:
    """Watches over readers that are behind."""

    def __init__(
        self, log: LocalLog, groups: GroupCoordinator, queues: Queues, metrics: Metrics, config: BrokerSettings
    ) -> None:
        self._log = log
        self._groups = groups
        self._queues = queues
        self._metrics = metrics
        self._ahead_ms = config.retention_warning_ms
        self._limits: dict[tuple[str, str], RateLimit] = {}
        # What was warned of: partition and reader, and up to which offset.
        self._warned: dict[tuple[Partition, str], int] = {}
        # Partitions to look at soon, and where they started.
        self._later: dict[Partition, int] = {}
        self._soon: asyncio.TimerHandle | None = None
        self._rounds = Periodic(config.retention_check_ms / 1000, self.look_ahead, "look ahead of retention", logger)

    async def start(self) -> None:
        """Watch from now on."""
        self._log.on_trimmed.append(self._trimmed)
        self._rounds.start()

    async def stop(self) -> None:
        """Watch no more."""
        if self._soon is not None:
            self._soon.cancel()
        if self._trimmed in self._log.on_trimmed:
            self._log.on_trimmed.remove(self._trimmed)
        self._rounds.cancel()
        await self._rounds.stop()

    def warn(self, partition: Partition, start: int, why: str) -> None:
        """Warn the readers that have not read them of records before `start` that will go."""
        if start <= partition.start:
            return
        for reader, position in self._readers(partition):
            if position < start and self._warned.get((partition, reader), -1) < start:
                self._warned[partition, reader] = start
                logger.warning(
                    "records are about to go that have not been read",
                    topic=partition.topic.name,
                    partition=partition.index,
                    reader=reader,
                    records=start - max(position, partition.start),
                    why=why,
                )

    def _readers(self, partition: Partition) -> Iterator[tuple[str, int]]:
        name, index = partition.topic.name, partition.index
        for group, committed in self._groups.committed_of(name, index):
            yield f"group {group}", committed
        for queue in self._queues.of(name).values():
            if index in queue.lanes:
                yield f"queue {queue.name}", queue.lanes[index].ledger.floor

    def _trimmed(self, partition: Partition, was: int) -> None:
        if partition.topic.settings.durability is not Durability.MEMORY:
            self._count(partition, was)
            return
        self._later.setdefault(partition, was)
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(LATER_SECONDS, self._count_later)

    def _count_later(self) -> None:
        self._soon = None
        later, self._later = self._later, {}
        for partition, was in later.items():
            self._count(partition, was)

    def _count(self, partition: Partition, was: int) -> None:
        name, start = partition.topic.name, partition.start
        for group, committed in self._groups.committed_of(name, partition.index):
            if committed >= start:
                continue
            records = start - max(committed, was)
            self._metrics.topic(name).passed_by += records
            if len(self._limits) >= LIMITS_MAX:
                self._limits.clear()
            limit = self._limits.setdefault((group, name), RateLimit())
            lost = limit.count(asyncio.get_running_loop().time(), records)
            if lost:
                logger.warning(
                    "records have gone that a group had not read",
                    topic=name,
                    partition=partition.index,
                    group=group,
                    records=lost,
                    start=start,
                )

    async def look_ahead(self) -> None:
        """Warn of what retention by time and size will take."""
        self._warned = {place: start for place, start in self._warned.items() if start > place[0].start}
        count = 0
        for topic in list(self._log.topics.values()):
            if is_internal(topic.name):
                continue
            for partition in topic.partitions:
                # What is cold was not read since the start; its readers are not in memory either.
                if partition.loaded and not partition.offline and not topic.deleted:
                    expired = self._log.local(partition).expires_within(self._ahead_ms)
                    self.warn(partition, expired, "retention by time and size")
                count += 1
                if count % STEP_PARTITIONS == 0:
                    await asyncio.sleep(0)
