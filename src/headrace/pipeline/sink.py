"""The sink `headrace`: rows into topics, exactly once for streams.

Each task writes its rows in one transaction and leaves it open (`writing`); the driver decides about all of them
(`committing`). Spark makes the writer of a stream anew for each batch, and once more, in another process and without
its state, to commit: so who the driver is, and what it found when the batch began, travels through the tasks and back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client import Client
from headrace.pipeline import committing
from headrace.pipeline.broker import client_of
from headrace.pipeline.committing import Decisions, Open, SinkError, Standing
from headrace.pipeline.options import SinkOptions
from headrace.pipeline.writing import check_schema, write_open

T = TypeVar("T")

# Spark sets it for the tasks of a stream; it stays the same as long as the checkpoint does.
QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has written, for the driver to decide about."""

    transaction: Open | None
    query: str = ""
    standing: Standing | None = None


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: every task's transaction is committed when all tasks are done."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(_types(schema), options.topic)
        self._options = options
        self._application = options.application or f"headrace-write-{uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(write_open(self._options, _transactional_id(self._application), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        opened = _opened(messages)

        async def ask(client: Client) -> None:
            await committing.must_be_open(client, opened)
            lost = [each for each in await committing.commit(client, opened) if each is not None]
            if lost:
                raise committing.RowsLost(
                    f"the write is done in part: {len(lost)} of {len(opened)} transactions were aborted by their "
                    f"timeout, and {sum(each.rows for each in lost)} rows with them; give a longer transactionTimeout"
                )
            await committing.sweep(client, self._application)

        _run(self._options, ask)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        async def ask(client: Client) -> None:
            await committing.abort(client, _opened(messages))
            await committing.sweep(client, self._application)

        _run(self._options, ask)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: one batch after the other, each exactly once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(_types(schema), options.topic)
        self._options = options
        self._standing: Standing | None = None

    def prepare(self) -> None:
        """Before the tasks of a batch, in the driver."""
        self._standing = _run(self._options, lambda client: self._decisions(client).prepare())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty(QUERY_ID) or ""
        written = write_open(self._options, _transactional_id(self._options.application), iterator)
        return Written(written, query, self._standing)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        if not messages:
            return
        standing, query = _standing(messages)
        opened = _opened(messages)
        _run(self._options, lambda client: self._decisions(client).commit(standing, query, batchId, opened))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        opened = _opened(messages)
        if not opened:
            return
        standing, _ = _standing(messages)
        _run(self._options, lambda client: self._decisions(client).abort(standing, opened))

    def _decisions(self, client: Client) -> Decisions:
        options = self._options
        return Decisions(client, options.application, fail_on_data_loss=options.fail_on_data_loss)


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _transactional_id(application: str) -> str:
    """One for each attempt: what it leaves is aborted by the next batch's task, and not by another attempt."""
    context = TaskContext.get()
    assert context is not None
    return f"{application}-{context.partitionId()}-{context.attemptNumber()}"


def _opened(messages: Sequence[WriterCommitMessage | None]) -> list[Open]:
    return [each.transaction for each in messages if isinstance(each, Written) and each.transaction is not None]


def _standing(messages: Sequence[WriterCommitMessage | None]) -> tuple[Standing, str]:
    """The driver that began the batch, and its query."""
    for each in messages:
        if isinstance(each, Written) and each.standing is not None:
            return each.standing, each.query
    raise SinkError("the batch was not prepared: this Spark makes writers in another order than the sink knows")


def _run(options: SinkOptions, ask: Callable[[Client], Awaitable[T]]) -> T:
    """Ask the broker something, from Spark's thread."""

    async def asking() -> T:
        async with client_of(options) as client:
            return await ask(client)

    return asyncio.run(asking())
