"""The log of a replica: a native log whose journal is its group's.

While this node leads, appends are frames of the group's journal, and everything that waits for a flush waits until its
frame is committed. While it follows, the frames that are committed are applied to the same partitions, in their order:
batches as they are, changes of the catalogue, moves of a start. Applying again what a partition has changes nothing, so
a start goes on from its checkpoint. What is not committed is in the journal and in memory, and in no segment: where
leaderships change, only the journal is truncated.

`async` topics are as durable as `sync` ones here: every frame is synced. `memory` topics are not replicated, but for
which offsets are taken (`offset_blocks.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import structlog

from headrace.errors import (
    CorruptLog,
    DataDirectoryInvalid,
    NotEnoughReplicas,
    NotLeading,
    PartitionOffline,
    StorageFailed,
)
from headrace.format.batch import header_at
from headrace.log import checkpoint as checkpoints
from headrace.log import recovery
from headrace.log.checkpoint import Checkpoint
from headrace.log.frames import Entry, Frame, Kind
from headrace.log.group_frames import payload_of
from headrace.log.interface import Done, Durability, Topic, TopicSettings
from headrace.log.log_start import move_start
from headrace.log.native import NativeLog, prepare_directory
from headrace.log.offset_blocks import OffsetBlocks
from headrace.log.partition import NativePartition
from headrace.log.replay import read_replays
from headrace.log.replicated_commit import ReplicatedCommitter, Submit
from headrace.log.replicated_journal import ReplicatedJournal
from headrace.log.segments import METADATA_FILE
from headrace.log.settings import LogSettings
from headrace.log.spool import Spool
from headrace.log.turn import Turn
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.log")

T = TypeVar("T")

# No batch is as large: none goes straight to its segment.
NEVER_DIRECT = 1 << 62
# Turns of the loop after which what a commit completed has taken effect.
SETTLE_TURNS = 3


class ReplicatedLog(NativeLog):
    """The partitions of one replica."""

    is_replicated = True

    def __init__(
        self,
        runtime: Runtime,
        config: LogSettings,
        journal: ReplicatedJournal,
        cluster_id: str,
        uncommitted_max_bytes: int,
        on_applied: Callable[[], None] = lambda: None,
        on_broken: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_applied` is called when everything that is committed has been applied, `on_broken` once this replica
        cannot go on: a partition is offline, or what is committed cannot be applied."""
        super().__init__(runtime, replace(config, direct_bytes=NEVER_DIRECT))
        self.frames = self.journal = journal
        self.cluster_id = cluster_id
        self._on_applied = on_applied
        self._on_broken = on_broken
        self._uncommitted_max = uncommitted_max_bytes
        self._not_leading = "this node does not lead its group"
        self._has_enough = True
        self.refused = 0
        """Appends that were refused for too few replicas in sync."""
        self._is_paused = False
        self.trusts_clock: Callable[[], bool] = lambda: True
        """Whether the calendar is right enough for anything to expire."""
        self.replicated = self.committer = ReplicatedCommitter(self._roll_back, self._judge)
        journal.on_device = self.replicated.note_flushed
        self.spool = Spool(runtime.disk, config.journal_bytes, 0, lambda: None)
        self.turn = Turn(self.spool, lambda appender: self._roll_back(appender.partition))
        self._committed = asyncio.Event()
        self._applying: asyncio.Task[None] | None = None
        self.broken: str | None = None
        """Why this replica cannot go on until it is started again."""
        self.is_copying = False
        """What the directory has is no whole copy: there are no topics until `adopt_copy`. Set before the start."""
        # Changes of the catalogue that are under way.
        self._changes: set[asyncio.Task[Any]] = set()
        self.blocks = OffsetBlocks(self)
        self.reserve_offsets = self.blocks.reserve
        # Of deleted topics whose folders are still there, by name.
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._judge()

    # --- life ---

    async def open(self) -> None:
        self.runtime.disk.lock()
        try:
            if not self.is_copying:
                await self._take()
        except BaseException:
            self.runtime.disk.unlock()
            raise

    async def _take(self) -> None:
        """Take what the data directory has."""
        disk, offload = self.runtime.disk, self.runtime.offload
        found = await offload.run(checkpoints.load, disk)
        if found is None:
            found = Checkpoint(self.cluster_id)
            await offload.run(prepare_directory, self.runtime, found)
        if found.cluster_id != self.cluster_id:
            raise DataDirectoryInvalid(
                f"the data directory belongs to cluster {found.cluster_id}, and this is cluster {self.cluster_id}. "
                "Give the node its own directory, or an empty one."
            )
        self.counters = found.counters
        await self.frames.open(found.journal_from, found.history)
        self.upkeep.journal_from = found.journal_from
        await self._recover(found)

    async def start(self) -> None:
        await self.open()
        if not self.is_copying:
            self._begin()

    async def adopt_copy(self) -> None:
        """The data directory has a whole copy, and its checkpoint. Raises OSError, CorruptLog."""
        await self._take()
        self.is_copying = False
        self._begin()

    def _begin(self) -> None:
        self.upkeep.start()
        self._applying = asyncio.get_running_loop().create_task(self._apply_committed())

    async def _recover(self, found: Checkpoint) -> None:
        """Take what the checkpoint has, and what the journal has since and knows to be committed."""
        frames = [frame async for frame in self._read(self.frames.committed)]
        recovery.read_catalogue(self, found, frames)
        replays = read_replays((entry for frame in frames for entry in frame.entries()), ())
        await self.runtime.offload.run(self._sweep)
        recovering = [recovery.recover_partition(self, *place, each) for place, each in replays.items()]
        await asyncio.gather(*recovering)
        self.frames.applied = self.frames.committed
        last = tuple(self.frames.last)
        logger.info("replica recovered", applied=self.frames.applied, last=last, partitions=len(replays))

    def _sweep(self) -> None:
        """Remove the folders of partitions that the catalogue does not have: of deleted topics, and of those whose
        making is not known to be committed any more, and will be applied again. Blocks."""
        disk = self.runtime.disk
        live = {partition.folder for topic in self.topics.values() for partition in self.partitions_of(topic)}
        for name in disk.listdir(""):
            if name.endswith("-delete") or (name not in live and disk.exists(f"{name}/{METADATA_FILE}")):
                disk.remove_tree(name)

    async def stop(self) -> None:
        self.follow("the node stops")
        # What is committed takes effect, even if its caller is gone.
        await self.settle()
        ending = [*self._changes, *self._removals.values(), *([self._applying] if self._applying is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self.is_copying:
            self.close()
            return
        await self.upkeep.stop()
        try:
            await self.upkeep.checkpoint()
        except (OSError, StorageFailed) as error:
            logger.error("no checkpoint at this stop: the next start has more to recover", error=str(error))
        finally:
            self.close()

    @property
    def epoch_step(self) -> int:
        return 0

    @property
    def decides_retention(self) -> bool:  # type: ignore[override]
        # What a clock that is wrong lets expire is gone on every replica.
        return self.replicated.leads and self.trusts_clock()

    async def settle(self) -> None:
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)

    def new_checkpoint(self, journal_from: int) -> Checkpoint:
        made = super().new_checkpoint(journal_from)
        made.history = [(epoch, first) for epoch, first in self.frames.history() if first < journal_from]
        return made

    # --- roles ---

    def lead(self, epoch: int, submit: Submit) -> None:
        """This node leads in `epoch`, and has applied everything before."""
        self.epoch = epoch
        for topic in self.topics.values():
            for partition in topic.partitions:
                self.local(partition).advance_epoch(epoch)
        self.replicated.lead(submit, self.frames.applied)
        self.resume()

    def follow(self, reason: str) -> None:
        """This node does not lead: nothing is appended, and what is not committed is void here."""
        self._not_leading = f"this node does not lead its group: {reason}"
        if self.replicated.leads:
            self.replicated.end(NotLeading(self._not_leading))
            self.blocks.on_deposed()
        self._judge()

    def pause(self) -> None:
        """Append nothing more, while the leadership is handed over."""
        self._is_paused = self.replicated.is_paused = True
        self._judge()

    def resume(self) -> None:
        """Take appends again: the leadership was not handed over."""
        self._is_paused = self.replicated.is_paused = False
        self._judge()

    def set_enough(self, has_enough: bool) -> None:
        """Whether the group has the in-sync replicas that it must have for an append."""
        if has_enough != self._has_enough:
            self._has_enough = has_enough
            self._judge()

    def when_flushed(self, done: Done) -> bool:
        return self.replicated.when_flushed(done, self.frames.flushed)

    def _judge(self) -> None:
        """Decide whether appends are taken."""
        if not self.replicated.leads:
            self.refusal = lambda: NotLeading(self._not_leading)
        elif self._is_paused:
            self.refusal = lambda: NotLeading("this node hands its leadership over")
        elif not self._has_enough:
            self.refusal = self._refuse_few
        elif self.replicated.uncommitted_bytes > self._uncommitted_max:
            self.refusal = lambda: NotEnoughReplicas(
                f"more than {self._uncommitted_max} bytes wait for the other replicas (replica.uncommitted.max.bytes): "
                "try again in a moment"
            )
        else:
            self.refusal = None

    def _refuse_few(self) -> NotEnoughReplicas:
        self.refused += 1
        return NotEnoughReplicas(
            "too few replicas are in sync (min.insync.replicas): appends are refused until more are"
        )

    async def create(self, name: str, partitions: int, config: Mapping[str, str], settings: TopicSettings) -> Topic:
        await self._make_way(name)
        return await self._to_its_end(super().create(name, partitions, config, _in_group(settings)))

    async def delete(self, name: str) -> None:
        await self._to_its_end(super().delete(name))

    async def alter(
        self, name: str, *, partitions: int | None = None, config: tuple[Mapping[str, str], TopicSettings] | None = None
    ) -> Topic:
        if config is not None:
            config = config[0], _in_group(config[1])
        return await self._to_its_end(super().alter(name, partitions=partitions, config=config))

    async def _to_its_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Change the catalogue, though the caller may go: once that is committed, every other replica does it."""
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._on_changed)
        return await asyncio.shield(task)

    def _on_changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has it, or is gone

    async def remove_topic(self, topic: Topic) -> None:
        """Remove a topic that is gone. Its files go once a checkpoint knows that: a start may find again less than was
        known to be committed, and would miss them."""
        self._drop_topic(topic)
        await self._forget_tails(topic)
        await self._make_way(topic.name)
        removal = asyncio.get_running_loop().create_task(self._remove_files(topic, self.frames.applied + 1))
        self._removals[topic.name] = removal

    async def _remove_files(self, topic: Topic, deleted_at: int) -> None:
        try:
            while self.upkeep.journal_from <= deleted_at:
                await self.upkeep.checkpoint_soon()
            await self._remove_folders(topic)
        except OSError as error:
            logger.warning("the folders of a deleted topic are left over", topic=topic.name, error=str(error))
        finally:
            self._removals.pop(topic.name, None)

    async def _make_way(self, name: str) -> None:
        """Wait until the folders of a deleted topic of that name are gone."""
        if name in self._removals:
            await asyncio.shield(self._removals[name])

    # --- what is committed ---

    def on_committed(self, sequence: int) -> None:
        """Every frame up to `sequence` is committed."""
        if self.replicated.leads:
            self.replicated.complete(sequence)
            self.frames.applied = sequence
        else:
            self._committed.set()

    async def _apply_committed(self) -> None:
        while True:
            self._committed.clear()
            try:
                await self._catch_up()
            except (CorruptLog, OSError, StorageFailed, PartitionOffline) as error:
                self._break(f"what is committed cannot be applied: {error}")
                return
            self._on_applied()
            await self._committed.wait()

    def report_offline(self, partition: NativePartition, reason: str) -> None:
        super().report_offline(partition, reason)
        # The journal has what its segments may lack: the next start recovers it. Until then others have it.
        self._break(f"{partition.folder} is offline: {reason}")

    def _break(self, reason: str) -> None:
        if self.broken is None:
            self.broken = reason
            self._on_broken(reason)

    async def _catch_up(self) -> None:
        async for frame in self._read(self.frames.committed):
            for entry in frame.entries():
                await self._apply(entry)
            self.frames.applied = frame.sequence
        if self.frames.applied < self.frames.committed and not self.replicated.leads:
            await self._catch_up()

    async def _read(self, last: int) -> AsyncIterator[Frame]:
        """The frames that are not applied, up to the one with the sequence `last`."""
        at = self.frames.applied + 1
        while at <= last:
            for data in self.frames.newest(at) or await self.frames.read(at):
                yield Frame(at, at - 1, payload_of(data))
                at += 1
                if at > last:
                    return

    async def _apply(self, entry: Entry) -> None:
        if entry.kind is Kind.CATALOGUE:
            await self._apply_change(json.loads(entry.data))
            return
        topic = self.topics.by_id.get(UUID(bytes=entry.topic))
        if topic is None or entry.partition >= len(topic.partitions):
            return
        partition = self.partitions_of(topic)[entry.partition]
        if not partition.loaded:
            await partition.load()
        if entry.kind is Kind.START:
            if topic.settings.durability is Durability.MEMORY:
                partition.begin_again(entry.offset)
            elif entry.offset > partition.start:
                move_start(partition, entry.offset)
        elif entry.kind is Kind.DATA:
            _apply_batch(partition, entry)
        else:
            raise CorruptLog(f"{partition.folder}: a frame has an entry that no leader writes ({entry.kind.name})")

    async def _apply_change(self, change: Mapping[str, Any]) -> None:
        operation = change["op"]
        if operation == "counter":
            self.counters[change["name"]] = max(self.counters.get(change["name"], 0), change["value"])
        elif operation == "create":
            record = checkpoints.topic_from_json(change["topic"])
            # One whose name a later topic has came and went before what this replica began with.
            if record.id not in self.topics.by_id and record.name not in self.topics:
                await self._make_way(record.name)
                topic = Topic(record.name, record.id, record.config, record.settings)
                topic.partitions = await self.new_partitions(topic, 0, len(record.partitions))
                self.topics.add(topic)
        elif (found := self.topics.by_id.get(UUID(hex=change["id"]))) is None:
            return
        elif operation == "delete":
            await self.remove_topic(found)
        elif operation == "alter":
            have = len(found.partitions)
            more = await self.new_partitions(found, have, change["partitions"])
            found.config, found.settings = change["config"], checkpoints.settings_from_json(change["settings"])
            found.partitions = [*found.partitions, *more]


def _in_group(settings: TopicSettings) -> TopicSettings:
    return replace(settings, durability=Durability.SYNC) if settings.durability is Durability.ASYNC else settings


def _apply_batch(partition: NativePartition, entry: Entry) -> None:
    header = header_at(entry.data)._replace(base_offset=entry.offset)
    if header.last_offset < partition.end:
        return
    if entry.offset != partition.end:
        raise CorruptLog(f"{partition.folder} ends at offset {partition.end}, and a frame goes on at {entry.offset}")
    partition.appender.apply(header, entry.data)
