"""Figures over time: a day by ten seconds, two weeks by the minute, in one SQLite file with a bound.

A row holds all figures of one thing at one time, as 32-bit floats. A thing is written while it moves, and once more
when it comes to rest; until it moves again its last row holds. The broker's own row is written always: where that is
missing nothing was known. When the file reaches its bound, what has not moved for longest goes first, whole.

Calls of `HistoryFile` block, and belong on the one thread of `History`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import structlog

from headrace.console.database import is_damaged, open_database, set_aside

log = structlog.get_logger("headrace.console")

P = ParamSpec("P")
R = TypeVar("R")

FIGURES: Mapping[str, tuple[str, ...]] = {
    "node": (
        *("messages_in_rate", "bytes_in_rate", "bytes_out_rate", "requests_rate", "errors_rate", "cpu_seconds_rate"),
        *("memory_bytes", "connections", "disk_free_bytes", "ready", "lag", "dead_rate", "p99_ms", "bytes"),
    ),
    "topics": ("messages_in_rate", "bytes_in_rate", "bytes_out_rate", "bytes"),
    "queues": (
        "depth",
        "in_flight",
        "deferred",
        "delivered_rate",
        "finished_rate",
        "requeued_rate",
        "dead_rate",
        "dead",
    ),
    "groups": ("lag", "committed_rate", "members"),
}
"""What is kept, by kind. New figures go at the end: older rows are shorter."""
TIERS = {10: 86_400, 60: 14 * 86_400}
"""Seconds between two rows, and for how long they are kept."""
POINTS_MAX = 400
MAX_BYTES = 1 << 30

VERSION = 1
WHAT = "the history of figures"
FAILED_SECONDS = 60.0
"""Between two words about a file that cannot be written."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS thing (
  id INTEGER PRIMARY KEY, broker TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, moved INTEGER NOT NULL,
  UNIQUE (broker, kind, name));
