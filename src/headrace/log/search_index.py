"""The search index of a segment (`.search`): which batches may hold a term.

A file is a head (whose topic it is, which fields it has) and blocks, one behind the other, each over some megabytes of
the segment; so it grows with a segment that grows. A block has an entry of eight bytes for each term of a batch, the
digest of the term and the batch's position, sorted. As digests lie anywhere, the page of one is nearly known from the
digest itself: a look-up reads a block's head and a page of it.

The index is a hint and never synced, so nothing in it is believed unchecked: each head and each page carries its
checksum, and a block names its topic and the last batch that it speaks of, which must stand in the segment. Blocks are
made of what the recovery point of the checkpoint covers, and what goes back behind that takes its blocks along. What
an index does not speak of is read batch by batch; what it leads to is compared with what was asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import AppendRefused
from headrace.format.batch import HEADER_BYTES, MAGIC, BatchHeader, header_at
from headrace.format.terms import ANY, Collector
from headrace.log.local import Question
from headrace.log.names import SEARCH_SUFFIX, segment_path
from headrace.log.scan import walk
from headrace.runtime.disk import Disk, File

# Magic, topic id, length of the fields' text, which follows, and then a checksum.
_HEAD = Struct(">8s16sH")
_HEAD_MAGIC = b"HRSRCH\0\1"
# Magic, positions and offsets between which it speaks, oldest and newest time, position and checksum of the last batch,
# number of entries, and how many of them are of batches with too many terms; then a checksum.
_BLOCK = Struct(">4sIIqqqqIIII")
_BLOCK_MAGIC = b"BLK\1"
_CRC = Struct(">I")
BLOCK_HEAD_BYTES = _BLOCK.size + _CRC.size
# A checksum and up to so many entries.
PAGE_ENTRIES = 511
PAGE_BYTES = 4 + PAGE_ENTRIES * 8
# A block ends with the batch that fills it to this: 2 MiB of entries, 30 MiB of memory while it is made.
BLOCK_ENTRIES = 262_144
FIELDS_BYTES_MAX = 1_024
READ_BYTES = 1 << 20


class DamagedIndex(Exception):
    """An index does not fit its checksums, or its segment, from position `at` on: that is to be made anew."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.at = at


