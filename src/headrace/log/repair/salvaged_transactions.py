"""What became of the transactions of a damaged partition.

The decision over a transaction that may have ended in a gap is lost with it: unless an index of aborted transactions or
a producer snapshot beside the segments has it, a marker in the gap aborts it, and that is reported. Without one,
readers of committed records would go on dropping what its producer wrote later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.errors import CorruptLog, InvalidRecords
from headrace.format.batch import BatchHeader
from headrace.format.markers import control_type
from headrace.log.names import segment_bases, segment_path
from headrace.log.producers import ProducerStates
from headrace.log.repair.salvaged import Found
from headrace.log.txnindex import AbortedEntry
from headrace.log.txnindex import parse as parse_aborted
from headrace.runtime.disk import Disk, read_whole


class Say(Protocol):
    """Notes what is wrong with a partition, and what becomes of it."""

    def __call__(self, what: str, first: int = -1, last: int = -1, *, lost: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class _Begun:
    """An open transaction."""

    first: int
    producer_epoch: int
    records: bool
    """Whether a record of it was seen: compaction leaves batches without."""


class Transactions:
    """The transactions that are open while the batches of a partition pass by, from the oldest to the newest."""

    def __init__(self, disk: Disk, folder: str, point: int, say: Say) -> None:
        self._disk = disk
        self._folder = folder
        self._point = point
        self._say = say
        self._open: dict[int, _Begun] = {}
        self._aborted, self._unreadable = self._read_aborted()
        self._snapshots = self._read_snapshots()
        # Offsets at which snapshots have transactions open: readers of committed records may have to stop there.
        self.starts = {began for _, open_there in self._snapshots for began in open_there.values()}

    def begin(self, header: BatchHeader) -> None:
        """A transactional batch."""
        begun = self._open.get(header.producer_id)
        if begun is None or (header.record_count and not begun.records):
            first = header.base_offset if begun is None else begun.first
            self._open[header.producer_id] = _Begun(first, header.producer_epoch, header.record_count > 0)

    def end(self, segment: Found, header: BatchHeader, batch: bytes) -> None:
        """A marker, which stands in `segment`."""
        try:
            committed, _ = control_type(batch)
        except InvalidRecords:
            return
        producer_id, offset = header.producer_id, header.base_offset
        begun = self._open.pop(producer_id, None)
        if not committed and offset < self._point:
            seen = begun is not None and begun.records
            entry = self._aborted_entry(producer_id, begun.first, offset) if begun is not None and seen else None
            segment.aborts[offset] = (producer_id, entry)

    def _aborted_entry(self, producer_id: int, first: int, marker: int) -> AbortedEntry:
        stable = min((begun.first for begun in self._open.values()), default=marker + 1)
        return AbortedEntry(producer_id, first, marker, stable)

    def _read_aborted(self) -> tuple[dict[int, list[AbortedEntry]], set[int]]:
        """The indexes of aborted transactions by segment, and the segments whose index cannot be read."""
        found: dict[int, list[AbortedEntry]] = {}
        unreadable: set[int] = set()
        for base in segment_bases(self._disk, self._folder, ".txnindex"):
            path = segment_path(self._folder, base, ".txnindex")
            try:
                found[base] = parse_aborted(read_whole(self._disk, path) or b"", path)
            except CorruptLog:
                unreadable.add(base)
        return found, unreadable

    def _read_snapshots(self) -> list[tuple[int, dict[int, int]]]:
        """Offset of each producer snapshot, and the transactions that were open there."""
        found = []
        for offset in segment_bases(self._disk, self._folder, ".snapshot"):
            contents = read_whole(self._disk, segment_path(self._folder, offset, ".snapshot")) or b""
            try:
                active = ProducerStates.load(contents).active()
            except ValueError:
                continue
            found.append((offset, {each.producer_id: each.transaction_start for each in active}))
        return found

    def abort(self, segment: Found, first: int, upto: int, ended: set[int] | None) -> dict[int, tuple[int, int]]:
        """End what ended in a gap of a segment, or may have: offsets of the gap, and the producers (id and epoch) whose
        transactions are aborted there. `ended` has those whose markers were in it; None: unknown."""
        placed: dict[int, tuple[int, int]] = {}
        undecided: list[int] = []
        for producer_id, begun in list(self._open.items()):
            known = self._known_end(producer_id, begun.first)
            if known is not None and first <= known < upto:
                placed[known] = (producer_id, begun.producer_epoch)
            elif (
                known is None
                and (ended is None or producer_id in ended)
                and not self._still_open(producer_id, begun.first, upto)
            ):
                undecided.append(producer_id)
        free = (offset for offset in range(first, upto) if offset not in placed)
        for producer_id in undecided:
            offset, begun = next(free, None), self._open[producer_id]
            named = f"a transaction of producer {producer_id} was open here"
            if offset is None:
                self._say(f"{named}, and stays so until its producer's next marker", begun.first, first - 1)
                continue
            placed[offset] = (producer_id, begun.producer_epoch)
            self._say(
                f"{named}, and its end may be lost: it is aborted (only readers of uncommitted records get it)",
                begun.first, first - 1, lost=True,
            )  # fmt: skip
        for offset in sorted(placed):
            producer_id, _ = placed[offset]
            begun = self._open.pop(producer_id)
            if offset < self._point:
                segment.markers.append(self._aborted_entry(producer_id, begun.first, offset))
        return placed

    def _known_end(self, producer_id: int, first: int) -> int | None:
        """Where a transaction was aborted, as an index of aborted transactions has it."""
        for entries in self._aborted.values():
            for entry in entries:
                if entry.producer_id == producer_id and entry.first_offset <= first < entry.last_offset:
                    return entry.last_offset
        return None

    def _still_open(self, producer_id: int, first: int, upto: int) -> bool:
        """Whether a snapshot behind the gap says that a transaction had not ended in it."""
        return any(offset >= upto and began.get(producer_id) == first for offset, began in self._snapshots)

    def index_of(self, segment: Found, oldest: int) -> tuple[list[AbortedEntry], str]:
        """What the index of aborted transactions must have: what it has, as far as that fits the markers that are
        there (it has no checksum), and what follows from them; and what is wrong with it, if anything is. `oldest` is
        where the first segment begins."""
        known = self._aborted.get(segment.base, [])
        entries = {entry.last_offset: entry for entry in known if self._fits(segment, entry, oldest)}
        for _, expected in segment.aborts.values():
            if expected is not None:
                entries.setdefault(expected.last_offset, expected)
        for made in segment.markers:
            entries.setdefault(made.last_offset, made)
        indexed = [entries[marker] for marker in sorted(entries)]
        if segment.base in self._unreadable:
            return indexed, "cannot be read"
        return indexed, "does not fit the batches" if indexed != known else ""

    def _fits(self, segment: Found, entry: AbortedEntry, oldest: int) -> bool:
        marker = entry.last_offset
        if marker not in segment.aborts:
            same = (made for made in segment.markers if made[:3] == entry[:3])
            return marker >= self._point or any(entry.last_stable <= made.last_stable for made in same)
        producer_id, expected = segment.aborts[marker]
        if expected is None or entry.producer_id != producer_id:
            return entry.producer_id == producer_id
        # It may have begun before the first segment that is there.
        begins = entry.first_offset == expected.first_offset or entry.first_offset < oldest
        return begins and entry.last_stable <= expected.last_stable
