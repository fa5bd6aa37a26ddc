"""What a `logs` job knows between rounds: windows that are open, and how far time has come.

It is a file of each commit, so it can never say something else than the results do."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.pipeline.jobs.logs.counting import NEVER
from headrace.pipeline.jobs.logs.windows import Tally
from headrace.pipeline.options import Partition

SCHEMA = pa.schema([("name", pa.string()), ("contents", pa.binary())])


@dataclass(frozen=True)
class Totals:
    """Lines since the folder was begun."""

    rows: int = 0
    parsed: int = 0
    broken: int = 0
    late: int = 0
    errors: int = 0
    windows: int = 0

    def plus(self, **more: int) -> Totals:
        return Totals(**{name: count + more[name] for name, count in asdict(self).items()})


@dataclass(frozen=True)
class State:
    """What is carried from one commit to the next."""

    id: str = field(default_factory=lambda: uuid4().hex)
    """Of this folder, since it was begun."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """The size of windows and the lateness, which cannot change under open windows."""
    closed: int = NEVER
    seen: Mapping[Partition, int] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    open: Tally = field(default_factory=Tally)

    def table(self) -> Any:
        """As rows of a file."""
        seen = [[topic, index, time] for (topic, index), time in sorted(self.seen.items())]
        fields = {
            "id": self.id,
            "settings": dict(self.settings),
            "closed": self.closed,
            "seen": seen,
            "totals": asdict(self.totals),
        }
        tables = {name: _dumped(table) for name, table in vars(self.open).items()}
        rows = {"fields": json.dumps(fields).encode(), **tables}
        return pa.table({"name": list(rows), "contents": list(rows.values())}, schema=SCHEMA)

    @classmethod
    def load(cls, path: Path) -> State:
        rows = {row["name"]: row["contents"] for row in pq.read_table(path).to_pylist()}
        fields = json.loads(rows.pop("fields"))
        return cls(
            fields["id"],
            fields["settings"],
            fields["closed"],
            {(topic, index): time for topic, index, time in fields["seen"]},
            Totals(**fields["totals"]),
            Tally(**{name: pa.ipc.open_stream(contents).read_all() for name, contents in rows.items()}),
        )


def _dumped(table: Any) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return file.getvalue()
