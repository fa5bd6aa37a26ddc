"""`headrace demo`: the main job, seen with one's own eyes.

A broker in a process of its own, as `headrace serve` starts it, and confluent-kafka (the C client that most
applications use) on the other side of a socket: every message goes in, comes out, and is compared, content and order.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace.errors import HeadraceError

TOPIC = "demo"
PARTITIONS = 6
GROUP = "demo-readers"
STALLED_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the table at the end."""

    name: str
    messages: int
    payload: int
    seconds: float
    cpu: float


def demo(messages: int, size: int, durability: str) -> None:
    """Run it; raises HeadraceError if anything is missing, doubled, changed or out of order."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise HeadraceError("the demo needs a real client: pip install 'headrace[demo]'") from None
    console = Console()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as data:
        command = [sys.executable, "-m", "headrace.cli", "serve", "--data", data, "--durability", durability]
        command += ["--kafka", "127.0.0.1:0", "--log-level", "warning"]
        for door in ("http", "nsq", "nsq-http", "lookup", "lookup-http"):
            command += [f"--{door}", "off"]
        begin = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                if not ready.startswith("ready kafka="):
                    raise HeadraceError("the broker did not start; it says why above")
                console.print(f"broker {ready.strip()} in {time.perf_counter() - begin:.2f} s, data in {data}")
                steps = _through(console, ready.split("kafka=")[1].split()[0], process.pid, messages, size)
                memory = _memory(process.pid)
            finally:
                process.terminate()
                status = process.wait(STALLED_SECONDS)
        if status != 0:
            raise HeadraceError(f"the broker ended with status {status}, not 0")
    table = Table(title=f"{messages:,} messages of {size} bytes, {PARTITIONS} partitions, durability {durability}")
    table.add_column("step")
    for column in ("seconds", "messages/s", "MB/s", "broker CPU s"):
        table.add_column(column, justify="right")
    for step in steps:
        table.add_row(
            step.name,
            f"{step.seconds:.2f}",
            f"{step.messages / step.seconds:,.0f}",
            f"{step.payload / step.seconds / 1e6:.1f}",
            f"{step.cpu:.2f}",
        )
    console.print(table)
    console.print(f"Every message arrived once, unchanged, in order. The broker's memory at the end: {memory:.0f} MB.")


def value_of(number: int, size: int) -> bytes:
    """The content of message `number`: its number, then filling that depends on it."""
    head = b"%d:" % number
    return (head + bytes((97 + number % 26,)) * size)[: max(size, len(head))]


def _through(console: Console, address: str, pid: int, messages: int, size: int) -> list[Step]:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values():
        future.result(STALLED_SECONDS)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        return [
            _measured("produce", progress, pid, messages, size, lambda tick: _produce(address, messages, size, tick)),
            _measured("consume", progress, pid, messages, size, lambda tick: _consume(address, messages, size, tick)),
        ]


def _measured(name: str, progress: Progress, pid: int, messages: int, size: int, job: Any) -> Step:
    bar = progress.add_task(name, total=messages)
    cpu, begin = _cpu(pid), time.perf_counter()
    job(lambda done: progress.update(bar, completed=done))
    seconds = time.perf_counter() - begin
    progress.update(bar, completed=messages)
    return Step(name, messages, messages * size, seconds, _cpu(pid) - cpu)


def _produce(address: str, messages: int, size: int, tick: Any) -> None:
    from confluent_kafka import Producer

    acknowledged = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal acknowledged
        if error is not None:
            raise HeadraceError(f"a message was refused: {error}")
        acknowledged += 1

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for number in range(messages):
        while True:
            try:
                producer.produce(TOPIC, value_of(number, size), partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
            tick(acknowledged)
    left = producer.flush(STALLED_SECONDS)
    if left or acknowledged != messages:
        raise HeadraceError(f"{messages - acknowledged} messages were not acknowledged")


def _consume(address: str, messages: int, size: int, tick: Any) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.max.bytes": 16 << 20,
        }
    )
    consumer.subscribe([TOPIC])
    # Message n went to partition n % PARTITIONS, so each partition must hold its own numbers in order, without a gap.
    expected = list(range(PARTITIONS))
    read, last = 0, time.monotonic()
    while read < messages:
        batch = consumer.consume(10_000, 1.0)
        if not batch:
            if time.monotonic() - last > STALLED_SECONDS:
                raise HeadraceError(f"nothing came for {STALLED_SECONDS:g} s; {messages - read} messages are missing")
            continue
        last = time.monotonic()
        for message in batch:
            if message.error():
                raise HeadraceError(f"the consumer failed: {message.error()}")
            partition: Any = message.partition()
            number = expected[partition]
            if message.value() != value_of(number, size):
                raise HeadraceError(
                    f"partition {partition}, offset {message.offset()}: message {number} should be there, "
                    f"not {message.value()!r:.60}"
                )
            expected[partition] = number + PARTITIONS
        read += len(batch)
        tick(read)
    consumer.commit(asynchronous=False)
    consumer.close()


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """Resident MB of a process."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def command(
    messages: int = typer.Option(1_000_000, min=1, help="How many messages."),
    size: int = typer.Option(100, min=1, max=1_000_000, help="Bytes of each."),
    durability: str = typer.Option("sync", help="sync, async or memory."),
) -> None:
    """A broker, and messages through a real client in and out, checked."""
    demo(messages, size, durability)
