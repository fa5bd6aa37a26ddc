"""`python -m bench.replicas`: three replicas beside an Apache Kafka of three nodes: CPU of all nodes, and outages.

Both acknowledge once every in-sync replica has a message: in the page cache or after a sync in Kafka; a group of
Headrace always syncs. The CPU time is that of all nodes, and of etcd.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from confluent_kafka import KafkaException
from rich.console import Console

from bench import outages, report
from bench.outages import WARMING
from bench.peers import Missing
from bench.peers.groups import HeadraceGroup, KafkaGroup, Nodes
from bench.rows import FULL, KIB, QUICK, Row, Scale, bulk_produce, small_produce, warm_up

MARK = "measured: replicas"


ROWS = [
    Row("one", "one-record produce, 1 connection", small_produce(1)),
    Row("many", "one-record produce, 64 connections", small_produce(64)),
    Row("pipelined", "one-record produce, 64 connections, 16 in flight on each", small_produce(64, 16)),
    Row("bulk", "bulk produce, 100 B records in 128 KiB batches", bulk_produce(128 * KIB, 1)),
    Row("one-sync", "one-record produce, 1 connection, after fsync", small_produce(1, durability="sync")),
    Row("many-sync", "one-record produce, 64 connections, after fsync", small_produce(64, durability="sync")),
    Row(
        "pipelined-sync",
        "one-record produce, 64 connections, 16 in flight on each, after fsync",
        small_produce(64, 16, "sync"),
    ),
    Row(
        "bulk-sync",
        "bulk produce, 100 B records in 128 KiB batches, after fsync",
        bulk_produce(128 * KIB, 1, durability="sync"),
    ),
]
OUTAGES = [
    outages.Outage("failover", "the leader of all partitions is killed", outages.kill, rounds=2),
    outages.Outage("pause", "the leader of all partitions falls silent", outages.pause, rounds=1),
    outages.Outage("adding", "a replica that has nothing is added under load", outages.add, rounds=1),
]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description=__doc__, allow_abbrev=False)
    names = [row.name for row in (*ROWS, *OUTAGES)]
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=names, help=f"only these rows: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not figures to keep")
    parser.add_argument("--rounds", type=int, help="how often each row is measured (default: 3; 2 with --quick)")
    parser.add_argument("--alone", action="store_true", help="measure Headrace without Kafka")
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    return parser.parse_args(arguments)


def measure_all(
    names: Sequence[str], servers: Sequence[Nodes], scale: Scale, table: report.Table, console: Console
) -> None:
    """Outages first, each on servers of its own."""
    for outage in OUTAGES:
        for _ in range(min(scale.rounds, outage.rounds) if outage.name in names else 0):
            for server in servers:
                console.print(f"{server.name}: {outage.title}", style="dim")
                try:
                    table.add(outage, server, outage.run(server, scale))
                except (OSError, RuntimeError, KafkaException) as error:
                    # The rest is worth measuring all the same.
                    console.print(f"{server.name} is left out here: {error}", style="yellow")
    try:
        for row in ROWS:
            if row.name not in names:
                continue
            for _ in range(scale.rounds):
                for server in servers:
                    if not server.port:
                        server.start()
                        if isinstance(server, KafkaGroup):
                            warm_up(server, scale, WARMING)
                    console.print(f"{server.name}: {row.title}", style="dim")
                    table.add(row, server, row.run(server, scale))
    finally:
        for server in servers:
            server.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    base = QUICK if options.quick else FULL
    scale = Scale(base.bulk_bytes, base.seconds, base.warm_up, options.rounds or base.rounds)
    names = options.rows or [row.name for row in (*ROWS, *OUTAGES)]
    console = Console()
    if not console.is_terminal:
        console.width = 160
    servers: list[Nodes] = [HeadraceGroup()]
    if not options.alone:
        try:
            servers.append(KafkaGroup())
        except Missing as reason:
            console.print(f"Headrace is measured alone: {reason}", style="yellow")
    table = report.Table(servers)
    measure_all(names, servers, scale, table, console)
    console.print(table.rich())
    for line in table.notes():
        console.print(line, style="dim")
    if options.write:
        report.write(table, MARK)


if __name__ == "__main__":
    main()
