"""One partition of `__consumer_offsets` and the groups whose state lives in it.

A group belongs to the partition that its id hashes to, as in Kafka. The partition is replayed when a client first asks
for one of its groups after a start, a bounded number of records a step, so that the loop is never held; then the groups
live in memory and every change is appended. The replay keeps only the last record of each key.

Offsets that belong to a transaction are stored as any producer's records of a transaction are: in a batch with its id,
which counts once the marker behind it commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from headrace.broker.groups.classic_state import Host
from headrace.broker.groups.consumer.consumer_codec import EPOCH, ConsumerKey, StoredConsumerGroup
from headrace.broker.groups.consumer.consumer_group import ConsumerGroup, ConsumerHost
from headrace.broker.groups.group import Group
from headrace.broker.groups.group_codec import (
    NO_EPOCH,
    Committed,
    GroupKey,
    OffsetKey,
    StoredGroup,
    read_group,
    read_key,
    read_offset,
    write_offset,
    write_offset_key,
)
from headrace.broker.groups.offsets import GroupOffsets, TopicPartition
from headrace.broker.groups.protocol import Problem
from headrace.broker.groups.rocketmq_group import PROTOCOL as ROCKETMQ
from headrace.broker.groups.rocketmq_group import RocketMqGroup
from headrace.broker.loading import SharedLoad
from headrace.broker.store import STEP_RECORDS, Change, StateTopic
from headrace.errors import BatchTooLarge, HeadraceError, NotLeading
from headrace.format import records as kernel
from headrace.format.batch import TRANSACTIONAL, BatchHeader
from headrace.log.interface import Appended, Durability, Log, Partition
from headrace.log.interface import Done as Durable

log = structlog.get_logger("headrace.groups")

TOPIC = "__consumer_offsets"

Done = Callable[[Problem], None]
# How a batch of a transaction gets into a partition of the topic: its coordinator may have more to write with it.
AppendWithin = Callable[[Partition, bytearray, Durable], Appended]


AnyGroup = Group | ConsumerGroup | RocketMqGroup


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


class Replayed:
    """The state in a partition, as far as it has been read."""

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup | StoredConsumerGroup] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        # Producer id -> the groups that have offsets in its open transaction.
        self._waiting: dict[int, dict[str, None]] = {}

    def take(self, record: kernel.Record, header: BatchHeader) -> None:
        """One record."""
        _, _, raw_key, value, _ = record
        key = read_key(raw_key or b"")
        if isinstance(key, OffsetKey):
            self._take_offset(header, key, value)
        elif isinstance(key, GroupKey):
            if value is None:
                self._end(key.group_id, StoredGroup)
            else:
                self.groups[key.group_id] = read_group(value)
        elif isinstance(key, ConsumerKey):
            self._take_consumers(key, value)

    def end(self, producer_id: int, commit: bool) -> None:
        """The marker of a producer's transaction."""
        for group_id in self._waiting.pop(producer_id, {}):
            self.offsets[group_id].end(producer_id, commit)

    def _take_consumers(self, key: ConsumerKey, value: bytes | None) -> None:
        if key.kind == EPOCH and value is None:
            self._end(key.group_id, StoredConsumerGroup)
            return
        group = self.groups.get(key.group_id)
        if not isinstance(group, StoredConsumerGroup):
            if value is None:
                return
            # The protocol of a group's last record is the group's.
            group = self.groups[key.group_id] = StoredConsumerGroup()
        group.take(key, value)

    def _end(self, group_id: str, kind: type[StoredGroup | StoredConsumerGroup]) -> None:
        """A tombstone; of a group that has become one of the other protocol it ends nothing."""
        if isinstance(self.groups.get(group_id), kind):
            del self.groups[group_id]

    def _take_offset(self, header: BatchHeader, key: OffsetKey, value: bytes | None) -> None:
        offsets = self.offsets.setdefault(key.group_id, GroupOffsets())
        place = (key.topic, key.partition)
        committed = None if value is None else read_offset(value, header.leader_epoch)
        if committed is None:
            offsets.drop(*place)
        elif header.is_transactional:
            offsets.wait(header.producer_id, {place: committed})
            offsets.waits(header.producer_id, {place: committed})
            self._waiting.setdefault(header.producer_id, {})[key.group_id] = None
        else:
            offsets.outdate(place, offsets.turn())
            offsets.put(*place, committed)


