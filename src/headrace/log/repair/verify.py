"""Reading a partition's files without trusting them, for `headrace log verify` on a stopped data directory.

`verify` finds everything that can be wrong with bytes: cut or damaged batches, offsets that do not grow, indexes that
point past what they mean, snapshots that cannot be read. `expectations` reads what the checkpoint and the journal know
of each partition, against which `verify` finds what is missing as a whole. Nothing is changed. A finding that the
broker repairs by itself at its next start (a torn tail of the newest segment, a broken index) is a warning; anything
else has lost data.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from headrace.errors import CorruptLog, DataDirectoryInvalid
from headrace.format.batch import HEADER_BYTES, MAGIC, BatchHeader, header_at
from headrace.log import checkpoint, search_index
from headrace.log import journal as journals
from headrace.log.epochs import FILE_NAME, LeaderEpochs
from headrace.log.frames import Kind
from headrace.log.index import OFFSET_ENTRY, OffsetIndex
from headrace.log.interface import Durability
from headrace.log.journal import read_frames
from headrace.log.names import SEARCH_SUFFIX, segment_bases, segment_path
from headrace.log.producers import ProducerStates
from headrace.log.scan import RELATIVE_MAX, SCAN_BYTES, checksum, walk
from headrace.log.segments import METADATA_FILE, metadata_of
from headrace.log.settings import LogSettings
from headrace.log.swap import CLEANED, DELETED, LIST_NAME
from headrace.log.timeindex import TIME_ENTRY, TimeIndex
from headrace.log.txnindex import parse as parse_aborted
from headrace.runtime.disk import Disk, File, read_whole

# What a batch may unpack to where its search index is looked at.
SEARCH_MAX_BYTES = LogSettings().decompressed_max_bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    path: str
    position: int
    """Where in the file; -1 where that says nothing."""
    problem: str
    warning: bool = False
    """The broker repairs it by itself and loses nothing that was acknowledged."""

    def __str__(self) -> str:
        where = f" at position {self.position}" if self.position >= 0 else ""
        return f"{self.path}{where}: {self.problem}"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch and where it was found."""

    path: str
    position: int
    header: BatchHeader
    fits: bool
    """Whether its checksum does."""


def dump(disk: Disk, folder: str) -> Iterator[StoredBatch]:
    """All whole batches of a partition, by their headers, damaged or not."""
    for base in segment_bases(disk, folder):
        path = segment_path(folder, base, ".log")
        with closing(disk.open(path)) as file:
            for position, buffer, at in walk(file, 0, file.size(), SCAN_BYTES):
                header = header_at(buffer, at)
                fits = header.magic == MAGIC and header.crc == checksum(file, position, header, buffer, at)
                yield StoredBatch(path, position, header, fits)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the checkpoint and the journal know of a partition: from `start` to `point` everything had been synced."""

    start: int
    point: int
    topic: bytes = b""
    """The topic's id."""


def expectations(disk: Disk) -> tuple[dict[str, Expected], list[Finding]]:
    """What the checkpoint and the journal know, by folder; and what is wrong with them."""
    try:
        found = checkpoint.load(disk)
    except DataDirectoryInvalid as error:
        return {}, [Finding(checkpoint.PATH, -1, str(error))]
    if found is None:
        missing = "is missing: a broker that starts here would not know of any topic"
        return {}, [Finding(checkpoint.PATH, -1, missing)]
    journal = read_frames(disk, found.journal_from)
    findings = [
        Finding(journals.FOLDER, -1, f"frame {sequence} cannot be read, though later ones can")
        for sequence in journal.lost
    ]
    if not disk.exists(journals.FOLDER) and not disk.exists(checkpoint.CLEAN_PATH):
        findings.append(Finding(journals.FOLDER, -1, journals.MISSING))
    known = {
        (topic.id.bytes, index): (f"{topic.name}-{index}", start, point)
        for topic in found.topics
        if topic.settings.durability is not Durability.MEMORY
        for index, (start, point) in enumerate(topic.partitions)
    }
    for entry in (entry for frame in journal.frames for entry in frame.entries()):
        if entry.kind is Kind.CATALOGUE:
            change = json.loads(entry.data)
            if change["op"] == "delete":
                gone = UUID(hex=change["id"]).bytes
                known = {key: value for key, value in known.items() if key[0] != gone}
        elif entry.kind is Kind.START and (key := (entry.topic, entry.partition)) in known:
            folder, start, point = known[key]
            known[key] = folder, max(start, entry.offset), point
        elif entry.kind is Kind.TRUNCATE and (key := (entry.topic, entry.partition)) in known:
            folder, start, point = known[key]
            known[key] = folder, start, min(point, entry.offset)
    return {folder: Expected(start, point, key[0]) for key, (folder, start, point) in known.items()}, findings


