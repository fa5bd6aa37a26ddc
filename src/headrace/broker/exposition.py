"""Metrics in Prometheus' text form, written some lines at a time.

A broker with ten thousand topics has tens of thousands of lines, and a scrape must not keep clients waiting: between so
many of them others get a turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
STEP_LINES = 192

Samples = Iterable[tuple[str, float]]
"""Labels as they are written, and the figure."""
Observed = tuple[dict[str, str], Sequence[int], float]
"""The labels of a histogram, the counts of its buckets, and the sum of what was observed."""


class Exposition:
    """The text, as it grows."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._lines = 0

    @property
    def text(self) -> bytes:
        return b"".join(self._parts)

    async def add(self, kind: str, name: str, help: str, samples: Samples) -> None:
        """One metric. What samples are made of must not change meanwhile: there are turns of the loop between."""
        if kind == COUNTER:
            name += "_total"
        self._parts.append(f"# HELP {name} {help}\n# TYPE {name} {kind}\n".encode())
        await self._write(f"{name}{labels} {float(value)}\n" for labels, value in samples)

    async def one(self, kind: str, name: str, help: str, value: float) -> None:
        """One metric that has no labels."""
        await self.add(kind, name, help, (("", value),))

    async def add_histograms(self, name: str, help: str, bounds: Sequence[str], histograms: Iterable[Observed]) -> None:
        """Histograms with buckets up to these bounds."""
        self._parts.append(f"# HELP {name} {help}\n# TYPE {name} {HISTOGRAM}\n".encode())
        for labels, counts, total in histograms:
            lines = []
            cumulated = 0
            for bound, count in zip(bounds, counts, strict=True):
                cumulated += count
                lines.append(f"{name}_bucket{labelled(**labels, le=bound)} {float(cumulated)}\n")
            own = labelled(**labels)
            await self._write((*lines, f"{name}_count{own} {float(cumulated)}\n", f"{name}_sum{own} {float(total)}\n"))

    def add_text(self, text: str) -> None:
        """Metrics that others have written."""
        self._parts.append(text.encode())

    async def _write(self, lines: Iterable[str]) -> None:
        rest = iter(lines)
        while some := list(islice(rest, STEP_LINES - self._lines)):
            self._parts.append("".join(some).encode())
            self._lines += len(some)
            if self._lines >= STEP_LINES:
                self._lines = 0
                await asyncio.sleep(0)


def labelled(**labels: str) -> str:
    """Labels as they are written, in the order of their names."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(labels.items())) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
