"""`headrace log`: reads and repairs the files of a stopped broker.

All commands take the lock of the data directory: no broker writes, or starts, while one runs.
"""

from __future__ import annotations

import errno
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar
from uuid import uuid4

import typer

from headrace.broker.settings import BrokerSettings
from headrace.broker.topic_config import settings_of
from headrace.cli.messages import Form, binary_output, format_record
from headrace.cli.options import Json, parse_path
from headrace.cli.output import progress, show
from headrace.errors import CheckpointDamaged, HeadraceError, InvalidRecords
from headrace.format import records
from headrace.format.compression import NAMES as COMPRESSIONS
from headrace.format.markers import control_type
from headrace.log import checkpoint
from headrace.log.checkpoint import Checkpoint
from headrace.log.interface import TopicSettings
from headrace.log.repair import rebuild
from headrace.log.repair import repair as repair_log
from headrace.log.repair import verify as verify_log
from headrace.log.repair.salvaged import Row
from headrace.log.repair.verify import Finding, StoredBatch
from headrace.runtime.disk import Disk, SystemDisk

T = TypeVar("T")

UNPACKED_MAX_BYTES = 1 << 30
PARTITION = re.compile(r"(.+)-(\d+)")
COLUMNS = ("partition", "offsets", "severity", "what")

app = typer.Typer(help="Verifies, repairs and dumps the files of a stopped broker.", no_args_is_help=True)

Directory = Annotated[
    Path, typer.Argument(parser=parse_path, metavar="DIR", help="The data directory of a stopped broker.")
]


@contextmanager
def lock_directory(directory: Path) -> Iterator[Disk]:
    """The files of a data directory, locked."""
    # SystemDisk creates its directory, which a command that reads must not do.
    if not directory.is_dir():
        raise HeadraceError(f"{directory} is not a directory")
    if not any(directory.iterdir()):
        raise HeadraceError(f"{directory} is empty: no broker has stored anything there")
    # The lock is a file, which must not be created in a directory of something else.
    if not any(
        each.name in ("checkpoint", "journal") or PARTITION.fullmatch(each.name) for each in directory.iterdir()
    ):
        raise HeadraceError(
            f"{directory} is not a broker's data directory: it has neither a checkpoint nor a partition"
        )
    disk = SystemDisk(os.fspath(directory))
    try:
        disk.lock()
    except OSError as error:
        # A snapshot or a backup that is mounted read-only: no broker can run there.
        if error.errno != errno.EROFS:
            raise HeadraceError(f"{directory} cannot be locked: {error.strerror} ({error.filename})") from None
    try:
        yield disk
    finally:
        disk.unlock()


@contextmanager
def _track_partitions() -> Iterator[repair_log.Track]:
    """A function that shows on a terminal how many of its partitions are done."""
    with progress() as begin:

        def track(partitions: Sequence[T]) -> Iterator[T]:
            advance = begin("partitions", len(partitions))
            for each in partitions:
                yield each
                advance(1)

        yield track


@app.command()
def verify(directory: Directory, as_json: Json = False) -> None:
    """Reads every batch of every partition, and lists what is damaged or missing."""
    rows: list[dict[str, Any]] = []

    def note(finding: Finding) -> None:
        rows.append(
            {
                "path": finding.path,
                "position": finding.position if finding.position >= 0 else None,
                "severity": "warning" if finding.warning else "damage",
                "problem": finding.problem,
            }
        )

    with lock_directory(directory) as disk:
        known, findings = verify_log.expectations(disk)
        for finding in findings:
            note(finding)
        # A partition has no folder before its first batch is stored.
        there = {folder for _, _, folder in partitions_of(disk)}
        folders = sorted(there | {folder for folder, expected in known.items() if expected.start < expected.point})
        with _track_partitions() as track:
            for folder in track(folders):
                for finding in verify_log.verify(disk, folder, known.get(folder)):
                    note(finding)
    if as_json or rows:
        show(rows, as_json, ("severity", "path", "position", "problem"))
    damage = sum(row["severity"] == "damage" for row in rows)
    if damage:
        raise HeadraceError(
            f"{damage} of the findings in {len(folders)} partitions are damage. Restore the missing files, "
            "or see what `headrace log repair` can keep."
        )
    if not as_json:
        print("1 partition is sound" if len(folders) == 1 else f"{len(folders)} partitions are sound")


