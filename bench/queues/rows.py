"""What is measured of queues: each row is a kind of work, done on one server, that gives a few figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench import measure as measuring
from bench.measure import Measured
from bench.peers import resident_mb
from bench.queues.control import QueueServer, check, drop, make, queue
from bench.queues.disk import fdatasync_ms, percentile
from bench.rows import Figure

CREDIT = 2500
BATCH = 200
RATE = 1_000


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    seconds: float
    messages: dict[str, int]
    """What is delivered in a round, by wire: about as many as take `seconds`."""
    backlog: int
    rounds: int


FULL = Scale(seconds=2.0, messages={"nsq": 1_600_000, "amqp": 50_000}, backlog=10_000_000, rounds=3)
QUICK = Scale(seconds=1.0, messages={"nsq": 400_000, "amqp": 20_000}, backlog=10_000_000, rounds=1)


@dataclass(frozen=True)
class Row:
    """A kind of work. `run` does it once on a running server."""

    name: str
    title: str
    run: Callable[[QueueServer, Scale], list[Figure]]
    finish: Callable[[QueueServer], None] = lambda server: None
    """Drops what the row keeps on a server from one round to the next."""
    fits: Callable[[QueueServer], bool] = lambda server: True
    """Whether the row makes sense on this server."""


def measure(server: QueueServer, *specs: dict[str, Any]) -> Measured:
    return measuring.measure(server, *({"wire": server.wire, **spec} for spec in specs), load="bench.queues.load")


def figures(measured: Measured, count: int) -> list[Figure]:
    return [
        Figure("CPU µs/message", measured.server_cpu / count * 1e6),
        Figure("messages/s", count / measured.seconds, True, measured.saturated),
    ]


def publishing(topic: str, connections: int, in_flight: int, each: int, **until: float) -> dict[str, Any]:
    shape = {"connections": connections, "in_flight": in_flight, "each": each}
    return {"kind": "publish", "topic": topic, **shape, **until}


def consuming(topic: str, consumers: int, count: int) -> dict[str, Any]:
    return {"kind": "consume", "topic": topic, "connections": consumers, "credit": CREDIT, "count": count}


def batches(topic: str, **until: float) -> dict[str, Any]:
    return publishing(topic, 4, 16, BATCH, **until)


def fill(server: QueueServer, topic: str, count: int) -> None:
    done = measure(server, batches(topic, count=count)).total("messages")
    if done != count:
        raise RuntimeError(f"{done} messages were published of {count}")


def whole_batches(count: int) -> int:
    return count - count % BATCH


def publish(connections: int, in_flight: int, each: int) -> Callable[[QueueServer, Scale], list[Figure]]:
    def run(server: QueueServer, scale: Scale) -> list[Figure]:
        with queue(server) as topic:
            measured = measure(server, publishing(topic, connections, in_flight, each, seconds=scale.seconds))
            check(server, topic, measured.total("messages"))
        return figures(measured, measured.total("messages"))

    return run


def deliver(consumers: int) -> Callable[[QueueServer, Scale], list[Figure]]:
    def run(server: QueueServer, scale: Scale) -> list[Figure]:
        count = whole_batches(scale.messages[server.wire])
        with queue(server) as topic:
            fill(server, topic, count)
            measured = measure(server, consuming(topic, consumers, count))
            once(server, measured)
            check(server, topic, 0)
            memory = Figure("server MB", resident_mb(server.pid))
        return [*figures(measured, count), memory]

    return run


def once(server: QueueServer, measured: Measured) -> None:
    if again := measured.total("redelivered"):
        raise RuntimeError(f"{server.name} delivered {again} messages again")


def flow(consumers: int) -> Callable[[QueueServer, Scale], list[Figure]]:
    """Published, delivered and acknowledged while the consumers keep up."""

    def run(server: QueueServer, scale: Scale) -> list[Figure]:
        count = whole_batches(scale.messages[server.wire])
        with queue(server) as topic:
            measured = measure(server, consuming(topic, consumers, count), batches(topic, count=count))
            once(server, measured)
            check(server, topic, 0)
        return figures(measured, count)

    return run


def requeue(server: QueueServer, scale: Scale) -> list[Figure]:
    """Each message comes twice: it is sent back the first time."""
    count = whole_batches(scale.messages[server.wire] // (16 if server.wire == "nsq" else 8))
    with queue(server) as topic:
        fill(server, topic, count)
        measured = measure(server, {**consuming(topic, 1, 2 * count), "requeue": True})
        if (again := measured.total("redelivered")) != count:
            raise RuntimeError(f"{server.name} delivered {again} messages again, {count} were sent back")
        check(server, topic, 0)
    return figures(measured, count)


def latency(server: QueueServer, scale: Scale) -> list[Figure]:
    seconds = 2 * scale.seconds
    disk = fdatasync_ms(server.folder, RATE, scale.seconds / 2)
    with queue(server) as topic:
        measured = measure(
            server,
            {"kind": "timed_consume", "topic": topic, "credit": CREDIT, "count": int(RATE * seconds)},
            {"kind": "paced_publish", "topic": topic, "rate": RATE, "seconds": seconds},
        )
        check(server, topic, 0)
    disk += fdatasync_ms(server.folder, RATE, scale.seconds / 2)
    taken = [each / 1e6 for each in measured.results[0]["taken"]]
    p99, disk_p99 = percentile(taken, 0.99), percentile(disk, 0.99)
    return [
        Figure("CPU µs/message", measured.server_cpu / len(taken) * 1e6),
        Figure("p50 ms", percentile(taken, 0.5)),
        Figure("p99 ms", p99),
        Figure("the disk's own fdatasync, p50 ms", percentile(disk, 0.5), compared=False),
        Figure("the disk's own fdatasync, p99 ms", disk_p99, compared=False),
        Figure("p99 over the disk's", p99 / disk_p99),
    ]


class Backlog:
    """A queue with millions of messages that stays from round to round."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self._waiting: dict[str, int] = {}

    def _topic(self, server: QueueServer, scale: Scale) -> str:
        if server.name not in self._kept:
            self._kept[server.name] = topic = "bench-backlog"
            make(server, topic)
            fill(server, topic, scale.backlog)
            self._waiting[server.name] = scale.backlog
            check(server, topic, scale.backlog)
        return self._kept[server.name]

    def publish(self, server: QueueServer, scale: Scale) -> list[Figure]:
        topic = self._topic(server, scale)
        measured = measure(server, batches(topic, seconds=scale.seconds))
        count = measured.total("messages")
        self._waiting[server.name] += count
        check(server, topic, self._waiting[server.name])
        return figures(measured, count)

    def deliver(self, server: QueueServer, scale: Scale) -> list[Figure]:
        topic = self._topic(server, scale)
        measured = measure(server, consuming(topic, 1, whole_batches(scale.messages[server.wire])))
        # What was on its way when the consumer left comes again next time; what it acknowledged does not.
        count = measured.total("messages")
        self._waiting[server.name] -= count
        check(server, topic, self._waiting[server.name])
        return [*figures(measured, count), Figure("server MB", resident_mb(server.pid))]

    def finish(self, server: QueueServer) -> None:
        if self._kept.pop(server.name, None):
            drop(server, "bench-backlog")


