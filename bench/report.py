"""The table: the best of each figure with the range that was seen, and how many times better Headrace is."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import rich.table

from bench.peers import Peer
from bench.rows import Figure, Row

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"

Tell = Callable[[str, int], None]


class Table:
    """Figures by row and server, as they come in."""

    def __init__(self, servers: Sequence[Peer]) -> None:
        self._servers = servers
        self._figures: dict[tuple[str, str], dict[str, list[Figure]]] = {}

    def add(self, row: Row, server: Peer, figures: list[Figure]) -> None:
        for figure in figures:
            by_server = self._figures.setdefault((row.title, figure.what), {})
            by_server.setdefault(server.name, []).append(figure)

    def lines(self) -> list[list[str]]:
        """Title, unit, a cell for each server, the ratio."""
        made = []
        title = ""
        for (row, what), by_server in self._figures.items():
            cells = [_cell(by_server.get(server.name, [])) for server in self._servers]
            made.append([row if row != title else "", what, *cells, self._ratio(by_server)])
            title = row
        return made

    def _ratio(self, by_server: dict[str, list[Figure]]) -> str:
        if len(self._servers) < 2 or len(by_server) < 2:
            return ""
        ours, theirs = (_best(by_server[server.name]) for server in self._servers)
        better = ours.value / theirs.value if ours.more_is_better else theirs.value / ours.value
        return f"{better:.2f}x"

    def headings(self) -> list[str]:
        names = [f"{server.name} {server.version}" for server in self._servers]
        return ["work", "", *names, "Headrace is better by" if len(names) > 1 else ""]

    def notes(self) -> list[str]:
        """What a reader must know to read the table."""
        notes = [f"{datetime.now(UTC):%Y-%m-%d}, {machine()}."]
        if any(figure.saturated for each in self._figures.values() for figures in each.values() for figure in figures):
            notes.append("A rate with * is the load generator's limit, not the server's.")
        return notes

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
        lines = [self.headings(), ["---", "---", *["--:"] * (len(self._servers) + 1)], *self.lines()]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _best(figures: list[Figure]) -> Figure:
    return (max if figures[0].more_is_better else min)(figures, key=lambda figure: figure.value)


def _cell(figures: list[Figure]) -> str:
    if not figures:
        return ""
    best = _best(figures)
    worst = (min if best.more_is_better else max)(figure.value for figure in figures)
    return f"{_number(best.value)}{'*' if best.saturated else ''} (to {_number(worst)})"


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


def write(table: Table) -> None:
    """Put the table where it stood in the README."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    notes = "\n".join(table.notes())
    README.write_text(f"{before}{BEGIN}{notes}\n\n{table.markdown()}{END}{after}")
