"""`python -m bench.framework`: the framework, raw confluent-kafka and FastStream at the same work, turn by turn, on one
broker. What counts is the CPU time of the client's process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import count

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report
from bench.admin import Admin
from bench.framework import clients
from bench.peers import Missing, Peer
from bench.peers.headrace import Headrace
from bench.peers.kafka import Kafka
from bench.rows import Figure

MARK = "measured: framework"
PARTITIONS = 4
SECONDS = 300
NUMBERS = count()
BROKERS: dict[str, Callable[[], Peer]] = {"headrace": Headrace, "kafka": Kafka}


@dataclass(frozen=True)
class Contender:
    """A client library."""

    name: str
    client: str
    version: str
    share: float = 1.0
    """Of the messages that are to be read, for one that would take minutes with all of them."""


@dataclass(frozen=True)
class Row:
    """A kind of work."""

    name: str
    title: str
    messages: int
    reads: bool = False


ROWS = [
    Row("publish_one", "publish one by one, each awaited", 3_000),
    Row("publish_line", "put one by one into the local line, all awaited at the end", 20_000),
    Row("publish_bulk", f"publish in batches of {clients.BATCH}", 100_000),
    # librdkafka fetches up to 100,000 ahead, perhaps before the clock starts: many more make that little.
    Row("consume_one", "consume one by one", 300_000, reads=True),
    Row("consume_batch", f"consume in batches of {clients.BATCH}", 1_000_000, reads=True),
]


def contenders(console: Console) -> list[Contender]:
    found = [
        Contender("headrace.sdk", "sdk", version("headrace")),
        Contender("confluent-kafka", "raw", version("confluent-kafka")),
    ]
    for name, client, needed in (
        ("FastStream on confluent-kafka", "faststream:confluent", "confluent-kafka"),
        ("FastStream on aiokafka", "faststream:kafka", "aiokafka"),
    ):
        try:
            version(needed)
            found.append(Contender(name, client, version("faststream"), share=0.1))
        except PackageNotFoundError as missing:
            console.print(f"{name} is not measured: there is no {missing.name}; install headrace[bench]")
    return found


class Bench:
    """All contenders on one broker."""

    def __init__(self, broker: Peer, share: float) -> None:
        """With that share of the rows' messages."""
        self._broker = broker
        self._share = share

    def run(self, row: Row, contender: Contender) -> list[Figure]:
        messages = round(row.messages * self._share * (contender.share if row.reads else 1.0))
        # A new one each time: no group has read it.
        topic = self._topic()
        if row.reads:
            self._client("raw", "publish_bulk", topic, messages)
        spent = self._client(contender.client, row.name, topic, messages)
        if not row.reads:
            self._check(topic, messages)
        return [
            Figure("messages/CPU s", messages / spent["cpu"], more_is_better=True),
            Figure("messages/s", messages / spent["seconds"], more_is_better=True, compared=False),
        ]

    def _client(self, client: str, work: str, topic: str, messages: int) -> dict[str, float]:
        address = f"127.0.0.1:{self._broker.port}"
        command = [sys.executable, "-m", "bench.framework.clients", client, work, address, topic, str(messages)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{client} failed at {work}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def _topic(self) -> str:
        topic = f"framework-{next(NUMBERS)}"
        with Admin("127.0.0.1", self._broker.port) as admin:
            admin.create(topic, PARTITIONS, self._broker.durable["async"])
        return topic

    def _check(self, topic: str, published: int) -> None:
        with Admin("127.0.0.1", self._broker.port) as admin:
            there = sum(admin.ends(topic, PARTITIONS).values())
        if there != published + clients.WARM_UP:
            raise RuntimeError(f"{topic} has {there} messages, and {published + clients.WARM_UP} were published")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.framework", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=[row.name for row in ROWS], help="only these rows")
    parser.add_argument("--quick", action="store_true", help="a fifth of everything: a look, not figures to keep")
    parser.add_argument("--rounds", type=int, default=3, help="how often each row is measured (default: 3)")
    parser.add_argument("--broker", choices=sorted(BROKERS), default="headrace", help="what the clients talk to")
    parser.add_argument("--only", nargs="+", metavar="CLIENT", help="only these clients (sdk, raw, faststream:...)")
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 200
    chosen = [each for each in contenders(console) if not options.only or each.client in options.only]
    rows = [row for row in ROWS if not options.rows or row.name in options.rows]
    table = report.Table(chosen)
    try:
        broker = BROKERS[options.broker]()
    except Missing as reason:
        sys.exit(str(reason))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        broker.start()
        bench = Bench(broker, 0.2 if options.quick else 1.0)
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=len(rows) * len(chosen) * options.rounds)
            for row in rows:
                for _ in range(options.rounds):
                    for contender in chosen:
                        progress.update(task, description=f"{contender.name}: {row.title}")
                        table.add(row, contender, bench.run(row, contender))
                        progress.advance(task)
    finally:
        broker.stop()
    console.print(table.rich())
    for line in table.notes():
        console.print(line, style="dim")
    if options.write:
        report.write(table, MARK)


if __name__ == "__main__":
    main()
