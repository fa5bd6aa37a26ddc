"""What an archive holds, and how it grows: a log of commits beside the files.

One idea: a file of the archive is in its place only once it is committed, so whoever lists the folder reads each
record once and needs to know nothing of this log. Files are written aside first. A commit is one small file that names
them and the offsets that they reach to; it appears at once, under a number that only one writer can take, and from then
on the files belong to the archive. Moving them to their places comes after it and can be done again, so a writer that
dies anywhere leaves the last commit to be finished, or files aside to be swept up. Where the archive is a table, too
(`tables.py`), finishing a commit is also to let the table take it.

    _headrace/commits/N.json    commit N: its files and, for all partitions so far, the offsets that are archived
    _headrace/staging/          files that are being written
    topic=T/date=D/hour=H/      committed files
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from headrace.errors import HeadraceError
from headrace.pipeline.options import Partition
from headrace.pipeline.tables import PARQUET, Table, table_of

VERSION = 1
OWN = "_headrace"


class ArchiveInUse(HeadraceError):
    """Two jobs write to one archive."""


class ArchiveInvalid(HeadraceError):
    """The folder is no archive, or one of another kind."""


@dataclass(frozen=True)
class StagedFile:
    """A file that was written aside, and where it belongs."""

    staged: str
    """Relative to the archive."""
    folder: str
    topic: str
    rows: int
    size: int


@dataclass(frozen=True)
class Commit:
    """What was added at once."""

    number: int
    at_ms: int
    starts: dict[Partition, int]
    """Of each partition, the first offset that was archived."""
    ends: dict[Partition, int]
    """Of each partition, the offset behind the last that is archived."""
    files: tuple[tuple[StagedFile, str], ...]
    """Each with its final path."""
    table: str = PARQUET
    """What the archive is."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file, _ in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file, _ in self.files)

    def offsets(self) -> dict[str, dict[str, list[int]]]:
        """The first offset and the one behind the last, by topic and partition, as JSON has them."""
        found: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), end in sorted(self.ends.items()):
            found.setdefault(topic, {})[str(partition)] = [self.starts[topic, partition], end]
        return found

    def dump(self) -> bytes:
        whole = {
            "version": VERSION,
            "table": self.table,
            "number": self.number,
            "at_ms": self.at_ms,
            "offsets": self.offsets(),
            "files": [{"path": path, **asdict(file)} for file, path in self.files],
        }
        return json.dumps(whole, indent=1).encode()

    @classmethod
    def load(cls, contents: bytes) -> Commit:
        whole = json.loads(contents)
        if whole["version"] != VERSION:
            raise ArchiveInvalid(f"the archive is of version {whole['version']}, this Headrace writes {VERSION}")
        offsets = {
            (topic, int(index)): (start, end)
            for topic, partitions in whole["offsets"].items()
            for index, (start, end) in partitions.items()
        }
        starts = {each: start for each, (start, _) in offsets.items()}
        ends = {each: end for each, (_, end) in offsets.items()}
        files = tuple((_staged(each), each["path"]) for each in whole["files"])
        return cls(whole["number"], whole["at_ms"], starts, ends, files, whole.get("table", PARQUET))


def _staged(fields: dict[str, Any]) -> StagedFile:
    return StagedFile(fields["staged"], fields["folder"], fields["topic"], fields["rows"], fields["size"])