def verify(disk: Disk, folder: str, expected: Expected | None = None) -> Iterator[Finding]:
    """All that is wrong with a partition's files."""
    bases = segment_bases(disk, folder)
    start, point = (expected.start, expected.point) if expected is not None else (0, 0)
    if start < point and (not bases or bases[0] > start):
        first = f"begins at offset {bases[0]}" if bases else "has no segment"
        yield Finding(folder, -1, f"{first}, but the checkpoint knows offsets {start} to {point}")
    if bases:
        # Where nothing was synced yet, the broker makes the folder anew.
        unsynced = expected is not None and start >= point
        metadata = read_whole(disk, f"{folder}/{METADATA_FILE}")
        if metadata is None:
            missing = "is missing: the broker does not take the folder for its topic's"
            yield Finding(f"{folder}/{METADATA_FILE}", -1, missing, warning=unsynced)
        elif expected is not None and expected.topic and metadata != metadata_of(expected.topic):
            yield Finding(f"{folder}/{METADATA_FILE}", -1, "names another topic than the checkpoint", warning=unsynced)
    for name in disk.listdir(folder):
        if name.endswith((CLEANED, DELETED)) or name == LIST_NAME:
            yield Finding(f"{folder}/{name}", -1, "left by a compaction that was cut short", warning=True)
        elif name.endswith(".snapshot"):
            yield from _verify_snapshot(disk, f"{folder}/{name}")
    end = bases[0] if bases else 0
    for base in bases:
        path = segment_path(folder, base, ".log")
        if base < end:
            yield Finding(path, -1, f"begins before offset {end}, where the last one ends")
        elif base > max(end, start):
            # Above the recovery point a power cut can take a segment and leave a later one, of which nothing was
            # acknowledged.
            yield Finding(
                path,
                -1,
                f"begins behind offset {end}, where the last one ends",
                warning=expected is not None and base > point,
            )
        end = yield from _verify_segment(disk, folder, base, newest=base == bases[-1])
    if bases and end < point and start < point:
        yield Finding(folder, -1, f"ends at offset {end}, but the checkpoint knows offsets {start} to {point}")
    contents = read_whole(disk, f"{folder}/{FILE_NAME}")
    if contents is not None:
        try:
            LeaderEpochs.load(contents)
        except ValueError as error:
            yield Finding(f"{folder}/{FILE_NAME}", -1, str(error))


def _verify_segment(disk: Disk, folder: str, base: int, *, newest: bool) -> Generator[Finding, None, int]:
    """Findings about one segment; the generator returns the offset behind its last good batch."""
    path = segment_path(folder, base, ".log")
    offsets = _EntryCheck(OffsetIndex(disk, segment_path(folder, base, ".index"), new=False).entries())
    times = _EntryCheck(TimeIndex(disk, segment_path(folder, base, ".timeindex"), new=False).entries())
    with closing(disk.open(path)) as file:
        size = file.size()
        end, reached = base, 0
        for position, buffer, at in walk(file, 0, size, SCAN_BYTES):
            header = header_at(buffer, at)
            problem = problem_of(file, position, header, buffer, at, base, end)
            if problem is not None:
                yield Finding(path, position, problem)
            if header.magic != MAGIC:
                break
            relative = header.last_offset - base
            offsets.meet(position, relative)
            times.meet(relative, header.max_timestamp)
            end, reached = max(end, header.last_offset + 1), position + header.size
    if reached < size:
        what = "is cut off" if size - reached < HEADER_BYTES else "is cut off, or not a batch"
        yield Finding(path, reached, f"what stands in the last {size - reached} bytes {what}", warning=newest)
    yield from _verify_entries(disk, segment_path(folder, base, ".index"), offsets, OFFSET_ENTRY.size)
    yield from _verify_entries(disk, segment_path(folder, base, ".timeindex"), times, TIME_ENTRY.size)
    wrong = search_index.verify(disk, folder, base, SEARCH_MAX_BYTES)
    if wrong is not None:
        yield Finding(segment_path(folder, base, SEARCH_SUFFIX), -1, wrong, warning=True)
    aborted = segment_path(folder, base, ".txnindex")
    try:
        parse_aborted(read_whole(disk, aborted) or b"", aborted)
    except CorruptLog as error:
        yield Finding(aborted, -1, str(error))
    return end


class _EntryCheck:
    """Whether the entries of an index mean batches that are there, told while the batches pass by in order."""

    def __init__(self, entries: list[tuple[int, int]]) -> None:
        self._entries = entries
        self._next = 0
        self.wrong = sum(before[0] >= after[0] or before[1] > after[1] for before, after in pairwise(entries))

    def meet(self, place: int, value: int) -> None:
        """A batch: an entry with this `place` must have this `value`."""
        entries = self._entries
        while self._next < len(entries) and entries[self._next][1] <= place:
            self.wrong += entries[self._next] != (value, place)
            self._next += 1

    @property
    def left(self) -> int:
        """Entries behind the last batch."""
        return len(self._entries) - self._next


def _verify_entries(disk: Disk, path: str, check: _EntryCheck, size: int) -> Iterator[Finding]:
    contents = read_whole(disk, path)
    if contents is not None and len(contents) % size:
        yield Finding(path, -1, f"{len(contents)} bytes are not a multiple of {size}", warning=True)
    if check.wrong:
        yield Finding(path, -1, f"{check.wrong} entries mean batches that are not there", warning=True)
    if check.left:
        yield Finding(path, -1, f"{check.left} entries lie behind the last batch", warning=True)


def _verify_snapshot(disk: Disk, path: str) -> Iterator[Finding]:
    try:
        ProducerStates.load(read_whole(disk, path) or b"")
    except ValueError as error:
        yield Finding(path, -1, str(error), warning=True)


def problem_of(
    file: File, position: int, header: BatchHeader, buffer: bytes, at: int, base: int, end: int
) -> str | None:
    """What is wrong with a batch of the segment from `base`, before which offset `end` was reached."""
    if header.magic != MAGIC:
        return f"the batch has format {header.magic}, not {MAGIC}"
    if header.crc != checksum(file, position, header, buffer, at):
        return f"the batch from offset {header.base_offset} fails its checksum"
    if header.base_offset < end:
        return f"the batch begins at offset {header.base_offset}, but {end} was reached before"
    if header.last_offset_delta < 0 or header.last_offset - base > RELATIVE_MAX:
        return f"the batch ends at offset {header.last_offset}, too far from the segment's {base}"
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return f"the batch has {header.record_count} records for {header.last_offset_delta + 1} offsets"
    return None
