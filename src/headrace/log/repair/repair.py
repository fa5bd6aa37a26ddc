"""Giving a damaged data directory back to its broker, at the price of what is lost: `headrace log repair`.

`look` finds out, partition by partition, what the broker would stumble over and what can be kept (`salvage.py`), and
changes nothing. `repair` does it. New segments are written beside the old and change places with them by compaction's
durable list (`swap.py`); what goes is copied or moved to `repair/N/` first; the checkpoint follows last. A crash at any
moment leaves a directory that is as damaged as before, or less, and the same command goes on from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Protocol, TypeVar, cast

from headrace.errors import CorruptLog
from headrace.format.batch import header_at
from headrace.log import checkpoint as checkpoints
from headrace.log import swap
from headrace.log.checkpoint import Checkpoint, TopicRecord
from headrace.log.files import OpenFiles
from headrace.log.frames import Kind
from headrace.log.interface import Durability
from headrace.log.journal import FOLDER, MISSING, read_frames
from headrace.log.names import segment_path
from headrace.log.repair.salvage import Salvager
from headrace.log.repair.salvaged import Given, Kept, Row, Salvage, Target
from headrace.log.repair.views import AsideJournal, Swapped
from headrace.log.replay import Promised, read_replays
from headrace.log.scan import SCAN_BYTES, walk
from headrace.log.segment import Segment
from headrace.log.segments import METADATA_FILE, metadata_of
from headrace.log.spool import read_spool
from headrace.log.swap import CLEANED, LIST_NAME, Group
from headrace.log.txnindex import ABORTED_ENTRY, VERSION
from headrace.runtime.disk import Disk, read_whole, replace_whole

T = TypeVar("T")

ASIDE = "repair"
REPORT = "report.json"
COPY_BYTES = 1 << 20
WRITE_BYTES = 1 << 20


@dataclass(slots=True)
class PartitionPlan:
    """What is to be done with a partition."""

    folder: str
    topic: TopicRecord
    index: int
    salvage: Salvage
    rows: list[Row] = field(default_factory=list)
    metadata: bool = False
    """`partition.metadata` is to be written anew."""
    swapping: bool = False
    """A compaction was cut short while its segments changed places."""
    again: bool = False
    """The rest can be seen only once this is done."""

    @property
    def changes(self) -> bool:
        """Whether there is anything to be done."""
        return bool(self.rows)


@dataclass(slots=True)
class Looked:
    """What a look has found."""

    checkpoint: Checkpoint
    plans: list[PartitionPlan] = field(default_factory=list)
    partitions: int = 0
    """How many were looked at."""

    @property
    def rows(self) -> list[Row]:
        return [row for plan in self.plans for row in plan.rows]


@dataclass(slots=True)
class _Known:
    """What checkpoint and journal say of a partition."""

    topic: TopicRecord
    index: int
    start: int
    point: int
    live: list[Promised] = field(default_factory=list)
    kept: list[Promised] = field(default_factory=list)

    @property
    def folder(self) -> str:
        return f"{self.topic.name}-{self.index}"


# --- looking ---


class Track(Protocol):
    """Goes through what takes long one by one, and may show how far it is."""

    def __call__(self, these: Sequence[T], /) -> Iterable[T]: ...


def _unseen(these: Sequence[T], /) -> Iterable[T]:
    return these


def look(disk: Disk, found: Checkpoint, names: Collection[str] = (), track: Track = _unseen) -> Looked:
    """What is wrong with the partitions that have one of the names (`TOPIC-N`, or `TOPIC` for all of its partitions),
    or with all, and what can be done. Blocks; changes nothing."""
    looked = Looked(found)
    known = _read_known(disk, found)
    everyone = {each.folder for each in known} | {each.topic.name for each in known}
    unknown = sorted(set(names) - everyone)
    if unknown:
        raise LookupError(f"there is no topic or partition {unknown[0]!r}: name a topic, or a partition as TOPIC-N")
    chosen = [each for each in known if not names or each.folder in names or each.topic.name in names]
    looked.partitions = len(chosen)
    looked.plans = [plan for each in track(chosen) if (plan := _plan(disk, each)).changes]
    return looked


def _plan(disk: Disk, known: _Known) -> PartitionPlan:
    folder, start, point = known.folder, known.start, known.point
    plan = PartitionPlan(folder, known.topic, known.index, Salvage(start=start, point=point))
    names = disk.listdir(folder)
    if LIST_NAME in names:
        plan.swapping = True
        try:
            # The broker completes it by itself.
            disk = cast(Disk, Swapped(disk, folder, swap.read_list(disk, folder)[0]))
        except CorruptLog as error:
            plan.again = True
            plan.rows = [Row(folder, f"{error}; the segments from before it are put back, then look again")]
            return plan
    mine = metadata_of(known.topic.id.bytes)
    metadata = read_whole(disk, f"{folder}/{METADATA_FILE}")
    if metadata != mine and point > start and names:
        if metadata is not None and _is_anothers(metadata, mine):
            plan.salvage.nothing, plan.salvage.start, plan.again = True, point, True
            what = "the folder is another topic's (partition.metadata): the log begins behind them"
            plan.rows = [Row(folder, what, start, point - 1, lost=True)]
            return plan
        plan.metadata = True
        plan.rows = [Row(folder, f"{METADATA_FILE} cannot be read: it is written anew")]
    elif metadata != mine and point <= start and not known.kept:
        # What a deleted topic of the same name left, or a folder that was never synced: the broker sees to it.
        return plan
    plan.salvage = Salvager(disk, folder, start, point, known.kept, known.live).look()
    plan.rows += plan.salvage.rows
    return plan


def _is_anothers(metadata: bytes, mine: bytes) -> bool:
    """Whether it is sound, and of another topic: one that differs in a character or two is damaged."""
    if re.fullmatch(rb"version: 0\ntopic_id: [\w-]{22}", metadata) is None:
        return False
    return sum(theirs != ours for theirs, ours in zip(metadata, mine, strict=True)) > 2


def _read_known(disk: Disk, found: Checkpoint) -> list[_Known]:
    """All partitions that have files, as checkpoint and journal know them."""
    frames = read_frames(disk, found.journal_from).frames
    entries = [entry for frame in frames for entry in frame.entries()]
    changes = [json.loads(entry.data) for entry in entries if entry.kind is Kind.CATALOGUE]
    known = {
        (topic.id.bytes, index): _Known(topic, index, start, point)
        for topic in checkpoints.replay_changes(found.topics, changes)
        if topic.settings.durability is not Durability.MEMORY
        for index, (start, point) in enumerate(topic.partitions)
    }
    for key, replay in read_replays(entries, read_spool(disk, found.epoch)).items():
        if (each := known.get(key)) is not None:
            each.start, each.point = max(each.start, replay.start), replay.point(each.point)
            each.live = replay.promised()
    for folder in kept_journals(disk):
        aside = cast(Disk, AsideJournal(disk, folder))
        # It is named by the epoch of the start that kept it; what it holds is of the one before.
        epoch = int(folder.rpartition("-")[2]) - 1
        entries = [entry for frame in read_frames(aside, 1).frames for entry in frame.entries()]
        for key, replay in read_replays(entries, read_spool(aside, epoch)).items():
            if key in known:
                known[key].kept += replay.promised()
    return sorted(known.values(), key=lambda each: (each.topic.name, each.index))


def kept_journals(disk: Disk) -> list[str]:
    """The journals that were set aside by starts that could not use them, the oldest first."""
    prefix = f"{FOLDER}.kept-"
    names = [name for name in disk.listdir("") if name.startswith(prefix) and name.removeprefix(prefix).isdigit()]
    # A topic may be called so, too.
    kept = [name for name in names if not disk.exists(f"{name}/{METADATA_FILE}")]
    return sorted(kept, key=lambda name: int(name.removeprefix(prefix)))


# --- repairing ---


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair has done."""

    rows: list[Row]
    asides: list[str]
    """The folders that have all that was removed."""


