"""How far the time of the lines has come, and what that closes.

Spark has one watermark for a query, behind the latest line of all partitions, and it drops what comes after it. Here
each partition has a time of its own: the slowest of them closes windows, and a partition that is behind the others has
no late lines for that. The clock is part of Spark's state. A copy of it lies beside the results, by batch
(`results_folder.py`), because tasks that read lines cannot see that state, and whether a line is late depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.pipeline.jobs.logs.counts import NEVER
from headrace.pipeline.options import Partition


@dataclass(frozen=True)
class Totals:
    """Lines since the folder was begun. `parsed + broken + late == rows`."""

    rows: int = 0
    parsed: int = 0
    broken: int = 0
    late: int = 0
    errors: int = 0
    windows: int = 0
    open: int = 0

    def plus(self, open: int, more: Mapping[str, int]) -> Totals:
        return Totals(**{name: getattr(self, name) + count for name, count in more.items()}, open=open)


@dataclass(frozen=True)
class Signal:
    """What the driver tells the query, through the stream: so a batch that runs again gets the same once more."""

    idle_ms: int | None = None
    """A partition without lines for this long closes windows no more slowly than the others; None: it holds them."""
    waiting: tuple[Partition, ...] = ()
    """Partitions with lines that were not read when a run began: windows wait for them."""
    alone: bool = False
    """Windows wait for no other partitions."""
    close: bool = False
    """All windows are closed."""

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Signal:
        fields = json.loads(text)
        return cls(**{**fields, "waiting": tuple((topic, index) for topic, index in fields["waiting"])})


@dataclass(frozen=True)
class Clock:
    closed: int = NEVER
    """Windows that end by then have been given out."""
    seen: Mapping[Partition, int] = field(default_factory=dict)
    """The newest time of each partition's lines."""
    heard: Mapping[Partition, int] = field(default_factory=dict)
    """When (ms, by the batch's clock) windows began to wait for each partition; without one, they do not."""
    idle_ms: int | None = None
    totals: Totals = field(default_factory=Totals)

    def signal(self, given: Signal, now_ms: int) -> Clock:
        waiting = dict.fromkeys(given.waiting, now_ms)
        heard = waiting if given.alone else {**self.heard, **waiting}
        return replace(
            self, idle_ms=given.idle_ms, heard=heard, seen={**dict.fromkeys(given.waiting, NEVER), **self.seen}
        )

    def advance(self, seen: Mapping[Partition, int], now_ms: int) -> Clock:
        """Partitions have lines up to these times."""
        newest = {each: max(time, self.seen.get(each, NEVER)) for each, time in seen.items()}
        return replace(self, seen={**self.seen, **newest}, heard={**self.heard, **dict.fromkeys(seen, now_ms)})

    def close(self, lateness: int, now_ms: int) -> Clock:
        """Close what the slowest partition has left behind; where all are idle, what the fastest has."""
        active = [
            self.seen[each]
            for each, heard_ms in self.heard.items()
            if self.idle_ms is None or now_ms - heard_ms <= self.idle_ms
        ]
        low = min(active) if active else max(self.seen.values(), default=NEVER)
        return replace(self, closed=max(self.closed, low - lateness))

    def dump(self) -> str:
        fields = asdict(self)
        for name in ("seen", "heard"):
            fields[name] = _rows(getattr(self, name).items())
        return json.dumps(fields)

    @classmethod
    def load(cls, text: str | bytes) -> Clock:
        fields = json.loads(text)
        for name in ("seen", "heard"):
            fields[name] = {(topic, index): value for topic, index, value in fields[name]}
        return cls(**{**fields, "totals": Totals(**fields["totals"])})


def _rows(items: Iterable[tuple[Partition, int]]) -> list[Any]:
    return [[*partition, value] for partition, value in sorted(items)]
