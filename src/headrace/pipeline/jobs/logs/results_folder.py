"""The folder of the results: which files are in it, and how they get there.

    windows/date=D/N.parquet, late/date=D/N.parquet    the rows of batch N
    aside/N-TOPIC-PARTITION.parquet                    lines of batch N that are in no window, as they came
    _headrace/logs.json                                what the folder was begun with
    _headrace/checkpoint/                              Spark's: offsets, commits, state
    _headrace/clocks/N.json                            the clock behind batch N, for the tasks of the next one
    _headrace/signals/*.json                           what the driver tells the query

One idea: Spark's checkpoint fixes what a batch reads, and the same lines give the same rows. So a file is named after
its batch, appears at once and whole, and is replaced by its like where the batch runs again: a reader that lists the
folder finds each row once, and there is no log of commits.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.pipeline.jobs.folders import LOGS_SETTINGS
from headrace.pipeline.jobs.logs.clock import Clock, Signal
from headrace.pipeline.manifest import hold_lock, sync, sync_up
from headrace.pipeline.tables import OWN

WINDOWS, LATE, ASIDE = "windows", "late", "aside"
ASIDE_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")


@dataclass(frozen=True)
class ResultsFolder:
    """It can be sent to another process, which has the same folder."""

    root: Path

    @property
    def own(self) -> Path:
        return self.root / OWN

    @property
    def checkpoint(self) -> Path:
        return self.own / "checkpoint"

    @property
    def signals(self) -> Path:
        return self.own / "signals"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """The folder for one run at a time, made if it is missing. Raises ArchiveInUse."""
        for name in ("clocks", "signals", "staging"):
            (self.own / name).mkdir(parents=True, exist_ok=True)
        with hold_lock(self.root):
            # What tasks have left that were killed.
            shutil.rmtree(self.own / "staging")
            (self.own / "staging").mkdir()
            yield

    def settings(self) -> dict[str, Any]:
        """What the folder was begun with; empty in a new one."""
        path = self.root / LOGS_SETTINGS
        return dict(json.loads(path.read_bytes())) if path.exists() else {}

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        self._write(self.root / LOGS_SETTINGS, json.dumps(settings))

    def clock(self, batch: int) -> Clock:
        """The clock behind a batch; before the first, one that has not begun."""
        return Clock() if batch < 0 else Clock.load((self.own / "clocks" / f"{batch}.json").read_bytes())

    def last_clock(self) -> tuple[int, Clock]:
        """The clock of the last batch, and its number; -1 before the first."""
        batch = max((int(each.stem) for each in (self.own / "clocks").glob("*.json")), default=-1)
        return batch, self.clock(batch)

    def save_clock(self, batch: int, clock: Clock) -> None:
        """A batch may run again until the next one has begun: so the clock before it stays."""
        self._write(self.own / "clocks" / f"{batch}.json", clock.dump())
        (self.own / "clocks" / f"{batch - 2}.json").unlink(missing_ok=True)

    def send(self, signal: Signal) -> None:
        number = len(list(self.signals.iterdir()))
        self._write(self.signals / f"{number:010d}.json", json.dumps({"signal": signal.dump()}))

    def save(self, batch: int, name: str, table: Any) -> None:
        """Rows of a batch by day, in UTC."""
        days = pc.strftime(table.column("window"), format="%Y-%m-%d")
        for day in sorted(pc.unique(days).to_pylist()):
            temporary = self._temporary()
            pq.write_table(table.filter(pc.equal(days, day)), temporary, compression="zstd")
            self._place(temporary, self.root / name / f"date={day}" / f"{batch:010d}.parquet")

    def rows(self, batch: int, name: str) -> list[Any]:
        """The tables that were saved for a batch, by day."""
        paths = sorted((self.root / name).glob(f"date=*/{batch:010d}.parquet"))
        return [pq.ParquetFile(path).read() for path in paths]

    @contextmanager
    def aside(self, batch: int, topic: str, partition: int) -> Iterator[AsideWriter]:
        path = self.root / ASIDE / f"{batch:010d}-{topic}-{partition}.parquet"
        writer = AsideWriter(self._temporary())
        yield writer
        if writer.close():
            self._place(writer.path, path)
        else:
            path.unlink(missing_ok=True)

    def _temporary(self) -> Path:
        return self.own / "staging" / uuid4().hex

    def _write(self, path: Path, text: str) -> None:
        temporary = self._temporary()
        temporary.write_text(text)
        self._place(temporary, path)

    def _place(self, temporary: Path, path: Path) -> None:
        """Let a file appear, whole and durable."""
        sync(temporary)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, path)
        sync_up(path.parent, self.root)


class AsideWriter:
    """Writes the lines that are in no window, as they came, with the reason."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: pq.ParquetWriter | None = None

    def add(self, block: pa.RecordBatch, reasons: Any) -> None:
        """Those of a block that have a reason."""
        if reasons.null_count == len(reasons):
            return
        kept = pa.Table.from_batches([block.select(ASIDE_COLUMNS)]).append_column("reason", reasons)
        kept = kept.filter(pc.is_valid(reasons))
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, kept.schema, compression="zstd")
        self._writer.write_table(kept)

    def close(self) -> bool:
        """Whether there were any."""
        if self._writer is not None:
            self._writer.close()
        return self._writer is not None
