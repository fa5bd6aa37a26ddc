"""A folder of Parquet files, and how it grows: a log of commits beside the files.

One idea: a file is in its place only once it is committed, so a reader that lists the folder reads each record once and
needs to know nothing of this log. Files are staged first. A commit is one small file that names them and the offsets
that they reach to; it appears at once, under a number that only one writer can take, and from then on the files belong
to the folder. The moves to their places come after it and can be done again, so a writer that dies anywhere leaves the
last commit to be finished, or staged files to be removed. A folder has no table format to decide what counts: this is
as little as takes its place.

    _headrace/commits/N.json    commit N: its files and, for all partitions so far, the offsets that are archived
    _headrace/staging/          files that are being written
    topic=T/date=D/hour=H/      committed files
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.pipeline.options import Partition
from headrace.pipeline.tables import (
    OWN,
    PARQUET,
    Conflict,
    DataFile,
    State,
    TableInvalid,
    dump_spans,
    load_spans,
)

if TYPE_CHECKING:
    from headrace.pipeline.parquet import Layout
    from headrace.pipeline.target import Target

VERSION = 1
STAGED = ".staged"


class ArchiveInUse(HeadraceError):
    """Two jobs write to one archive."""


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
    properties: Mapping[str, str] = field(default_factory=dict)
    """What a query says of its batch (`tables.State`)."""

    def dump(self) -> bytes:
        whole = {
            "version": VERSION,
            "table": PARQUET,
            "number": self.number,
            "at_ms": self.at_ms,
            "offsets": dump_spans({each: (self.starts[each], end) for each, end in self.ends.items()}),
            "properties": dict(self.properties),
            "files": [{"path": path, **asdict(file)} for file, path in self.files],
        }
        return json.dumps(whole, indent=1).encode()

    @classmethod
    def load(cls, contents: bytes) -> Commit:
        whole = json.loads(contents)
        if whole["version"] != VERSION:
            raise TableInvalid(f"the archive is of version {whole['version']}, this Headrace writes {VERSION}")
        offsets = load_spans(whole["offsets"])
        starts = {each: start for each, (start, _) in offsets.items()}
        ends = {each: end for each, (_, end) in offsets.items()}
        files = tuple((_staged(each), each["path"]) for each in whole["files"])
        return cls(whole["number"], whole["at_ms"], starts, ends, files, whole.get("properties", {}))


def _staged(fields: dict[str, Any]) -> StagedFile:
    return StagedFile(fields["staged"], fields["folder"], fields["topic"], fields["rows"], fields["size"])


class Manifest:
    """The commits of an archive, for its one writer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._commits = root / OWN / "commits"
        self._staging = root / OWN / "staging"
        self._stage = self._staging
        self._lock = -1
        self.last: Commit | None = None

    def open(self) -> None:
        """Take the folder, made if it is missing, and finish what the last writer left."""
        check_root(self.root)
        self._lock = take_lock(self.root)
        self.recover()

    def recover(self) -> None:
        """Finish what the last writer left, without a lock of its own."""
        self._commits.mkdir(parents=True, exist_ok=True)
        self._staging.mkdir(exist_ok=True)
        self.last = newest(self.root)
        if self.last is not None and not is_finished(self.root, self.last):
            self._finish(self.last)
        for leftover in [*self._staging.iterdir(), *self._commits.glob("*.tmp")]:
            # A task of a driver that was killed may still write there for a moment; nothing reads that.
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def ends(self) -> dict[Partition, int]:
        """How far each partition is archived."""
        return dict(self.last.ends) if self.last is not None else {}

    def stage(self, name: str = "") -> Path:
        """A folder for the files of the next commit."""
        self._stage = self._staging / (name or uuid4().hex)
        self._stage.mkdir(exist_ok=bool(name))
        return self._stage

    def commit(
        self,
        files: Sequence[StagedFile],
        starts: dict[Partition, int],
        ends: dict[Partition, int],
        at_ms: int,
        properties: Mapping[str, str] | None = None,
    ) -> Commit:
        """Make staged files, which are durable, part of the archive: the records between these offsets. Raises
        ArchiveInUse."""
        number = self.last.number + 1 if self.last is not None else 1
        placed = tuple(
            (file, f"{file.folder}/{number:010d}-{index:05d}.parquet".lstrip("/"))
            for index, file in enumerate(sorted(files, key=lambda each: (each.folder, each.staged)))
        )
        before = self.last.starts if self.last is not None else {}
        commit = Commit(number, at_ms, {**starts, **before}, {**self.ends, **ends}, placed, properties or {})
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
        """Move the files of a commit to their places, as far as they are not there."""
        folders = set()
        for file, path in commit.files:
            staged, final = self.root / file.staged, self.root / path
            if staged.exists():
                final.parent.mkdir(parents=True, exist_ok=True)
                os.rename(staged, final)
                folders.add(final.parent)
            elif not final.exists():
                raise TableInvalid(f"{final} is gone, though commit {commit.number} of the archive has it")
        for folder in folders:
            sync_up(folder, self.root)

    def _path(self, number: int) -> Path:
        return self._commits / f"{number:010d}.json"