class Manifest:
    """The commits of an archive, for its one writer."""

    def __init__(self, root: Path, kind: str = PARQUET) -> None:
        self.root = root
        self.kind = kind
        self._table: Table | None = None
        self._commits = root / OWN / "commits"
        self._staging = root / OWN / "staging"
        self._stage = self._staging
        self._lock = -1
        self.last: Commit | None = None

    def open(self) -> None:
        """Take the archive, made if it is missing, and finish what the last writer left."""
        check_root(self.root, self.kind)
        self._commits.mkdir(parents=True, exist_ok=True)
        self._staging.mkdir(exist_ok=True)
        self._lock = os.open(self.root / OWN / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ArchiveInUse(f"another job writes to {self.root}: one archive has one writer") from None
        self.last = newest(self.root)
        self._table = table_of(self.kind, self.root)
        if self.last is not None and not is_finished(self.root, self.last, self._table):
            self._finish(self.last)
        for leftover in [*self._staging.iterdir(), *self._commits.glob("*.tmp")]:
            # A task of a driver that was killed may still write there, for a moment and for nobody.
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def ends(self) -> dict[Partition, int]:
        """How far each partition is archived."""
        return dict(self.last.ends) if self.last is not None else {}

    def stage(self) -> Path:
        """A folder for the files of the next commit."""
        self._stage = self._staging / uuid4().hex
        self._stage.mkdir()
        return self._stage

    def commit(
        self, files: Sequence[StagedFile], starts: dict[Partition, int], ends: dict[Partition, int], at_ms: int
    ) -> Commit:
        """Make staged files, which are durable, part of the archive: the records between these offsets. Raises
        ArchiveInUse."""
        number = self.last.number + 1 if self.last is not None else 1
        placed = tuple(
            (file, f"{file.folder}/{number:010d}-{index:05d}.parquet")
            for index, file in enumerate(sorted(files, key=lambda each: (each.folder, each.staged)))
        )
        before = self.last.starts if self.last is not None else {}
        commit = Commit(number, at_ms, {**starts, **before}, {**self.ends, **ends}, placed, self.kind)
        temporary = self._commits / f"{uuid4().hex}.tmp"
        with temporary.open("xb") as file:
            file.write(commit.dump())
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, unlike a rename, does not replace: of two writers one fails, even where locks mean nothing.
            os.link(temporary, self._path(number))
        except FileExistsError:
            raise ArchiveInUse(f"another job has written commit {number} of {self.root}") from None
        finally:
            temporary.unlink()
        sync(self._commits)
        self.last = commit
        self._finish(commit)
        # What tasks that were tried twice have left over goes too.
        shutil.rmtree(self._stage, ignore_errors=True)
        return commit

    def _finish(self, commit: Commit) -> None:
        """Move the files of a commit to their places, as far as they are not there, and let the table take them."""
        folders = set()
        for file, path in commit.files:
            staged, final = self.root / file.staged, self.root / path
            if staged.exists():
                final.parent.mkdir(parents=True, exist_ok=True)
                os.rename(staged, final)
                folders.add(final.parent)
            elif not final.exists():
                raise ArchiveInvalid(f"{final} is gone, though commit {commit.number} of the archive has it")
        for folder in folders:
            for each in (folder, *folder.parents[: len(folder.relative_to(self.root).parts)]):
                sync(each)
        if self._table is not None:
            self._table.take(commit)

    def _path(self, number: int) -> Path:
        return self._commits / f"{number:010d}.json"


def check_writable(folder: Path) -> None:
    """Raises ArchiveInvalid where nothing could be written to a folder, be it there or not; changes nothing."""
    folder = folder.absolute()
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir():
        raise ArchiveInvalid(f"{folder} cannot be a folder: {nearest} is a file. Give another folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ArchiveInvalid(f"{folder} cannot be written: {nearest} does not permit it. Give another folder.")


def check_root(root: Path, kind: str = PARQUET) -> None:
    """Raises ArchiveInvalid where a folder cannot be an archive of this kind; changes nothing."""
    check_writable(root)
    if not root.exists():
        return
    if not (root / OWN).exists() and any(root.iterdir()):
        raise ArchiveInvalid(f"{root} is not empty and no archive: give a folder of its own")
    last = newest(root)
    if last is not None and last.table != kind:
        raise ArchiveInvalid(f"{root} is an archive as {last.table}, not {kind}: one folder is one")


def is_finished(root: Path, last: Commit, table: Table | None) -> bool:
    """Whether all files of the last commit are in their places and, where there is a table, in that."""
    if table is not None:
        return table.number() >= last.number
    # The folder of staged files goes once all of them are in their places; what becomes of those later is not the job's
    # to judge.
    return not any((root / file.staged).parent.exists() for file, _ in last.files)


def newest(root: Path) -> Commit | None:
    """The last commit of an archive, if there is one."""
    paths = sorted((root / OWN / "commits").glob("*.json"))
    return Commit.load(paths[-1].read_bytes()) if paths else None


def sync(path: Path) -> None:
    """Make a file durable, or the names in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
