"""The journal of a node in a group: the same frames in the same order on every replica.

A leader appends, a follower stores what its leader sent; both write frames one behind the other, several at a time
while the device is busy, and report how far the device has them. What was stored behind the frames that leader and
follower have in common is cut off again. That changes no file: a later frame names the one before it by epoch and
sequence, so recovery, which walks back from the newest (epoch, sequence), never comes to what was cut off.

The newest frames are in memory for followers that keep up; those further behind read them from the files.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from headrace.errors import CorruptLog
from headrace.log.group_frames import (
    BEGIN,
    HEADER_BYTES,
    NEWEST_VERSION,
    NOTHING,
    GroupFrame,
    Position,
    build,
    group_number,
    header_of,
    is_whole,
    parse,
)
from headrace.log.journal import FOLDER, SUFFIX, Found, FoundFile, Journal, JournalFile, PlacedBytes, write_again
from headrace.runtime import Runtime
from headrace.runtime.disk import Disk, File

# What one write takes at most; frames that come meanwhile make up the next one.
FLIGHT_BYTES = 1 << 20
# What one read from the files takes.
READ_BYTES = 1 << 20
# How many of those who read the files are known by where they are.
CURSORS = 16


class FramesGone(CorruptLog):
    """The journal no longer has frames that a follower asks for: it must copy."""


class FrameDiverges(CorruptLog):
    """A frame does not follow the end of this journal."""


@dataclass(slots=True)
class _Extent:
    """Frames that stand one behind the other in one file."""

    path: str
    position: int
    end: int
    """Where more of them would stand; -1 if none can."""
    first: int
    last: int


class ReplicatedJournal:
    """One replica of a group's journal. On the loop; `on_flushed` is called there with each new end of what the device
    has, `on_failed` once a write failed: nothing is stored from then on until `truncate`."""

    def __init__(
        self,
        runtime: Runtime,
        group: str,
        file_bytes: int,
        memory_bytes: int,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        keep_bytes: int = 1 << 30,
    ) -> None:
        """`keep_bytes`: of files that recovery no longer needs, as many are kept for followers that are behind."""
        self._runtime = runtime
        self._group = group_number(group)
        self._memory_bytes = memory_bytes
        self._keep_bytes = keep_bytes
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self.on_device: Callable[[int], None] = lambda _: None
        """Called on the loop with each new end of what the device has, before anything is committed for it."""
        self._files = Journal(runtime.disk, file_bytes, 1)
        self._executor = runtime.offload.serial_executor("journal")
        self.last = NOTHING
        """The newest frame, which may still be on its way to the device."""
        self.flushed = 0
        """The device has every frame up to this sequence."""
        self.committed = 0
        """Every in-sync replica has every frame up to this sequence. It never falls."""
        self.applied = 0
        """The partitions of this node have every frame up to this sequence: at most `committed`."""
        # Bytes since the last switch of files.
        self._used = 0
        # Where each epoch begins.
        self._epochs: list[Position] = []
        self._extents: list[_Extent] = []
        # The newest frames, the last one's sequence being `last.sequence`.
        self._memory: deque[bytes] = deque()
        self._memory_size = 0
        self._waiting: deque[bytes] = deque()
        self._failed: BaseException | None = None
        # The last sequence of the write under way, and what waits for its end.
        self._flying = 0
        self._flying_since = 0.0
        self.frame_version = NEWEST_VERSION
        """Of frames that this node appends: the feature level of its cluster."""
        self.truncations = 0
        """How often frames were cut off."""
        self._idle: list[asyncio.Future[None]] = []
        # First frames that copies will go on from.
        self._held: list[int] = []
        # Where frames stand that will be read next, by those who read on.
        self._cursors: dict[int, tuple[str, int]] = {}

    # --- opening ---

    async def open(self, since: int = 1, history: Sequence[tuple[int, int]] = ()) -> None:
        """Find what the files have. `since`: the first frame that is needed; everything before it is committed and
        applied. `history`: the epochs of those frames. Raises CorruptLog if a frame is missing between two."""
        self._epochs = [Position(epoch, first) for epoch, first in history if first < since]
        least_epoch = self.epoch_at(since - 1)
        chain = await self._runtime.offload.run(read_chain, self._runtime.disk, self._group, since, least_epoch)
        self._files.inherit(chain.found)
        if chain.frames:
            # They are relied on from now on, and the sync of the last ones may never have been.
            await self._runtime.offload.run(write_again, self._runtime.disk, chain.found)
        self.applied = self.committed = since - 1
        self.last = Position(least_epoch, since - 1)
        for path, position, frame in chain.frames:
            self._extend(path, position, frame.size, frame.sequence, frame.sequence)
            if frame.sequence >= since:
                self._note(frame)
                self._used += frame.size
                self.committed = max(self.committed, min(frame.committed, frame.sequence))
                self.last = frame.position
        self.flushed = self.last.sequence
        self._files.next_sequence = self.last.sequence + 1

    def close(self) -> None:
        """Let go of the files. What is not on its way to the device yet never comes."""
        self._waiting.clear()
        self._executor.close()
        self._files.close()

    # --- what there is ---

    @property
    def first(self) -> int:
        """The oldest sequence that can be read again."""
        in_memory = self.last.sequence - len(self._memory) + 1
        return min(self._extents[0].first, in_memory) if self._extents else in_memory

    def size_since(self, sequence: int) -> int:
        """About how many bytes the frames behind `sequence` have: of those that only the files have, whole files."""
        count = min(self.last.sequence - sequence, len(self._memory))
        size = sum(len(self._memory[-back]) for back in range(1, count + 1))
        in_memory_from = self.last.sequence - len(self._memory) + 1
        older = [each for each in self._extents if each.last > sequence and each.first < in_memory_from]
        if sequence + 1 >= in_memory_from:
            return size
        return size + sum(max(each.end - each.position, 0) for each in older)

    def epoch_at(self, sequence: int) -> int:
        """The epoch of the frame with that sequence, 0 before the first."""
        index = bisect_right(self._epochs, sequence, key=lambda begin: begin.sequence)
        return self._epochs[index - 1].epoch if index else 0

    def ends(self) -> list[Position]:
        """The last frame of each epoch."""
        ends = [Position(each.epoch, after.sequence - 1) for each, after in pairwise(self._epochs)]
        return [*ends, self.last] if self._epochs else []

    def common_end(self, theirs: Sequence[Position]) -> int:
        """The last sequence up to which another replica, of which `theirs` are the ends, has the same frames."""
        mine = dict(self.ends())
        return max((min(last, mine[epoch]) for epoch, last in theirs if epoch in mine), default=0)

    def history(self) -> list[tuple[int, int]]:
        """Each epoch, and the sequence of the first frame in it."""
        return [(epoch, first) for epoch, first in self._epochs]

    # --- checkpoints ---

    @property
    def used(self) -> int:
        """Bytes of frames since the last switch of files."""
        return self._used

    def switch(self, *, roomy: bool = True) -> int:
        """Begin a new file with the next frame; the first frame that is not applied."""
        if not self._flying:
            self._files.switch(roomy=roomy)
        self._used = 0
        return self.applied + 1

    def stay(self) -> None:
        """The checkpoint came to nothing: the file is left all the same, and the next one goes with it."""

    def surplus(self) -> list[tuple[str, int]]:
        """Files are kept for followers, and hold what came between two checkpoints: mostly far less than a whole."""
        return self._files.done()

    def retire(self, before: int) -> list[str]:
        """Frames before `before` are in their segments: the paths of the files that followers may do without too. No
        file is used again, since what a message holds may look like a frame behind the end of new ones."""
        removed = self._files.remove(min([before, *self._held]), self._keep_bytes)
        left = [each for each in self._extents if each.path not in removed]
        # A file that ends in frames which were cut off may stay where newer ones go: nothing is read before a gap.
        gaps = [index for index in range(1, len(left)) if left[index].first != left[index - 1].last + 1]
        self._extents = left[gaps[-1] if gaps else 0 :]
        return removed

    def hold(self, since: int) -> bool:
        """Keep the frames from `since` on, whatever they take, until `release`; False if some are gone already."""
        if since < self.first:
            return False
        self._held.append(since)
        return True

    def release(self, since: int) -> None:
        self._held.remove(since)

    def unprepared(self) -> JournalFile | None:
        return self._files.unprepared()

    def prepare(self, spare: JournalFile) -> None:
        self._files.prepare(spare)

    def use_prepared(self, spare: JournalFile) -> None:
        self._files.use_prepared(spare)

    def give_up(self, spare: JournalFile) -> str:
        return self._files.give_up(spare)

    # --- storing ---

    def append(self, epoch: int, payload: bytes, entries: int, *, begin: bool = False) -> bytes:
        """The leader's next frame, on its way to the device when this returns."""
        sequence, now = self.last.sequence + 1, self._runtime.clock.now_ms()
        flags = BEGIN if begin else 0
        frame = GroupFrame(
            flags, self._group, epoch, sequence, self.last.epoch, now, self.committed, entries, len(payload)
        )
        data = build(frame, payload, self.frame_version)
        self._store(frame, data)
        return data

    def store(self, data: bytes) -> GroupFrame:
        """A frame that the leader sent. Raises CorruptLog, or FrameDiverges if it does not follow the last one."""
        frame = parse(data)
        if frame.group != self._group:
            raise FrameDiverges(f"frame {frame.sequence} is of another group")
        if frame.previous != self.last or frame.epoch < self.last.epoch:
            raise FrameDiverges(f"frame {tuple(frame.position)} does not follow {tuple(self.last)}")
        self._store(frame, data)
        return frame

    def _store(self, frame: GroupFrame, data: bytes) -> None:
        if self._failed is not None:
            raise CorruptLog(f"the journal could not be written: {self._failed}")
        self._note(frame)
        self.last = frame.position
        self._used += len(data)
        self._memory.append(data)
        self._memory_size += len(data)
        while self._memory_size > self._memory_bytes and self.last.sequence - len(self._memory) < self.flushed:
            self._memory_size -= len(self._memory.popleft())
        self._waiting.append(data)
        if not self._flying:
            self._write()

    def _note(self, frame: GroupFrame) -> None:
        if not self._epochs or self._epochs[-1].epoch != frame.epoch:
            self._epochs.append(frame.position)

    def _write(self) -> None:
        frames = [self._waiting.popleft()]
        size = len(frames[0])
        while self._waiting and size + len(self._waiting[0]) <= FLIGHT_BYTES:
            frames.append(self._waiting.popleft())
            size += len(frames[-1])
        self._flying = last = self.last.sequence - len(self._waiting)
        self._flying_since = asyncio.get_running_loop().time()
        placed = self._files.place_bytes(b"".join(frames), last)
        placed.submit(self._executor, partial(self._on_written, placed, size, last - len(frames) + 1, last))

    def _on_written(self, placed: PlacedBytes, size: int, first: int, last: int, error: BaseException | None) -> None:
        self._flying = 0
        if error is not None:
            self._failed = error
            self._files.abandon()
            self._waiting.clear()
        else:
            self._extend(placed.path, placed.position, size, first, last)
            self.flushed = last
            self.on_device(last)
            if self._waiting:
                self._write()
        if not self._flying:
            idle, self._idle = self._idle, []
            for future in idle:
                if not future.done():
                    future.set_result(None)
        if error is not None:
            self._on_failed(error)
        else:
            self._on_flushed(last)

    @property
    def stalled_s(self) -> float:
        """For how long the device has been busy with one write."""
        return asyncio.get_running_loop().time() - self._flying_since if self._flying else 0.0

    def _extend(self, path: str, position: int, size: int, first: int, last: int) -> None:
        newest = self._extents[-1] if self._extents else None
        if newest is not None and newest.path == path and newest.end == position:
            newest.end, newest.last = position + size, last
        else:
            self._extents.append(_Extent(path, position, position + size, first, last))

    def commit(self, sequence: int) -> None:
        """Every in-sync replica has the frames up to `sequence`."""
        self.committed = max(self.committed, min(sequence, self.last.sequence))

    async def truncate(self, sequence: int) -> None:
        """Forget the frames behind `sequence`. Also what makes the journal usable again after a write failed: with what
        was flushed before."""
        while self._flying:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle
        if self._failed is not None:
            sequence = min(sequence, self.flushed)
            self._failed = None
        self.truncations += self.last.sequence > sequence
        while self.last.sequence > sequence:
            if self._memory:
                self._memory_size -= len(self._memory.pop())
            self.last = Position(self.epoch_at(self.last.sequence - 1), self.last.sequence - 1)
        while self._epochs and self._epochs[-1].sequence > sequence:
            self._epochs.pop()
        while self._extents and self._extents[-1].first > sequence:
            self._extents.pop()
        if self._extents and self._extents[-1].last > sequence:
            self._extents[-1].last, self._extents[-1].end = sequence, -1
        self._cursors.clear()
        self.flushed = min(self.flushed, sequence)
        self._files.next_sequence = self.last.sequence + 1

    # --- reading again ---

    def newest(self, since: int) -> list[bytes] | None:
        """The frames from `since` on; None if not all of them are in memory."""
        count = self.last.sequence - since + 1
        if count > len(self._memory):
            return None
        return [self._memory[-back] for back in range(count, 0, -1)]

    async def read(self, since: int, max_bytes: int = READ_BYTES) -> list[bytes]:
        """Frames from `since` on that the device has. Raises FramesGone."""
        index = bisect_right(self._extents, since, key=lambda extent: extent.first) - 1
        if index < 0 or since > self._extents[index].last:
            raise FramesGone(f"frame {since} is not in the journal any more, which has {self.first} to {self.flushed}")
        extent = self._extents[index]
        path, position = self._cursors.pop(since, (extent.path, extent.position))
        if path != extent.path or position < extent.position:
            position = extent.position
        frames, behind = await self._runtime.offload.run(
            _read_extent, self._runtime.disk, extent.path, position, since, extent.last, max_bytes
        )
        if not frames or any(frame.epoch != self.epoch_at(frame.sequence) for frame, _ in frames):
            # Its file has been used again, or the journal was truncated, while it was read.
            raise FramesGone(f"frame {since} was written over")
        if len(self._cursors) >= CURSORS:
            self._cursors.pop(next(iter(self._cursors)))
        self._cursors[since + len(frames)] = extent.path, behind
        return [data for _, data in frames]


