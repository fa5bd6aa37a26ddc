"""One partition of `__consumer_offsets` and the groups whose state lives in it.

A group belongs to the partition that its id hashes to, as in Kafka. The partition is replayed when somebody first asks
for one of its groups after a start, a bounded number of records a step, so that the loop is never held; then the groups
live in memory and every change is appended. The replay keeps only the last word on each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from headrace.broker.groups.group import Group, Host
from headrace.broker.groups.offsets import GroupOffsets
from headrace.broker.groups.protocol import Problem
from headrace.broker.groups.records import (
    NO_EPOCH,
    Committed,
    GroupKey,
    OffsetKey,
    StoredGroup,
    UnreadableRecord,
    read_group,
    read_key,
    read_offset,
    write_offset_key,
)
from headrace.broker.reading import read
from headrace.errors import BatchTooLarge, CorruptLog, HeadraceError
from headrace.ground import Ground
from headrace.kernels import records as kernel
from headrace.log.batch import batches_in
from headrace.log.interface import Durability, Log, Partition

log = structlog.get_logger("headrace.groups")

READ_BYTES = 256 * 1024
# Records decoded between two turns of the loop: about half a millisecond.
STEP_RECORDS = 128
TOPIC = "__consumer_offsets"

# A key and its value; None is a tombstone.
Change = tuple[bytes, bytes | None]
Done = Callable[[Problem], None]


@dataclass(slots=True)
class Kept:
    """A group and its offsets."""

    group: Group
    offsets: GroupOffsets = field(default_factory=GroupOffsets)


def shard_of(group_id: str, count: int) -> int:
    """The partition that keeps a group: Java's hash of the string, without its sign."""
    number = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) & 0xFFFFFFFF
    if number >= 0x80000000:
        number = 0x100000000 - number
    # The one number that has no positive counterpart counts as zero.
    return 0 if number == 0x80000000 else number % count


class Shard:
    """The groups of one partition."""

    def __init__(self, index: int, ground: Ground, log: Log, host: Host, unpacked_max: int) -> None:
        self.groups: dict[str, Kept] = {}
        self.ready = False
        self.partition: Partition | None = None
        self._index = index
        self._ground = ground
        self._log = log
        self._host = host
        self._unpacked_max = unpacked_max
        self._loading: asyncio.Task[None] | None = None
        # Records since the loop had its turn.
        self._step = 0

    async def load(self) -> None:
        """Replay the partition unless that is done. Raises what the log raises; the next call then tries again."""
        if self.ready:
            return
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())
        try:
            await asyncio.shield(self._loading)
        finally:
            if self._loading is not None and self._loading.done():
                self._loading = None

    def stop(self) -> None:
        """End all groups; whatever waits is refused."""
        if self._loading is not None:
            self._loading.cancel()
        for kept in self.groups.values():
            kept.group.kill()

    def append(self, changes: Sequence[Change], done: Done) -> None:
        """Write changes in one batch, all or none; `done` is told when they are durable, or why they are not."""
        partition = self.partition
        if partition is None:
            done(Problem.COORDINATOR_NOT_AVAILABLE)
            return

        def told(error: Exception | None) -> None:
            if error is not None:
                log.warning("could not write group state", partition=self._index, error=str(error))
            done(_problem_of(error))

        now = self._host.now_ms()
        try:
            batch = kernel.build([(now, key, value, []) for key, value in changes])
            appended = partition.append(batch, told)
        except (HeadraceError, OSError) as error:
            told(error)
            return
        if appended.durable:
            told(None)

    # --- replay -------------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        topic = self._log.topics.get(TOPIC)
        if topic is None or self._index >= len(topic.partitions):
            self.ready = True
            return
        partition = topic.partitions[self._index]
        if not partition.loaded:
            await partition.load()
        offsets: dict[str, dict[tuple[str, int], Committed]] = {}
        groups: dict[str, StoredGroup] = {}
        position, end = partition.start, partition.durable
        while position < end:
            raw = await read(self._ground, partition, position, READ_BYTES, committed=False)
            before = position
            for at, header in batches_in(raw):
                if header.last_offset < position:
                    continue
                if not header.is_control:
                    batch = raw[at : at + header.size]
                    await self._replay(batch, header.record_count, header.leader_epoch, offsets, groups)
                position = header.last_offset + 1
            if position == before:
                raise CorruptLog(f"{TOPIC} partition {self._index} has no whole batch at offset {position}")
        self.partition = partition
        await self._revive(offsets, groups)
        self.ready = True

    async def _replay(
        self,
        batch: bytes,
        count: int,
        epoch: int,
        offsets: dict[str, dict[tuple[str, int], Committed]],
        groups: dict[str, StoredGroup],
    ) -> None:
        for start in range(0, count, STEP_RECORDS):
            for offset, _, raw_key, value, _ in kernel.parse(batch, self._unpacked_max, start, STEP_RECORDS):
                try:
                    key = read_key(raw_key or b"")
                    if isinstance(key, OffsetKey):
                        of_group = offsets.setdefault(key.group_id, {})
                        if value is None:
                            of_group.pop((key.topic, key.partition), None)
                        else:
                            of_group[key.topic, key.partition] = read_offset(value, epoch)
                    elif isinstance(key, GroupKey):
                        if value is None:
                            groups.pop(key.group_id, None)
                        else:
                            groups[key.group_id] = read_group(value)
                except UnreadableRecord as error:
                    log.warning("skipped a record", topic=TOPIC, partition=self._index, offset=offset, why=str(error))
                self._step += 1
            if self._step >= STEP_RECORDS:
                self._step = 0
                await asyncio.sleep(0)

    async def _revive(
        self, offsets: dict[str, dict[tuple[str, int], Committed]], groups: dict[str, StoredGroup]
    ) -> None:
        stale: list[Change] = []
        for group_id in dict.fromkeys([*groups, *offsets]):
            kept = Kept(Group(group_id, self._host))
            if group_id in groups:
                kept.group.restore(groups[group_id])
            for (topic, index), committed in offsets.get(group_id, {}).items():
                self._step += 1
                known = self._log.topics.get(topic)
                if committed.topic_id is not None and (known is None or known.id != committed.topic_id):
                    # The topic was deleted, and this group was not in memory then.
                    stale.append((write_offset_key(group_id, topic, index), None))
                elif known is not None and known.settings.durability is Durability.MEMORY:
                    # Its records went with the process that wrote them: no epoch of the log speaks for them.
                    kept.offsets.put(topic, index, replace(committed, written_epoch=NO_EPOCH))
                else:
                    kept.offsets.put(topic, index, committed)
            if kept.offsets or group_id in groups:
                self.groups[group_id] = kept
            self._step += 1
            if self._step >= STEP_RECORDS:
                self._step = 0
                await asyncio.sleep(0)
        for kept in self.groups.values():
            kept.group.resume()
        for at in range(0, len(stale), 1000):
            self.append(stale[at : at + 1000], lambda _: None)


def _problem_of(error: Exception | None) -> Problem:
    if error is None:
        return Problem.NONE
    return Problem.UNKNOWN_SERVER_ERROR if isinstance(error, BatchTooLarge) else Problem.COORDINATOR_NOT_AVAILABLE
