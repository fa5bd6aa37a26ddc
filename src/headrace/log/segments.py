"""The files of one partition: a folder of segments, the newest of which grows.

Everything here is about bytes and positions; what an offset means to readers and producers is the partition's business
(`partition.py`). Loading is a plain blocking function that returns what it found, so that it can run off the loop;
afterwards the object belongs to the loop alone.
"""

from __future__ import annotations

import errno
from base64 import urlsafe_b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import structlog

from headrace.errors import CorruptLog
from headrace.format.batch import BatchHeader
from headrace.log.epochs import LeaderEpochs
from headrace.log.files import OpenFiles
from headrace.log.interface import AbortedTransaction, Chunk, TopicSettings
from headrace.log.names import segment_bases, segment_path
from headrace.log.places import Place, Places
from headrace.log.producers import ProducerStates
from headrace.log.scan import RELATIVE_MAX
from headrace.log.segment import NoRoomForIndex, Segment, leaves_doubt
from headrace.log.tail import TailBatch
from headrace.runtime.disk import Buffer, Disk

METADATA_FILE = "partition.metadata"
SNAPSHOTS_KEPT = 2
# One look at the end of a range so long speaks for all of it: pages come by read-ahead and go by age, in long runs.
SEEN_BYTES = 1_048_576
# With what is added to it, the name of a folder that is moved aside is as long as a name can be.
ASIDE_NAME_MAX = 235

log = structlog.get_logger("headrace.log")


@dataclass(slots=True)
class Loaded:
    """What was found in a partition's folder."""

    segments: list[Segment] = field(default_factory=list)
    start: int = 0
    end: int = 0
    producers: ProducerStates = field(default_factory=ProducerStates)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    cut: int = 0
    """Bytes of a torn tail that were cut off."""
    epochs_written: bool = True
    """Whether the file of the leader epochs has these."""
    folder_made: bool = False
    snapshot: int = -1
    """The offset of the producer snapshot that was read."""
    unsynced: list[Segment] = field(default_factory=list)
    """Segments that have yet to be synced. Before anybody reads them their batches are; a full disk may not have taken
    an index."""
    waiting: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    """Batches behind `end` that journal or spool have, and a full disk did not take: each with its offset in it."""


def clear_away(disk: Disk, folder: str) -> None:
    """Make way for a new partition's folder. One of that name is what a deleted topic left, if its removal did not
    outlive a power cut, and is removed; one that says of no topic that it is its own is moved aside. Blocks."""
    if not disk.exists(folder):
        return
    if disk.exists(f"{folder}/{METADATA_FILE}") or not disk.listdir(folder):
        disk.remove_tree(folder)
        return
    number = 1
    while disk.exists(aside := f"{folder[:ASIDE_NAME_MAX]}.aside-{number}"):
        number += 1
    disk.rename(folder, aside)
    log.warning("a folder that is no partition's was moved aside", folder=folder, to=aside)


