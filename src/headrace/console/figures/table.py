"""The figures of a broker as they stand, kept up by the deltas of `GET /v1/figures`.

Counters become rates here: by the broker's own clock, between two samples. A counter that fell belongs to a broker that
was started again, and has no rate in that sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.console.client.models import FigurePage

Key = tuple[str, ...]
Value = int | float | str | bool | None | list[int]
Row = Mapping[str, Value]

KINDS = ("node", "doors", "apis", "topics", "queues", "groups")
COUNTERS: Mapping[str, frozenset[str]] = {
    "node": frozenset(("cpu_seconds", "messages_in", "bytes_in", "bytes_out", "requests", "errors", "dead")),
    "doors": frozenset(("accepted", "refused", "unread", "handshakes_failed", "requests", "errors")),
    "apis": frozenset(("requests", "errors", "seconds")),
    "topics": frozenset(
        ("messages_in", "bytes_in", "bytes_out", "batches_in", "rejected", "dropped", "passed_by", "duplicates")
    ),
    "queues": frozenset(("delivered", "finished", "requeued", "timed_out", "dead", "lost", "poisoned")),
    "groups": frozenset(("committed",)),
}
# The figure of each kind that lists draw beside a name.
SPARK: Mapping[str, str] = {
    "topics": "messages_in_rate",
    "queues": "depth",
    "groups": "lag",
    "node": "messages_in_rate",
}
SPARK_POINTS = 40
LATENCY_SECONDS = 60.0
"""Percentiles are of the requests of so long."""
PACE_SECONDS = 30.0
"""Groups commit every five seconds by default."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row that a sample brought."""

    kind: str
    key: Key
    figures: Mapping[str, float]
    """Those that are numbers, with the rates of counters as NAME_rate."""


