"""Where records come from: a broker, the folder of one that does not run, or an archive.

Planning is the same for all; what differs is how offsets are asked for and records are had. A catalogue is opened for a
moment in the driver, to plan, and an origin again in each task, to read. An archive is a catalogue only: it holds rows
already, and no batches.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.pipeline.options import Partition, SourceOptions
from headrace.pipeline.tables import OWN
from headrace.targets import is_remote

# A Delta table whose checkpoint lies elsewhere has nothing of Headrace's own.
ARCHIVE_MARKS = (OWN, "_delta_log")


class DataLost(HeadraceError):
    """Records that were to be read are gone from the log."""


@dataclass(frozen=True)
class Range:
    """Offsets of one partition, the end excluded."""

    topic: str
    partition: int
    start: int
    end: int


class Catalogue(Protocol):
    """Topics, and which offsets they have."""

    name: str
    """As messages call it."""

    async def topics(self) -> Mapping[str, int]:
        """How many partitions each topic has."""
        ...

    async def offsets(self, wanted: Mapping[Partition, int], *, committed: bool) -> dict[Partition, int]:
        """Per partition the offset at a time (ms), or at EARLIEST or LATEST; -1 where no record is that young."""
        ...

    async def group(self, name: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Where a consumer group stands, on the partitions that it has committed."""
        ...

    async def follow(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Let a consumer group stand there."""
        ...

    async def sizes(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """Bytes that are kept of the partitions."""
        ...

    async def compacted(self, topics: Sequence[str]) -> set[str]:
        """Of the topics, those that are known to keep one record of each key."""
        ...


class Origin(Catalogue, Protocol):
    """Topics that are kept as batches."""

    def batches(self, wanted: Range, *, committed: bool, skip_lost: bool) -> AsyncGenerator[list[memoryview], None]:
        """A range's batches, some at a time; whole, so that the first and the last may reach over its ends; without
        markers and, where `committed`, without what was aborted. Raises DataLost unless what is gone may be skipped."""
        ...


def open_catalogue(options: SourceOptions) -> AbstractAsyncContextManager[Catalogue]:
    """What the options name, to plan with."""
    if is_archive(options):
        from headrace.pipeline.archive import ArchiveCatalogue

        return ArchiveCatalogue.open(options.folder)
    return open_origin(options)


def is_archive(options: SourceOptions) -> bool:
    """Whether the folder is one that `headrace pipeline archive` has made."""
    if not options.folder:
        return False
    # A broker's data folder is one of this machine.
    return is_remote(options.folder) or any(Path(options.folder, mark).is_dir() for mark in ARCHIVE_MARKS)


def open_origin(options: SourceOptions) -> AbstractAsyncContextManager[Origin]:
    """What the options name, to read from."""
    # Imported here: a task that asks a broker does not pay for the log's code, nor the other way round.
    if options.folder:
        from headrace.pipeline.folder import FolderOrigin

        return FolderOrigin.open(options.folder)
    from headrace.pipeline.broker import BrokerOrigin

    return BrokerOrigin.open(options)


def range_lost(topic: str, partition: int, start: int, end: int) -> DataLost:
    """The error where records of a range are gone while it is read."""
    return DataLost(
        f"{topic}-{partition}: the records from {start} to {end} were to be read, and not all of them are in the log "
        "any more (retention, or a topic made anew); failOnDataLoss=false reads what is left"
    )
