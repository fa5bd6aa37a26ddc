"""`python -m bench.replicas`: three replicas beside an Apache Kafka of three nodes: CPU of all nodes, and failovers.

Both acknowledge once every in-sync replica has a message: in the page cache or after a sync in Kafka; a group of
Headrace always syncs. The CPU time is that of all nodes, and of etcd.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise

from confluent_kafka import KafkaError, Message, Producer
from rich.console import Console

from bench import report
from bench.peers import Missing
from bench.peers.groups import HeadraceGroup, KafkaGroup, Nodes
from bench.rows import FULL, KIB, QUICK, Figure, Row, Scale, Topic, bulk_produce, small_produce, warm_up

MARK = "measured: replicas"
RATE = 500
CALM_SECONDS = 2.0
FAILOVER_SECONDS = 60.0
# Work of which the node that leads all partitions answers everything.
WARMING = ("bulk", "one", "many", "pipelined")


class Client:
    """An idempotent producer that notes when its messages were acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        backoff = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20}
        self._producer = Producer({**settings, **backoff, "topic.metadata.refresh.interval.ms": 500})
        self._topic = topic
        self.times: list[float] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        begin, sent = time.monotonic(), 0
        while not self._stopping.is_set():
            while sent < (time.monotonic() - begin) * RATE:
                self._producer.produce(self._topic, b"%d" % sent, on_delivery=self._delivered)
                sent += 1
            self._producer.poll(0.001)
        self._producer.flush(FAILOVER_SECONDS)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.times.append(time.monotonic())

    def wait(self, after: float) -> None:
        """Until something that is acknowledged later than that."""
        until = time.monotonic() + FAILOVER_SECONDS
        while not self.times or self.times[-1] < after:
            if time.monotonic() > until:
                raise TimeoutError("nothing is acknowledged any more")
            time.sleep(0.005)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def failover(peer: Nodes) -> list[Figure]:
    """kill -9 of the node that leads everything: from the last acknowledgement before it to the next one."""
    try:
        peer.start()
        if isinstance(peer, KafkaGroup):
            warm_up(peer, QUICK, WARMING)
        topic = Topic(peer, 6).__enter__()
        client = Client(peer.bootstrap, topic.name)
        try:
            client.wait(0)
            time.sleep(CALM_SECONDS)
            killed = time.monotonic()
            peer.kill_leader()
            client.wait(killed + 0.05)
            time.sleep(CALM_SECONDS)
        finally:
            client.stop()
        times = [each for each in client.times if each > killed - CALM_SECONDS]
        return [Figure("s without an acknowledgement", max(after - before for before, after in pairwise(times)))]
    finally:
        peer.stop()


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
]
FAILOVER = Row("failover", "the leader of all partitions is killed", lambda peer, scale: [])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description=__doc__, allow_abbrev=False)
    names = [row.name for row in (*ROWS, FAILOVER)]
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=names, help=f"only these rows: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not figures to keep")
    parser.add_argument("--rounds", type=int, help="how often each row is measured (default: 3; 2 with --quick)")
    parser.add_argument("--alone", action="store_true", help="measure Headrace without Kafka")
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    return parser.parse_args(arguments)


def measure_all(
    rows: Sequence[Row], servers: Sequence[Nodes], scale: Scale, table: report.Table, console: Console
) -> None:
    """Failovers first, each on servers of its own."""
    if FAILOVER in rows:
        for _ in range(scale.rounds):
            for server in servers:
                console.print(f"{server.name}: {FAILOVER.title}", style="dim")
                table.add(FAILOVER, server, failover(server))
    try:
        for row in rows:
            if row is FAILOVER:
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
    rows = [row for row in (*ROWS, FAILOVER) if not options.rows or row.name in options.rows]
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
    measure_all(rows, servers, scale, table, console)
    console.print(table.rich())
    for line in table.notes():
        console.print(line, style="dim")
    if options.write:
        report.write(table, MARK)


if __name__ == "__main__":
    main()
