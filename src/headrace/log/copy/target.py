"""The follower's side of a copy: files that can be trusted, put in place one by one.

Every segment in a folder that is being copied into is whole, synced and of a leader, or it is not there under its name:
what is under way ends in `.copied`. So a crash costs the file that was under way, and what another attempt finds is
compared and kept. Of what stood there before the copy only what a recovery point covers is kept. All of it means
nothing until the checkpoint is there, and the mark in the node's identity is gone.

All functions block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from uuid import UUID

from headrace.errors import CorruptLog
from headrace.format.batch import header_at
from headrace.log import checkpoint as checkpoints
from headrace.log import swap
from headrace.log.checkpoint import Checkpoint
from headrace.log.copy.parts import CopiedFile, CopiedPartition, CopyHead, digest_of
from headrace.log.epochs import FILE_NAME, LeaderEpochs
from headrace.log.journal import FOLDER
from headrace.log.names import INDEX_SUFFIXES, SUFFIXES, segment_bases, segment_path
from headrace.log.scan import SCAN_BYTES, walk
from headrace.log.segments import METADATA_FILE, clear_away, metadata_of
from headrace.log.txnindex import ABORTED_ENTRY, VERSION
from headrace.runtime.disk import Disk, File, read_whole, replace_whole

COPIED = ".copied"


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file of the leader's that is missing here, or of which this is the beginning."""

    name: str
    have: int = 0
    digest: int = 0


def prepare(disk: Disk) -> None:
    """Leave nothing in the data directory but what can be trusted. The node's mark says already that it is no
    replica."""
    found = checkpoints.load(disk)
    if found is None:
        # It has been done, or there was nothing.
        for name in disk.listdir(""):
            for each in disk.listdir(name) if disk.exists(f"{name}/{METADATA_FILE}") else ():
                if each.endswith(COPIED):
                    disk.remove(f"{name}/{each}")
        return
    kept = set()
    for topic in found.topics:
        for index, (_, point) in enumerate(topic.partitions):
            folder = f"{topic.name}-{index}"
            if read_whole(disk, f"{folder}/{METADATA_FILE}") == metadata_of(topic.id.bytes):
                _keep_synced(disk, folder, point)
                kept.add(folder)
    _remove_others(disk, kept)
    _remove_journal(disk)
    disk.remove(checkpoints.PATH)
    disk.remove(checkpoints.CLEAN_PATH)
    disk.sync_dir("")


def _remove_others(disk: Disk, kept: set[str]) -> None:
    for name in disk.listdir(""):
        if name not in kept and (name.endswith("-delete") or disk.exists(f"{name}/{METADATA_FILE}")):
            disk.remove_tree(name)


def _remove_journal(disk: Disk) -> None:
    if not disk.exists(FOLDER):
        disk.mkdir(FOLDER)
        disk.sync_dir("")
    for name in disk.listdir(FOLDER):
        disk.remove(f"{FOLDER}/{name}")
    disk.sync_dir(FOLDER)


def _keep_synced(disk: Disk, folder: str, point: int) -> None:
    """Cut a partition's files back to its recovery point."""
    try:
        swap.finish_swaps(disk, folder)
    except CorruptLog:
        point = 0
    for base in segment_bases(disk, folder):
        if base >= point:
            _remove_segment(disk, folder, base)
    for offset in segment_bases(disk, folder, ".snapshot"):
        if offset > point:
            disk.remove(segment_path(folder, offset, ".snapshot"))
    for name in disk.listdir(folder):
        if name.endswith(COPIED):
            disk.remove(f"{folder}/{name}")
    bases = segment_bases(disk, folder)
    if bases:
        with closing(disk.open(segment_path(folder, bases[-1], ".log"), write=True)) as file:
            size = file.size()
            end = _end_before(file, size, point)
            if end < size:
                file.truncate(end)
                file.sync()
    disk.sync_dir(folder)


def _end_before(file: File, size: int, offset: int) -> int:
    """The position behind the last batch that lies wholly before `offset`."""
    end = 0
    for at, buffer, index in walk(file, 0, size, SCAN_BYTES):
        header = header_at(buffer, index)
        if header.last_offset >= offset:
            break
        end = at + header.size
    return end


def _remove_segment(disk: Disk, folder: str, base: int) -> None:
    for suffix in SUFFIXES:
        if suffix != ".snapshot":
            disk.remove(segment_path(folder, base, suffix))