class FigureTable:
    """All rows of one broker."""

    def __init__(self) -> None:
        self.version = ""
        self.at_ms = 0
        self._rows: dict[str, dict[Key, dict[str, Value]]] = {kind: {} for kind in KINDS}
        self._moving: set[tuple[str, Key]] = set()
        """Rows with a rate that is not 0: it is, once a sample has no news of them."""
        self._sparks: dict[tuple[str, Key], deque[float]] = {}
        self._commits: dict[Key, deque[tuple[int, float]]] = {}
        self._buckets: dict[Key, deque[tuple[int, list[int]]]] = {}

    def take(self, pages: list[FigurePage]) -> list[Change]:
        """Take the pages of one sample; the rows that changed."""
        if not pages:
            return []
        before_ms, at_ms = self.at_ms, pages[-1].at_ms
        seconds = max((at_ms - before_ms) / 1000, 0.0) if before_ms else 0.0
        if any(page.full for page in pages):
            # Another start of the broker, or long ago: what was counted before says nothing of a rate.
            seconds = 0.0
        changed: dict[tuple[str, Key], None] = {}
        for page in pages:
            for kind, rows in page.rows.items():
                if kind in KINDS:
                    columns, names = page.columns[kind], page.names[kind]
                    for row in rows:
                        key = tuple(map(str, row[:names]))
                        self._put(kind, key, dict(zip(columns, row, strict=False)), seconds)
                        changed[kind, key] = None
            for kind, keys in page.gone.items():
                for gone in keys:
                    self._drop(kind, tuple(map(str, gone)))
        if any(page.full for page in pages):
            for kind, key in {(kind, key) for kind, known in self._rows.items() for key in known} - set(changed):
                self._drop(kind, key)
        self._settle(changed)
        self.version, self.at_ms = pages[-1].version, at_ms
        self._measure(pages[-1].latency_bounds)
        self._follow()
        self._draw()
        return [Change(kind, key, numbers(self._rows[kind][key])) for kind, key in changed if key in self._rows[kind]]

    def _put(self, kind: str, key: Key, row: dict[str, Value], seconds: float) -> None:
        before = self._rows[kind].get(key)
        for name in COUNTERS[kind]:
            now, was = row.get(name), before.get(name) if before else None
            rate = 0.0
            if isinstance(now, int | float) and isinstance(was, int | float) and seconds > 0 and now >= was:
                rate = (now - was) / seconds
            row[f"{name}_rate"] = rate
        self._rows[kind][key] = row

    def _settle(self, changed: dict[tuple[str, Key], None]) -> None:
        """What moved in the last sample and not in this one stands still now."""
        for kind, key in self._moving - set(changed):
            row = self._rows[kind].get(key)
            if row is not None:
                row.update((f"{name}_rate", 0.0) for name in COUNTERS[kind])
                changed[kind, key] = None
        self._moving = {
            (kind, key)
            for kind, key in changed
            if any(self._rows[kind].get(key, {}).get(f"{n}_rate") for n in COUNTERS[kind])
        }

    def _drop(self, kind: str, key: Key) -> None:
        rows = self._rows.get(kind, {})
        rows.pop(key, None)
        self._sparks.pop((kind, key), None)
        if kind == "apis":
            self._buckets.pop(key, None)

    def _measure(self, bounds: list[float]) -> None:
        """Percentiles of the last minute, by how much each bucket grew."""
        for key, row in self._rows["apis"].items():
            counts = row.get("buckets")
            if not isinstance(counts, list):
                continue
            kept = self._buckets.setdefault(key, deque())
            kept.append((self.at_ms, counts))
            while self.at_ms - kept[0][0] > LATENCY_SECONDS * 1000:
                kept.popleft()
            grown = [now - was for now, was in zip(counts, kept[0][1], strict=True)]
            for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
                seconds = percentile(grown, bounds, share)
                row[name] = None if seconds is None else seconds * 1000

    def _follow(self) -> None:
        """How far each group has come. Clients commit every few seconds: two samples say nothing of their pace."""
        commits: dict[Key, deque[tuple[int, float]]] = {}
        for key, row in self._rows["groups"].items():
            kept = commits[key] = self._commits.get(key) or deque()
            kept.append((self.at_ms, number(row, "committed")))
            while self.at_ms - kept[0][0] > PACE_SECONDS * 1000:
                kept.popleft()
        self._commits = commits

    def pace(self, group: str) -> float | None:
        """Messages a second that a group has read in the last half minute; None: it is not watched for long enough."""
        total = 0.0
        for key, kept in self._commits.items():
            if key[0] == group:
                seconds = (kept[-1][0] - kept[0][0]) / 1000
                if seconds < PACE_SECONDS / 3:
                    return None
                total += max(kept[-1][1] - kept[0][1], 0.0) / seconds
        return total

    def _draw(self) -> None:
        for kind, name in SPARK.items():
            for key, row in self._rows[kind].items():
                value = row.get(name)
                points = self._sparks.get((kind, key))
                if points is None:
                    if not value:
                        continue
                    points = self._sparks[kind, key] = deque([0.0], maxlen=SPARK_POINTS)
                points.append(float(value) if isinstance(value, int | float) else 0.0)
                if len(points) == SPARK_POINTS and not any(points):
                    del self._sparks[kind, key]

    def rows(self, kind: str) -> Mapping[Key, Row]:
        return self._rows[kind]

    def row(self, kind: str, *key: str) -> Row:
        """The figures of one thing; nothing where it is not known."""
        return self._rows[kind].get(key, {})

    @property
    def node(self) -> Row:
        return next(iter(self._rows["node"].values()), {})

    def spark(self, kind: str, *key: str) -> list[float]:
        """The last minutes of the kind's main figure."""
        return list(self._sparks.get((kind, key), ()))

    def total(self, kind: str, name: str) -> float:
        return sum(each for each in self._each(kind, name))

    def _each(self, kind: str, name: str) -> Iterator[float]:
        for row in self._rows[kind].values():
            value = row.get(name)
            if isinstance(value, int | float):
                yield value

    def age_ms(self, row: Row, name: str = "oldest_ms") -> float | None:
        """How long ago a row's time was, by the broker's clock."""
        value = row.get(name)
        return max(self.at_ms - value, 0.0) if isinstance(value, int | float) else None

    def group(self, name: str) -> list[Row]:
        """The rows of a consumer group, one for each topic."""
        return [row for key, row in self._rows["groups"].items() if key[0] == name]


def percentile(counts: list[int], bounds: list[float], share: float) -> float | None:
    """A percentile of a histogram: linear inside of its bucket, and the last bound for what is beyond all."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below = share * total, 0
    for place, count in enumerate(counts):
        if count and below + count >= wanted:
            if place >= len(bounds):
                return bounds[-1]
            low = bounds[place - 1] if place else 0.0
            return low + (bounds[place] - low) * (wanted - below) / count
        below += count
    return bounds[-1]


def numbers(row: Row) -> dict[str, float]:
    """The figures of a row that can be drawn."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, str)
    }


def number(row: Row, name: str) -> float:
    """A figure of a row; 0 where it has none."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def optional(row: Row, name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else None