class Segments:
    """The segments of a partition, oldest first."""

    def __init__(self, disk: Disk, files: OpenFiles, folder: str, topic_id: bytes, places: Places) -> None:
        self._disk = disk
        self._files = files
        self._folder = folder
        self._topic_id = topic_id
        self.all: list[Segment] = []
        self._bases: list[int] = []
        # Those that may have an aborted transaction in their index; None: to be found again.
        self._aborting: list[Segment] | None = None
        # The next offset to be stored; everything from here to the partition's end is in memory only.
        self.end = 0
        self._unsynced: list[Segment] = []
        self.folder_made = False
        self._metadata_synced = True
        # Set where the sync runs.
        self._metadata_failed = False
        # The segment of which it is known when it began to grow, for batches without a time.
        self._active_since = -1
        self._active_since_ms = 0
        self._places = places
        self.keeps_snapshots = False
        """Whether old producer snapshots stay: the partition is being copied as of an earlier end."""

    def adopt(self, loaded: Loaded) -> None:
        """Take what `load` found."""
        self.all = loaded.segments
        self._bases = [segment.base for segment in self.all]
        self._aborting = None
        self.end = loaded.end
        self.folder_made = loaded.folder_made
        self._unsynced = list(loaded.unsynced)

    @property
    def first(self) -> int:
        """The lowest offset that is in a file; `end` where there is none."""
        return self._bases[0] if self._bases else self.end

    @property
    def active(self) -> Segment | None:
        return self.all[-1] if self.all else None

    def behind(self, segment: Segment) -> int:
        """Where the segment behind a closed one begins."""
        return self._bases[bisect_right(self._bases, segment.base)]

    @property
    def closed(self) -> Sequence[Segment]:
        return self.all[:-1]

    def before(self, offset: int) -> list[Segment]:
        """The closed segments that lie wholly before an offset."""
        return [segment for segment in self.closed if self.behind(segment) <= offset]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.all)

    @property
    def unsynced(self) -> list[Segment]:
        """Those with something that is not durable."""
        return list(self._unsynced)

    # --- writing ---

    def store_one(
        self,
        base: int,
        last: int,
        batch: Buffer,
        max_timestamp: int,
        settings: TopicSettings,
        now_ms: int,
        on_rolled: Callable[[int], None],
    ) -> None:
        """`store` for a single batch, as they come to a quiet partition or in large."""
        segment = self.all[-1] if self.all else None
        size = len(batch)
        if segment is None or self._must_roll(segment, size, last, max_timestamp, settings, now_ms):
            segment = self._roll(base, settings)
            on_rolled(base)
        if not self._unsynced or self._unsynced[-1] is not segment:
            self._unsynced.append(segment)
        segment.append_one(batch, last, size, max_timestamp)
        self.end = last + 1

    def store(
        self,
        batches: Sequence[TailBatch],
        settings: TopicSettings,
        now_ms: int,
        on_rolled: Callable[[int], None],
    ) -> None:
        """Append batches to the newest segment, rolling as the settings say. On an error, `end` tells how far it
        came."""
        first = 0
        count = len(batches)
        while first < count:
            segment = self.active
            base, ends, data, newest = batches[first]
            if segment is None or self._must_roll(segment, len(data), ends, newest, settings, now_ms):
                segment = self._roll(base, settings)
                on_rolled(base)
            room = settings.segment_bytes - segment.size
            last, taken = first, 0
            while last < count:
                size = len(batches[last][2])
                if last > first and (taken + size > room or batches[last][1] - segment.base > RELATIVE_MAX):
                    break
                taken += size
                last += 1
            run = batches[first:last] if first or last < count else batches
            if not self._unsynced or self._unsynced[-1] is not segment:
                self._unsynced.append(segment)
            segment.append([each[2] for each in run], [(each[0], each[1], len(each[2]), each[3]) for each in run])
            self.end = run[-1][1] + 1
            first = last

    def _must_roll(
        self,
        segment: Segment,
        size: int,
        last: int,
        newest: int,
        settings: TopicSettings,
        now_ms: int,
    ) -> bool:
        """Whether a batch of `size` bytes, up to offset `last` and time `newest`, must begin a new segment."""
        if not segment.size:
            return False
        if segment.size + size > settings.segment_bytes or last - segment.base > RELATIVE_MAX:
            return True
        # As in Kafka a segment's age is told by its records, so that a backfill of old ones does not roll at every
        # batch; only where they carry no time, the clock's counts from when the segment was opened or made.
        first = segment.first_timestamp_ms
        if first >= 0 and newest >= 0:
            return newest - first > settings.roll_ms
        if self._active_since != segment.base:
            self._active_since, self._active_since_ms = segment.base, now_ms
        return now_ms - self._active_since_ms > settings.roll_ms

    def _roll(self, base: int, settings: TopicSettings) -> Segment:
        in_new_folder = not self.folder_made
        if in_new_folder:
            clear_away(self._disk, self._folder)
            self._files.forget_off_loop()
            self._disk.mkdir(self._folder)
            with closing(self._disk.open(f"{self._folder}/{METADATA_FILE}", write=True, create=True)) as metadata:
                metadata.write(0, [metadata_of(self._topic_id)])
            self.folder_made = True
            self._metadata_synced = False
        segment = Segment.create(
            self._disk, self._files, self._folder, base, settings.index_interval_bytes, alone=in_new_folder
        )
        if self.all:
            self.all[-1].seal()
        self.all.append(segment)
        self._bases.append(base)
        return segment

    def roll_now(self, settings: TopicSettings) -> bool:
        """Begin a new segment at the end, so that retention and compaction can have the one that grew so far."""
        if self.active is None or not self.active.size:
            return False
        self._roll(self.end, settings)
        self._unsynced.append(self.all[-1])
        return True

    def cut_back(self, offset: int) -> None:
        """Forget what is stored at or above `offset`. Only the next sync makes that durable."""
        while len(self.all) > 1 and self.all[-1].base >= offset:
            self._remove(self.all[-1])
        if self.all:
            last = self.all[-1]
            last.truncate_to(last.locate(offset))
            if last not in self._unsynced:
                self._unsynced.append(last)
        self.end = min(self.end, offset)

    def whole_before(self, offset: int) -> int:
        """Where the batches end that lie wholly before `offset`. Blocks."""
        segment = self.all[max(bisect_right(self._bases, offset) - 1, 0)]
        stop = segment.locate(offset)
        behind = next(segment.headers(stop), None)
        base = offset if behind is None else min(offset, behind[1].base_offset)
        # From the batch before; but where compaction has left a gap, it is found from the beginning only.
        since = segment.locate(base - 1) if base > segment.base else 0
        end = segment.base
        for _, header in segment.headers(since if since < stop else 0, stop):
            end = header.last_offset + 1
        return end

    def sync_jobs(self, *, gently: bool = False) -> list[Callable[[], None]]:
        """Blocking jobs that make everything stored so far durable. The caller gets all that is not finished:
        another one's jobs may still be on their way. Call `mark_synced` when they are done. `gently`: see `sync_job`.
        """
        jobs = [segment.sync_job(gently=gently) for segment in self._unsynced]
        if jobs and not self._metadata_synced:
            jobs.insert(0, self._sync_metadata)
        return jobs

    def _sync_metadata(self) -> None:
        """Blocks: runs off the loop."""
        path = f"{self._folder}/{METADATA_FILE}"
        if self._metadata_failed:
            # As with a segment: a second sync, already on its way, would succeed and prove nothing.
            raise OSError(errno.EIO, "an earlier sync of this file has failed", path)
        try:
            _sync_file(self._disk, path)
        except OSError as error:
            self._metadata_failed = leaves_doubt(error)
            raise

    def mark_synced(self, point: int) -> None:
        """Everything below `point` is durable."""
        ends = [*self._bases[1:], self.end]
        done = {base for base, end in zip(self._bases, ends, strict=False) if end <= point}
        # One that was begun, or cut back, to `point` while the others were synced has that yet to be made durable.
        self._unsynced = [each for each in self._unsynced if each.base not in done or not each.names_synced]
        self._metadata_synced = self._metadata_synced or bool(done)

    def begin_at(self, offset: int) -> None:
        """Forget everything: the log begins at `offset`. Blocks, until no power cut can bring a segment back."""
        for segment in list(self.all):
            self._remove(segment)
        if self.folder_made:
            self._disk.sync_dir(self._folder)
        self.end = offset

    def _remove(self, segment: Segment) -> None:
        index = self.all.index(segment)
        del self.all[index]
        del self._bases[index]
        self._aborting = None
        if segment in self._unsynced:
            self._unsynced.remove(segment)
        segment.delete()

    def drop(self, segments: Sequence[Segment]) -> int:
        """Delete segments; the bytes that this frees."""
        freed = 0
        for segment in segments:
            freed += segment.size
            self._remove(segment)
        return freed

    def replace(self, removed: Sequence[int], added: Sequence[int], rename: Callable[[], None], interval: int) -> None:
        """Let `rename` put new files, with the bases `added`, in the place of the segments with the bases `removed`."""
        gone = set(removed)
        old = [segment for segment in self.all if segment.base in gone]
        self._unsynced = [segment for segment in self._unsynced if segment.base not in gone]
        # First: a look-up that is under way off the loop must not call a new file damaged.
        for segment in old:
            segment.closed = True
        rename()
        # Behind it: what such a look-up opens up to here may be an old file, and must not be taken for a new one later.
        for segment in old:
            segment.close()
        kept = [segment for segment in self.all if segment.base not in gone]
        new = [Segment.open(self._disk, self._files, self._folder, base, interval) for base in added]
        self.all = sorted([*kept, *new], key=_base)
        self._bases = [segment.base for segment in self.all]
        self._aborting = None

    def write_small(self, name: str, contents: bytes) -> None:
        """Put a small file of the folder in place; torn by a crash, it fails its own check and is made anew."""
        if not self.folder_made:
            return
        path = f"{self._folder}/{name}"
        self._disk.remove(path + ".tmp")
        with closing(self._disk.open(path + ".tmp", write=True, create=True)) as file:
            file.write(0, [contents])
        self._disk.rename(path + ".tmp", path)

    def write_snapshot(self, offset: int, contents: bytes) -> None:
        """Keep a producer snapshot, and the one before it."""
        self.write_small(f"{offset:020d}.snapshot", contents)
        if self.keeps_snapshots:
            return
        for old in segment_bases(self._disk, self._folder, ".snapshot")[:-SNAPSHOTS_KEPT]:
            self._disk.remove(segment_path(self._folder, old, ".snapshot"))

    def drop_snapshots(self, above: int) -> None:
        """Remove the snapshots of a state that did not come to be."""
        for offset in segment_bases(self._disk, self._folder, ".snapshot"):
            if offset > above:
                self._disk.remove(segment_path(self._folder, offset, ".snapshot"))

    def close(self) -> None:
        for segment in self.all:
            segment.close()

    # --- reading ---

    def read(self, offset: int, upto: int, max_bytes: int, at_least_one: bool) -> Chunk:
        """Batches from `offset` on that lie below `upto`, of one segment."""
        index = max(bisect_right(self._bases, offset) - 1, 0)
        while index < len(self.all):
            segment = self.all[index]
            if segment.base >= upto:
                break
            place = self._places.get(segment.number, offset)
            if place is None:
                if segment is not self.all[-1]:
                    return Chunk(cold=partial(self._find_place, segment, offset))
                place = segment.place(offset)
            if place.size:
                return self._cut(index, place, offset, upto, max_bytes, at_least_one)
            index += 1
        return Chunk()

    def _cut(self, index: int, place: Place, offset: int, upto: int, max_bytes: int, at_least_one: bool) -> Chunk:
        """Batches from a place on, in the segment at `index`."""
        segment = self.all[index]
        last = index + 1 == len(self.all)
        position, size, entries, _ = place
        if max_bytes < size:
            if not at_least_one:
                return Chunk()
            max_bytes = size
        available = min(max_bytes, segment.size - position)
        length, before, warm = available, min(upto, self.end if last else self._bases[index + 1]), 0
        behind = segment.boundary(position + available, entries)
        if behind is not None and behind[0] >= position + size and behind[1] <= upto:
            at, before, behind_size, delta, _ = behind
            length = at - position
            if length <= SEEN_BYTES:
                warm = length
            if before + delta < upto:
                self._places.keep(segment.number, before, Place(at, behind_size, entries, offset))
        elif upto < self.end and (last or self._bases[index + 1] > upto):
            # Not all of it may be read yet.
            stable = self._places.get(segment.number, upto)
            if stable is None:
                if not last:
                    return Chunk(cold=partial(self._find_place, segment, upto))
                stable = segment.place(upto)
            length = available = min(available, stable.position - position)
            if length < size:
                return Chunk()
        return Chunk([segment.range(position, length, warm)], length, available, before)

    def _find_place(self, segment: Segment, offset: int) -> None:
        """Look a reader's place up in a closed segment. Blocks: runs off the loop."""
        # Of the segment as it is now: it may be cut meanwhile.
        number = segment.number
        try:
            place = segment.place(offset)
        except FileNotFoundError:
            return  # dropped meanwhile: the next read reports it
        except CorruptLog:
            if not segment.closed:
                raise
            return  # another file has its name by now, of a topic that was made anew, perhaps
        self._places.keep(number, offset, place)

    def batch_start(self, offset: int, length: int) -> bytes:
        """The first bytes of the batch that holds `offset`."""
        segment = self.all[max(bisect_right(self._bases, offset) - 1, 0)]
        return segment.read(segment.locate(offset), length)

    def aborted(self, first: int, last: int) -> list[AbortedTransaction]:
        """The aborted transactions written to the indexes of the segments, that overlap [first, last)."""
        aborting = self._aborting
        if aborting is None:
            aborting = self._aborting = [segment for segment in self.all if segment.may_abort]
        if not aborting:
            return []
        found: list[AbortedTransaction] = []
        # An abort that touches the range has its marker in the range's segments or behind them.
        since = self._bases[max(bisect_right(self._bases, first) - 1, 0)]
        for index in range(bisect_left(aborting, since, key=_base), len(aborting)):
            entries, complete = aborting[index].aborted_entries(first, last)
            found += [AbortedTransaction(*entry[:3]) for entry in entries]
            if complete:
                break
        return found

    def add_aborted(self, producer_id: int, first_offset: int, last_offset: int, last_stable: int) -> None:
        """Remember an aborted transaction in the segment that has its marker: with that, compaction drops both."""
        segment = self.all[max(bisect_right(self._bases, last_offset) - 1, 0)]
        if not segment.may_abort:
            self._aborting = None
        segment.add_aborted(producer_id, first_offset, last_offset, last_stable)


def _base(segment: Segment) -> int:
    return segment.base


def metadata_of(topic_id: bytes) -> bytes:
    """The contents of `partition.metadata`. Kafka writes topic ids in URL-safe base64 without padding."""
    return f"version: 0\ntopic_id: {urlsafe_b64encode(topic_id).decode().rstrip('=')}".encode()


def sync_now(jobs: Iterable[Callable[[], None]]) -> bool:
    """Do all jobs; False if a full disk did not take an index: then all else is durable. Blocks."""
    roomy = True
    for job in jobs:
        try:
            job()
        except NoRoomForIndex:
            roomy = False
    return roomy


def _sync_file(disk: Disk, path: str) -> None:
    with closing(disk.open(path, write=True)) as file:
        file.sync()