class Block(NamedTuple):
    """The head of a block, and where in the file its pages begin."""

    pages_at: int
    begin: int
    end: int
    """Positions in the segment."""
    first: int
    after: int
    """Offsets: where the block before ends, or the segment begins; and behind the last batch."""
    oldest: int
    newest: int
    last_position: int
    last_crc: int
    entries: int
    crowded: int

    @property
    def at(self) -> int:
        """Where the block begins."""
        return self.pages_at - BLOCK_HEAD_BYTES

    @property
    def pages_bytes(self) -> int:
        return -(-self.entries // PAGE_ENTRIES) * 4 + self.entries * 8


@dataclass(frozen=True, slots=True)
class Contents:
    """What an index holds, as far as its heads are sound."""

    fields: tuple[str, ...]
    blocks: list[Block]
    end: int
    """Where the next block goes."""


def read_contents(file: File, topic_id: bytes) -> Contents | None:
    """The heads of an index; None where it is none of this topic. Blocks."""
    size = file.size()
    head = file.read(0, min(size, _HEAD.size + FIELDS_BYTES_MAX + _CRC.size))
    if len(head) < _HEAD.size + _CRC.size:
        return None
    magic, topic, length = _HEAD.unpack_from(head)
    end = _HEAD.size + length
    if magic != _HEAD_MAGIC or topic != topic_id or len(head) < end + _CRC.size:
        return None
    if _CRC.unpack_from(head, end)[0] != crc32c(head[:end]):
        return None
    fields = tuple(head[_HEAD.size : end].decode().split(","))
    at, blocks = end + _CRC.size, []
    for block in _blocks(file, at, size):
        blocks.append(block)
        at = block.pages_at + block.pages_bytes
    return Contents(fields, blocks, at)


def _blocks(file: File, at: int, size: int) -> Iterator[Block]:
    position, offset = 0, -1
    while size - at >= BLOCK_HEAD_BYTES:
        head = file.read(at, BLOCK_HEAD_BYTES)
        if len(head) < BLOCK_HEAD_BYTES or _CRC.unpack_from(head, _BLOCK.size)[0] != crc32c(head[: _BLOCK.size]):
            return
        magic, *fields = _BLOCK.unpack_from(head)
        block = Block(at + BLOCK_HEAD_BYTES, *fields)
        at = block.pages_at + block.pages_bytes
        if magic != _BLOCK_MAGIC or block.begin != position or at > size or (offset >= 0 and block.first != offset):
            return
        yield block
        position, offset = block.end, block.after


# --- building ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BuildJob:
    """A segment whose index is to be brought up to date. Complete in itself, because it is sent to another process."""

    folder: str
    base: int
    upto: int
    """The position up to which it may go."""
    is_sealed: bool
    """The segment ends there: what is left makes a block, however small."""
    topic_id: bytes
    fields: tuple[str, ...]
    block_bytes: int
    max_bytes: int
    """The most that a batch may unpack to."""

    @property
    def path(self) -> str:
        return segment_path(self.folder, self.base, SEARCH_SUFFIX)


def reached(disk: Disk, folder: str, base: int, topic_id: bytes, fields: Sequence[str]) -> int:
    """The position up to which the index of a segment speaks of all these fields. Blocks."""
    try:
        file = disk.open(segment_path(folder, base, SEARCH_SUFFIX))
    except FileNotFoundError:
        return 0
    with closing(file):
        contents = read_contents(file, topic_id)
    if contents is None or not contents.blocks or not set(fields) <= set(contents.fields):
        return 0
    return contents.blocks[-1].end


def build(disk: Disk, jobs: Sequence[BuildJob]) -> list[int]:
    """Bring indexes up to date: how far each is then. Blocks and computes: for a worker process."""
    return [_build(disk, job) for job in jobs]


def _build(disk: Disk, job: BuildJob) -> int:
    try:
        log = disk.open(segment_path(job.folder, job.base, ".log"))
    except FileNotFoundError:
        return 0  # its topic was deleted
    with closing(log), closing(disk.open(job.path, write=True, create=True)) as file:
        contents = read_contents(file, job.topic_id)
        if contents is None or not set(job.fields) <= set(contents.fields):
            contents = _begin(file, job)
        at = contents.end
        if file.size() > at:
            file.truncate(at)
        position, offset = (contents.blocks[-1].end, contents.blocks[-1].after) if contents.blocks else (0, job.base)
        for head, pages in _made_blocks(log, job, contents.fields, position, offset):
            file.write(at, [head, *pages])
            at += len(head) + sum(map(len, pages))
            position = _BLOCK.unpack_from(head)[2]
    return position


def _begin(file: File, job: BuildJob) -> Contents:
    text = ",".join(job.fields).encode()
    head = _HEAD.pack(_HEAD_MAGIC, job.topic_id, len(text)) + text
    file.truncate(0)
    file.write(0, [head + _CRC.pack(crc32c(head))])
    return Contents(job.fields, [], len(head) + _CRC.size)


def _made_blocks(
    log: File, job: BuildJob, fields: Sequence[str], position: int, offset: int
) -> Iterator[tuple[bytes, list[bytes]]]:
    """The blocks from a position on, as far as they are due: head and pages of each."""
    collector = Collector(fields)
    begin, first = position, offset
    last: tuple[int, BatchHeader] | None = None
    for at, header, batch in _batches(log, position, job.upto):
        if not header.is_control:
            try:
                collector.add(batch, job.max_bytes, at)
            except AppendRefused:
                pass  # no reader can read it either
        last = at, header
        if at + header.size - begin >= job.block_bytes or collector.count >= BLOCK_ENTRIES:
            yield _block(collector, begin, first, last)
            begin, first, last = at + header.size, header.last_offset + 1, None
    if last is not None and job.is_sealed:
        yield _block(collector, begin, first, last)


def _batches(log: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader, bytes]]:
    for at, buffer, index in walk(log, position, end, READ_BYTES):
        header = header_at(buffer, index)
        if header.magic != MAGIC:
            return
        batch = buffer[index : index + header.size]
        if len(batch) < header.size:
            # Control batches are small, and large ones are read once more.
            batch += log.read(at + len(batch), header.size - len(batch))
        yield at, header, batch


