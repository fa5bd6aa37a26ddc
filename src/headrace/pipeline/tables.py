"""What an archive may be besides a folder of Parquet files: a Delta or an Iceberg table over the same files.

One idea: the archive's own log (`manifest.py`) decides, and a table follows. Each commit has a number; the table takes
the files of a commit and its number in one commit of its own, so it can be asked which it has, and taking one again
does nothing. A job that is killed between the two leaves the table one commit behind, for the next run to bring up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.pipeline.manifest import Commit

PARQUET, DELTA, ICEBERG = KINDS = ("parquet", "delta", "iceberg")
# Others may write to a table, too: who compacts it, for one.
TRIES = 20


class TableMissing(HeadraceError):
    """The package for a kind of table is not installed, or there is no such kind."""


class TableBusy(HeadraceError):
    """Others write to the table all the time."""


class Table(Protocol):
    """A table over the files of an archive."""

    def number(self) -> int:
        """The last commit that the table has taken; 0 before the first."""
        ...

    def take(self, commit: Commit) -> None:
        """Take a commit's files, which are in their places, unless the table has. Durable on return."""
        ...

    def files(self, topic: str) -> list[Path]:
        """The files that a topic has in the table now."""
        ...


def table_of(kind: str, root: Path) -> Table | None:
    """The table of an archive, made if it is missing; None for one of files alone."""
    made = maker_of(kind)
    return made(root) if made is not None else None


def maker_of(kind: str) -> Callable[[Path], Table] | None:
    """What makes such tables. Raises TableMissing where nothing does."""
    if kind == PARQUET:
        return None
    if kind not in KINDS:
        raise TableMissing(f"an archive cannot be {kind!r}: it is one of {', '.join(KINDS)}")
    try:
        if kind == DELTA:
            from headrace.pipeline.delta import DeltaArchive

            return DeltaArchive
        from headrace.pipeline.iceberg import IcebergArchive

        return IcebergArchive
    except ImportError as error:
        raise TableMissing(f"an archive as {kind} needs more: pip install 'headrace[{kind}]' ({error})") from None
