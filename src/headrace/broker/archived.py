"""`retention.archive.group` and `lake`: records are kept until an archive, or the topic's table, has them.

An archive (`headrace pipeline archive`, or any job that keeps what it reads) shows how far it is by the committed
offsets of its consumer group. Retention by time and size, and `retention=consumed`, do not go past them, so a job that
stands still costs disk space and no records. With the topic setting `retention.archive=drop`, what the archive has goes
as soon as that frees enough. The table of a topic with the setting `lake` is such an archive, with a group of its own.

Nothing goes on a guess: of a group that was not looked up since the start, or has committed nothing, nothing is
archived. Who deletes records, or asks for `overflow=drop-oldest`, is not held up.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import structlog

from headrace.broker.groups import GroupCoordinator
from headrace.broker.groups.protocol import Problem
from headrace.broker.periodic import Periodic
from headrace.broker.settings import BrokerSettings
from headrace.broker.slow_readers import SlowReaders
from headrace.errors import HeadraceError
from headrace.lake import group_of
from headrace.log.interface import Partition, Topic
from headrace.log.local import LocalLog
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.archived")

GROUP = "retention.archive.group"
MODE = "retention.archive"
LAKE = "lake"


@dataclass(slots=True)
class TableProgress:
    """How far the table of a topic is."""

    fresh_ms: int
    """The table has all that the topic had at this time."""
    ends: list[int]
    """What the topic had when it was last looked at while the table was behind, and when that was."""
    ends_ms: int
    lag: int = 0
    """Records that the table does not have."""


class Archived:
    """Holds retention back for archives, and lets go what they have."""

    def __init__(
        self,
        runtime: Runtime,
        log: LocalLog,
        groups: GroupCoordinator,
        slow_readers: SlowReaders,
        config: BrokerSettings,
    ) -> None:
        self._clock = runtime.clock
        self.tables: dict[UUID, TableProgress] = {}
        """By the id of the topic."""
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
        groups = _groups_of(partition.topic)
        if not groups:
            return None
        committed = (self._groups.committed_now(each, partition.topic).get(partition.index, 0) for each in groups)
        # A group's state may be ahead of a log that was cut back.
        return min(*committed, partition.high_watermark)

    async def look(self) -> None:
        """Look the groups up, and let go what they have where the topic is configured so."""
        for topic in list(self._log.topics.values()):
            groups = _groups_of(topic)
            if not groups or topic.deleted:
                continue
            # This loads the groups where they are cold: `hold` knows nothing of them before.
            problems = [(await self._groups.committed(each, {}))[0] for each in groups]
            if any(problem is not Problem.NONE for problem in problems):
                continue
            if topic.config.get(LAKE):
                self._look_at_table(topic)
            # What `retention=consumed` lets go has been settled too, which is not this file's to judge.
            if topic.config.get(MODE) == "drop" and topic.config.get("retention") != "consumed":
                await self._let_go(topic)

        kept = {topic.id for topic in self._log.topics.values() if topic.config.get(LAKE)}
        self.tables = {id: progress for id, progress in self.tables.items() if id in kept}

    def _look_at_table(self, topic: Topic) -> None:
        if not all(partition.loaded for partition in topic.partitions):
            # Where they end is not known; the job that writes the table loads them.
            return
        now = self._clock.now_ms()
        committed = self._groups.committed_now(group_of(topic.name), topic)
        ends = [partition.high_watermark for partition in topic.partitions]
        progress = self.tables.setdefault(topic.id, TableProgress(now, ends, now))
        progress.lag = sum(
            max(0, end - max(committed.get(index, 0), topic.partitions[index].start)) for index, end in enumerate(ends)
        )
        if not progress.lag:
            progress.fresh_ms, progress.ends, progress.ends_ms = now, ends, now
        elif all(committed.get(index, 0) >= end for index, end in enumerate(progress.ends)):
            progress.fresh_ms, progress.ends, progress.ends_ms = progress.ends_ms, ends, now

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


def _groups_of(topic: Topic) -> list[str]:
    """The groups that retention waits for."""
    named = topic.config.get(GROUP)
    return [*([named] if named else []), *([group_of(topic.name)] if topic.config.get(LAKE) else [])]
