"""Key compaction: of the records with the same key only the last stays.

As in Kafka's log cleaner, a run has two passes. The first reads the dirty part (what was appended since the last run)
and remembers the last offset of each key. The second rewrites all closed segments up to there, leaving out what a later
record replaced. Offsets never change, so readers cross gaps; a batch keeps its base offset and its last offset delta.

- A tombstone (a key without a value) and a transaction's marker stay for `delete_retention_ms` after the first run that
  saw nothing else of them left. That time, the delete horizon, is written into the batch.
- Records of aborted transactions go at once, their marker once nothing before it needs it.
- The newest batch of each producer stays, without records if need be: its sequence number is needed. Where a power cut
  could take that one, the last below it stays too. So does the last batch of each segment: every segment ends where
  the next begins, and what does not was lost.

`clean` runs in a worker process and only writes files beside the old ones; `headrace.log.swap` puts them in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

from headrace.errors import AppendRefused, CorruptLog, InvalidRecords
from headrace.format import records
from headrace.format.batch import (
    DELETE_HORIZON,
    HEADER_BYTES,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
    BatchHeader,
    crc_fits,
    header_at,
)
from headrace.format.markers import control_type
from headrace.log.files import OpenFiles
from headrace.log.interface import TopicSettings
from headrace.log.names import segment_path
from headrace.log.producers import ProducerStates
from headrace.log.scan import RELATIVE_MAX
from headrace.log.segment import Segment
from headrace.log.swap import CLEANED, Group, discard
from headrace.log.txnindex import AbortedEntry
from headrace.runtime.disk import Disk

READ_BYTES = 1 << 20
WRITE_BYTES = 1 << 20
DIGEST_BYTES = 16
# About 200 bytes a key in the worker process.
KEYS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """A closed segment to be rewritten."""

    base: int
    size: int
    end: int
    """Where the next segment begins."""


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """What a run shall do. Complete in itself, because it is sent to another process."""

    sources: tuple[Source, ...]
    """All closed segments from the start of the log up to the end of the run."""
    first_dirty: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval: int
    max_bytes: int
    """The most that one batch may unpack to."""
    producers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """See `ProducerStates.newest`."""
    settled: int = 1 << 63
    """No power cut takes anything from below this."""
    aborted: tuple[AbortedEntry, ...] = ()
    """Aborted transactions that overlap the sources, wherever their markers are."""
    keys_max: int = KEYS_MAX

    @property
    def end(self) -> int:
        return self.sources[-1].end


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a run has done."""

    groups: tuple[Group, ...] = ()
    clean_up_to: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    broken: tuple[int, str] | None = None
    """The base of a segment that cannot be read, and why. Nothing is swapped then, and the file is left as it is."""

    @property
    def removed(self) -> list[int]:
        """The bases of the old segments."""
        return [base for group in self.groups for base in group.bases]

    @property
    def added(self) -> list[int]:
        """The bases of the new ones."""
        return [group.base for group in self.groups]


def plan(
    segments: Sequence[Segment],
    settings: TopicSettings,
    now_ms: int,
    cleaned_up_to: int,
    last_stable: int,
    producers: ProducerStates,
    max_bytes: int,
    settled: int,
) -> CleanPlan | None:
    """What compaction of a partition should do now, or None if it is not worth it. `segments` are all of the
    partition's; the last one grows and is left alone, as is everything from `last_stable` on. No power cut takes
    anything from below `settled`."""
    sources: list[Source] = []
    clean_bytes = dirty_bytes = 0
    overdue = False
    for segment, after in pairwise(segments):
        if after.base > last_stable:
            break
        if settings.min_compaction_lag_ms > 0 and segment.max_timestamp > now_ms - settings.min_compaction_lag_ms:
            break
        sources.append(Source(segment.base, segment.size, after.base))
        if after.base <= cleaned_up_to:
            clean_bytes += segment.size
            continue
        dirty_bytes += segment.size
        first = segment.first_timestamp_ms
        overdue |= first >= 0 and now_ms - first > settings.max_compaction_lag_ms
    if not dirty_bytes:
        return None
    if not overdue and dirty_bytes / (clean_bytes + dirty_bytes) <= settings.min_cleanable_dirty_ratio:
        return None
    first, end = sources[0].base, sources[-1].end
    aborted = {entry for segment in segments for entry in segment.aborted_entries(first, end)[0]}
    return CleanPlan(
        sources=tuple(sources),
        first_dirty=max(first, min(cleaned_up_to, end)),
        now_ms=now_ms,
        delete_retention_ms=settings.delete_retention_ms,
        segment_bytes=settings.segment_bytes,
        index_interval=settings.index_interval_bytes,
        max_bytes=max_bytes,
        producers=producers.newest(),
        settled=settled,
        aborted=tuple(sorted(aborted, key=lambda entry: entry.first_offset)),
    )