def small(server: QueueServer) -> bool:
    """10 million persistent messages take RabbitMQ a quarter of an hour to accept."""
    return server.wire == "nsq"


backlog = Backlog()

ROWS = [
    Row("mpub", f"publish in batches of {BATCH}, 4 connections", publish(4, 16, BATCH)),
    Row("one", "publish, one at a time", publish(1, 1, 1)),
    Row("pipelined", "publish one by one, 8 connections, 64 in flight on each", publish(8, 64, 1)),
    Row("deliver1", "deliver and acknowledge, 1 consumer", deliver(1)),
    Row("deliver8", "deliver and acknowledge, 8 consumers", deliver(8)),
    Row("requeue", "deliver, send back, deliver again and acknowledge, 1 consumer", requeue),
    Row("flow1", "publish, deliver and acknowledge at once, 1 consumer", flow(1)),
    Row("flow8", "publish, deliver and acknowledge at once, 8 consumers", flow(8)),
    Row("latency", f"publish to delivery at {RATE:,} messages/s", latency),
    Row("backlog-mpub", f"publish in batches of {BATCH}, 10 million waiting", backlog.publish, fits=small),
    Row(
        "backlog-deliver",
        "deliver and acknowledge, 1 consumer, 10 million waiting",
        backlog.deliver,
        finish=backlog.finish,
        fits=small,
    ),
]
