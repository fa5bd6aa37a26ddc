"""`retention.archive.group`: records are kept until an archive has them.

An archive (`headrace pipeline archive`, or any job that keeps what it reads) shows how far it is by the committed
offsets of its consumer group. Retention by time and size, and `retention=consumed`, do not go past them, so a job that
stands still costs disk space and no records. With the topic setting `retention.archive=drop`, what the archive has goes
as soon as that frees enough.

Nothing goes on a guess: of a group that was not looked up since the start, or has committed nothing, nothing is
archived. Who deletes records, or asks for `overflow=drop-oldest`, is not held up.
"""

from __future__ import annotations

import structlog

from headrace.broker.groups import GroupCoordinator
from headrace.broker.groups.protocol import Problem
from headrace.broker.periodic import Periodic
from headrace.broker.settings import BrokerSettings
from headrace.broker.slow_readers import SlowReaders
from headrace.errors import HeadraceError
from headrace.log.interface import Partition, Topic
from headrace.log.local import LocalLog

logger = structlog.get_logger("headrace.archived")

GROUP = "retention.archive.group"
MODE = "retention.archive"


class Archived:
    """Holds retention back for archives, and lets go what they have."""

    def __init__(
        self, log: LocalLog, groups: GroupCoordinator, slow_readers: SlowReaders, config: BrokerSettings
    ) -> None:
        self._log = log
        self._groups = groups
        self._slow_readers = slow_readers
        self._worth = config.consumed_free_bytes
        self._rounds = Periodic(config.consumed_check_ms / 1000, self.look, "release archived records", logger)
        # From now on, not from the start on: the log may look before the broker has started.
        log.holds.append(self.hold)

    async def start(self) -> None:
        """Look from now on."""
        self._rounds.start()

    async def stop(self) -> None:
        """Look no more; a trim under way is waited for."""
        await self._rounds.stop()

    def hold(self, partition: Partition) -> int | None:
        """The offset that retention may not pass, if there is one."""
        group = partition.topic.config.get(GROUP)
        if not group:
            return None
        # A group's state may be ahead of a log that was cut back.
        return min(self._groups.committed_now(group, partition.topic).get(partition.index, 0), partition.high_watermark)

    async def look(self) -> None:
        """Look the groups up, and let go what they have where the topic is configured so."""
        for topic in list(self._log.topics.values()):
            group = topic.config.get(GROUP)
            if not group or topic.deleted:
                continue
            # This loads the group where it is cold: `hold` knows nothing of it before.
            problem, _ = await self._groups.committed(group, {})
            if problem is not Problem.NONE:
                continue
            # What `retention=consumed` lets go has been settled too, which is not this file's to judge.
            if topic.config.get(MODE) == "drop" and topic.config.get("retention") != "consumed":
                await self._let_go(topic)

    async def _let_go(self, topic: Topic) -> None:
        for partition in topic.partitions:
            if self._rounds.stopping or topic.deleted or partition.offline:
                continue
            try:
                await partition.load()
                archived = self.hold(partition) or 0
                freed = self._log.local(partition).freed_by(archived) if archived > partition.start else 0
                if freed and freed >= self._worth:
                    self._slow_readers.warn(partition, archived, "they are archived (retention.archive=drop)")
                    await partition.trim(archived)
            except (HeadraceError, OSError) as error:
                logger.warning("archived records could not go", topic=topic.name, error=str(error))
