"""What commands print: tables and JSON on standard output, questions and bars of progress on standard error.

rich is imported only where a bar is drawn or a cell is not ASCII: it takes longer to load than most commands run.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol

import typer

# Of a key or a value in a table; JSON has all of it.
PREVIEW_CHARACTERS = 100

Row = Mapping[str, Any]
# By heading, the key of a row's value or a function of the row; or keys that are their own headings.
Columns = Mapping[str, str | Callable[[Any], object]] | Sequence[str]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def show(rows: Sequence[Row], as_json: bool, columns: Columns) -> None:
    """Print rows as a table, or as one JSON array, which has all keys of the rows."""
    if as_json:
        print_json(rows)
        return
    cells_of = columns if isinstance(columns, Mapping) else dict(zip(columns, columns, strict=True))
    values = [[cell(row) if callable(cell) else row[cell] for cell in cells_of.values()] for row in rows]
    right = [
        bool(rows) and all(isinstance(each, int | None) for each in column) for column in zip(*values, strict=True)
    ]
    # A row is one line, however narrow the terminal is: names are whole, for grep, awk and the clipboard.
    table = [list(cells_of), *(["-" if each is None else str(each) for each in row] for row in values)]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    for number, line in enumerate(table):
        text = "  ".join(map(_pad, line, widths, right or [False] * len(widths))).rstrip()
        typer.echo(text if number else typer.style(text, bold=True))


def _pad(cell: str, width: int, to_the_right: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if to_the_right else cell + room


def _width(text: str) -> int:
    """Columns of a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def preview(entry: Row, name: str) -> str | None:
    """A key or a value for a table: one line, with the rest of a long one left out."""
    if (encoded := entry.get(name + "_base64")) is not None:
        return f"(base64) {encoded[:PREVIEW_CHARACTERS]}"
    value: str | None = entry[name]
    if value is None:
        return None
    line = value if value.isprintable() else value.encode("unicode_escape").decode()
    return line if len(line) <= PREVIEW_CHARACTERS else line[:PREVIEW_CHARACTERS] + "..."


def local_time(at_ms: int | None, precision: str = "seconds") -> str:
    return "" if at_ms is None else datetime.fromtimestamp(at_ms / 1000).isoformat(" ", precision)


def confirm(question: str) -> None:
    """Ask before what cannot be undone. Ends the command unless the answer is yes."""
    # asyncio takes the first Ctrl-C for its loop, which cannot see it while it waits for an answer here.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        typer.confirm(question, abort=True, err=True)
    finally:
        signal.signal(signal.SIGINT, before)


class Advance(Protocol):
    """Moves a bar, and may correct its total."""

    def __call__(self, count: int, total: int | None = None) -> None: ...


@contextmanager
def progress(*, shown: bool = True, in_bytes: bool = False) -> Iterator[Callable[[str, int | None], Advance]]:
    """A function that begins a bar of this name and total. Bars are drawn only on a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda name, total: lambda count, total=None: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    counts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *counts, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def begin(name: str, total: int | None) -> Advance:
            bar = bars.add_task(name, total=total)
            return lambda count, total=None: bars.update(bar, advance=count, total=total)

        yield begin
