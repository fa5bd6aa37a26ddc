"""The pipeline's source beside Spark's own Kafka connector: `python -m bench.spark_source [--size BYTES] [--write]`.

Both read the same records from the same Headrace broker in the same Spark, turn by turn, in one task for each of two
partitions, and drop the rows: with all columns, with the values alone, and with these as text. What counts is the CPU
time of Spark and its Python workers together; the broker's is separate, and so is what a query costs that finds next
to nothing. Each figure is the best of some rounds, behind some that warm the JVM up and in which the rows are counted.

`--big` asks for memory instead: the most that JVM and Python workers hold while 1 GB is read, and while 10 GB are, in a
batch read and in one batch of a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import report
from bench.peers import Missing, cpu_between, cpu_seconds, jars
from bench.peers.headrace import Headrace
from bench.rows import Figure
from headrace.client import Client
from headrace.format import records
from headrace.format.compression import NAMES
from headrace.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
BATCH_BYTES = 128 << 10
DIFFERENT_BATCHES = 16
NOON = 1_704_110_400_000
CONF = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-Xms1g"}


COLUMNS = {"all": "all columns", "value": "value", "text": "value as text"}


@dataclass(frozen=True)
class Work:
    """One row of the table."""

    size: int
    codec: str
    stream: bool
    columns: str = "all"

    @property
    def title(self) -> str:
        kind = "stream" if self.stream else "batch"
        if not self.codec:
            return f"{kind} read, {COLUMNS[self.columns]}: before the first record"
        records = "100 B" if self.size == 100 else "1 KiB"
        return f"{kind} read, {COLUMNS[self.columns]}, {records} records, {self.codec}"

    @property
    def topic(self) -> str:
        return f"t-{self.size}-{self.codec}" if self.codec else "t-start"


@dataclass(frozen=True)
class Reader:
    """A source, as the table wants it."""

    name: str
    version: str
    port: int = 0
    format: str = ""

    pid = 0

    def start(self) -> float:
        return 0.0

    def stop(self) -> None:
        return


def value(size: int, rng: random.Random) -> bytes:
    """Text of which a codec makes about half."""
    return rng.randbytes(size // 4).hex().encode().ljust(size, b"x")[:size]


async def fill(address: str, topic: str, size: int, codec: str, rows: int) -> int:
    """A topic of at least so many records, in batches that were built once; how many it has."""
    rng = random.Random(size)
    count = BATCH_BYTES // size
    built = [
        records.build(
            [(NOON, b"%016x" % rng.getrandbits(64), value(size, rng), []) for _ in range(count)],
            compression=NAMES.index(codec),
        )
        for _ in range(DIFFERENT_BATCHES)
    ]
    async with Client(address) as client:
        await client.admin.create_topic(topic, PARTITIONS, {"durability": "async", "retention.ms": "-1"})
        async with client.producer() as producer:
            batches = -(-rows // count)
            for number in range(batches):
                await producer.send_batch(topic, number % PARTITIONS, bytearray(built[number % DIFFERENT_BATCHES]))
    return batches * count


def read(spark: SparkSession, reader: Reader, address: str, work: Work, *, counted: bool = True) -> int | None:
    """Read all of a topic and drop it; how many rows there were. Batch reads that are not `counted` do not tell: to
    count costs CPU for each row, which is not the source's."""
    frame = frame_of(spark.readStream if work.stream else spark.read, reader, address, work)
    if not work.stream:
        if counted:
            return drop(frame)
        frame.write.format("noop").mode("overwrite").save()
        return None
    checkpoint = tempfile.mkdtemp(prefix="headrace-bench-")
    try:
        query = (
            frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        return int(sum(each["numInputRows"] for each in query.recentProgress))
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def frame_of(spark: Any, reader: Reader, address: str, work: Work) -> DataFrame:
    """The same columns by either source. Spark takes all of them from its own, and leaves out what is not selected."""
    options = {"kafka.bootstrap.servers": address, "subscribe": work.topic, "startingOffsets": "earliest"}
    source = spark.format(reader.format).options(**options)
    if reader.format != "headrace":
        wanted = {"all": "*", "value": "value", "text": "CAST(value AS STRING) AS value"}
        return source.load().selectExpr(wanted[work.columns])
    if work.columns == "value":
        return source.option("columns", "value").load()
    return (source.schema("value STRING") if work.columns == "text" else source).load()


def drop(frame: DataFrame) -> int:
    from pyspark.sql import Observation, functions

    seen = Observation()
    frame.observe(seen, functions.count(functions.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


class Tally:
    """The CPU of a JVM and of all Python processes that it has started, those that are gone included.

    Spark's daemons ignore the ends of their workers, so what a worker has spent is in no process's sum when it is gone.
    Each is looked at ten times a second, and its last figure is kept: idle ones go after a minute, in which they
    spend nothing.
    """

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self._seen: dict[tuple[int, str], tuple[int, int]] = {}
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Tally:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def seconds(self) -> float:
        living = self._look()
        with self._lock:
            # The JVM waits for its own children, and has what they spent in its own figures then.
            ticks = [spent for each, (parent, spent) in self._seen.items() if each in living or parent != self._jvm]
        return sum(ticks) / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            self._look()

    def _look(self) -> set[tuple[int, str]]:
        found = {}
        for pid in (self._jvm, *_below_or_none(self._jvm)):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[pid, fields[19]] = (int(fields[1]), sum(map(int, fields[11:15])))
        with self._lock:
            for each, (parent, spent) in found.items():
                # Two looks at once may end in another order than they began.
                _, known = self._seen.get(each, (0, 0))
                self._seen[each] = (parent, max(spent, known))
        return set(found)


def measure(
    spark: SparkSession, tally: Tally, reader: Reader, broker: Headrace, work: Work, rows: int, *, counted: bool
) -> list[Figure]:
    before, served, began = tally.seconds(), cpu_seconds(broker.pid), time.perf_counter()
    found = read(spark, reader, f"127.0.0.1:{broker.port}", work, counted=counted)
    wall = time.perf_counter() - began
    cpu, serving = tally.seconds() - before, cpu_between(served, cpu_seconds(broker.pid))
    if found not in (rows, None):
        raise RuntimeError(f"{reader.name} has read {found} rows of {rows}")
    if not work.codec:
        return [Figure("CPU s", cpu), Figure("s", wall)]
    return [
        Figure("M rows/CPU s", rows / cpu / 1e6, more_is_better=True),
        Figure("MB/CPU s", rows * work.size / cpu / 1e6, more_is_better=True),
        Figure("M rows/s", rows / wall / 1e6, more_is_better=True),
        Figure("broker CPU s/GB", serving / (rows * work.size) * 1e9),
    ]


def measure_again(*arguments: Any, **named: Any) -> list[Figure]:
    """Measure; anew where a stream did not start. Spark gives its process ten seconds, which a busy machine may not."""
    from pyspark.errors import StreamingQueryException

    for _ in range(5):
        try:
            return measure(*arguments, **named)
        except StreamingQueryException as error:
            if "connect back" not in str(error):
                raise
            print("    a stream's process took too long to start: once more", flush=True)
    raise RuntimeError("this machine is too busy to start a stream")


def compare(
    spark: SparkSession, tally: Tally, broker: Headrace, readers: Sequence[Reader], options: Any
) -> report.Table:
    table = report.Table(readers)  # type: ignore[arg-type]
    works = [Work(options.size, "", kind == "stream") for kind in options.kinds.split(",")] + [
        Work(options.size, codec, kind == "stream", columns)
        for codec in options.codecs.split(",")
        for columns in options.columns.split(",")
        for kind in options.kinds.split(",")
    ]
    address = f"127.0.0.1:{broker.port}"
    held: dict[str, int] = {}
    for work in works:
        if work.topic not in held:
            rows = options.megabytes * 1_000_000 // work.size if work.codec else 1
            held[work.topic] = asyncio.run(fill(address, work.topic, work.size, work.codec or "none", rows))
    for turn in range(options.warm_up + options.rounds):
        for work in works:
            for reader in readers:
                warming = turn < options.warm_up
                figures = measure_again(spark, tally, reader, broker, work, held[work.topic], counted=warming)
                first = f"{figures[0].value:6.2f} {figures[0].what}"
                print(f"{turn - options.warm_up:3} {reader.name:20} {work.title:50} {first}", flush=True)
                if not warming:
                    table.add(work, reader, figures)  # type: ignore[arg-type]
    return table


@contextmanager
def watching(jvm: int) -> Iterator[Callable[[], tuple[float, ...]]]:
    """The most that a JVM, all Python processes below it, and one of these hold meanwhile, in MB."""
    most: tuple[float, ...] = (0.0, 0.0, 0.0)
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.1):
            workers = [_resident_mb(each) for each in _below(jvm)]
            now = (_resident_mb(jvm), sum(workers), max(workers, default=0.0))
            most = tuple(map(max, most, now))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most
    finally:
        done.set()
        thread.join()


def _below(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = [int(each) for each in (task / "children").read_text().split()]
        except OSError:
            continue
        found += [each for child in children for each in (child, *_below_or_none(child))]
    return found


def _below_or_none(pid: int) -> list[int]:
    try:
        return _below(pid)
    except OSError:
        return []


def _resident_mb(pid: int) -> float:
    """Its own pages, and its share of those that it has together with others."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1e3
    except OSError:
        pass
    return 0.0


def memory(spark: SparkSession, jvm: int, broker: Headrace, reader: Reader, options: Any) -> None:
    """Peak memory by how much is read. A task's memory is that of its range, so ranges grow, and not their number."""
    address = f"127.0.0.1:{broker.port}"
    for gigabytes in (1, 10):
        works = [Work(1024, f"none-{gigabytes}", kind == "stream") for kind in options.kinds.split(",")]
        topic, rows = works[0].topic, gigabytes * 1_000_000_000 // works[0].size
        rows = asyncio.run(fill(address, topic, works[0].size, "none", rows))
        for turn in range(options.warm_up + options.rounds):
            for work in works:
                with watching(jvm) as most:
                    found = read(spark, reader, address, work)
                    heap, workers, largest = most()
                if found != rows:
                    raise RuntimeError(f"{found} rows were read of {rows}")
                kind = "stream" if work.stream else "batch"
                print(
                    f"{turn - options.warm_up:3} {gigabytes:3} GB of 1 KiB, {kind:6}: JVM {heap:6.0f} MB,"
                    f" Python workers {workers:6.0f} MB, the largest {largest:6.0f} MB",
                    flush=True,
                )
        asyncio.run(forget(address, topic))


async def forget(address: str, topic: str) -> None:
    async with Client(address) as client:
        await client.admin.delete_topic(topic)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_source", allow_abbrev=False)
    parser.add_argument("--megabytes", type=int, default=200, help="how much a topic has (default: 200)")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before anything is measured (default: 2)")
    parser.add_argument("--rounds", type=int, default=2, help="how often each row is measured (default: 2)")
    parser.add_argument("--kinds", default="batch,stream", help="which kinds of reads (default: batch,stream)")
    parser.add_argument("--size", type=int, choices=(100, 1024), default=100, help="bytes of a record (default: 100)")
    parser.add_argument("--codecs", default="none,lz4", help="(default: none,lz4)")
    parser.add_argument("--columns", default="all,value,text", help="which columns (default: all,value,text)")
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    parser.add_argument("--big", action="store_true", help="memory at 1 GB and at 10 GB, and nothing else")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    # Workers of an installed package find it compiled, and so must these, whatever this shell has set.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir(), "headrace-bench-compiled")))
    conf = dict(CONF)
    readers = [Reader("Headrace", Headrace.version, format="headrace")]
    try:
        conf["spark.jars"] = ",".join(jars.connector())
        readers.append(Reader("Spark's Kafka source", jars.CONNECTOR, format="kafka"))
    except Missing as reason:
        print(f"the source is measured alone: {reason}")
    broker = Headrace()
    spark = session("bench", "local[2]", conf)
    try:
        broker.start()
        assert spark._jvm is not None
        jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
        if options.big:
            memory(spark, jvm, broker, readers[0], options)
            return
        with Tally(jvm) as tally:
            table = compare(spark, tally, broker, readers, options)
        print("\n".join(" | ".join(line) for line in table.lines()))
        if options.write:
            report.write(table, f"measured: source {options.size}")
    finally:
        spark.stop()
        broker.stop()


if __name__ == "__main__":
    main()
