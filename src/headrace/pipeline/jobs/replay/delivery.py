"""Where a task's records go: into a transaction that it leaves open, to a topic at once, into a file aside, or nowhere.

Each is a function of a task's blocks that returns what came of them, so that it can be sent to another process; what a
whole round's answers mean is for the driver to decide (`job.py`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.client import Delivery
from headrace.pipeline.broker import make_client
from headrace.pipeline.manifest import sync_up
from headrace.pipeline.options import SinkOptions
from headrace.pipeline.sink_commit import OpenTransaction
from headrace.pipeline.sink_task import Encoder, InvalidRows, write_transaction
from headrace.pipeline.tables import DataFile

Blocks = Iterator[pa.RecordBatch]
RECORDS = "records"
DELIVERIES = 1_000


@dataclass(frozen=True)
class Answer:
    """What a task has done."""

    read: int = 0
    written: int = 0
    opened: OpenTransaction | None = None
    files: tuple[DataFile, ...] = ()
    behind: float = 0.0


Deliver = Callable[[Blocks], Answer]


@dataclass(frozen=True)
class Shape:
    """Which columns of a row become part of its record."""

    timestamps: bool
    partitions: bool

    def __call__(self, block: pa.RecordBatch) -> pa.RecordBatch:
        names = block.schema.names
        if "value" not in names:
            raise InvalidRows(f"there is no column 'value' among {', '.join(names)}: it holds what is written")
        wanted = ["key", "value", "headers"]
        wanted += ["timestamp"] if self.timestamps else []
        wanted += ["partition"] if self.partitions else []
        return block.select([name for name in wanted if name in names])


@dataclass(frozen=True)
class IntoTransaction:
    """All of a task in one transaction, which stays open until the driver has decided."""

    options: SinkOptions
    shape: Shape

    def __call__(self, blocks: Blocks) -> Answer:
        name = f"{self.options.application}-{_attempt()}"
        opened = write_transaction(self.options, name, map(self.shape, blocks))
        return Answer(written=opened.rows if opened else 0, opened=opened)


@dataclass(frozen=True)
class AtOnce:
    """To a topic as they come, in order, without transactions: readers see them at once."""

    options: SinkOptions
    shape: Shape

    def __call__(self, blocks: Blocks) -> Answer:
        return Answer(written=asyncio.run(self._send(blocks)))

    async def _send(self, blocks: Blocks) -> int:
        rows = 0
        async with make_client(self.options) as client, client.producer(idempotent=True) as producer:
            encoder = Encoder(client, self.options)
            last: list[Delivery] = []
            # In a thread: it waits until records are due, and what was sent goes on meanwhile.
            while (block := await asyncio.to_thread(next, blocks, None)) is not None:
                if not block.num_rows:
                    continue
                rows += block.num_rows
                for topic, partition, batch in await encoder.batches(self.shape(block)):
                    last.append(await producer.send_batch(topic, partition, batch))
                # A delivery that failed is heard of when there are some, and not at the end alone.
                if len(last) >= DELIVERIES:
                    for each in last:
                        await each
                    last.clear()
            for each in last:
                await each
        return rows


@dataclass(frozen=True)
class IntoFile:
    """Into a Parquet file aside, with whatever columns rows have; into another one where these change."""

    staging: str

    def __call__(self, blocks: Blocks) -> Answer:
        files: list[DataFile] = []
        folder = Path(self.staging, RECORDS)
        folder.mkdir(parents=True, exist_ok=True)
        for schema, alike in itertools.groupby(_filled(blocks), lambda block: block.schema):
            path = folder / f"{uuid4().hex}.parquet"
            count = 0
            with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                for block in alike:
                    writer.write_batch(block)
                    count += block.num_rows
            sync_up(path, folder.parent)
            files.append(DataFile(f"{RECORDS}/{path.name}", {}, count, path.stat().st_size))
        return Answer(written=sum(each.rows for each in files), files=tuple(files))


def _filled(blocks: Blocks) -> Blocks:
    return (block for block in blocks if block.num_rows)


@dataclass(frozen=True)
class CountOnly:
    """Counted alone."""

    def __call__(self, blocks: Blocks) -> Answer:
        return Answer(written=sum(block.num_rows for block in blocks))


def _attempt() -> str:
    """One for each attempt: what it leaves is aborted by the next round's task, and not by another attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{context.partitionId()}-{context.attemptNumber()}" if context is not None else f"{next(_OUTSIDE)}-0"


# Tasks that are run without Spark.
_OUTSIDE = itertools.count()