def clean(disk: Disk, folder: str, plan: CleanPlan) -> Cleaned:
    """Write the compacted segments beside the old ones and sync them. Blocks and computes: for a worker process."""
    files = OpenFiles(disk, 16)
    discard(disk, folder)
    try:
        run = _Run(disk, files, folder, plan)
        run.learn_keys()
        groups = [run.rewrite(group) for group in run.groups()]
        disk.sync_dir(folder)
    except BrokenSource as broken:
        discard(disk, folder)
        return Cleaned(broken=(broken.base, broken.reason))
    except OSError:
        discard(disk, folder)
        raise
    finally:
        files.close()
    return Cleaned(tuple(groups), run.clean_up_to, run.bytes_before, run.bytes_after)


class BrokenSource(CorruptLog):
    """A segment cannot be compacted because it cannot be read."""

    def __init__(self, base: int, reason: str) -> None:
        super().__init__(reason)
        self.base = base
        self.reason = reason


class Transactions:
    """Which batches belong to aborted transactions, as the log is read in order."""

    def __init__(self, aborted: Sequence[AbortedEntry]) -> None:
        # By first offset, the next one last.
        self._ahead = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborting: dict[int, AbortedEntry] = {}
        self._seen_aborting: set[int] = set()
        self._seen_committing: set[int] = set()

    def _advance(self, offset: int) -> None:
        while self._ahead and self._ahead[-1].first_offset <= offset:
            entry = self._ahead.pop()
            self._aborting.setdefault(entry.producer_id, entry)

    def drops(self, header: BatchHeader) -> bool:
        """Whether a batch of records was aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborting:
            self._seen_aborting.add(header.producer_id)
            return True
        self._seen_committing.add(header.producer_id)
        return False

    def ends(self, header: BatchHeader, batch: bytes) -> tuple[bool, AbortedEntry | None]:
        """Whether a control batch has nothing left that needs it, and the aborted transaction to be indexed, if any."""
        self._advance(header.last_offset)
        if header.record_count == 0:
            return True, None
        try:
            committed, _ = control_type(batch)
        except InvalidRecords:
            return False, None  # not a transaction's marker
        producer_id = header.producer_id
        if committed:
            needed = producer_id in self._seen_committing
            self._seen_committing.discard(producer_id)
            return not needed, None
        entry = self._aborting.pop(producer_id, None)
        if entry is None or producer_id not in self._seen_aborting:
            return True, None
        self._seen_aborting.discard(producer_id)
        return False, entry


class _Run:
    """One run over one partition."""

    def __init__(self, disk: Disk, files: OpenFiles, folder: str, plan: CleanPlan) -> None:
        self._disk = disk
        self._files = files
        self._folder = folder
        self._plan = plan
        self._last: dict[bytes, int] = {}
        # Producer id -> last offset of its last batch in the dirty part.
        self._numbered: dict[int, int] = {}
        self.clean_up_to = plan.first_dirty
        self.bytes_before = self.bytes_after = 0
        self._transactions = Transactions(plan.aborted)
        # Where the segment that is being written ends.
        self._target_end = 0

    # --- the first pass ---

    def learn_keys(self) -> None:
        """Remember the last offset of each key of the dirty part, as far as memory allows."""
        plan, last = self._plan, self._last
        # A transaction that ended before has its marker there: nothing would take it out of the way again.
        transactions = Transactions([entry for entry in plan.aborted if entry.last_offset >= plan.first_dirty])
        for source in plan.sources:
            if source.end <= plan.first_dirty:
                continue
            for header, batch in self._batches(source):
                if header.last_offset < plan.first_dirty:
                    continue
                if last and len(last) + header.record_count > plan.keys_max:
                    return
                if header.is_control:
                    transactions.ends(header, batch)
                elif not transactions.drops(header):
                    for offset, key, _ in self._keys(source, batch):
                        if key is not None and offset >= plan.first_dirty:
                            last[digest(key)] = offset
                if header.producer_id >= 0 and not header.is_control:
                    self._numbered[header.producer_id] = header.last_offset
                self.clean_up_to = header.last_offset + 1
            self.clean_up_to = source.end

    # --- the second pass ---

    def groups(self) -> Iterator[list[Source]]:
        """Neighbours that fit into one segment, up to where the keys are known."""
        group: list[Source] = []
        for source in self._plan.sources:
            if source.base >= self.clean_up_to:
                break
            if group and (
                sum(each.size for each in group) + source.size > self._plan.segment_bytes
                or source.end - 1 - group[0].base > RELATIVE_MAX
            ):
                yield group
                group = []
            group.append(source)
        if group:
            yield group

    def rewrite(self, group: list[Source]) -> Group:
        """Write the new segment for a group of old ones."""
        base = group[0].base
        self._target_end = group[-1].end
        target = Segment.create(self._disk, self._files, self._folder, base, self._plan.index_interval, CLEANED)
        buffers: list[bytes | bytearray] = []
        entries: list[tuple[int, int, int, int]] = []
        waiting = 0
        for source in group:
            self.bytes_before += source.size
            for header, batch in self._batches(source):
                kept = self._retained(source, header, batch, target)
                if kept is None:
                    continue
                # The largest time may have gone with its record.
                newest = header_at(kept).max_timestamp if kept is not batch else header.max_timestamp
                buffers.append(kept)
                entries.append((header.base_offset, header.last_offset, len(kept), newest))
                waiting += len(kept)
                if waiting >= WRITE_BYTES:
                    target.append(buffers, entries)
                    buffers, entries, waiting = [], [], 0
        if buffers:
            target.append(buffers, entries)
        target.sync_job(gently=True)()
        if self._disk.exists(segment_path(self._folder, base, ".txnindex")):
            # The new index must take the place of the old one even if it has nothing to say.
            self._disk.open(segment_path(self._folder, base, ".txnindex" + CLEANED), write=True, create=True).close()
        self.bytes_after += target.size
        target.close()
        return Group(tuple(source.base for source in group))

    def _retained(self, source: Source, header: BatchHeader, batch: bytes, target: Segment) -> bytes | bytearray | None:
        """What stays of a batch."""
        plan = self._plan
        horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        passed = horizon is not None and horizon <= plan.now_ms
        new_horizon = None
        if header.is_control:
            unneeded, aborted = self._transactions.ends(header, batch)
            if aborted is not None:
                target.add_aborted(*aborted)
            drop = unneeded and passed
            keep = bytearray([not drop]) * header.record_count
            if unneeded and horizon is None:
                new_horizon = plan.now_ms + plan.delete_retention_ms
        elif self._transactions.drops(header):
            keep = bytearray(header.record_count)
        elif header.base_offset >= self.clean_up_to:
            return batch
        else:
            keep, tombstones = self._kept(source, batch, passed)
            if tombstones and horizon is None:
                new_horizon = plan.now_ms + plan.delete_retention_ms
        if header.record_count == 0 or not any(keep):
            if not self._must_stay(header):
                return None
            # A marker says nothing once it is empty, and is hardly larger with its record.
            return batch if header.is_control or header.record_count == 0 else records.empty(batch)
        if all(keep) and new_horizon is None:
            return batch
        return records.retain(batch, keep, plan.max_bytes, new_horizon)

    def _kept(self, source: Source, batch: bytes, horizon_passed: bool) -> tuple[bytearray, bool]:
        """One byte a record, 1 for those that stay, and whether there are tombstones among these."""
        last, limit = self._last, self.clean_up_to
        keep = bytearray()
        tombstones = False
        for offset, key, tombstone in self._keys(source, batch):
            if offset >= limit:
                stays = True
            elif key is None or last.get(digest(key), -1) > offset:
                stays = False
            else:
                stays = not (tombstone and horizon_passed)
            tombstones |= stays and tombstone
            keep.append(stays)
        return keep, tombstones

    def _must_stay(self, header: BatchHeader) -> bool:
        """Whether the batch is needed even without records."""
        if header.last_offset + 1 == self._target_end:
            return True
        newest = self._plan.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if newest is None:
            return False
        epoch, offset = newest
        if offset >= self._plan.settled:
            # It may be lost, and then the last one from before it counts: in the part that was compacted already that
            # is one of those that were left, and behind the keys that are known it may be any.
            last = self._numbered.get(header.producer_id, header.last_offset)
            return header.last_offset >= last and not header.is_control
        return header.last_offset == offset if offset >= 0 else header.is_control and header.producer_epoch == epoch

    # --- reading ---

    def _keys(self, source: Source, batch: bytes) -> list[tuple[int, bytes | None, bool]]:
        try:
            return records.keys(batch, self._plan.max_bytes)
        except AppendRefused as error:
            raise BrokenSource(source.base, str(error)) from error

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, bytes]]:
        """All batches of a segment, whole and checked. Raises BrokenSource."""
        path = segment_path(self._folder, source.base, ".log")
        file = self._files.get(path)
        file.pin()
        try:
            position, buffer, at = 0, b"", 0
            while position < source.size:
                size = HEADER_BYTES
                if len(buffer) - at >= PREFIX_BYTES:
                    size = max(size, PREFIX.unpack_from(buffer, at)[1] + PREFIX_BYTES)
                if size > source.size - position:
                    raise BrokenSource(source.base, f"the batch at position {position} of {path} is cut off")
                if len(buffer) - at < size:
                    buffer, at = file.read(position, min(max(size, READ_BYTES), source.size - position)), 0
                    if len(buffer) < size:
                        raise BrokenSource(source.base, f"{path} ends before position {position + size}")
                    continue
                header = header_at(buffer, at)
                if header.magic != MAGIC or header.size != size or not crc_fits(buffer, at, header):
                    raise BrokenSource(source.base, f"the batch at position {position} of {path} fails its checksum")
                yield header, buffer[at : at + size]
                position += size
                at += size
        finally:
            file.unpin()


def digest(key: bytes) -> bytes:
    """What stands for a key in memory: itself while it is shorter than a digest, so that the two never mix."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