CREATE TABLE IF NOT EXISTS tier10 (thing INTEGER, at INTEGER, data BLOB, PRIMARY KEY (thing, at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tier60 (thing INTEGER, at INTEGER, data BLOB, PRIMARY KEY (thing, at)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one thing."""

    broker: str
    kind: str
    name: str
    figures: Mapping[str, float]


Point = tuple[int, float | None]
"""Seconds since 1970, and the figure; None where nothing was known."""


class HistoryFile:
    """The file."""

    def __init__(self, path: Path | str, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._db = open_database(path, _SCHEMA, VERSION, WHAT)
        self._max_bytes = max_bytes
        self._things = self._read_things()

    def _read_things(self) -> dict[tuple[str, str, str], int]:
        rows = self._db.execute("SELECT id, broker, kind, name FROM thing")
        return {(broker, kind, name): id for id, broker, kind, name in rows}

    def close(self) -> None:
        self._db.close()

    def write(self, tier: int, at: int, samples: Iterable[Sample]) -> None:
        """Write rows of one time."""
        rows = []
        count = len(self._things)
        try:
            with self._db:
                self._db.execute("BEGIN")
                for each in samples:
                    known = FIGURES[each.kind]
                    data = array("f", (each.figures.get(name, float("nan")) for name in known)).tobytes()
                    rows.append((self._thing(each, at), at, data))
                self._db.executemany(f"INSERT OR REPLACE INTO tier{tier} VALUES (?, ?, ?)", rows)
                self._db.executemany("UPDATE thing SET moved=? WHERE id=?", [(at, thing) for thing, _, _ in rows])
                self._db.execute("COMMIT")
        except sqlite3.Error:
            # Those that were made are not there.
            for key in list(self._things)[count:]:
                del self._things[key]
            raise

    def _thing(self, sample: Sample, at: int) -> int:
        key = (sample.broker, sample.kind, sample.name)
        id = self._things.get(key)
        if id is None:
            row = self._db.execute("INSERT INTO thing (broker, kind, name, moved) VALUES (?, ?, ?, ?)", (*key, at))
            assert row.lastrowid is not None
            id = self._things[key] = row.lastrowid
        return id

    def tidy(self, now: int) -> None:
        """Drop what is too old, and what is too much."""
        for tier, seconds in TIERS.items():
            self._db.execute(f"DELETE FROM tier{tier} WHERE at < ?", (now - seconds,))
        self._db.execute("DELETE FROM thing WHERE moved < ? AND kind != 'node'", (now - max(TIERS.values()),))
        while self.used_bytes > self._max_bytes and self._drop_some():
            pass
        self._db.execute("PRAGMA incremental_vacuum").fetchall()
        self._things = self._read_things()

    def begin_anew(self) -> None:
        """Set the file aside, which is damaged."""
        self._db.close()
        set_aside(Path(self._path))
        self._db = open_database(self._path, _SCHEMA, VERSION, WHAT)
        self._things = {}

    def _drop_some(self) -> bool:
        """Drop a twentieth of the things, those at rest for longest; of what always moves, the oldest rows."""
        count = self._db.execute("SELECT count(*) FROM thing WHERE kind != 'node'").fetchone()[0]
        if count:
            oldest = "SELECT id FROM thing WHERE kind != 'node' ORDER BY moved, id LIMIT ?"
            ids = [id for (id,) in self._db.execute(oldest, (max(count // 20, 1),))]
            for id in ids:
                self._db.execute("DELETE FROM tier10 WHERE thing=?", (id,))
                self._db.execute("DELETE FROM tier60 WHERE thing=?", (id,))
                self._db.execute("DELETE FROM thing WHERE id=?", (id,))
            return True
        for tier in TIERS:
            first, last = self._db.execute(f"SELECT min(at), max(at) FROM tier{tier}").fetchone()
            if first is not None and first < last:
                self._db.execute(f"DELETE FROM tier{tier} WHERE at <= ?", (first + (last - first) // 4,))
                return True
        return False

    @property
    def used_bytes(self) -> int:
        page, pages, free = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        )
        return int(page * (pages - free))

    def read(self, broker: str, kind: str, name: str, figure: str, since: int, until: int) -> list[Point]:
        """A figure at up to 400 times of a period: the mean of each step."""
        tier = 10 if until - since <= 6 * 3600 and since >= until - TIERS[10] else 60
        step = max(tier, -(-(until - since) // POINTS_MAX // tier) * tier)
        first, last = since - since % step, until - until % step
        values = self._steps(self._things.get((broker, kind, name)), kind, figure, tier, first, last, step)
        if kind != "node":
            # Where the broker's own row is missing, nothing was known.
            known = self._steps(
                self._things.get((broker, "node", "")), "node", "messages_in_rate", tier, first, last, step
            )
            held = self._held(self._things.get((broker, kind, name)), kind, figure, tier, first)
            filled: list[Point] = []
            for at in range(first, last + 1, step):
                held = values.get(at, held)
                filled.append((at, held if at in known else None))
            return filled
        return [(at, values.get(at)) for at in range(first, last + 1, step)]

    def _held(self, thing: int | None, kind: str, figure: str, tier: int, before: int) -> float | None:
        """What a thing at rest had."""
        found = self._db.execute(
            f"SELECT data FROM tier{tier} WHERE thing=? AND at<? ORDER BY at DESC LIMIT 1", (thing, before)
        ).fetchone()
        return _figure(found[0], kind, figure) if found else None

    def _steps(
        self, thing: int | None, kind: str, figure: str, tier: int, first: int, last: int, step: int
    ) -> dict[int, float]:
        if thing is None:
            return {}
        sums: dict[int, tuple[float, int]] = {}
        rows = self._db.execute(
            f"SELECT at, data FROM tier{tier} WHERE thing=? AND at>=? AND at<? ORDER BY at", (thing, first, last + step)
        )
        for at, data in rows:
            value = _figure(data, kind, figure)
            if value is not None:
                total, count = sums.get(at - at % step, (0.0, 0))
                sums[at - at % step] = (total + value, count + 1)
        return {at: total / count for at, (total, count) in sums.items()}


def _figure(data: bytes, kind: str, figure: str) -> float | None:
    values = array("f")
    values.frombytes(data)
    place = FIGURES[kind].index(figure)
    value = values[place] if place < len(values) else None
    return value if value is not None and value == value else None


class History:
    """The file on a thread of its own, and the means of the minute that is under way."""

    def __init__(self, path: Path | str, max_bytes: int = MAX_BYTES) -> None:
        self._thread = ThreadPoolExecutor(1, "history")
        self._open: Callable[[], HistoryFile] = lambda: HistoryFile(path, max_bytes)
        self._file: HistoryFile | None = None
        self._minutes: dict[tuple[str, str, str], tuple[dict[str, float], int]] = {}
        self._minute = 0
        self._tidied = 0
        self._failed_at = 0.0

    async def open(self) -> None:
        self._file = await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    async def close(self) -> None:
        if self._file is not None:
            await self._run(self._file.close)
            self._file = None
        self._thread.shutdown()

    async def _run(self, call: Callable[P, R], *arguments: P.args, **_: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    async def record(self, at: int, samples: Sequence[Sample]) -> None:
        """Keep what stood at a time, a multiple of ten seconds."""
        file = self._file
        if file is None:
            return
        try:
            await self._record(file, at, samples)
        except sqlite3.Error as error:
            await self._failed(file, at, error)

    async def _failed(self, file: HistoryFile, at: int, error: sqlite3.Error) -> None:
        """These figures are lost. Whoever watches, and the alerts, go on without."""
        if at - self._failed_at >= FAILED_SECONDS:
            self._failed_at = at
            log.warning(
                "figures are not kept: the history cannot be written. Free some room, or look at the file.",
                reason=str(error),
            )
        if is_damaged(error):
            try:
                await self._run(file.begin_anew)
            except (sqlite3.Error, OSError) as again:
                log.warning("the history cannot begin anew", reason=str(again))

    async def _record(self, file: HistoryFile, at: int, samples: Sequence[Sample]) -> None:
        await self._run(file.write, 10, at, samples)
        minute = at - at % 60
        if self._minute and minute != self._minute:
            kept, self._minutes = self._minutes, {}
            means = [
                Sample(*key, {name: total / count for name, total in sums.items()})
                for key, (sums, count) in kept.items()
            ]
            await self._run(file.write, 60, self._minute, means)
        self._minute = minute
        for each in samples:
            sums, count = self._minutes.get((each.broker, each.kind, each.name), ({}, 0))
            for name, value in each.figures.items():
                sums[name] = sums.get(name, 0.0) + value
            self._minutes[each.broker, each.kind, each.name] = (sums, count + 1)
        if at - self._tidied >= 600:
            self._tidied = at
            await self._run(file.tidy, at)

    async def read(self, broker: str, kind: str, name: str, figure: str, since: int, until: int) -> list[Point]:
        file = self._file
        if file is None:
            return []
        try:
            return await self._run(file.read, broker, kind, name, figure, since, until)
        except sqlite3.Error as error:
            log.warning("the history cannot be read", reason=str(error))
            return []

    async def mean(self, broker: str, kind: str, name: str, figure: str, since: int, until: int) -> float | None:
        """The mean of a figure over a period; None where nothing was known."""
        points = await self.read(broker, kind, name, figure, since, until)
        known = [value for _, value in points if value is not None]
        return sum(known) / len(known) if known else None