def _block(collector: Collector, begin: int, first: int, last: tuple[int, BatchHeader]) -> tuple[bytes, list[bytes]]:
    oldest, newest, crowded = collector.oldest, collector.newest, collector.crowded
    entries = collector.take()
    at, header = last
    head = _BLOCK.pack(
        *(_BLOCK_MAGIC, begin, at + header.size, first, header.last_offset + 1, oldest, newest, at, header.crc),
        *(len(entries), crowded),
    )
    pages = []
    for start in range(0, len(entries), PAGE_ENTRIES):
        page = entries[start : start + PAGE_ENTRIES]
        packed = Struct(f">{len(page)}Q").pack(*page)
        pages += [_CRC.pack(crc32c(packed)), packed]
    return head + _CRC.pack(crc32c(head)), pages


def cut(disk: Disk, folder: str, base: int, position: int) -> None:
    """Forget, durably, the blocks that speak of what is behind a position: the segment was cut there, or nothing behind
    it is certain. Blocks."""
    try:
        file = disk.open(segment_path(folder, base, SEARCH_SUFFIX), write=True)
    except FileNotFoundError:
        return
    with closing(file):
        head = file.read(0, _HEAD.size)
        contents = read_contents(file, head[8:24])
        end = 0
        if contents is not None:
            end = next((each.at for each in contents.blocks if each.end > position), -1)
            end = contents.end if end < 0 else end
        if file.size() > end:
            file.truncate(end)
            file.sync()


def drop_from(disk: Disk, folder: str, base: int, at: int) -> None:
    """Forget what an index has from a position in its own file on. Blocks."""
    try:
        file = disk.open(segment_path(folder, base, SEARCH_SUFFIX), write=True)
    except FileNotFoundError:
        return
    with closing(file):
        if file.size() > at:
            file.truncate(at)


# --- looking up -------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """The batches of a range of offsets that may have what is looked for."""

    first: int
    after: int
    batches: list[int]
    """Their first offsets."""


def look_up(
    disk: Disk, folder: str, base: int, topic_id: bytes, question: Question, offset: int, *, backwards: bool
) -> Answer | int:
    """What the index of a segment knows from an offset on, or, `backwards`, up to one. Where it knows nothing of that:
    the offset up to which it speaks. Raises DamagedIndex. Blocks."""
    try:
        file = disk.open(segment_path(folder, base, SEARCH_SUFFIX))
    except FileNotFoundError:
        return base
    with closing(file):
        size = file.size()
        contents = read_contents(file, topic_id)
        if contents is None and size:
            raise DamagedIndex("its head cannot be read", 0)
        if contents is None or not contents.blocks:
            return base
        digests = [digest for field, digest in question.wanted if field in contents.fields]
        if not digests:
            return base
        blocks, after = contents.blocks, contents.blocks[-1].after
        if offset > after or (offset == after and not backwards):
            if contents.end < size:
                raise DamagedIndex("a block's head cannot be read", contents.end)
            return after
        with closing(disk.open(segment_path(folder, base, ".log"))) as log:
            look = _Look(file, log, question, digests[0])
            return look.backwards(blocks, offset) if backwards else look.forwards(blocks, offset)


