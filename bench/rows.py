"""What is measured: each row is a kind of work, done on one server, that gives a few figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bench.admin import Admin
from bench.measure import Measured, measure
from bench.peers import Peer, resident_mb
from bench.requests import MIB

KIB = 1 << 10
MARKERS_SECONDS = 10.0
# What each transforming producer reads, in turn: enough not to be one batch that a cache knows.
SOURCE_BATCHES = 50
GB = 1e9


@dataclass(frozen=True)
class Scale:
    """How much of everything: a quick look, or figures to keep."""

    bulk_bytes: int
    seconds: float
    warm_up: float
    rounds: int


QUICK = Scale(bulk_bytes=256 * MIB, seconds=1.0, warm_up=15.0, rounds=2)
FULL = Scale(bulk_bytes=1024 * MIB, seconds=3.0, warm_up=60.0, rounds=3)


@dataclass(frozen=True)
class Figure:
    """One number of one measurement."""

    what: str
    value: float
    more_is_better: bool = False
    saturated: bool = False
    """The load generator was the limit, not the server."""
    compared: bool = True
    """It measures the server, not the machine."""


@dataclass(frozen=True)
class Row:
    """A kind of work. `run` does it once on a running server."""

    name: str
    title: str
    run: Callable[[Peer, Scale], list[Figure]]
    restarts: bool = False
    """It starts and stops the server itself."""
    finish: Callable[[Peer], None] = lambda peer: None
    """Drops what the row keeps on a server from one round to the next."""


class Topic:
    """A topic that lives as long as a measurement."""

    _made = 0

    def __init__(self, peer: Peer, partitions: int, durability: str = "async", topics: int = 1) -> None:
        self.peer = peer
        self.width = partitions // topics
        self.settings = peer.durable[durability]
        Topic._made += 1
        # Names of one length, so that every reply has the same size.
        self.names = [f"bench-{Topic._made:04d}-{number:02d}" for number in range(topics)]
        self._there = 0

    @property
    def name(self) -> str:
        return self.names[0]

    def __enter__(self) -> Topic:
        with Admin("127.0.0.1", self.peer.port) as admin:
            for name in self.names:
                admin.create(name, self.width, self.settings, self.peer.replicas)
        return self

    def __exit__(self, *_: object) -> None:
        with Admin("127.0.0.1", self.peer.port) as admin:
            for name in self.names:
                admin.delete(name)

    def ends(self) -> list[dict[int, int]]:
        with Admin("127.0.0.1", self.peer.port) as admin:
            return [admin.ends(name, self.width) for name in self.names]

    def check_committed(self, measured: Measured) -> None:
        """What was committed is there for committed readers; the last markers may take a moment."""
        until = time.monotonic() + MARKERS_SECONDS
        sent = measured.total("appended")
        with Admin("127.0.0.1", self.peer.port) as admin:
            while (came := sum(admin.ends(self.name, self.width, committed=True).values())) != sent:
                if time.monotonic() > until:
                    raise RuntimeError(f"{self.peer.name} has {came} offsets for committed readers, not {sent}")
                time.sleep(0.05)

    def check(self, measured: Measured) -> None:
        """What was acknowledged is there: a server that answers with errors must not look fast."""
        before, self._there = self._there, sum(sum(ends.values()) for ends in self.ends())
        came, sent = self._there - before, measured.total("appended")
        if came != sent:
            raise RuntimeError(f"{self.peer.name} holds {came} records of {sent} that were sent")


def _bulk(measured: Measured) -> list[Figure]:
    size = measured.total("bytes")
    return [
        Figure("CPU s/GB", measured.server_cpu / size * GB),
        Figure("MB/s", size / 1e6 / measured.seconds, True, measured.saturated),
    ]


def small_figures(measured: Measured) -> list[Figure]:
    count = measured.total("requests")
    return [
        Figure("CPU µs/request", measured.server_cpu / count * 1e6),
        Figure("requests/s", count / measured.seconds, True, measured.saturated),
    ]


def bulk_spec(topic: Topic, scale: Scale, batch_bytes: int, partitions_each: int) -> dict[str, Any]:
    return {
        "kind": "bulk_produce",
        "topic": topic.name,
        "partitions": topic.width,
        "partitions_each": partitions_each,
        "connections": 3,
        "in_flight": 5,
        "batch_bytes": batch_bytes,
        "total_bytes": scale.bulk_bytes,
    }


def bulk_produce(
    batch_bytes: int, partitions_each: int, durability: str = "async"
) -> Callable[[Peer, Scale], list[Figure]]:
    def run(peer: Peer, scale: Scale) -> list[Figure]:
        with Topic(peer, 6, durability) as topic:
            measured = measure(peer, bulk_spec(topic, scale, batch_bytes, partitions_each))
            topic.check(measured)
        return _bulk(measured)

    return run


def bulk_fetch(partitions: int, connections: int) -> Callable[[Peer, Scale], list[Figure]]:
    def run(peer: Peer, scale: Scale) -> list[Figure]:
        with Topic(peer, partitions) as topic:
            topic.check(measure(peer, bulk_spec(topic, scale, 128 * KIB, 1)))
            spec = {"kind": "bulk_fetch", "topic": topic.name, "connections": connections, "batch_bytes": 128 * KIB}
            return _bulk(measure(peer, {**spec, "ends": topic.ends()[0]}))

    return run


def small_spec(
    names: list[str], partitions: int, scale: Scale, connections: int, in_flight: int, rotate: bool
) -> dict[str, Any]:
    return {
        "kind": "small_produce",
        "topics": names,
        "partitions": partitions,
        "rotate": rotate,
        "connections": connections,
        "in_flight": in_flight,
        "seconds": scale.seconds,
    }


def small_produce(
    connections: int, in_flight: int = 1, durability: str = "async"
) -> Callable[[Peer, Scale], list[Figure]]:
    def run(peer: Peer, scale: Scale) -> list[Figure]:
        with Topic(peer, 6, durability) as topic:
            measured = measure(peer, small_spec(topic.names, 6, scale, connections, in_flight, False))
            topic.check(measured)
        return small_figures(measured)

    return run


def spread_row(partitions: int) -> Row:
    """One-record requests that go round all partitions. The topics stay: 10,000 partitions take their time to make."""
    kept: dict[str, Topic] = {}

    def run(peer: Peer, scale: Scale) -> list[Figure]:
        if peer.name not in kept:
            kept[peer.name] = Topic(peer, partitions, topics=max(1, partitions // 1000)).__enter__()
            # A partition's first batch makes its files, which is not what this row is about.
            touch = small_spec(kept[peer.name].names, partitions, scale, 1, 1, True) | {"kind": "touch"}
            kept[peer.name].check(measure(peer, touch))
        measured = measure(peer, small_spec(kept[peer.name].names, partitions, scale, 64, 1, True))
        kept[peer.name].check(measured)
        return small_figures(measured)

    def finish(peer: Peer) -> None:
        kept.pop(peer.name).__exit__()

    title = f"one-record produce, 64 connections, over {partitions:,} partition{'s' if partitions > 1 else ''}"
    return Row(f"partitions{partitions}", title, run, finish=finish)


def latency(peer: Peer, scale: Scale) -> list[Figure]:
    rate, seconds = 1_000, 2 * scale.seconds
    with Topic(peer, 1) as topic:
        measured = measure(
            peer,
            # The consumer is there first; the producer's first, unmeasured record is the one at offset 0.
            {"kind": "tail_consume", "topic": topic.name, "from": 1, "count": int(rate * seconds)},
            {"kind": "paced_produce", "topic": topic.name, "rate": rate, "seconds": seconds},
        )
        topic.check(measured)
    came, sent = (result["times"] for result in measured.results)
    taken = sorted((to - since) / 1e6 for since, to in zip(sent, came, strict=True))
    return [
        Figure("CPU µs/message", measured.server_cpu / len(taken) * 1e6),
        Figure("p50 ms", taken[len(taken) // 2]),
        Figure("p99 ms", taken[len(taken) * 99 // 100]),
    ]


def transactions(
    producers: int, records: int = 1_000, durability: str = "async", transform: bool = False
) -> Callable[[Peer, Scale], list[Figure]]:
    """Transactions one after the other, each over two partitions."""

    def run(peer: Peer, scale: Scale) -> list[Figure]:
        with ExitStack() as topics:
            topic = topics.enter_context(Topic(peer, 6, durability))
            spec: dict[str, Any] = {
                "kind": "transform" if transform else "produce",
                "topic": topic.name,
                "partitions": 6,
                "partitions_each": min(2, records),
                "producers": producers,
                "records": records,
                "seconds": scale.seconds,
            }
            if transform:
                source = topics.enter_context(Topic(peer, producers, durability))
                spec |= {"source": source.name, "source_batches": SOURCE_BATCHES}
            measured = measure(peer, spec, load="bench.transactions")
            topic.check_committed(measured)
        [result] = measured.results
        taken = [each / 1e6 for each in result["taken"]]
        count = len(taken)
        each_record = Figure("CPU µs/record", measured.server_cpu / count / records * 1e6)
        return [
            Figure("CPU µs/transaction", measured.server_cpu / count * 1e6),
            *([each_record] if records > 100 else []),
            Figure("transactions/s", count / measured.seconds, True, measured.saturated),
            Figure("p50 ms", taken[count // 2]),
            Figure("p99 ms", taken[count * 99 // 100]),
        ]

    return run


def idle(peer: Peer, scale: Scale) -> list[Figure]:
    try:
        ready = peer.start()
        time.sleep(1)
        return [Figure("s to ready", ready), Figure("idle MB", resident_mb(peer.pid))]
    finally:
        peer.stop()


ROWS = [
    Row("start", "start, and idle", idle, restarts=True),
    Row("bulk", "bulk produce, 100 B records in 128 KiB batches", bulk_produce(128 * KIB, 1)),
    Row("bulk6", "bulk produce, 1 MiB requests over 6 partitions", bulk_produce(MIB // 6, 6)),
    Row("fetch", "bulk fetch", bulk_fetch(6, 2)),
    Row("fetch1", "bulk fetch, 1 partition, 1 connection", bulk_fetch(1, 1)),
    Row("fetch6", "bulk fetch, 6 partitions, 1 connection", bulk_fetch(6, 1)),
    Row("one", "one-record produce, 1 connection", small_produce(1)),
    Row("many", "one-record produce, 64 connections", small_produce(64)),
    Row("pipelined", "one-record produce, 64 connections, 16 in flight on each", small_produce(64, 16)),
    Row("transactions1", "transactions of 1,000 records, 1 producer", transactions(1)),
    Row("transactions16", "transactions of 1,000 records, 16 producers", transactions(16)),
    Row("transactions-small", "transactions of 2 records, 1 producer", transactions(1, 2)),
    Row("transform", "read 1,000 records, write 1,000, commit both, 1 worker", transactions(1, transform=True)),
    Row("latency", "produce to consume at 1,000 messages/s", latency),
    *(spread_row(partitions) for partitions in (1, 1_000, 10_000)),
    *(
        Row(
            f"{durability}{clients}",
            f"one-record produce, {clients} connection{'s' if clients > 1 else ''}, acknowledged {meaning}",
            small_produce(clients, durability=durability),
        )
        for clients in (64, 16, 1)
        for durability, meaning in (("sync", "after fsync"), ("async", "from the page cache"))
    ),
]


WARMING = {"bulk", "bulk6", "fetch", "fetch1", "one", "many", "pipelined", "latency", "transactions16", "transform"}


def warm_up(peer: Peer, scale: Scale, names: Collection[str] = WARMING) -> None:
    """Load until the server's compiler has seen everything that is measured."""
    until = time.monotonic() + scale.warm_up
    work = [row.run for row in ROWS if row.name in names]
    while time.monotonic() < until:
        for run in work:
            run(peer, QUICK)
