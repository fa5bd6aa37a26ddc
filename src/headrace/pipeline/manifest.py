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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.pipeline.options import Partition
from headrace.pipeline.tables import OWN, PARQUET, Conflict, DataFile, State, TableInvalid, dump_spans

if TYPE_CHECKING:
    from headrace.pipeline.parquet import Layout
    from headrace.pipeline.target import Target

VERSION = 1
STAGED = ".staged"


class ArchiveInUse(HeadraceError):
    """Two jobs write to one archive."""


@dataclass(frozen=True)
class Commit:
    """What was added at once, and what the folder has with it."""

    number: int
    state: State
    files: tuple[tuple[str, str], ...]
    """Where each was staged, and its place, relative to the folder."""

    @property
    def ends(self) -> dict[Partition, int]:
        return self.state.ends

    def dump(self) -> bytes:
        whole = {
            "version": VERSION,
            "table": PARQUET,
            "number": self.number,
            "at_ms": time.time_ns() // 1_000_000,
            "offsets": dump_spans(self.state.offsets),
            "properties": self.state.properties(),
            "files": [{"path": path, "staged": staged} for staged, path in self.files],
        }
        return json.dumps(whole, indent=1).encode()

    @classmethod
    def load(cls, contents: bytes) -> Commit:
        whole = json.loads(contents)
        if whole["version"] != VERSION:
            raise TableInvalid(f"the archive is of version {whole['version']}, this Headrace writes {VERSION}")
        files = tuple((each["staged"], each["path"]) for each in whole["files"])
        # Older versions recorded the offsets alone.
        properties = whole.get("properties") or {"headrace.offsets": json.dumps(whole["offsets"])}
        return cls(whole["number"], State.of(properties), files)


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


def newest(root: Path) -> Commit | None:
    """The last commit of a folder, if there is one."""
    paths = sorted((root / OWN / "commits").glob("*.json"))
    return Commit.load(paths[-1].read_bytes()) if paths else None


class ParquetFolder:
    """A folder of Parquet files as a table that batches are added to, by its one writer."""

    def __init__(self, target: Target) -> None:
        if target.local is None:
            raise TableInvalid(
                f"{target.url} cannot be a folder of Parquet files: a file must be moved into its place at once, which "
                "object stores cannot. Give --table delta or iceberg, or a path."
            )
        self._root = target.local
        self._commits = self._root / OWN / "commits"
        self._last: Commit | None = None

    def prepare(self, layout: Layout) -> None:
        check_root(self._root)
        self.recover()

    def recover(self) -> None:
        """Make the folder if it is missing, and finish what the last writer left."""
        staging = self._root / OWN / "staging"
        self._commits.mkdir(parents=True, exist_ok=True)
        staging.mkdir(exist_ok=True)
        last = newest(self._root)
        # A batch's folder goes once all of its files are in their places; what becomes of those later is not the
        # writer's to judge.
        if last is not None and any((self._root / staged).parent.exists() for staged, _ in last.files):
            self._finish(last)
        for leftover in [*staging.iterdir(), *self._commits.glob("*.tmp")]:
            # A task of a driver that was killed may still write there for a moment; nothing reads that.
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()

    def columns(self) -> pa.Schema:
        """Those of the newest file: every file has all columns that there were."""
        import pyarrow.parquet as pq

        last = newest(self._root)
        return pq.read_schema(self._root / last.files[0][1]) if last is not None and last.files else pa.schema([])

    def grow(self, schema: pa.Schema) -> None:
        """The next files have them."""

    def state(self) -> State:
        self._last = newest(self._root)
        return self._last.state if self._last is not None else State()

    def add(self, files: Sequence[DataFile], state: State) -> None:
        number = self._last.number + 1 if self._last is not None else 1
        staging = self.staging(state.query, state.batch)
        placed = []
        for index, path in enumerate(sorted(each.path for each in files)):
            folder = path.rpartition("/")[0]
            placed.append((f"{staging}/{path}", f"{folder}/{number:010d}-{index:05d}.parquet".lstrip("/")))
        commit = Commit(number, state, tuple(placed))
        temporary = self._commits / f"{uuid4().hex}.tmp"
        with temporary.open("xb") as file:
            file.write(commit.dump())
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, unlike a rename, does not replace: of two writers one fails, even where locks mean nothing.
            os.link(temporary, self._commits / f"{number:010d}.json")
        except FileExistsError:
            raise Conflict from None
        finally:
            temporary.unlink()
        sync(self._commits)
        self._finish(commit)
        # What tasks that were tried twice have left over goes too.
        self.discard(files, state.query, state.batch)

    def _finish(self, commit: Commit) -> None:
        """Move the files of a commit to their places, as far as they are not there."""
        folders = set()
        for before, path in commit.files:
            staged, final = self._root / before, self._root / path
            if staged.exists():
                final.parent.mkdir(parents=True, exist_ok=True)
                os.rename(staged, final)
                folders.add(final.parent)
            elif not final.exists():
                raise TableInvalid(f"{final} is gone, though commit {commit.number} of the archive has it")
        for folder in folders:
            sync_up(folder, self._root)

    def staging(self, query: str, batch: int) -> str:
        return f"{OWN}/staging/{query}-{batch}"

    def discard(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        shutil.rmtree(self._root / self.staging(query, batch), ignore_errors=True)

    def files(self, topic: str) -> list[str]:
        last = newest(self._root)
        placed = last.files if last is not None else ()
        if any((self._root / staged).exists() and not (self._root / path).exists() for staged, path in placed):
            raise TableInvalid(f"the last commit of {self._root} is being finished, or was cut off: run the job again")
        return sorted(map(str, self._root.glob(f"topic={topic}/**/*.parquet")))


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
