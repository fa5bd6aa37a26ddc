"""Group commit: everything that wants to be durable waits for the same flush.

While one flush is on its way to the device, whatever arrives gathers in the next group. No timed delay: the next flush
starts two turns of the loop after the last one's acknowledgements, so that the clients just answered get their next
requests in. A group is one journal frame, and before it the syncs of those segments that took large batches directly.

When a flush fails, its group and the one gathering behind it fail together, since their offsets build on each other:
every partition in them goes back to what is flushed, and no reader has got further than that.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from headrace.errors import StorageFailed
from headrace.log.frames import DATA, ENTRY, ENTRY_BYTES, PACK_ENTRY, Kind
from headrace.log.interface import Done
from headrace.log.journal import Journal, PlacedFrame
from headrace.log.segment import leaves_doubt
from headrace.runtime.offload import SerialExecutor

NO_TOPIC = bytes(16)


class Committed(Protocol):
    """A partition, as the committer sees it."""

    topic_bytes: bytes
    index: int

    @property
    def deleted(self) -> bool:
        """Whether its topic is gone, and with it the files."""
        ...

    def mark_flushed(self, end: int) -> None:
        """This node has all below `end`."""
        ...

    def mark_synced(self, point: int) -> None:
        """The segments are synced up to `point`."""
        ...

    def fail(self, reason: str) -> None:
        """The segments cannot be trusted until the next start."""
        ...


class Group:
    """What is flushed together."""

    __slots__ = ("dones", "ends", "entries", "payload", "points", "size", "syncs")

    def __init__(self) -> None:
        self.payload: list[bytes] = []
        self.size = 0
        self.entries = 0
        self.dones: list[Done] = []
        self.ends: dict[Committed, int] = {}
        self.points: dict[Committed, int] = {}
        self.syncs: list[tuple[Committed, Callable[[], None]]] = []

    def empty(self) -> bool:
        return not (self.entries or self.syncs or self.dones or self.ends)


class Committer(ABC):
    """Gathers groups. How they are flushed, and when they count, is for each kind of journal to say."""

    def __init__(self, on_void: Callable[[Any], None]) -> None:
        """`on_void`: called with each partition of which what is not flushed is void, before any of it is answered."""
        self._on_void = on_void
        self._gathering = Group()
        self._scheduled = False
        self._idle: list[asyncio.Future[None]] = []
        self.flushes = 0
        self.flushed_bytes = 0

    def add_batch(self, partition: Committed, base: int, end: int, epoch: int, data: bytes, done: Done | None) -> None:
        """Journal a batch."""
        group = self._gathering
        length = len(data)
        payload = group.payload
        payload.append(PACK_ENTRY(DATA, partition.topic_bytes, partition.index, base, epoch, length))
        payload.append(data)
        group.size += ENTRY_BYTES + length
        group.entries += 1
        group.ends[partition] = end
        if done is not None:
            group.dones.append(done)
        if not self._scheduled:
            self._schedule()

    def add_end(self, partition: Committed, end: int, done: Done | None) -> None:
        """What is in memory only, and came with something that is journalled: it counts, or goes, with that."""
        group = self._gathering
        group.ends[partition] = end
        if done is not None:
            group.dones.append(done)
        if not self._scheduled:
            self._schedule()

    def add_sync(self, partition: Committed, end: int, jobs: list[Callable[[], None]], done: Done | None) -> None:
        """Sync segments that hold everything below `end` of the partition."""
        group = self._gathering
        group.syncs += [(partition, job) for job in jobs]
        group.ends[partition] = end
        group.points[partition] = end
        if done is not None:
            group.dones.append(done)
        if not self._scheduled:
            self._schedule()

    def add_note(
        self, kind: Kind, topic: bytes, partition: int, offset: int, data: bytes = b"", epoch: int = 0
    ) -> asyncio.Future[None]:
        """Journal anything else; the future is done when it is durable."""
        group = self._gathering
        group.payload.append(ENTRY.pack(kind, topic, partition, offset, epoch, len(data)) + data)
        group.size += ENTRY.size + len(data)
        group.entries += 1
        return self._future(group)

    @abstractmethod
    def forget_point(self, partition: Committed) -> None:
        """Do not let recovery know of a sync: the partition is about to be truncated."""

    def add_done(self, done: Done) -> None:
        """Call `done` with the flush of everything that is not durable now."""
        self._gathering.dones.append(done)
        if not self._scheduled:
            self._schedule()

    def _future(self, group: Group) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        group.dones.append(done)
        if not self._scheduled:
            self._schedule()
        return future

    def barrier(self) -> asyncio.Future[None]:
        """Done once everything added so far is durable."""
        return self._future(self._gathering)

    def flushed(self) -> asyncio.Future[None]:
        """Done once nothing is gathering and nothing flies."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._flies() and self._gathering.empty():
            future.set_result(None)
        else:
            self._idle.append(future)
        return future

    def _end_idle(self) -> None:
        waiting, self._idle = self._idle, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @abstractmethod
    def _flies(self) -> bool:
        """Whether a group is on its way."""

    @abstractmethod
    def _schedule(self) -> None:
        """Something has gathered: flush it soon."""


