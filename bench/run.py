"""`python -m bench`: every row on Headrace and on Apache Kafka, turn by turn, and the table of the best of each.

Wall time on a shared machine is noise, so the server's CPU time comes first. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report
from bench.peers import Missing, Peer
from bench.peers.headrace import Headrace, versions
from bench.peers.kafka import Kafka
from bench.rows import FULL, QUICK, ROWS, Row, Scale, warm_up


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, allow_abbrev=False)
    names = ", ".join(row.name for row in ROWS)
    parser.add_argument("--rows", nargs="+", metavar="ROW", help=f"only these rows (or rows that begin so): {names}")
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not figures to keep")
    parser.add_argument("--rounds", type=int, help="how often each row is measured (default: 3; 2 with --quick)")
    parser.add_argument("--warm-up", type=float, metavar="SECONDS", help="load on Kafka before anything is measured")
    parser.add_argument("--alone", action="store_true", help="measure Headrace without Kafka")
    parser.add_argument(
        "--against", metavar="PYTHON", help="the Headrace of another Python instead, and this one twice"
    )
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    return parser.parse_args(arguments)


def chosen(names: Sequence[str] | None) -> list[Row]:
    if not names:
        return ROWS
    for name in names:
        if not any(row.name.startswith(name) for row in ROWS):
            sys.exit(f"there is no row {name!r}; rows: {', '.join(row.name for row in ROWS)}")
    exact = {row.name for row in ROWS} & set(names)
    return [row for row in ROWS if row.name in exact or any(row.name.startswith(each) for each in set(names) - exact)]


def peers(console: Console, alone: bool, against: str | None) -> list[Peer]:
    if against:
        return [*versions(Headrace, against)]
    found: list[Peer] = [Headrace()]
    if not alone:
        try:
            with console.status("Apache Kafka's jars"):
                found.append(Kafka())
        except Missing as reason:
            console.print(f"Headrace is measured alone: {reason}", style="yellow")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    base = QUICK if options.quick else FULL
    scale = Scale(
        base.bulk_bytes,
        base.seconds,
        base.warm_up if options.warm_up is None else options.warm_up,
        options.rounds or base.rounds,
    )
    rows = chosen(options.rows)
    console = Console()
    if not console.is_terminal:
        console.width = 160
    servers = peers(console, options.alone, options.against)
    table = report.Table(servers)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(rows) * len(servers) * scale.rounds)
        measure_all(
            rows, servers, scale, table, lambda words, step: progress.update(task, description=words, advance=step)
        )
    console.print(table.rich())
    for line in table.notes():
        console.print(line, style="dim")
    if options.write:
        report.write(table)


def measure_all(
    rows: Sequence[Row], servers: Sequence[Peer], scale: Scale, table: report.Table, tell: report.Tell
) -> None:
    """Rows that start their servers first, then all others on servers that stay up."""
    try:
        for row in sorted(rows, key=lambda row: not row.restarts):
            for _ in range(scale.rounds):
                for server in servers:
                    if not row.restarts and not server.port:
                        tell(f"{server.name}: start and warm up", 0)
                        server.start()
                        if isinstance(server, Kafka):
                            warm_up(server, scale)
                    tell(f"{server.name}: {row.title}", 0)
                    table.add(row, server, row.run(server, scale))
                    tell(f"{server.name}: {row.title}", 1)
            for server in servers:
                row.finish(server)
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