@app.command()
def repair(
    directory: Directory,
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC-N]...", help="Only these partitions or topics; by default all."),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Repair. Without this option, the command only prints what it would do."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Repairs damaged partitions: keeps the batches that can be read, on both sides of a gap, and lists the lost
    offsets. Removed files are kept in DIR/repair."""
    with lock_directory(directory) as disk:
        rows: list[Row] = []
        try:
            found = checkpoint.load(disk)
        except CheckpointDamaged:
            found = None
        if found is None:
            found, rows = _rebuild_checkpoint(disk)
        with _track_partitions() as track:
            try:
                looked = repair_log.look(disk, found, partitions or (), track)
            except LookupError as error:
                raise HeadraceError(str(error.args[0])) from None
            lost = repair_log.missing_journal(disk)
            done = repair_log.Repaired([*rows, *lost, *looked.rows], [])
            if accept_loss:
                try:
                    asides = [repair_log.replace_checkpoint(disk, found, rows)] if rows else []
                    repaired = repair_log.repair(disk, looked, track)
                    if lost:
                        repair_log.make_journal(disk)
                except OSError as error:
                    raise HeadraceError(
                        f"the repair is not finished: {error}. Run the same command again to continue."
                    ) from error
                done = repair_log.Repaired([*rows, *lost, *repaired.rows], [*asides, *repaired.asides])
        kept = repair_log.kept_journals(disk)
    if as_json or done.rows:
        show([_repair_row(row) for row in done.rows], as_json, COLUMNS)
    if done.rows and not accept_loss:
        raise HeadraceError("nothing was changed. Use --accept-loss to repair, or restore the missing files.")
    if as_json:
        return
    for aside in done.asides:
        print(f"repaired; the removed files are in {directory / aside}")
    if lost and not done.asides:
        print("repaired; nothing had to be removed")
    if not done.rows:
        print(f"{looked.partitions} partitions need no repair")
    if kept and not partitions:
        print(f"no partition needs {', '.join(kept)} any more. You may delete it.")


def _rebuild_checkpoint(disk: Disk) -> tuple[Checkpoint, list[Row]]:
    """A checkpoint to replace one that is damaged or missing."""

    def keep_everything() -> tuple[dict[str, str], TopicSettings]:
        config = {"retention.ms": "-1"}
        return config, settings_of(config, BrokerSettings())

    found, rows = rebuild.rebuild(disk, urlsafe_b64encode(uuid4().bytes).decode().rstrip("="), keep_everything)
    if not found.topics:
        raise HeadraceError(f"there is neither a file {checkpoint.PATH!r} nor a partition here")
    names = ", ".join(sorted(topic.name for topic in found.topics))
    what = "is damaged or missing, and is rebuilt from its lines and from the folders"
    what = f"{what}. Check that all topics are there and have their configurations: {names}"
    return found, [Row(checkpoint.PATH, what), *rows]


def _repair_row(row: Row) -> dict[str, Any]:
    offsets = f"{row.first}-{row.last}" if row.first < row.last else str(row.first)
    return {
        "partition": row.folder,
        "offsets": offsets if row.first >= 0 else None,
        "first": row.first if row.first >= 0 else None,
        "last": row.last if row.first >= 0 else None,
        "severity": "lost" if row.lost else "mended",
        "what": row.what,
    }


@app.command()
def dump(
    directory: Directory,
    topic: Annotated[str, typer.Option(help="Only this topic.")] = "",
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    with_records: Annotated[
        bool, typer.Option("--records", help="Print records, as `consume --format json` does.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Lists the batches of the segments, or prints their records. Batches of transactions are committed, aborted or
    open. Control batches are listed too."""
    rows: list[dict[str, Any]] = []
    with lock_directory(directory) as disk, binary_output() as out:
        for name, number, folder in partitions_of(disk):
            if (topic and name != topic) or (partition is not None and number != partition):
                continue
            if with_records:
                for batch in verify_log.dump(disk, folder):
                    _print_records(out, disk, name, number, batch)
            else:
                rows += _rows(disk, folder)
    if not with_records:
        show(rows, as_json, {each.replace("_", " "): each for each in rows[0]} if rows else {})


def partitions_of(disk: Disk) -> list[tuple[str, int, str]]:
    """Topic, number and folder of each partition of a data directory."""
    kept = repair_log.kept_journals(disk)
    found = [(PARTITION.fullmatch(folder), folder) for folder in disk.listdir("") if folder not in kept]
    return sorted((match[1], int(match[2]), folder) for match, folder in found if match)


def _rows(disk: Disk, folder: str) -> list[dict[str, Any]]:
    """The batches of a partition. The next marker of its producer decides a batch of a transaction."""
    rows = []
    undecided: dict[int, list[dict[str, Any]]] = {}
    for batch in verify_log.dump(disk, folder):
        row = _row(batch)
        rows.append(row)
        producer = batch.header.producer_id
        if batch.header.is_control:
            try:
                committed, _ = control_type(_contents(disk, batch))
            except InvalidRecords:
                continue
            row["kind"] = "commit" if committed else "abort"
            for each in undecided.pop(producer, ()):
                each["kind"] = "committed" if committed else "aborted"
        elif batch.header.is_transactional:
            undecided.setdefault(producer, []).append(row)
    return rows


def _contents(disk: Disk, batch: StoredBatch) -> bytes:
    with closing(disk.open(batch.path)) as file:
        return file.read(batch.position, batch.header.size)


def _row(batch: StoredBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "segment": batch.path,
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "compression": COMPRESSIONS[header.compression] if header.compression < len(COMPRESSIONS) else "unknown",
        "max_timestamp": header.max_timestamp,
        "epoch": header.leader_epoch,
        "producer": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "sequence": header.base_sequence,
        "kind": "control" if header.is_control else "open" if header.is_transactional else "data",
        "checksum": "fits" if batch.fits else "WRONG",
    }


def _print_records(out: BinaryIO, disk: Disk, topic: str, partition: int, batch: StoredBatch) -> None:
    if batch.header.is_control:
        return
    if not batch.fits:
        raise HeadraceError(f"{batch.path} at position {batch.position}: the batch fails its checksum")
    for record in records.parse(_contents(disk, batch), UNPACKED_MAX_BYTES):
        out.write(format_record(Form.JSON, None, topic, partition, record))