def check_writable(folder: Path) -> None:
    """Raises TableInvalid where nothing could be written to a folder, be it there or not; changes nothing."""
    folder = folder.absolute()
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir():
        raise TableInvalid(f"{folder} cannot be a folder: {nearest} is a file. Give another folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise TableInvalid(f"{folder} cannot be written: {nearest} does not permit it. Give another folder.")


def check_root(root: Path) -> None:
    """Raises TableInvalid where a folder cannot be that of a job; changes nothing."""
    check_writable(root)
    if root.exists() and not (root / OWN).exists() and any(root.iterdir()):
        raise TableInvalid(f"{root} is not empty and no archive: give a folder of its own")


def is_finished(root: Path, last: Commit) -> bool:
    """Whether all files of the last commit are in their places."""
    # The folder of staged files goes once all of them are in their places; what becomes of those later is not the job's
    # to judge.
    return not any((root / file.staged).parent.exists() for file, _ in last.files)


def newest(root: Path) -> Commit | None:
    """The last commit of a folder, if there is one."""
    paths = sorted((root / OWN / "commits").glob("*.json"))
    return Commit.load(paths[-1].read_bytes()) if paths else None


class ParquetFolder:
    """A folder of Parquet files as a table that batches are added to."""

    def __init__(self, target: Target) -> None:
        if target.local is None:
            raise TableInvalid(
                f"{target.url} cannot be a folder of Parquet files: a file must be moved into its place at once, which "
                "object stores cannot. Give --table delta or iceberg, or a path."
            )
        self._root = target.local
        self._last: Commit | None = None

    def prepare(self, layout: Layout) -> None:
        check_root(self._root)
        Manifest(self._root).recover()

    def columns(self) -> pa.Schema:
        """Those of the newest file: every file has all columns that there were."""
        import pyarrow.parquet as pq

        last = newest(self._root)
        return pq.read_schema(self._root / last.files[0][1]) if last is not None and last.files else pa.schema([])

    def grow(self, schema: pa.Schema) -> None:
        """The next files have them."""

    def state(self) -> State:
        last = self._last = newest(self._root)
        if last is None:
            return State()
        if last.properties:
            return State.of(last.properties)
        return State(offsets={each: (last.starts[each], end) for each, end in last.ends.items()})

    def add(self, files: Sequence[DataFile], state: State) -> None:
        manifest = Manifest(self._root)
        manifest.last = self._last
        manifest.stage(_batch_name(state.query, state.batch))
        staging = self.staging(state.query, state.batch)
        staged = [
            StagedFile(f"{staging}/{each.path}", each.path.rpartition("/")[0], "", each.rows, each.size)
            for each in files
        ]
        starts = {each: start for each, (start, _) in state.offsets.items()}
        try:
            manifest.commit(staged, starts, state.ends, time.time_ns() // 1_000_000, state.properties())
        except ArchiveInUse:
            raise Conflict from None

    def staging(self, query: str, batch: int) -> str:
        return f"{OWN}/staging/{_batch_name(query, batch)}"

    def discard(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        shutil.rmtree(self._root / self.staging(query, batch), ignore_errors=True)

    def files(self, topic: str) -> list[str]:
        last = newest(self._root)
        placed = last.files if last is not None else ()
        if any((self._root / file.staged).exists() and not (self._root / path).exists() for file, path in placed):
            raise TableInvalid(f"the last commit of {self._root} is being finished, or was cut off: run the job again")
        return sorted(map(str, self._root.glob(f"topic={topic}/**/*.parquet")))


def _batch_name(query: str, batch: int) -> str:
    return f"{query}-{batch}"


def take_lock(root: Path) -> int:
    """The lock of a folder's one writer, made if it is missing: a file descriptor to close. Raises ArchiveInUse."""
    (root / OWN).mkdir(parents=True, exist_ok=True)
    lock = os.open(root / OWN / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ArchiveInUse(f"another job writes to {root}: one archive has one writer") from None
    return lock


@contextmanager
def hold_lock(root: Path | None) -> Iterator[None]:
    """Be the folder's one writer meanwhile; where there is no folder of this machine, there is no lock."""
    lock = take_lock(root) if root is not None else None
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def sync(path: Path) -> None:
    """Make a file durable, or the names in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_up(path: Path, root: Path) -> None:
    """Make a file or a folder durable, and the folders above it up to the root."""
    sync(path)
    for folder in path.parents[: len(path.relative_to(root).parts)]:
        sync(folder)
