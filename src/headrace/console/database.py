"""The console's SQLite files: opened so that a console starts whatever it finds.

What they hold is worth little beside a console that runs: figures over time, and what was told of alerts. So a file
that is damaged, or of another version, is set aside under another name, and a new one begins; the log says so.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import structlog

log = structlog.get_logger("headrace.console")

ASIDE = ".aside"
BESIDE = ("-wal", "-shm")


def open_database(path: Path | str, schema: str, version: int, what: str) -> sqlite3.Connection:
    """The file with its tables. `what` it holds is for the log."""
    try:
        return _open(path, schema, version)
    except (sqlite3.DatabaseError, _OtherVersion) as error:
        if isinstance(error, sqlite3.OperationalError) or str(path) == ":memory:":
            # No room, no right to write, or locked by another console: a new file would be no better.
            raise
        aside = set_aside(Path(path))
        log.warning(
            f"{what} cannot be used and begins anew. The old file is kept until this happens again: delete it.",
            file=str(path),
            kept=str(aside),
            reason=str(error),
        )
        return _open(path, schema, version)


def set_aside(path: Path) -> Path:
    """Rename a file and what SQLite has beside it. There is one such at most."""
    aside = path.with_name(path.name + ASIDE)
    for suffix in BESIDE:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.replace(aside)
    return aside


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether the file is, and not only the disk full or the file locked."""
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.OperationalError | sqlite3.IntegrityError | sqlite3.ProgrammingError
    )


class _OtherVersion(Exception):
    """The file is another version's."""


def _open(path: Path | str, schema: str, version: int) -> sqlite3.Connection:
    made = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        # Before there is a table, or it has no effect.
        made.execute("PRAGMA auto_vacuum=INCREMENTAL")
        made.execute("PRAGMA journal_mode=WAL")
        made.execute("PRAGMA synchronous=NORMAL")
        found = made.execute("PRAGMA user_version").fetchone()[0]
        has_tables = made.execute("SELECT count(*) FROM sqlite_master WHERE type='table'").fetchone()[0]
        if has_tables and found != version:
            raise _OtherVersion(f"it is of version {found}, and this console writes version {version}")
        made.executescript(schema)
        made.execute(f"PRAGMA user_version={version}")
    except BaseException:
        made.close()
        raise
    return made