def _read_extent(
    disk: Disk, path: str, position: int, since: int, last: int, max_bytes: int
) -> tuple[list[tuple[GroupFrame, bytes]], int]:
    """The frames from `since` to `last` of one file, checked, those before being passed over, and the position behind
    them. Blocks."""
    frames: list[tuple[GroupFrame, bytes]] = []
    size = 0
    with closing(disk.open(path)) as file:
        while size < max_bytes:
            head = file.read(position, HEADER_BYTES)
            frame = header_of(head)
            if frame is None or frame.sequence > last:
                break
            if frame.sequence >= since:
                data = head + file.read(position + HEADER_BYTES, frame.length)
                if not is_whole(data, frame) or frame.sequence != since + len(frames):
                    break
                frames.append((frame, data))
                size += len(data)
            position += frame.size
            if frame.sequence == last:
                break
    return frames, position


@dataclass(frozen=True, slots=True)
class Chain:
    """What recovery finds in the files of a replicated journal."""

    frames: list[tuple[str, int, GroupFrame]]
    """Path, position and header of each frame on the chain of the newest one, oldest first."""
    found: Found


def read_chain(disk: Disk, group: int, since: int, least_epoch: int = 0) -> Chain:
    """The frames that the newest (epoch, sequence) leads back to, down to `since`, and those before it that are still
    there. `least_epoch`: that of the frame before `since`, which all behind it have reached. Blocks. Raises
    CorruptLog."""
    found: dict[Position, tuple[str, int, GroupFrame]] = {}
    files: list[FoundFile] = []
    for name in disk.listdir(FOLDER):
        if not name.endswith(SUFFIX):
            continue
        with closing(disk.open(f"{FOLDER}/{name}")) as file:
            end = last = 0
            # Positions may fall: behind a truncation stand frames of the leader that are older than what was cut off.
            while (frame := _frame_at(file, end)) is not None:
                if frame.group != group:
                    raise CorruptLog(f"{file.path} has a frame of another group: this data directory is not the node's")
                found[frame.position] = file.path, end, frame
                end, last = end + frame.size, max(last, frame.sequence)
            files.append(FoundFile(file.path, end, last))
    chain = []
    at = newest(position for position in found if position.epoch >= least_epoch)
    while at != NOTHING:
        if at not in found:
            if at.sequence < since:
                break  # A checkpoint has made it superfluous.
            raise CorruptLog(f"frame {tuple(at)} is missing from the journal: this replica must be copied anew")
        chain.append(found[at])
        at = found[at][2].previous
    chain.reverse()
    return Chain(chain, Found([], [], files))


def newest(found: Iterable[Position]) -> Position:
    """The frame that recovery goes back from. Not the one with the highest sequence: that may be of an earlier epoch,
    and have been cut off."""
    return max(found, default=NOTHING)


def _frame_at(file: File, position: int) -> GroupFrame | None:
    """The whole frame that stands there, if one does. Blocks."""
    head = file.read(position, HEADER_BYTES)
    frame = header_of(head)
    if frame is None:
        return None
    return frame if is_whole(head + file.read(position + HEADER_BYTES, frame.length), frame) else None
