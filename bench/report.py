"""The table: the best of each figure with the range that was seen, and how many times better Headrace is."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import rich.table

from bench.peers import Server
from bench.rows import Figure

README = Path(__file__).parent / "README.md"

Tell = Callable[[str, int], None]


class Titled(Protocol):
    """A row of any table."""

    @property
    def title(self) -> str: ...


class Table:
    """Figures by row and server, as they come in. The first server is the one that the others are compared with."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self._figures: dict[tuple[str, str], dict[str, list[Figure]]] = {}

    def add(self, row: Titled, server: Server, figures: list[Figure]) -> None:
        for figure in figures:
            by_server = self._figures.setdefault((row.title, figure.what), {})
            by_server.setdefault(server.name, []).append(figure)

    def lines(self) -> list[list[str]]:
        """Title, unit, a cell for each server, a ratio for each server but the first."""
        made = []
        title = ""
        for (row, what), by_server in self._figures.items():
            cells = [cell(by_server.get(server.name, [])) for server in self._servers]
            made.append([row if row != title else "", what, *cells, *self._ratios(by_server)])
            title = row
        return made

    def _ratios(self, by_server: dict[str, list[Figure]]) -> list[str]:
        ratios = (self._ratio(by_server, server.name) for server in self._servers[1:])
        return ["" if ratio is None else f"{ratio:.2f}x" for ratio in ratios]

    def _ratio(self, by_server: dict[str, list[Figure]], name: str) -> float | None:
        if self._servers[0].name not in by_server or name not in by_server:
            return None
        ours, theirs = best(by_server[self._servers[0].name]), best(by_server[name])
        if not ours.compared:
            return None
        return ours.value / theirs.value if ours.more_is_better else theirs.value / ours.value

    def lost(self) -> list[str]:
        """The figures in which another server is better."""
        return [
            f"{server.name} is better: {row}, {what}, by {1 / ratio:.2f}x"
            for (row, what), by_server in self._figures.items()
            for server in self._servers[1:]
            if (ratio := self._ratio(by_server, server.name)) is not None and ratio < 1
        ]

    def headings(self) -> list[str]:
        names = [f"{server.name} {server.version}" for server in self._servers]
        if len(names) == 2:
            return ["work", "", *names, "Headrace is better by"]
        return ["work", "", *names, *(f"better than {server.name} by" for server in self._servers[1:])]

    def notes(self) -> list[str]:
        """What a reader must know to read the table."""
        return notes(figure for each in self._figures.values() for figures in each.values() for figure in figures)

    def rich(self) -> rich.table.Table:
        made = rich.table.Table()
        for number, heading in enumerate(self.headings()):
            made.add_column(heading, justify="left" if number < 2 else "right")
        for line in self.lines():
            if line[0]:
                made.add_section()
            made.add_row(*line)
        return made

    def markdown(self) -> str:
        lines = [self.headings(), ["---", "---", *["--:"] * (2 * len(self._servers) - 1)], *self.lines()]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def notes(figures: Iterable[Figure]) -> list[str]:
    """What a reader must know of the figures."""
    found = [f"{datetime.now(UTC):%Y-%m-%d}, {machine()}."]
    if any(figure.saturated for figure in figures):
        found.append("A rate with * is the load generator's limit, not the server's.")
    return found


def best(figures: Sequence[Figure]) -> Figure:
    """The one that counts."""
    return (max if figures[0].more_is_better else min)(figures, key=lambda figure: figure.value)


def cell(figures: Sequence[Figure]) -> str:
    """The best, and the worst behind it."""
    if not figures:
        return ""
    top = best(figures)
    worst = (min if top.more_is_better else max)(figure.value for figure in figures)
    return f"{_number(top.value)}{'*' if top.saturated else ''} (to {_number(worst)})"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine() -> str:
    """What ran it, in a line."""
    cpu = platform.processor() or platform.machine()
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        cpu = found[1] if found else cpu
    except OSError:
        pass
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    system = f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    return f"{cpu}, {cores} cores, {memory:.0f} GiB, {system}"


class Written(Protocol):
    """What stands in the README."""

    def notes(self) -> list[str]: ...

    def markdown(self) -> str: ...


def write(table: Written, name: str = "measured") -> None:
    """Put the table where it stood in the README, between the marks of that name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    before, _, rest = README.read_text().partition(begin)
    _, _, after = rest.partition(end)
    notes = "\n".join(table.notes())
    README.write_text(f"{before}{begin}{notes}\n\n{table.markdown()}{end}{after}")
