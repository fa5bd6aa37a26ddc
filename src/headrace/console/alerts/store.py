"""What alerts there are and what was said of them, through restarts: one small SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import structlog

from headrace.console.alerts.notices import Sent, SentKey
from headrace.console.alerts.state import Alert, AlertKey
from headrace.console.database import open_database

P = ParamSpec("P")
R = TypeVar("R")

log = structlog.get_logger("headrace.console")

HISTORY_MAX = 20_000
VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS state (broker TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS event (
  id INTEGER PRIMARY KEY AUTOINCREMENT, broker TEXT NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, rule TEXT NOT NULL,
  name TEXT NOT NULL, severity TEXT NOT NULL, about TEXT NOT NULL, value REAL NOT NULL, detail TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS event_by_broker ON event (broker, id);
"""


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """Something that happened to an alert."""

    at: float
    kind: str
    """`fired`, `resolved`, `acknowledged`, `notified`, `failed`."""
    rule: str
    name: str
    severity: str
    about: str
    value: float
    detail: str = ""


class _State(msgspec.Struct):
    alerts: list[Alert] = []
    sent: list[tuple[SentKey, Sent]] = []


class AlertFile:
    """The file. Its calls block."""

    def __init__(self, path: Path | str) -> None:
        self._db = open_database(path, _SCHEMA, VERSION, "what was told of alerts")

    def close(self) -> None:
        self._db.close()

    def load(self, broker: str) -> tuple[dict[AlertKey, Alert], dict[SentKey, Sent]]:
        row = self._db.execute("SELECT data FROM state WHERE broker=?", (broker,)).fetchone()
        if row is None:
            return {}, {}
        try:
            state = msgspec.json.decode(row[0], type=_State)
        except msgspec.MsgspecError as error:
            log.warning("what fired cannot be read: it is told of again", broker=broker, reason=str(error))
            return {}, {}
        return {each.key: each for each in state.alerts}, dict(state.sent)

    def save(
        self, broker: str, alerts: list[Alert], sent: list[tuple[SentKey, Sent]], events: list[AlertEvent]
    ) -> None:
        data = msgspec.json.encode(_State(alerts, sent))
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (broker, data))
            self._db.executemany(
                "INSERT INTO event (broker, at, kind, rule, name, severity, about, value, detail) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(broker, e.at, e.kind, e.rule, e.name, e.severity, e.about, e.value, e.detail) for e in events],
            )
            self._db.execute("DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?", (HISTORY_MAX,))
            self._db.execute("COMMIT")

    def history(self, broker: str, limit: int) -> list[AlertEvent]:
        """The newest first."""
        rows = self._db.execute(
            "SELECT at, kind, rule, name, severity, about, value, detail FROM event "
            "WHERE broker=? ORDER BY id DESC LIMIT ?",
            (broker, limit),
        )
        return [AlertEvent(*row) for row in rows]


class AlertStore:
    """The file on a thread of its own."""

    def __init__(self, path: Path | str) -> None:
        self._thread = ThreadPoolExecutor(1, "alerts")
        self._open: Callable[[], AlertFile] = lambda: AlertFile(path)
        self._file: AlertFile | None = None
        self._is_failing = False

    async def open(self) -> None:
        self._file = await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    async def close(self) -> None:
        if self._file is not None:
            await self._run(self._file.close)
            self._file = None
        self._thread.shutdown()

    async def _run(self, call: Callable[P, R], *arguments: P.args, **_: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    @property
    def _opened(self) -> AlertFile:
        assert self._file is not None, "open() comes first"
        return self._file

    async def load(self, broker: str) -> tuple[dict[AlertKey, Alert], dict[SentKey, Sent]]:
        return await self._run(self._opened.load, broker)

    async def save(
        self, broker: str, alerts: list[Alert], sent: list[tuple[SentKey, Sent]], events: list[AlertEvent]
    ) -> None:
        try:
            await self._run(self._opened.save, broker, alerts, sent, events)
        except sqlite3.Error as error:
            # Who is to be told is told all the same; after a restart perhaps once more.
            if not self._is_failing:
                log.warning("alerts are not kept: their file cannot be written. Free some room.", reason=str(error))
            self._is_failing = True
        else:
            self._is_failing = False

    async def history(self, broker: str, limit: int = 200) -> list[AlertEvent]:
        return await self._run(self._opened.history, broker, limit)