class CopyTarget:
    """A data directory that becomes a copy."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._names: Mapping[str, str] = {}
        self._file: File | None = None
        self._path = ""
        self._position = 0

    def begin(self, head: CopyHead) -> None:
        """A round begins: what no partition of it has for a folder goes."""
        self._names = {topic["id"]: topic["name"] for topic in head.topics}
        _remove_others(
            self._disk,
            {f"{topic['name']}-{index}" for topic in head.topics for index in range(len(topic["partitions"]))},
        )

    def close(self) -> None:
        """Let go of the file that is under way."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def folder_of(self, partition: CopiedPartition) -> str:
        return f"{self._names[partition.topic]}-{partition.index}"

    def compare(self, partition: CopiedPartition) -> list[WantedFile]:
        """What is missing of a partition."""
        disk, folder = self._disk, self.folder_of(partition)
        metadata = metadata_of(UUID(hex=partition.topic).bytes)
        if partition.files and read_whole(disk, f"{folder}/{METADATA_FILE}") != metadata:
            clear_away(disk, folder)
            disk.mkdir(folder)
            disk.sync_dir("")
            replace_whole(disk, f"{folder}/{METADATA_FILE}", metadata)
        wanted: list[WantedFile] = []
        for each in partition.files:
            if each.name.endswith(INDEX_SUFFIXES):
                # A hint, which belongs to the segment before it.
                if wanted and wanted[-1].name.partition(".")[0] == each.name.partition(".")[0]:
                    wanted.append(WantedFile(each.name))
            elif (missing := self._missing(folder, each)) is not None:
                wanted.append(missing)
        return wanted

    def _missing(self, folder: str, wanted: CopiedFile) -> WantedFile | None:
        try:
            file = self._disk.open(f"{folder}/{wanted.name}")
        except FileNotFoundError:
            return WantedFile(wanted.name)
        with closing(file):
            size = file.size()
            if size > wanted.size or wanted.name.endswith(".snapshot"):
                same = size == wanted.size and digest_of(file, size) == wanted.digest
                return None if same else WantedFile(wanted.name)
            digest = digest_of(file, size)
        if size == wanted.size and digest == wanted.digest:
            return None
        return WantedFile(wanted.name, size, digest) if size < wanted.size else WantedFile(wanted.name)

    def begin_file(self, partition: CopiedPartition, name: str, position: int) -> None:
        """Take a file from `position` on. Until it is whole it has another name."""
        disk, folder = self._disk, self.folder_of(partition)
        path = f"{folder}/{name}"
        if position:
            disk.rename(path, path + COPIED)
            # Before anything is added: under its own name a file can be trusted.
            disk.sync_dir(folder)
        else:
            disk.remove(path + COPIED)
        self._file = disk.open(path + COPIED, write=True, create=not position)
        self._path, self._position = path, position

    def write(self, data: bytes) -> None:
        """The next bytes of it."""
        assert self._file is not None
        self._file.write(self._position, [data])
        self._position += len(data)

    def end_file(self) -> None:
        """It is whole."""
        assert self._file is not None
        self._file.sync()
        self.close()
        self._disk.rename(self._path + COPIED, self._path)

    def finish(self, partition: CopiedPartition) -> None:
        """All files of a partition are there: remove the others, and write what belongs to them."""
        disk, folder = self._disk, self.folder_of(partition)
        if not disk.exists(folder):
            return
        kept = {METADATA_FILE, *(each.name for each in partition.files)}
        segments = {each.name.partition(".")[0] for each in partition.files}
        for name in disk.listdir(folder):
            # A segment that was here before has indexes of its own.
            is_hint = name.endswith((".index", ".timeindex")) and name.partition(".")[0] in segments
            if name not in kept and not is_hint:
                disk.remove(f"{folder}/{name}")
        for base in {base for base, _ in partition.aborted}:
            entries = [ABORTED_ENTRY.pack(VERSION, *entry) for of, entry in partition.aborted if of == base]
            _write(disk, segment_path(folder, base, ".txnindex"), b"".join(entries))
        if partition.epochs:
            _write(disk, f"{folder}/{FILE_NAME}", LeaderEpochs(list(partition.epochs)).dump())
        if partition.cleaned:
            swap.write_checkpoint(disk, folder, partition.cleaned)
        disk.sync_dir(folder)

    def install(self, head: CopyHead, partitions: Sequence[CopiedPartition], cluster_id: str) -> None:
        """The copy is whole: from here on the directory is a replica's at the position of the copy."""
        _remove_journal(self._disk)
        checkpoints.save(self._disk, checkpoint_of(head, partitions, cluster_id))


def checkpoint_of(head: CopyHead, partitions: Sequence[CopiedPartition], cluster_id: str) -> Checkpoint:
    """The checkpoint that a copy leaves. A topic that went meanwhile is not in it."""
    found = {each.place: each for each in partitions}
    made = Checkpoint(cluster_id, 0, head.sequence + 1, dict(head.counters), [], list(head.history))
    for values in head.topics:
        record = checkpoints.topic_from_json(values)
        places = [found.get((record.id.hex, index)) for index in range(len(record.partitions))]
        copied = [None if each is None else (each.start, each.end) for each in places]
        # Where nothing was sent, there was nothing.
        record.partitions = [each or empty for each, empty in zip(copied, record.partitions, strict=True)]
        made.topics.append(record)
    return made


def _write(disk: Disk, path: str, contents: bytes) -> None:
    with closing(disk.open(path, write=True, create=True)) as file:
        file.truncate(0)
        file.write(0, [contents])
        file.sync()
