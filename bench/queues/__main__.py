"""`python -m bench.queues`: every row on Headrace and on the other queues that are here, turn by turn."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report
from bench.peers import Missing
from bench.peers.headrace import HeadraceQueues, versions
from bench.peers.nsqd import Nsqd
from bench.peers.rabbitmq import RabbitMq
from bench.queues.control import QueueServer
from bench.queues.rows import FULL, QUICK, ROWS, Row, Scale

MARK = "measured: queues"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=[row.name for row in ROWS], help="only these rows")
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not figures to keep")
    parser.add_argument("--rounds", type=int, help="how often each row is measured (default: 3; 1 with --quick)")
    parser.add_argument("--alone", action="store_true", help="measure Headrace without others")
    parser.add_argument(
        "--against", metavar="PYTHON", help="the Headrace of another Python instead, and this one twice"
    )
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    return parser.parse_args(arguments)


def found(console: Console, alone: bool, against: str | None) -> list[QueueServer]:
    if against:
        return [*versions(HeadraceQueues, against)]
    servers: list[QueueServer] = [HeadraceQueues()]
    kinds: list[Callable[[], QueueServer]] = [] if alone else [RabbitMq, Nsqd]
    for kind in kinds:
        try:
            servers.append(kind())
        except Missing as reason:
            console.print(f"{kind.__name__} is not measured: {reason}", style="yellow")
    return servers


def measure_all(
    rows: Sequence[Row], servers: Sequence[QueueServer], scale: Scale, table: report.Table, tell: report.Tell
) -> None:
    try:
        for server in servers:
            tell(f"{server.name}: start", 0)
            server.start()
        for row in rows:
            fit = [server for server in servers if row.fits(server)]
            for _ in range(scale.rounds):
                for server in fit:
                    tell(f"{server.name}: {row.title}", 0)
                    table.add(row, server, row.run(server, scale))
                    tell(f"{server.name}: {row.title}", 1)
            for server in fit:
                row.finish(server)
    finally:
        for server in servers:
            server.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    base = QUICK if options.quick else FULL
    scale = replace(base, rounds=options.rounds or base.rounds)
    rows = [row for row in ROWS if not options.rows or row.name in options.rows]
    console = Console()
    if not console.is_terminal:
        console.width = 180
    servers = found(console, options.alone, options.against)
    table = report.Table(servers)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        steps = sum(row.fits(server) for row in rows for server in servers) * scale.rounds
        task = progress.add_task("", total=steps)
        measure_all(
            rows, servers, scale, table, lambda words, step: progress.update(task, description=words, advance=step)
        )
    console.print(table.rich())
    for line in [*table.lost(), *table.notes()]:
        console.print(line, style="dim")
    for server in servers:
        for row in rows:
            if not row.fits(server):
                console.print(f"{server.name} is not measured in {row.title!r}: {row.fits.__doc__}", style="dim")
    if options.write:
        report.write(table, MARK)


if __name__ == "__main__":
    main()