class _Look:
    """A look into one index."""

    def __init__(self, file: File, log: File, question: Question, digest: int) -> None:
        self._file = file
        self._log = log
        self._question = question
        self._digest = digest

    def forwards(self, blocks: Sequence[Block], offset: int) -> Answer:
        found: list[int] = []
        reached = offset
        for block in blocks:
            if block.after <= offset:
                continue
            positions = self._positions(block)
            begin = bisect_left(positions, offset, key=lambda position: self._header(block, position).last_offset)
            for position in positions[begin:]:
                header = self._header(block, position)
                if len(found) >= self._question.limit:
                    return Answer(offset, header.base_offset, found)
                found.append(header.base_offset)
            reached = block.after
        return Answer(offset, reached, found)

    def backwards(self, blocks: Sequence[Block], offset: int) -> Answer:
        found: list[int] = []
        reached = offset
        for block in reversed(blocks):
            if block.first >= offset:
                continue
            positions = self._positions(block)
            end = bisect_left(positions, offset, key=lambda position: self._header(block, position).base_offset)
            for position in reversed(positions[:end]):
                header = self._header(block, position)
                if len(found) >= self._question.limit:
                    return Answer(reached, offset, found[::-1])
                found.append(header.base_offset)
                reached = header.base_offset
            reached = block.first
        return Answer(reached, offset, found[::-1])

    def _positions(self, block: Block) -> list[int]:
        """Where in the segment the batches of a block stand that may have it."""
        last = self._read_header(block, block.last_position)
        if (
            last.crc != block.last_crc
            or last.last_offset + 1 != block.after
            or block.last_position + last.size != block.end
        ):
            raise DamagedIndex("a block does not end with the batch that stands there", block.at)
        if not block.entries or block.newest < self._question.since or block.oldest > self._question.until:
            return []
        found = self._entries_of(block, self._digest)
        if block.crowded and self._digest != ANY:
            found = sorted({*found, *self._entries_of(block, ANY)})
        return found

    def _entries_of(self, block: Block, digest: int) -> list[int]:
        count = -(-block.entries // PAGE_ENTRIES)
        low, high = 0, count
        page = min(digest * count >> 32, count - 1)
        while True:
            entries = self._page(block, page)
            if entries[0] >> 32 >= digest:
                high = page
            elif entries[-1] >> 32 < digest:
                low = page + 1
            else:
                break
            if low >= high:
                page = low
                break
            # Next door first, where it mostly is.
            page = max(low, high - 1) if high == page else low
        found: list[int] = []
        while page < count:
            entries = self._page(block, page)
            start = bisect_left(entries, digest << 32)
            end = bisect_left(entries, digest + 1 << 32)
            found += [entry & 0xFFFFFFFF for entry in entries[start:end]]
            if end < len(entries):
                break
            page += 1
        return found

    def _page(self, block: Block, page: int) -> tuple[int, ...]:
        count = min(PAGE_ENTRIES, block.entries - page * PAGE_ENTRIES)
        raw = self._file.read(block.pages_at + page * PAGE_BYTES, 4 + count * 8)
        if len(raw) < 4 + count * 8 or _CRC.unpack_from(raw)[0] != crc32c(raw[4:]):
            raise DamagedIndex("a page of it fails its checksum", block.at)
        return Struct(f">{count}Q").unpack_from(raw, 4)

    def _read_header(self, block: Block, position: int) -> BatchHeader:
        raw = self._log.read(position, HEADER_BYTES)
        if len(raw) < HEADER_BYTES:
            raise DamagedIndex("it leads behind the end of its segment", block.at)
        return header_at(raw)

    def _header(self, block: Block, position: int) -> BatchHeader:
        header = self._read_header(block, position)
        if header.magic != MAGIC or not block.first <= header.base_offset <= header.last_offset < block.after:
            raise DamagedIndex("it leads to where no batch begins", block.at)
        return header


def verify(disk: Disk, folder: str, base: int, max_bytes: int) -> str | None:
    """What is wrong with an index, which is made once more beside it. Blocks."""
    try:
        file = disk.open(segment_path(folder, base, SEARCH_SUFFIX))
    except FileNotFoundError:
        return None
    with closing(file), closing(disk.open(segment_path(folder, base, ".log"))) as log:
        size = file.size()
        topic_id = file.read(0, _HEAD.size)[8:24]
        contents = read_contents(file, topic_id)
        if contents is None:
            return "its head cannot be read" if size else None
        for number, block in enumerate(contents.blocks):
            job = BuildJob(folder, base, block.end, True, topic_id, contents.fields, 1 << 62, max_bytes)
            made = next(_made_blocks(log, job, contents.fields, block.begin, block.first), None)
            stored = file.read(block.at, BLOCK_HEAD_BYTES + block.pages_bytes)
            if made is None or stored != made[0] + b"".join(made[1]):
                return f"block {number} does not say what the segment has from position {block.begin} to {block.end}"
        return None if contents.end == size else f"its last {size - contents.end} bytes are no block"