def replace_checkpoint(disk: Disk, found: Checkpoint, rows: Sequence[Row]) -> str:
    """Put a checkpoint in the place of one that cannot be read; where that is kept. Blocks."""
    aside = _new_aside(disk, rows)
    disk.remove(checkpoints.CLEAN_PATH)
    disk.sync_dir("")
    _copy(disk, checkpoints.PATH, aside)
    disk.mkdir(FOLDER)
    disk.sync_dir("")
    checkpoints.save(disk, found)
    return aside


def missing_journal(disk: Disk) -> list[Row]:
    """Whether there is no journal, though the last stop was not clean. Blocks."""
    if disk.exists(FOLDER) or disk.exists(checkpoints.CLEAN_PATH):
        return []
    return [Row(FOLDER, MISSING, lost=True)]


def make_journal(disk: Disk) -> None:
    """Put an empty journal in the place of one that is missing. Blocks."""
    disk.mkdir(FOLDER)
    disk.sync_dir("")


def repair(disk: Disk, looked: Looked, track: Track = _unseen) -> Repaired:
    """Do what was found to be done, until another look at these partitions finds nothing. Blocks."""
    rows: list[Row] = []
    asides: list[str] = []
    while looked.plans:
        rows += looked.rows
        asides.append(_repair_all(disk, looked, track))
        again = any(plan.again for plan in looked.plans)
        looked = look(disk, looked.checkpoint, {plan.folder for plan in looked.plans}, track)
        if looked.plans and not again:
            left = looked.rows[0]
            raise CorruptLog(f"{left.folder} is still damaged after its repair: {left.what}")
    return Repaired(rows, asides)