class LocalCommitter(Committer):
    """Flushes groups to the journal of a node that is alone, one at a time."""

    def __init__(self, journal: Journal, executor: SerialExecutor, on_void: Callable[[Any], None]) -> None:
        super().__init__(on_void)
        self._journal = journal
        self._executor = executor
        self._flying: Group | None = None
        self._frame: PlacedFrame | None = None
        self._failed_sync: Committed | None = None
        # How many syncs of the flying group have been done.
        self._synced = 0
        # Points reached by direct syncs: the next frame that goes anyway has them for recovery.
        self._notes: dict[Committed, int] = {}
        # A frame whose flush failed may be there, and is the newest: recovery would believe it.
        self._doubtful = False

    def forget_point(self, partition: Committed) -> None:
        self._notes.pop(partition, None)

    def _flies(self) -> bool:
        return self._flying is not None

    def _schedule(self) -> None:
        if self._flying is None:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._flush)
        self._scheduled = True

    def _flush(self) -> None:
        group, self._gathering = self._gathering, Group()
        self._flying = group
        frame = None
        if group.entries or self._doubtful:
            # Where there is no entry, the frame says that the one before it, which failed, is not on the chain. Before
            # anything else is acknowledged, because that may have taken its offsets.
            for partition, point in self._notes.items():
                group.payload.append(ENTRY.pack(Kind.POINT, partition.topic_bytes, partition.index, point, 0, 0))
                group.size += ENTRY.size
                group.entries += 1
            self._notes.clear()
            frame = self._journal.place(group.payload, group.size, group.entries)
        self._frame = frame
        self._failed_sync = None
        if frame is None or group.syncs:
            self._executor.submit(self._write, self._on_flushed)
        else:
            frame.submit(self._executor, self._on_flushed)
        self._scheduled = False

    def _write(self) -> None:
        group, frame = self._flying, self._frame
        assert group is not None
        self._synced = 0
        for partition, job in group.syncs:
            self._failed_sync = partition
            try:
                job()
            except OSError:
                # Its folder went while it was synced: no other partition fails for that.
                if not partition.deleted:
                    raise
            self._synced += 1
        self._failed_sync = None
        if frame is not None:
            frame.write()

    def _on_flushed(self, error: BaseException | None) -> None:
        group, frame = self._flying, self._frame
        assert group is not None
        self._flying = self._frame = None
        if error is not None:
            self._fail(group, frame, error)
        else:
            self.flushes += 1
            self.flushed_bytes += group.size
            if frame is not None:
                self._journal.acknowledged = frame.sequence
                self._doubtful = False
            for partition, end in group.ends.items():
                partition.mark_flushed(end)
            for partition, point in group.points.items():
                partition.mark_synced(point)
                self._notes[partition] = point
            for done in group.dones:
                done(None)
        if not self._gathering.empty():
            self._schedule()
        elif self._idle:
            self._end_idle()

    def _fail(self, group: Group, frame: PlacedFrame | None, error: BaseException) -> None:
        behind, self._gathering = self._gathering, Group()
        self._scheduled = False
        if frame is not None:
            # Also if the frame was not written, since a sync had failed before: recovery does not look behind a hole.
            self._journal.abandon()
            self._doubtful = self._doubtful or (self._failed_sync is None and frame.has_file)
        waiting = behind.syncs
        if self._failed_sync is not None:
            if leaves_doubt(error):
                self._failed_sync.fail(f"a sync of its segment failed: {error}")
            waiting = group.syncs[self._synced + 1 :] + waiting
        # Jobs that were never run hold their files open, and cover data of earlier flushes too.
        for partition, job in waiting:
            self._executor.submit(job, partial(self._on_synced_late, partition))
        reason = StorageFailed(f"the log could not be flushed: {error}")
        for partition in {**group.ends, **behind.ends}:
            self._on_void(partition)
        for done in [*group.dones, *behind.dones]:
            done(reason)

    @staticmethod
    def _on_synced_late(partition: Committed, error: BaseException | None) -> None:
        if error is not None and leaves_doubt(error):
            partition.fail(f"a sync of its segment failed: {error}")
