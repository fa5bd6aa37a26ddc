"""What a damaged partition is put together from: what was found of its segments, and what shall stand there instead.

Values and the few batches that a repair makes itself: the empty one that spans lost offsets, and the marker that aborts
a transaction whose end is lost. `salvage.py` decides, `repair.py` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from headrace.format import records
from headrace.format.batch import CRC_FROM, HEADER, HEADER_BYTES, MAGIC, OFFSET_AND_EPOCH, PREFIX_BYTES, header_at
from headrace.log.scan import RELATIVE_MAX
from headrace.log.txnindex import AbortedEntry


@dataclass(frozen=True, slots=True)
class Row:
    """What is wrong with a partition, and what becomes of it."""

    folder: str
    what: str
    first: int = -1
    last: int = -1
    """The offsets that are meant, both included; -1: none in particular."""
    lost: bool = False
    """Whether records are lost."""


@dataclass(slots=True)
class Kept:
    """Good batches of a file."""

    path: str
    position: int
    end: int


@dataclass(frozen=True, slots=True)
class Given:
    """Whole batches of the journal, or made here."""

    data: bytes


@dataclass(slots=True)
class Target:
    """A segment to be written, in the place of one that is there or beside it."""

    base: int
    pieces: list[Kept | Given] = field(default_factory=list)
    aborted: list[AbortedEntry] = field(default_factory=list)


@dataclass(slots=True)
class Salvage:
    """How a partition can be made whole."""

    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    """The bases of segments that go, with no other in their place."""
    aborted: dict[int, list[AbortedEntry]] = field(default_factory=dict)
    """Indexes of aborted transactions to be written anew beside segments that stay, by their bases."""
    nothing: bool = False
    """Nothing can be read: the folder goes."""
    start: int = 0
    point: int = 0
    """What the checkpoint must say."""


def filler(first: int, last: int, epoch: int, timestamp: int) -> bytes:
    """An empty batch over offsets that have no record."""
    fields = (0, last - first, -1, timestamp, -1, -1, -1, 0)
    length = HEADER_BYTES - PREFIX_BYTES
    crc = crc32c(HEADER.pack(first, length, epoch, MAGIC, 0, *fields)[CRC_FROM:])
    return HEADER.pack(first, length, epoch, MAGIC, crc, *fields)


@dataclass(slots=True)
class Found:
    """A segment as it was found."""

    base: int
    path: str
    pieces: list[Kept | Given] = field(default_factory=list)
    end: int = 0
    """The offset behind its last good batch."""
    broken: bool = False
    """Whether it must be written anew."""
    torn: bool = False
    """Whether there is something behind the last good batch, above the recovery point: the broker cuts it off."""
    markers: list[AbortedEntry] = field(default_factory=list)
    """Transactions that a marker made here aborts."""
    aborts: dict[int, tuple[int, AbortedEntry | None]] = field(default_factory=dict)
    """Markers that abort, by offset: the producer, and what the index of aborted transactions must have of it."""


def abort_marker(offset: int, epoch: int, timestamp: int, producer_id: int, producer_epoch: int) -> bytes:
    """A marker that aborts a transaction. Its coordinator's epoch is the lowest, so that it fences no other."""
    batch = records.control(records.ABORT, 0, producer_id, producer_epoch, timestamp)
    OFFSET_AND_EPOCH.pack_into(batch, 0, offset, len(batch) - PREFIX_BYTES, epoch)
    return bytes(batch)


def pieces_until(pieces: Sequence[Kept | Given], position: int) -> Iterator[Kept | Given]:
    """What stands before a position of the file that all pieces of it come from."""
    for piece in pieces:
        if isinstance(piece, Kept) and piece.end > position:
            if piece.position < position:
                yield Kept(piece.path, piece.position, position)
            return
        yield piece


def targets_of(segment: Found, aborted: Sequence[AbortedEntry]) -> list[Target]:
    """The segment as it is to be written: several, where the offsets of one would lie too far apart."""
    targets = [Target(segment.base)]
    for piece in segment.pieces:
        if isinstance(piece, Given):
            header = header_at(piece.data)
            if header.last_offset - targets[-1].base > RELATIVE_MAX:
                targets.append(Target(header.base_offset))
        targets[-1].pieces.append(piece)
    for entry in aborted:
        next(each for each in reversed(targets) if each.base <= entry.last_offset or each is targets[0]).aborted.append(
            entry
        )
    return targets
