"""Group commit in a group of nodes: what is gathered becomes a frame, and counts once the frame is committed.

Frames do not wait for each other: one is handed to the group's journal two turns of the loop after its first entry,
while those before it are still on their way to the devices and the other replicas. They are committed in their order.
When the leadership ends, all that is not committed is void here: whether it counts is for the next leader to decide,
and comes back as frames of the journal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.errors import CorruptLog, NotLeading
from headrace.log.commit import Committed, Committer, Group
from headrace.log.frames import Kind
from headrace.log.interface import Done

# Hands a payload of so many entries to the group's journal; the sequence of the frame.
Submit = Callable[[bytes, int], int]


class ReplicatedCommitter(Committer):
    """Gathers groups while this node leads, and completes them as their frames are committed."""

    def __init__(self, on_void: Callable[[Any], None], on_uncommitted: Callable[[], None]) -> None:
        """`on_uncommitted`: called when `uncommitted_bytes` has changed by a frame."""
        super().__init__(on_void)
        self._on_uncommitted = on_uncommitted
        self._submit: Submit | None = None
        self._flying: deque[tuple[int, Group]] = deque()
        # Of what gathers and of each frame: what is to be called once this node has it.
        self._gathering_local: list[Done] = []
        self._local: deque[tuple[int, list[Done]]] = deque()
        self._last = 0
        self._committed = 0
        self.uncommitted_bytes = 0
        """Of frames that are not committed yet."""
        self.is_paused = False
        """Whether nothing more is taken, while the leadership is handed over."""

    @property
    def leads(self) -> bool:
        """Whether frames may be made."""
        return self._submit is not None

    def lead(self, submit: Submit, committed: int) -> None:
        """This node leads from now on: everything up to `committed` is applied."""
        self._submit = submit
        self._last = self._committed = committed

    def end(self, error: NotLeading) -> None:
        """This node leads no more: nothing that is not committed counts here."""
        self._submit = None
        flying, self._flying = self._flying, deque()
        gathering, self._gathering = self._gathering, Group()
        self._void([*(group for _, group in flying), gathering], error)
        local = [self._gathering_local, *(dones for _, dones in self._local)]
        self._gathering_local = []
        self._local.clear()
        for done in [done for dones in local for done in dones]:
            done(error)
        self.uncommitted_bytes = 0
        self._end_idle()

    def complete(self, sequence: int) -> None:
        """Every frame up to `sequence` is committed."""
        self._committed = max(self._committed, sequence)
        while self._flying and self._flying[0][0] <= self._committed:
            _, group = self._flying.popleft()
            self.flushes += 1
            self.flushed_bytes += group.size
            self.uncommitted_bytes -= group.size
            for partition, end in group.ends.items():
                partition.mark_flushed(end)
            for done in group.dones:
                done(None)
        self._on_uncommitted()
        if self._idle and not self._flying and self._gathering.empty():
            self._end_idle()

    def when_flushed(self, done: Done, flushed: int) -> bool:
        """Call `done` once this node has all that came until now; True if it has: it has the frames up to `flushed`."""
        if not self._gathering.empty():
            self._gathering_local.append(done)
        elif self._last <= flushed:
            return True
        else:
            self._local.append((self._last, [done]))
        return False

    def note_flushed(self, sequence: int) -> None:
        """This node has every frame up to `sequence`."""
        while self._local and self._local[0][0] <= sequence:
            _, dones = self._local.popleft()
            for done in dones:
                done(None)

    def add_note(
        self, kind: Kind, topic: bytes, partition: int, offset: int, data: bytes = b"", epoch: int = 0
    ) -> asyncio.Future[None]:
        self._check()
        return super().add_note(kind, topic, partition, offset, data, epoch)

    def add_done(self, done: Done) -> None:
        self._check()
        super().add_done(done)

    def barrier(self) -> asyncio.Future[None]:
        self._check()
        return super().barrier()

    def forget_point(self, partition: Committed) -> None:
        """Recovery points are never journalled in a group."""

    def _check(self) -> None:
        if self._submit is None or self.is_paused:
            raise NotLeading("this node does not lead its group, or hands its leadership over")

    def _flies(self) -> bool:
        return bool(self._flying)

    def _schedule(self) -> None:
        self._scheduled = True
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        group, self._gathering = self._gathering, Group()
        local, self._gathering_local = self._gathering_local, []
        if self._submit is None or group.empty():
            # The leadership ended, and what had gathered was answered then.
            return
        if group.entries:
            try:
                self._last = self._submit(b"".join(group.payload), group.entries)
            except (CorruptLog, NotLeading) as error:
                # The journal could not be written, or this process did not run: this node is about to step down.
                reason = NotLeading(str(error))
                self._void([*(flying for _, flying in self._flying), group], reason)
                self._flying.clear()
                for done in local:
                    done(reason)
                return
            group.payload.clear()
        self._flying.append((self._last, group))
        if local:
            self._local.append((self._last, local))
        self.uncommitted_bytes += group.size
        if self._last <= self._committed:
            self.complete(self._committed)
        else:
            self._on_uncommitted()

    def _void(self, groups: list[Group], error: NotLeading) -> None:
        for partition in {partition: None for group in groups for partition in group.ends}:
            self._on_void(partition)
        for group in groups:
            for done in group.dones:
                done(error)