def _repair_all(disk: Disk, looked: Looked, track: Track) -> str:
    """Do what one look has found; the folder of what was removed."""
    aside = _new_aside(disk, looked.rows)
    # The next start must look for itself at what stands above the recovery points, and raise the epoch.
    make_journal(disk)
    disk.remove(checkpoints.CLEAN_PATH)
    disk.sync_dir("")
    for plan in track(looked.plans):
        _repair(disk, plan, aside)
    records = {topic.id: topic for topic in looked.checkpoint.topics}
    for plan in looked.plans:
        record = records.setdefault(plan.topic.id, plan.topic)
        record.partitions[plan.index] = (plan.salvage.start, plan.salvage.point)
    looked.checkpoint.topics = list(records.values())
    checkpoints.save(disk, looked.checkpoint)
    return aside


def _new_aside(disk: Disk, rows: Sequence[Row]) -> str:
    """A new folder for what is removed, with an account of it."""
    disk.mkdir(ASIDE)
    taken = [int(name) for name in disk.listdir(ASIDE) if name.isdigit()]
    aside = f"{ASIDE}/{max(taken, default=0) + 1}"
    disk.mkdir(aside)
    disk.sync_dir("")
    disk.sync_dir(ASIDE)
    report = [{**asdict(row), "partition": row.folder} for row in rows]
    replace_whole(disk, f"{aside}/{REPORT}", (json.dumps(report, indent=1) + "\n").encode())
    return aside


