"""Opening a partition's folder: what is there, what of it counts, and what it says of producers and epochs.

One idea decides everything: below the recovery point all was synced, so whatever does not fit there is damage, is
reported, and is left as it is; above it anything may be missing or torn, and the first batch that does not fit ends the
log. The functions here block and run off the loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise

from headrace.errors import PartitionOffline
from headrace.format.batch import BatchHeader, crc_fits, header_at
from headrace.format.markers import control_type
from headrace.log import swap
from headrace.log.epochs import FILE_NAME, LeaderEpochs
from headrace.log.files import OpenFiles
from headrace.log.interface import TopicSettings
from headrace.log.names import orphans, segment_bases, segment_path
from headrace.log.producers import ProducerStates
from headrace.log.segment import Segment
from headrace.log.segments import METADATA_FILE, Loaded, clear_away, metadata_of
from headrace.runtime.disk import Disk, read_whole


def load(
    disk: Disk,
    files: OpenFiles,
    folder: str,
    topic_id: bytes,
    settings: TopicSettings,
    start: int,
    point: int,
    clean: bool,
    cut: int = -1,
) -> Loaded:
    """Open a partition's folder; recover it from its recovery point on, where the last stop was not clean. What was
    recovered has yet to be synced. `cut`: the log was to end there, and may reach further. Blocks."""
    if read_whole(disk, f"{folder}/{METADATA_FILE}") != metadata_of(topic_id):
        if point > start:
            raise PartitionOffline(
                f"{folder}: the checkpoint knows offsets {start} to {point}, but the folder is not this topic's"
            )
        # What a deleted topic of the same name left, or a folder that was never synced.
        clear_away(disk, folder)
        return Loaded(start=max(start, point), end=max(start, point), epochs_written=clean)
    if not clean:
        # It may be in the page cache only, and from here on it is relied on. Written again, because a sync of it may
        # have failed: the next one then means nothing.
        _write_again(disk, f"{folder}/{METADATA_FILE}", metadata_of(topic_id))
    swap.finish_swaps(disk, folder)
    bases = segment_bases(disk, folder)
    found = Loaded(start=start, end=point, epochs_written=clean, folder_made=True)
    try:
        found.epochs = LeaderEpochs.load(read_whole(disk, f"{folder}/{FILE_NAME}") or b"")
    except ValueError:
        pass  # torn by a power cut: the batches carry their epochs
    found.segments = [Segment.open(disk, files, folder, base, settings.index_interval_bytes) for base in bases]
    if 0 <= cut <= start:
        _drop_all(found, start)
    if not found.segments:
        if point > start:
            raise PartitionOffline(
                f"{folder}: the checkpoint knows offsets {start} to {point}, but there is no segment"
            )
        found.start = max(start, point)
    else:
        _check_synced(folder, found.segments, start, point, clean=clean)
        if clean:
            _complete_epochs(found, point)
        else:
            _recover(folder, found, start, point)
            if found.end < start:
                _drop_all(found, start)
        found.start = max(start, found.segments[0].base) if found.segments else max(start, point)
    # Its file may be ahead of the batches, too.
    found.epochs.truncate_end(found.end)
    if not clean:
        # Here, where no segment is missing that may be put back.
        for path in orphans(disk, folder):
            # A crash came between the removal of a segment and that of its indexes.
            disk.remove(path)
    rebuild_producers(disk, folder, found, found.end if clean else point)
    return found


def _check_synced(folder: str, segments: Sequence[Segment], start: int, point: int, *, clean: bool) -> None:
    """Whether the segments reach from the start to the recovery point. Each ends where the next begins, compacted ones
    too; what does not was lost. Looks at the end of each, which its index knows."""
    if point <= start:
        return
    if segments[0].base > start:
        raise PartitionOffline(
            f"{folder}: the checkpoint knows offsets {start} to {point}, "
            f"but the first segment is {segments[0].base:020d}.log"
        )
    for segment, after in pairwise(segments):
        if start < after.base <= point and segment.last_offset() + 1 != after.base:
            raise PartitionOffline(
                f"{folder}: the segment {segment.base:020d}.log ends before offset {after.base}, where the next begins"
            )
    if clean and segments[-1].base < point and segments[-1].last_offset() + 1 != point:
        raise PartitionOffline(
            f"{folder}: the segment {segments[-1].base:020d}.log does not end at offset {point}, as the checkpoint says"
        )


def _recover(folder: str, found: Loaded, start: int, point: int) -> None:
    """Above the recovery point the first bad batch ends the log; below it everything must be there."""
    # Segments before the start had been removed, but a power cut can bring back any of them.
    while len(found.segments) > 1 and found.segments[1].base <= start:
        found.segments.pop(0).delete()
    bases = [segment.base for segment in found.segments]
    if bases[0] > max(start, point):
        # Later segments outlived earlier ones: nothing in them was acknowledged.
        _drop_all(found, max(start, point))
        return
    index = max(bisect_right(bases, point) - 1, 0)
    first = found.segments[index]
    if first.base < point:
        before = first.locate(point - 1)
        if next(first.headers(before), None) is None:
            if point <= start:
                # A removed segment came back, and the one behind it is lost: all of it lies before the start.
                _drop_all(found, start)
                return
            raise PartitionOffline(
                f"{folder}: the segment {first.base:020d}.log ends before offset {point}, "
                "up to which it had been synced"
            )
        last = first.batch_at(before)
        if not crc_fits(last, 0, header_at(last)):
            raise PartitionOffline(
                f"{folder}: the batch before offset {point} of {first.base:020d}.log does not fit its checksum, "
                "although it had been synced"
            )
        if before == first.locate(point):
            raise PartitionOffline(
                f"{folder}: a batch of {first.base:020d}.log reaches over offset {point}, "
                "up to which it had been synced"
            )
    end = max(point, first.base)
    found.epochs.truncate_end(end)
    _complete_epochs(found, point)

    def seen(header: BatchHeader) -> None:
        nonlocal end
        end = header.last_offset + 1
        # The file of the epochs may be older than the batches, which carry theirs.
        if header.leader_epoch != found.epochs.latest:
            found.epochs.assign(header.leader_epoch, header.base_offset)

    for segment in found.segments[index:]:
        # A segment that does not begin where the last one ended outlived data that did not: nothing in it was
        # acknowledged.
        if segment is not first and (segment.base != end or found.cut):
            found.cut += segment.size
            found.segments.remove(segment)
            segment.delete()
            continue
        found.cut += segment.recover(segment.locate(point) if segment is first and segment.base < point else 0, seen)
    found.unsynced = found.segments[index:]
    found.end = end


def _drop_all(found: Loaded, end: int) -> None:
    """Nothing of what is there counts: the log is empty and goes on at `end`."""
    for segment in found.segments:
        found.cut += segment.size
        segment.delete()
    found.segments, found.unsynced, found.end = [], [], end


def _complete_epochs(found: Loaded, point: int) -> None:
    """The epochs below the recovery point, from the batches: the file is never synced, and may be older than they
    are."""
    below = [segment for segment in found.segments if segment.base < point]
    if not below:
        return
    last = below[-1]
    newest = next((header.leader_epoch for _, header in last.headers(last.locate(point - 1))), -1)
    if newest == found.epochs.latest:
        return
    found.epochs = LeaderEpochs()
    for segment in below:
        for _, header in segment.headers():
            if header.base_offset >= point:
                return
            if header.leader_epoch != found.epochs.latest:
                found.epochs.assign(header.leader_epoch, header.base_offset)


def rebuild_producers(disk: Disk, folder: str, found: Loaded, synced: int) -> None:
    """Producer state: the newest snapshot that fits, and the batch headers behind it. Up to `synced` the indexes of
    aborted transactions are whole; behind it they are made anew from the batches. Blocks."""
    snapshots: list[tuple[int, ProducerStates]] = []
    for offset in reversed(segment_bases(disk, folder, ".snapshot")):
        path = segment_path(folder, offset, ".snapshot")
        if offset > found.end:
            # Of a state that a power cut took back. If the removal were undone, a later log would fit its offset.
            disk.remove(path)
            disk.sync_dir(folder)
            continue
        try:
            states = ProducerStates.load(read_whole(disk, path) or b"")
        except ValueError:
            disk.remove(path)
            continue
        if states.first_unstable() is not None:
            # Only what was decided is compacted, and then the markers go. An old snapshot may know of neither.
            states.end_before(swap.read_checkpoint(disk, folder))
        snapshots.append((offset, states))
        if offset <= synced:
            break
    since, found.producers = snapshots[0] if snapshots else (found.start, ProducerStates())
    found.snapshot = since if snapshots else -1
    if snapshots and since > synced:
        # The newest snapshot says what is open, but not what was aborted between the recovery point and itself.
        older = (found.start, ProducerStates()) if snapshots[-1][0] > synced else snapshots[-1]
        _fold(found, older[1], older[0], since)
    _fold(found, found.producers, since, found.end)


def _fold(found: Loaded, producers: ProducerStates, since: int, upto: int) -> None:
    """Take the batches from `since` up to `upto` into the state that the producers had before them."""
    for index, segment in enumerate(found.segments):
        if index + 1 < len(found.segments) and found.segments[index + 1].base <= since:
            continue
        for position, header in segment.headers(segment.locate(since) if segment.base < since else 0):
            if header.base_offset >= upto:
                return
            if header.producer_id >= 0:
                learn(producers, header, partial(segment.batch_at, position), segment)


def learn(
    producers: ProducerStates, header: BatchHeader, batch: Callable[[], bytes], segment: Segment | None
) -> tuple[int, int, int] | None:
    """Take a stored batch of an idempotent producer into the producer state; the transaction that it aborted, if
    any."""
    if not header.is_control:
        producers.update(header)
        return None
    committed, coordinator_epoch = control_type(batch())
    ended = producers.end_transaction(header, committed, coordinator_epoch)
    if ended is None or committed:
        return None
    if segment is not None:
        segment.add_aborted(*ended, stable_after(producers, header))
    return ended


def stable_after(producers: ProducerStates, header: BatchHeader) -> int:
    """The last stable offset once the transaction that ended with this marker is out of the way."""
    unstable = producers.first_unstable()
    return header.last_offset + 1 if unstable is None else unstable


def _write_again(disk: Disk, path: str, contents: bytes) -> None:
    with closing(disk.open(path, write=True)) as file:
        file.write(0, [contents])
        file.sync()
