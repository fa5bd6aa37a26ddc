"""What can still be read of a damaged partition, and what must stand in the place of the rest.

One idea makes the result an ordinary log: offsets that are lost are *filled*. An empty batch that spans them (as
compaction leaves where it took every record of a batch) keeps each segment ending where the next begins, and every
reader crosses it already. So both sides of a gap stay, no offset is given out twice, and what groups, queues and
producers know by offsets stays true. Only what is lost before the first batch moves the start instead.

A file is believed batch by batch. Behind one that is broken it goes on where the next stands by the broken one's own
length, or by the segment's index; never by a search for what looks like a batch, which a client can write into a
message. What becomes of transactions that may have ended in a gap is in `salvaged_transactions.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from headrace.format.batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    header_at,
)
from headrace.log.frames import Entry
from headrace.log.index import OffsetIndex
from headrace.log.names import segment_bases, segment_path
from headrace.log.repair.salvaged import (
    Found,
    Given,
    Kept,
    Row,
    Salvage,
    abort_marker,
    filler,
    pieces_until,
    targets_of,
)
from headrace.log.repair.salvaged_transactions import Transactions
from headrace.log.repair.verify import problem_of
from headrace.log.replay import Promised
from headrace.log.scan import RELATIVE_MAX, SCAN_BYTES, checksum, walk
from headrace.runtime.disk import Disk, File


@dataclass(slots=True)
class _Broken:
    """A part of a file that cannot be read."""

    problem: str
    ended: set[int] | None = field(default_factory=set)
    """The producers whose markers were in it; None: unknown."""


class Salvager:
    """Looks at one partition, from its oldest segment to its newest."""

    def __init__(
        self, disk: Disk, folder: str, start: int, point: int, kept: Sequence[Promised], live: Sequence[Promised]
    ) -> None:
        """`kept` are the batches of a journal that was set aside, `live` those of one that the next start replays."""
        self._disk = disk
        self._folder = folder
        self._start = start
        self._point = point
        self._kept = kept
        self._live = live
        self._result = Salvage(start=start, point=point)
        self._segments: list[Found] = []
        # Epoch and time of the last good batch.
        self._before: tuple[int, int] | None = None
        # Batches above the recovery point: base -> (segment, position, header as it stands).
        self._above: dict[int, tuple[Found, int, bytes]] = {}
        self._transactions = Transactions(disk, folder, point, self._say)

    def look(self) -> Salvage:
        """What is there, what is lost, and how to go on. Blocks; changes nothing."""
        result = self._result
        there = segment_bases(self._disk, self._folder)
        bases = list(there)
        while len(bases) > 1 and bases[1] <= self._start:
            bases.pop(0)
        if self._start < self._point and (not bases or bases[0] > self._start):
            found = f"the first segment is {bases[0]:020d}.log" if bases else "there is no segment"
            result.start = min(bases[0], self._point) if bases else self._point
            self._lose(self._start, result.start - 1, f"{found}: the log begins behind them")
        if bases and bases[0] > max(result.start, self._point):
            # Above the recovery point later segments may outlive earlier ones; the broker drops them.
            bases = []
        for number, base in enumerate(bases):
            if self._segments and base != self._segments[-1].end:
                break
            self._look_at(base, bases[number + 1] if number + 1 < len(bases) else None)
            if self._segments[-1].torn:
                break
        if bases and self._before is None and result.start < self._point:
            result.rows = []
            self._lose(self._start, self._point - 1, "no batch can be read: the log begins behind them")
            result.nothing, result.start, self._segments = True, self._point, []
        self._go_on(there)
        self._write_segments()
        return result

    # --- reading ---

    def _look_at(self, base: int, following: int | None) -> None:
        segment = Found(base, segment_path(self._folder, base, ".log"), end=base)
        self._segments.append(segment)
        with closing(self._disk.open(segment.path)) as file:
            broken = self._walk(file, segment, following)
        synced = following is not None and following <= self._point
        needed = following if synced and following is not None else self._point
        if segment.end < needed and needed > base:
            if broken is None and segment.end > base:
                # What is there stays as it is; what is missing gets a segment of its own.
                segment = Found(segment.end, segment_path(self._folder, segment.end, ".log"), end=segment.end)
                self._segments.append(segment)
            segment.broken = True
            self._fill(segment, needed, broken or _Broken("they are in no file", None))
        elif broken is not None and synced:
            segment.broken = True
            self._say(f"{segment.path}: {broken.problem}; no offset is lost with it")
        else:
            segment.torn = broken is not None

    def _walk(self, file: File, segment: Found, following: int | None) -> _Broken | None:
        """Take the good batches of a file; what is broken behind the last of them, if anything is."""
        size = file.size()
        hints = OffsetIndex(self._disk, segment_path(self._folder, segment.base, ".index"), new=False).entries()
        position = 0
        broken: _Broken | None = None
        while position < size:
            problem = "it is cut off, or not a batch"
            for at, buffer, index in walk(file, position, size, SCAN_BYTES):
                header = header_at(buffer, index)
                found = problem_of(file, at, header, buffer, index, segment.base, segment.end)
                found = found or self._misplaced(file, at, header, segment.end, following)
                if found is not None:
                    position, problem = at, found
                    break
                if broken is not None:
                    segment.broken = True
                    self._fill(segment, header.base_offset, broken, header)
                    broken = None
                self._take(segment, at, header, file, buffer[index : index + HEADER_BYTES])
                position = at + header.size
            if position >= size:
                break
            broken = broken or _Broken(problem)
            if segment.end >= self._point:
                break  # the first one that is broken ends the log
            resumed = _resume(file, position, size, segment, following, hints, broken)
            if resumed is None:
                broken.ended = None
                break
            position = resumed
        return broken

    def _misplaced(self, file: File, at: int, header: BatchHeader, end: int, following: int | None) -> str | None:
        """What is wrong with the offset of a batch, which its checksum does not cover."""
        stands = f"the batch at position {at} stands at offset {header.base_offset}"
        if following is not None and header.last_offset >= following:
            return f"{stands} and reaches over {following}, where the next segment begins"
        if end < self._point <= header.last_offset:
            return f"{stands} and reaches over {self._point}, up to which the segment had been synced"
        if header.base_offset > end:
            after = _header(file, at + header.size)
            if after is not None and after.magic == MAGIC and end <= after.base_offset <= header.last_offset:
                return f"{stands}, and the next at {after.base_offset}"
        return None

    def _take(self, segment: Found, position: int, header: BatchHeader, file: File, head: bytes) -> None:
        last = segment.pieces[-1] if segment.pieces else None
        if isinstance(last, Kept) and last.end == position:
            last.end = position + header.size
        else:
            segment.pieces.append(Kept(segment.path, position, position + header.size))
        segment.end = header.last_offset + 1
        self._before = (header.leader_epoch, header.max_timestamp)
        if header.last_offset >= self._point:
            self._above[header.base_offset] = (segment, position, head)
        if header.producer_id >= 0 and header.is_control:
            self._transactions.end(segment, header, file.read(position, header.size))
        elif header.producer_id >= 0 and header.is_transactional:
            self._transactions.begin(header)

    # --- gaps ---

    def _fill(self, segment: Found, upto: int, broken: _Broken, after: BatchHeader | None = None) -> None:
        """Let a segment go on at `upto`, behind what is lost; `after` is the batch that stands there."""
        first = segment.end
        if max(first, self._start) < upto:
            self._lose(max(first, self._start), upto - 1, f"{segment.path}: {broken.problem}")
        else:
            self._say(f"{segment.path}: {broken.problem}; no offset is lost with it")
        epoch, timestamp = self._before or ((after.leader_epoch, after.max_timestamp) if after else (0, -1))
        markers = self._transactions.abort(segment, first, upto, broken.ended)
        for offset in sorted(markers):
            segment.pieces += self._filled(first, offset - 1, epoch, timestamp)
            producer_id, producer_epoch = markers[offset]
            segment.pieces.append(Given(abort_marker(offset, epoch, timestamp, producer_id, producer_epoch)))
            first = offset + 1
        segment.pieces += self._filled(first, upto - 1, epoch, timestamp)
        segment.end = max(segment.end, upto)

    def _filled(self, first: int, last: int, epoch: int, timestamp: int) -> Iterator[Given]:
        """Empty batches over a range of offsets, none of them longer than a batch may be. One begins wherever readers
        of committed records may have to stop: before a transaction that began in the gap and is open."""
        stops = self._transactions.starts
        for stop in [*sorted(stop for stop in stops if first < stop <= last), last + 1]:
            while first < stop:
                end = min(stop - 1, first + RELATIVE_MAX)
                yield Given(filler(first, end, epoch, timestamp))
                first = end + 1

    # --- behind the segments ---

    def _go_on(self, there: Sequence[int]) -> None:
        """Put behind the segments what only a journal has. One that the next start replays is left to it, unless it
        needs a gap to be filled."""
        result = self._result
        floor = max(self._point, result.start)
        end = segments_end = self._segments[-1].end if self._segments else floor
        added: list[Entry] = []
        needed = False
        for number, (entry, journalled) in enumerate([*self._kept, *self._live]):
            kept = number < len(self._kept)
            last = entry.offset + header_at(entry.data).last_offset_delta
            known = self._above.get(entry.offset)
            if last < floor or (last < end and known is not None and known[2] == entry.data[:HEADER_BYTES]):
                continue
            if entry.offset > max(end, floor) and not journalled:
                continue
            # Where there is another batch, it is what a failed flush left: the journal is right.
            while added and added[-1].offset >= entry.offset:
                added.pop()
            needed |= kept or entry.offset > max(end, floor)
            added.append(entry)
            end = last + 1
        if not needed or not added:
            return
        if added[0].offset < segments_end:
            self._cut(added[0].offset)
        elif self._segments and self._segments[-1].torn:
            self._segments[-1].broken, self._segments[-1].torn = True, False
        self._say(f"{len(added)} batches are taken from the journal", added[0].offset, end - 1)
        base = min(added[0].offset, max(segments_end, floor))
        segment = Found(base, segment_path(self._folder, base, ".log"), end=base, broken=True)
        if self._segments and self._segments[-1].base == base:
            self._segments.pop()
        self._segments.append(segment)
        for entry in added:
            if entry.offset > segment.end:
                self._fill(segment, entry.offset, _Broken("they are in no file, and the journal goes on", None))
            header = header_at(entry.data)
            segment.pieces.append(Given(entry.data))
            segment.end = header.last_offset + 1
            self._before = (header.leader_epoch, header.max_timestamp)
            if header.producer_id >= 0 and header.is_control:
                self._transactions.end(segment, header, entry.data)
            elif header.producer_id >= 0 and header.is_transactional:
                self._transactions.begin(header)
        # What else stands there is above the recovery point and was not acknowledged: the broker would drop it.
        result.removed = [each for each in there if each > base]

    def _cut(self, offset: int) -> None:
        """Let the segments end before `offset`."""
        while self._segments and self._segments[-1].base >= offset:
            self._segments.pop()
        if self._segments:
            segment = self._segments[-1]
            beyond = [
                position
                for owner, position, head in self._above.values()
                if owner is segment and header_at(head).last_offset >= offset
            ]
            if beyond:
                segment.pieces = list(pieces_until(segment.pieces, min(beyond)))
                segment.broken, segment.torn = True, False

    # --- what is to be written ---

    def _write_segments(self) -> None:
        for segment in self._segments:
            entries, wrong = self._transactions.index_of(segment, self._segments[0].base)
            if segment.broken:
                self._result.targets += targets_of(segment, entries)
            elif wrong:
                path = segment_path(self._folder, segment.base, ".txnindex")
                self._say(f"{path}, the index of aborted transactions, {wrong}: it is made anew from them")
                self._result.aborted[segment.base] = entries

    def _lose(self, first: int, last: int, what: str) -> None:
        self._result.rows.append(Row(self._folder, what, first, last, lost=True))

    def _say(self, what: str, first: int = -1, last: int = -1, *, lost: bool = False) -> None:
        self._result.rows.append(Row(self._folder, what, first, last, lost=lost))


def _plausible(header: BatchHeader, position: int, size: int, end: int, following: int | None) -> bool:
    """Whether a batch may stand there, whatever became of its records."""
    return (
        header.magic == MAGIC
        and HEADER_BYTES <= header.size <= size - position
        and header.base_offset >= end
        and header.last_offset_delta >= 0
        and (following is None or header.last_offset < following)
    )


def _header(file: File, position: int) -> BatchHeader | None:
    head = file.read(position, HEADER_BYTES)
    return header_at(head) if len(head) == HEADER_BYTES else None


def _resume(
    file: File,
    position: int,
    size: int,
    segment: Found,
    following: int | None,
    hints: Sequence[tuple[int, int]],
    broken: _Broken,
) -> int | None:
    """Where the next batch stands behind a broken one; None: unknown."""
    header = _header(file, position)
    if header is not None and _plausible(header, position, size, segment.end, following):
        behind = position + header.size
        after = _header(file, behind)
        if behind == size or (after is not None and _plausible(after, behind, size, header.last_offset + 1, following)):
            if header.is_control and broken.ended is not None:
                broken.ended.add(header.producer_id)
            return behind
    for relative, hint in hints:
        if hint <= position or hint >= size:
            continue
        for at, buffer, index in walk(file, hint, size):
            found = header_at(buffer, index)
            if (
                at == hint
                and found.last_offset - segment.base == relative
                and _plausible(found, hint, size, segment.end, following)
                and found.crc == checksum(file, hint, found, buffer, index)
            ):
                broken.ended = None
                return hint
            break
    return None
