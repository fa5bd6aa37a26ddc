"""The native log: all topics of a data directory, on this machine's disk.

It holds the catalogue, hands out partitions, and makes changes of the catalogue durable through the same journal as
data. Start after a crash is in `recovery.py`; what runs in the background (checkpoints, retention, compaction, the
watch over a full disk) in `upkeep.py`.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import structlog

from headrace.errors import (
    AppendRefused,
    DataDirectoryInvalid,
    InvalidPartitions,
    StorageFailed,
    TopicExists,
    UnknownTopic,
)
from headrace.format.batch import BatchHeader
from headrace.log import checkpoint as checkpoints
from headrace.log import journal as journals
from headrace.log import recovery
from headrace.log.checkpoint import Checkpoint, TopicRecord
from headrace.log.commit import NO_TOPIC, Committer, LocalCommitter
from headrace.log.files import OpenFiles
from headrace.log.frames import Kind
from headrace.log.interface import Appended, Done, Durability, Partition, Topic, TopicSettings, Write
from headrace.log.journal import CheckpointedJournal, Journal
from headrace.log.local import LocalLog
from headrace.log.partition import NativePartition
from headrace.log.places import Places
from headrace.log.segments import METADATA_FILE
from headrace.log.settings import LogSettings
from headrace.log.spool import Spool
from headrace.log.tail import Tail
from headrace.log.turn import Turn
from headrace.log.upkeep import Upkeep
from headrace.runtime import Runtime
from headrace.runtime.disk import NO_SPACE, Disk

logger = structlog.get_logger("headrace.log")

# Of a file or folder, in every file system of Linux.
FILE_NAME_MAX = 255
# Partitions that are made or dropped between two turns of the loop: about a millisecond.
STEP_PARTITIONS = 128


class NativeLog(LocalLog):
    """A data directory and everything in it."""

    """Whether this is one of several replicas: nothing reaches a segment before it is committed."""
    decides_retention = True
    """Whether this node moves the starts of partitions by itself."""

    def __init__(self, runtime: Runtime, config: LogSettings) -> None:
        super().__init__()
        self.runtime = runtime
        self.config = config
        self.now_ms = runtime.clock.now_ms
        # Whether the last stop left nothing to recover.
        self.clean = False
        # The disk does not take what waits in memory: appends are refused until it does.
        self.full = False
        # Makes the error with which appends are refused, where they are for another reason.
        self.refusal: Callable[[], StorageFailed] | None = None
        # Given a `memory` partition and its next end, tells whether its offsets are free up to there, where other
        # nodes have a say in that.
        self.reserve_offsets: Callable[[NativePartition, int], bool] | None = None
        self.files = OpenFiles(runtime.disk, min(config.open_files_max, max(runtime.disk.open_files_max() // 2, 1)))
        self.places = Places()
        self.tail = Tail(config.tail_bytes)
        # Partitions with data above their recovery point, in the order in which they became so.
        self.dirty: dict[NativePartition, None] = {}
        self.counters: dict[str, int] = {}
        # Partitions whose files are being copied, and by how many: nothing of them goes meanwhile.
        self.pins: dict[NativePartition, int] = {}
        # Names that are being created or deleted: taken, until that is durable.
        self._busy: set[str] = set()
        self.journal: CheckpointedJournal
        self.committer: Committer
        self.spool: Spool
        self.turn: Turn
        self.upkeep = Upkeep(self)

    # --- life ---

    async def start(self) -> None:
        """Take the data directory and make its topics known; recover what the last stop left."""
        await self.open()
        self.upkeep.start()

    async def open(self) -> None:
        """The same without the work in the background: all that a reader needs."""
        disk = self.runtime.disk
        disk.lock()
        try:
            found = await self.runtime.offload.run(checkpoints.load, disk)
            if found is None:
                await self.runtime.offload.run(_check_new, disk)
                # 22 characters of base64, as Kafka's cluster ids are.
                drawn = UUID(bytes=self.runtime.random.bytes(16), version=4)
                found = Checkpoint(urlsafe_b64encode(drawn.bytes).decode().rstrip("="))
                await self.runtime.offload.run(prepare_directory, self.runtime, found)
                self.clean = True
            else:
                await self.runtime.offload.run(_check_journal, disk)
                self.clean = await self.runtime.offload.run(checkpoints.take_clean_mark, disk)
            self.cluster_id = found.cluster_id
            self.epoch = found.epoch
            self.counters = found.counters
            journal = self.journal = Journal(disk, self.config.journal_bytes, found.journal_from)
            self.committer = LocalCommitter(journal, self.runtime.offload.serial_executor("journal"), self._roll_back)
            if self.clean:
                for topic in found.topics:
                    self.add_topic(topic)
            else:
                await recovery.recover(self, found, journal)
            self.spool = Spool(disk, self.config.journal_bytes, self.epoch, self.upkeep.want_spool)
            self.turn = Turn(self.spool, lambda appender: self._roll_back(appender.partition))
        except BaseException:
            disk.unlock()
            raise

    @property
    def epoch_step(self) -> int:
        """By how much this start raised the leader epochs."""
        return 0 if self.clean else 1

    def pin(self, partition: NativePartition) -> None:
        """Keep the files of a partition as they are, but for what is appended, until `unpin`."""
        self.pins[partition] = self.pins.get(partition, 0) + 1
        partition.mark_pinned(True)

    def unpin(self, partition: NativePartition) -> None:
        self.pins[partition] -= 1
        if not self.pins[partition]:
            del self.pins[partition]
            partition.mark_pinned(False)

    async def settle(self) -> None:
        """Wait until everything so far is flushed, and has taken effect."""
        await self.committer.barrier()

    def new_checkpoint(self, journal_from: int) -> Checkpoint:
        """A checkpoint without topics, which needs the journal from frame `journal_from` on."""
        return Checkpoint(self.cluster_id, self.epoch, journal_from, dict(self.counters))

    async def stop(self) -> None:
        """Flush everything and leave nothing to recover."""
        await self.upkeep.stop()
        self.turn.finish()
        await self.committer.flushed()
        if not self.clean:
            await self.upkeep.recover_rest()
        try:
            if await self.upkeep.checkpoint(final=True):
                await self.runtime.offload.run(journals.remove_files, self.runtime.disk)
                await self.runtime.offload.run(checkpoints.mark_clean, self.runtime.disk)
        except (OSError, StorageFailed) as error:
            if isinstance(error, OSError) and error.errno not in NO_SPACE:
                raise
            # Nothing is lost: the next start finds it in the journal.
            logger.error("this stop was not clean: the next start has something to recover", error=str(error))
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the data directory."""
        self.journal.close()
        self.spool.close()
        self.files.close()
        self.runtime.disk.unlock()

    # --- the catalogue ---

    def add_topic(self, record: TopicRecord) -> None:
        """Put a topic of the checkpoint or the journal into the catalogue."""
        topic = Topic(record.name, record.id, record.config, record.settings)
        topic.partitions = [
            self._partition(topic, index, start, point, fresh=False)
            for index, (start, point) in enumerate(record.partitions)
        ]
        for partition, epoch in zip(self.partitions_of(topic), record.epochs, strict=False):
            # A start after an unclean stop raises each partition's own.
            partition.epoch = max(self.epoch, epoch + self.epoch_step)
        self.topics.add(topic)

    async def new_partitions(self, topic: Topic, first: int, end: int) -> list[NativePartition]:
        """Partitions that nothing was ever written to, made in small steps. They count once they are in the topic."""
        made: list[NativePartition] = []
        for index in range(first, end):
            made.append(self._partition(topic, index, 0, 0, fresh=True))
            if len(made) % STEP_PARTITIONS == 0:
                await asyncio.sleep(0)
        return made

    def _partition(self, topic: Topic, index: int, start: int, point: int, *, fresh: bool) -> NativePartition:
        if topic.settings.durability is Durability.MEMORY:
            return NativePartition(self, topic, index, point, point, fresh=True)
        return NativePartition(self, topic, index, start, point, fresh=fresh)

    def record_of(self, topic: Topic) -> TopicRecord:
        """A topic as the checkpoint keeps it."""
        partitions = [(each.start, each.point) for each in self.partitions_of(topic)]
        epochs = [each.epoch for each in self.partitions_of(topic)]
        return TopicRecord(
            topic.name, topic.id, topic.config, topic.settings, partitions, epochs if set(epochs) - {self.epoch} else []
        )

    def partitions_of(self, topic: Topic) -> Sequence[NativePartition]:
        return topic.partitions  # type: ignore[return-value]

    def local(self, partition: Partition) -> NativePartition:
        assert isinstance(partition, NativePartition), partition
        return partition

    async def create(self, name: str, partitions: int, config: Mapping[str, str], settings: TopicSettings) -> Topic:
        if name in self.topics or name in self._busy:
            raise TopicExists(f"there is a topic {name!r} already")
        topic_id = UUID(bytes=self.runtime.random.bytes(16), version=4)
        record = TopicRecord(name, topic_id, dict(config), settings, [(0, 0)] * partitions)
        self._busy.add(name)
        try:
            topic = Topic(name, topic_id, record.config, settings)
            # Before the journal has it: a checkpoint must not come between that and the catalogue.
            topic.partitions = await self.new_partitions(topic, 0, partitions)
            await self._journal_change({"op": "create", "topic": checkpoints.topic_to_json(record)})
            self.topics.add(topic)
            return topic
        finally:
            self._busy.discard(name)

    async def delete(self, name: str) -> None:
        topic = self._existing(name)
        self._busy.add(name)
        try:
            await self._journal_change({"op": "delete", "id": topic.id.hex})
            await self.remove_topic(topic)
        finally:
            self._busy.discard(name)

    async def remove_topic(self, topic: Topic) -> None:
        """Remove a topic that is gone, durably, and its files."""
        self._drop_topic(topic)
        await self._forget_tails(topic)
        try:
            await self._remove_folders(topic)
        except OSError as error:
            # Its folders are swept up at the next start, or by a topic of the same name.
            logger.warning("the folders of a deleted topic are left over", topic=topic.name, error=str(error))

    def _drop_topic(self, topic: Topic) -> None:
        """Take a topic out of the catalogue."""
        self.topics.remove(topic)
        for partition in self.partitions_of(topic):
            partition.offline = "the topic was deleted"
            self.dirty.pop(partition, None)

    async def _forget_tails(self, topic: Topic) -> None:
        """Free what a topic that is gone holds in memory, and wake those that wait for it."""
        for count, partition in enumerate(self.partitions_of(topic), 1):
            partition.forget_tail()
            if count % STEP_PARTITIONS == 0:
                await asyncio.sleep(0)

    async def _remove_folders(self, topic: Topic) -> None:
        """Rename first, so that the name is free at once and a crash in between is swept up at the next start."""
        disk = self.runtime.disk
        folders = [partition.folder for partition in self.partitions_of(topic)]
        try:
            renamed = await self.runtime.offload.run(_rename_folders, disk, topic, folders)
        finally:
            # A look-up may have opened a file since the partitions were closed, and another topic may have its name.
            self.files.forget_off_loop()
        if renamed:
            await self.runtime.offload.run(disk.sync_dir, "")
            for folder in renamed:
                await self.runtime.offload.run(disk.remove_tree, folder)

    def tune(self, *, compaction_check_ms: int, producer_id_expiration_ms: int) -> None:
        self.config = replace(
            self.config,
            compaction_check_ms=compaction_check_ms,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )

    async def alter(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: tuple[Mapping[str, str], TopicSettings] | None = None,
    ) -> Topic:
        topic = self._existing(name)
        have = len(topic.partitions)
        if partitions is not None and partitions <= have:
            raise InvalidPartitions(f"the topic {name!r} has {have} partitions and can only grow, not to {partitions}")
        texts, settings = config or (topic.config, topic.settings)
        if (settings.durability is Durability.MEMORY) != (topic.settings.durability is Durability.MEMORY):
            raise InvalidPartitions(f"the topic {name!r} cannot change between memory and disk: make a new one")
        change = {
            "op": "alter",
            "id": topic.id.hex,
            "config": dict(texts),
            "settings": checkpoints.settings_to_json(settings),
            "partitions": partitions or have,
        }
        more = await self.new_partitions(topic, have, partitions or have)
        await self._journal_change(change)
        if topic.deleted:
            raise UnknownTopic(f"the topic {name!r} was deleted meanwhile")
        topic.config, topic.settings = texts, settings
        if more:
            topic.partitions = [*topic.partitions, *more]
        return topic

    def _existing(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None or name in self._busy:
            raise UnknownTopic(f"there is no topic {name!r}")
        return topic

    async def reserve(self, name: str, count: int) -> int:
        first = self.counters.get(name, 0)
        self.counters[name] = first + count
        await self._journal_change({"op": "counter", "name": name, "value": first + count})
        return first

    def _journal_change(self, change: Mapping[str, object]) -> asyncio.Future[None]:
        data = json.dumps(change, separators=(",", ":")).encode()
        return self.committer.add_note(Kind.CATALOGUE, NO_TOPIC, 0, 0, data)

    # --- data ---

    def append(self, writes: Sequence[Write], done: Done | None = None) -> list[Appended]:
        if len(writes) == 1 and not writes[0].sparse and not writes[0].moved:
            write = writes[0]
            if not write.as_is:
                return [write.partition.append(write.batches, done)]
            partition = self.local(write.partition)
            partition.check_writable()
            return [partition.appender.append_as_is(write.batches, done)]
        checked: list[_Checked] = []
        refused: dict[int, AppendRefused] = {}
        seen: set[NativePartition] = set()
        for number, write in enumerate(writes):
            partition = self.local(write.partition)
            if partition in seen:
                raise ValueError(f"{partition.folder} occurs twice in one append: join its batches into one")
            seen.add(partition)
            try:
                checked.append(_check(partition, write))
            except AppendRefused as error:
                refused[number] = error
        if refused:
            reason = next(iter(refused.values()))
            reason.refused = refused
            raise reason
        if any(first is not None for _, _, first in checked):
            # What came with the repeated batch came with it the first time too.
            durable = all(first is None or first < partition.high_watermark for partition, _, first in checked)
            appended = [
                Appended(-1 if first is None else first, -1, durable, duplicate=True) for _, _, first in checked
            ]
        else:
            # What only the process has needs no journal among its like, unless one of them waits for it.
            atomic = any(partition.appender.needs_journal for partition in seen)
            appended = [
                partition.appender.take_all(parts, atomic=atomic, as_is=write.as_is)
                for write, (partition, parts, _) in zip(writes, checked, strict=True)
            ]
        if done is not None and not appended[0].durable:
            self.committer.add_done(done)
        return appended

    def _roll_back(self, partition: NativePartition) -> None:
        """A flush or a write failed: what is not flushed of a partition never came."""
        partition.roll_back()
        self.turn.take_back(partition.appender, partition.end)

    # --- what partitions report ---

    def report_offline(self, partition: NativePartition, reason: str) -> None:
        logger.error("partition offline", topic=partition.topic.name, partition=partition.index, reason=reason)
        self.report_change(partition)

    def report_change(self, partition: NativePartition) -> None:
        """A partition went offline, or has another leader epoch."""
        for call in self.on_partition_changed:
            call(partition)

    def report_full(self, error: OSError) -> None:
        """A segment could not be written for lack of room or descriptors."""
        if not self.full:
            what = "disk full" if error.errno in NO_SPACE else "no descriptors left (ulimit -n)"
            logger.error(f"{what}: appends are refused until there is room", error=str(error))
            self.full = True
            self.upkeep.watch_full_disk()

    def sizes(self) -> Mapping[str, int]:
        return {
            "topics": len(self.topics),
            "partitions": sum(len(topic.partitions) for topic in self.topics.values()),
            "tail_bytes": self.tail.size,
            "journal_bytes": self.journal.used,
            "journal_flushes": self.committer.flushes,
            "journal_flushed_bytes": self.committer.flushed_bytes,
            "open_files": len(self.files),
            "dirty_partitions": len(self.dirty),
            "full": int(self.full),
            "compactions": self.upkeep.cleaner.runs,
            "compaction_freed_bytes": self.upkeep.cleaner.bytes_freed,
            "quarantined_partitions": self.upkeep.cleaner.quarantined,
        }


# A partition, what is to be appended to it, and where that had been appended before, if it had.
_Checked = tuple[NativePartition, list[tuple[memoryview, BatchHeader]], int | None]


def _check(partition: NativePartition, write: Write) -> _Checked:
    """Whether one write of several can be appended now. Raises an AppendRefused."""
    partition.check_writable()
    appender = partition.appender
    if write.as_is:
        parts = appender.check_as_is(write.batches)
        # The leader of the partition has compared them with what their producers had sent before.
        repeated: list[int | None] = []
    else:
        parts = appender.check_all(write.batches, sparse=write.sparse, moved=write.moved)
        repeated = [appender.check_sequence(header) for _, header in parts]
    appender.tighten()
    return partition, parts, next((each for each in repeated if each is not None), None)


def _rename_folders(disk: Disk, topic: Topic, folders: Sequence[str]) -> list[str]:
    """Give the folders of a topic that is gone the names under which they are swept up; those names. Blocks."""
    renamed = []
    for index, folder in enumerate(folders):
        if disk.exists(folder):
            # A topic's name may be as long as its folders' names can be: it is cut for what is added to it.
            suffix = f"-{index}.{topic.id.hex}-delete"
            renamed.append(topic.name[: FILE_NAME_MAX - len(suffix)] + suffix)
            disk.rename(folder, renamed[-1])
    return renamed


def _check_new(disk: Disk) -> None:
    """Refuse a directory without a checkpoint that is not new: a topic of an old name would remove what is there.
    Blocks."""
    for name in disk.listdir(""):
        if disk.exists(f"{name}/{METADATA_FILE}"):
            raise DataDirectoryInvalid(
                f"the file {checkpoints.PATH!r} is missing, but there are partitions ({name}): "
                "restore it from a backup, let `headrace log repair` put it together again, or give the broker "
                "another directory"
            )


def _check_journal(disk: Disk) -> None:
    """Make the journal's folder where a copy of a clean directory has left it out, because it was empty. Blocks."""
    if disk.exists(journals.FOLDER):
        return
    if not disk.exists(checkpoints.CLEAN_PATH):
        raise DataDirectoryInvalid(
            f"the folder {journals.FOLDER!r} {journals.MISSING}: restore it, or let `headrace log repair` go on without"
        )
    disk.mkdir(journals.FOLDER)
    disk.sync_dir("")


def prepare_directory(runtime: Runtime, first: Checkpoint) -> None:
    """Make a new data directory usable. Blocks."""
    runtime.disk.mkdir(journals.FOLDER)
    # Before the checkpoint: where there is one, there must be a journal.
    runtime.disk.sync_dir("")
    checkpoints.save(runtime.disk, first)