def _repair(disk: Disk, plan: PartitionPlan, aside: str) -> None:
    folder, salvage = plan.folder, plan.salvage
    if plan.swapping:
        _finish_swap(disk, folder, aside)
        if plan.again:
            return
    if salvage.nothing and disk.exists(folder):
        disk.rename(folder, f"{aside}/{folder}")
        disk.sync_dir(aside)
        disk.sync_dir("")
    targets = salvage.targets
    if plan.metadata or (targets and not disk.exists(f"{folder}/{METADATA_FILE}")):
        if not disk.exists(folder):
            disk.mkdir(folder)
            disk.sync_dir("")
        else:
            _copy(disk, f"{folder}/{METADATA_FILE}", aside)
        replace_whole(disk, f"{folder}/{METADATA_FILE}", metadata_of(plan.topic.id.bytes))
    if targets:
        _write_targets(disk, folder, targets, plan.topic.settings.index_interval_bytes)
        for base in [*(target.base for target in targets), *salvage.removed]:
            for suffix in (".log", ".txnindex"):
                _copy(disk, segment_path(folder, base, suffix), aside)
        groups = [Group((target.base,)) for target in targets[:-1]]
        groups.append(Group((targets[-1].base, *salvage.removed)))
        swap.commit(disk, folder, groups)
        swap.install(disk, folder, groups)
        swap.settle(disk, folder)
    for base, entries in salvage.aborted.items():
        path = segment_path(folder, base, ".txnindex")
        _copy(disk, path, aside)
        replace_whole(disk, path, b"".join(ABORTED_ENTRY.pack(VERSION, *entry) for entry in entries))


def _write_targets(disk: Disk, folder: str, targets: Sequence[Target], interval: int) -> None:
    """Write the new segments beside the old, durably."""
    swap.discard(disk, folder)
    with closing(OpenFiles(disk, 4)) as files:
        for target in targets:
            segment = Segment.create(disk, files, folder, target.base, interval, CLEANED)
            for piece in target.pieces:
                if isinstance(piece, Given):
                    _append(segment, [piece.data])
                else:
                    _append_kept(disk, segment, piece)
            for entry in target.aborted:
                segment.add_aborted(*entry)
            segment.sync_job()()
            segment.close()
            if disk.exists(segment_path(folder, target.base, ".txnindex")) and not target.aborted:
                # The new index must take the place of the old one even if it has nothing to say.
                disk.open(segment_path(folder, target.base, ".txnindex" + CLEANED), write=True, create=True).close()
        disk.sync_dir(folder)


def _append(segment: Segment, batches: Sequence[bytes]) -> None:
    headers = [header_at(batch) for batch in batches]
    segment.append(batches, [(each.base_offset, each.last_offset, each.size, each.max_timestamp) for each in headers])


def _append_kept(disk: Disk, segment: Segment, kept: Kept) -> None:
    """Copy good batches of a file."""
    with closing(disk.open(kept.path)) as file:
        waiting: list[bytes] = []
        size = 0
        for at, buffer, index in walk(file, kept.position, kept.end, SCAN_BYTES):
            header = header_at(buffer, index)
            whole = buffer[index : index + header.size]
            waiting.append(whole if len(whole) == header.size else file.read(at, header.size))
            size += header.size
            if size >= WRITE_BYTES:
                _append(segment, waiting)
                waiting, size = [], 0
        if waiting:
            _append(segment, waiting)


def _finish_swap(disk: Disk, folder: str, aside: str) -> None:
    """Complete a compaction that was cut short; or, if its list cannot be read, go back to before it."""
    try:
        swap.finish_swaps(disk, folder)
    except CorruptLog:
        _copy(disk, f"{folder}/{LIST_NAME}", aside)
        for name in disk.listdir(folder):
            if name.endswith(swap.DELETED):
                old = f"{folder}/{name.removesuffix(swap.DELETED)}"
                _copy(disk, old, aside)
                disk.rename(f"{folder}/{name}", old)
        disk.remove(f"{folder}/{LIST_NAME}")
        disk.sync_dir(folder)
        swap.discard(disk, folder)


def _copy(disk: Disk, path: str, aside: str) -> None:
    """Copy a file to where it is kept, durably, if it is there."""
    if not disk.exists(path):
        return
    folder = f"{aside}/{path.rpartition('/')[0]}".rstrip("/")
    disk.mkdir(folder)
    source, target = disk.open(path), disk.open(f"{aside}/{path}", write=True, create=True)
    try:
        for at in range(0, source.size(), COPY_BYTES):
            target.write(at, [source.read(at, COPY_BYTES)])
        target.sync()
    finally:
        source.close()
        target.close()
    disk.sync_dir(folder)
    disk.sync_dir(aside)