class Shard:
    """The groups of one partition."""

    def __init__(self, index: int, state: StateTopic, log: Log, host: Host, consumers: ConsumerHost) -> None:
        self.groups: dict[str, AnyGroup] = {}
        self.ready = False
        self.partition: Partition | None = None
        # Producer id -> the groups that have offsets in its open transaction.
        self.waiting: dict[int, dict[str, None]] = {}
        self._index = index
        self._state = state
        self._log = log
        self._host = host
        self._consumers = consumers
        self._loading = SharedLoad(self._load)
        # Records since the loop had its turn.
        self._step = 0

    async def load(self) -> None:
        """Replay the partition unless that is done. Raises what the log raises; the next call then tries again."""
        if self.ready:
            return
        await self._loading.load()

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """The marker of a producer's transaction is durable in this partition."""
        for group_id in self.waiting.pop(producer_id, {}):
            group = self.groups.get(group_id)
            if group is not None:
                group.offsets.end(producer_id, commit)

    def stop(self) -> None:
        """End all groups; whatever waits is refused."""
        self._loading.cancel()
        for group in self.groups.values():
            group.kill()

    # --- groups -------------------------------------------------------------------------------------------------------

    def make(self, group_id: str) -> Group:
        """A new group, without members and classic so far."""
        group = self.groups[group_id] = Group(group_id, self._host)
        return group

    def replace(self, old: AnyGroup, new: AnyGroup) -> None:
        """Put a group of the other protocol in the place of an empty one, whose offsets it keeps."""
        new.offsets = old.offsets
        self.groups[old.group_id] = new
        # Where this is not written, the next record of the group still shows its protocol.
        self.append(old.tombstones(), lambda _: None)
        old.kill()

    def drop_if_void(self, group: AnyGroup) -> None:
        """Forget a group of which nothing was ever stored."""
        if group.is_void:
            if self.groups.get(group.group_id) is group:
                del self.groups[group.group_id]
            group.kill()

    def delete(self, group: AnyGroup) -> asyncio.Future[Problem]:
        """Out of sight at once, so that a member that joins now begins a new group; back if it cannot be written."""
        group_id = group.group_id
        del self.groups[group_id]

        def on_durable(problem: Problem) -> None:
            if problem is Problem.NONE:
                group.kill()
            else:
                self.groups.setdefault(group_id, group)

        offsets: list[Change] = [(write_offset_key(group_id, *place), None) for place in group.offsets.places()]
        return self._write([*offsets, *group.tombstones()], on_durable)

    # --- offsets ------------------------------------------------------------------------------------------------------

    def commit(self, group: AnyGroup, taken: Mapping[TopicPartition, Committed]) -> asyncio.Future[Problem]:
        """Commit offsets of a group."""
        offsets = group.offsets
        turn = offsets.turn()

        def on_durable(problem: Problem) -> None:
            offsets.sent(taken)
            if problem is Problem.NONE:
                for place, committed in taken.items():
                    offsets.outdate(place, turn)
                    offsets.put(*place, committed)

        offsets.sending(taken)
        return self._write(_offset_changes(group.group_id, taken), on_durable)

    def drop_offsets(self, group: AnyGroup, places: Sequence[TopicPartition]) -> asyncio.Future[Problem]:
        """Delete offsets of a group."""

        def on_durable(problem: Problem) -> None:
            if problem is Problem.NONE:
                for place in places:
                    group.offsets.drop(*place)

        return self._write([(write_offset_key(group.group_id, *place), None) for place in places], on_durable)

    def commit_within(
        self,
        group: AnyGroup,
        taken: Mapping[TopicPartition, Committed],
        producer_id: int,
        epoch: int,
        append: AppendWithin,
    ) -> asyncio.Future[Problem]:
        """Commit offsets of a group that count once the producer's transaction commits. Raises what `append` refuses
        with."""
        group_id, offsets = group.group_id, group.offsets
        answer: asyncio.Future[Problem] = self._host.loop.create_future()

        def undo() -> None:
            offsets.unwait(producer_id, taken)
            if producer_id not in offsets.pending:
                groups = self.waiting.get(producer_id, {})
                groups.pop(group_id, None)
                if not groups:
                    self.waiting.pop(producer_id, None)
            self.drop_if_void(group)

        def on_durable(error: Exception | None) -> None:
            if error is None:
                offsets.waits(producer_id, taken)
            else:
                undo()
            answer.set_result(_problem_of(error))

        offsets.wait(producer_id, taken)
        self.waiting.setdefault(producer_id, {})[group_id] = None
        if self.partition is None:
            undo()
            answer.set_result(Problem.COORDINATOR_NOT_AVAILABLE)
            return answer
        now = self._host.now_ms()
        batch = kernel.build(
            [(now, key, value, []) for key, value in _offset_changes(group_id, taken)],
            producer_id=producer_id,
            producer_epoch=epoch,
            attributes=TRANSACTIONAL,
        )
        try:
            appended = append(self.partition, batch, on_durable)
        except HeadraceError:
            undo()
            raise
        appended.complete(on_durable)
        return answer

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write(self, changes: Sequence[Change], on_durable: Done) -> asyncio.Future[Problem]:
        """Append changes; the outcome, once `on_durable` has run with it, be its waiter gone or not."""
        answer: asyncio.Future[Problem] = self._host.loop.create_future()

        def done(problem: Problem) -> None:
            on_durable(problem)
            if not answer.done():
                answer.set_result(problem)

        self.append(changes, done)
        return answer

    def append(self, changes: Sequence[Change], done: Done) -> None:
        """Write changes, all or none; `done` is called when they are durable, or why they are not."""
        partition = self.partition
        if partition is None:
            done(Problem.COORDINATOR_NOT_AVAILABLE)
            return

        def on_durable(error: Exception | None) -> None:
            if error is not None and not isinstance(error, NotLeading):
                log.warning("could not write group state", partition=self._index, error=str(error))
            done(_problem_of(error))

        if not changes:
            done(Problem.NONE)
            return
        try:
            self._state.append([self._state.write(partition, changes)], on_durable)
        except (HeadraceError, OSError) as error:
            on_durable(error)

    # --- replay -------------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        topic = self._state.topic
        if topic is None or self._index >= len(topic.partitions):
            self.ready = True
            return
        partition = topic.partitions[self._index]
        found = Replayed()
        await self._state.load(partition, found.take, found.end)
        self.partition = partition
        await self._revive(found)
        self.ready = True

    async def _revive(self, found: Replayed) -> None:
        stale: list[Change] = []
        groups = found.groups
        for group_id in dict.fromkeys([*groups, *found.offsets]):
            group = self._revived(group_id, groups.get(group_id))
            offsets = found.offsets.get(group_id, GroupOffsets())
            group.offsets.resume(offsets)
            for producer_id in offsets.pending:
                self.waiting.setdefault(producer_id, {})[group_id] = None
            for (topic, index), committed in offsets:
                self._step += 1
                known = self._log.topics.get(topic)
                if not committed.is_of(known):
                    # The topic was deleted, and this group was not in memory then.
                    stale.append((write_offset_key(group_id, topic, index), None))
                elif known is not None and known.settings.durability is Durability.MEMORY:
                    # Its records went with the process that wrote them: no epoch of the log speaks for them.
                    group.offsets.put(topic, index, replace(committed, written_epoch=NO_EPOCH))
                else:
                    group.offsets.put(topic, index, committed)
            if group.offsets or group_id in groups:
                self.groups[group_id] = group
            self._step += 1
            if self._step >= STEP_RECORDS:
                self._step = 0
                await asyncio.sleep(0)
        for group in self.groups.values():
            group.resume()
        for at in range(0, len(stale), 1000):
            self.append(stale[at : at + 1000], lambda _: None)

    def _revived(self, group_id: str, stored: StoredGroup | StoredConsumerGroup | None) -> AnyGroup:
        if isinstance(stored, StoredConsumerGroup):
            consumers = ConsumerGroup(group_id, self._consumers)
            consumers.restore(stored)
            return consumers
        if stored is not None and stored.protocol_type == ROCKETMQ:
            clients = RocketMqGroup(group_id, self._host.now_ms)
            clients.restore(stored)
            return clients
        group = Group(group_id, self._host)
        if stored is not None:
            group.restore(stored)
        return group


def _offset_changes(group_id: str, taken: Mapping[TopicPartition, Committed]) -> list[Change]:
    return [(write_offset_key(group_id, *place), write_offset(committed)) for place, committed in taken.items()]


def _problem_of(error: Exception | None) -> Problem:
    if error is None:
        return Problem.NONE
    return Problem.UNKNOWN_SERVER_ERROR if isinstance(error, BatchTooLarge) else Problem.COORDINATOR_NOT_AVAILABLE
