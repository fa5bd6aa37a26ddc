"""The sink `headrace`: rows into topics, exactly once for streams.

Each task writes its rows in one transaction and leaves it open (`sink_task`); the driver decides about all of them
(`sink_commit`). Spark makes the writer of a stream anew for each batch, and once more, in another process and without
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
from headrace.pipeline import sink_commit
from headrace.pipeline.broker import make_client
from headrace.pipeline.options import SinkOptions
from headrace.pipeline.sink_commit import CommitCoordinator, DriverState, OpenTransaction, SinkError
from headrace.pipeline.sink_task import check_schema, write_transaction

T = TypeVar("T")

# Spark sets it for the tasks of a stream; it stays the same as long as the checkpoint does.
QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task has written, for the driver to decide about."""

    transaction: OpenTransaction | None
    query: str = ""
    state: DriverState | None = None


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: every task's transaction is committed when all tasks are done."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(_types(schema), options.topic)
        self._options = options
        self._application = options.application or f"headrace-write-{uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return TaskMessage(write_transaction(self._options, _transactional_id(self._application), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        opened = _transactions(messages)

        async def ask(client: Client) -> None:
            await sink_commit.check_open(client, opened)
            lost = [each for each in await sink_commit.commit(client, opened) if each is not None]
            if lost:
                raise sink_commit.RowsLost(
                    f"the write is done in part: {len(lost)} of {len(opened)} transactions were aborted by their "
                    f"timeout, and {sum(each.rows for each in lost)} rows with them; give a longer transactionTimeout"
                )
            await sink_commit.sweep(client, self._application)

        _run(self._options, ask)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        async def ask(client: Client) -> None:
            await sink_commit.abort(client, _transactions(messages))
            await sink_commit.sweep(client, self._application)

        _run(self._options, ask)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: one batch after the other, each exactly once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(_types(schema), options.topic)
        self._options = options
        self._state: DriverState | None = None

    def prepare(self) -> None:
        """Before the tasks of a batch, in the driver."""
        self._state = _run(self._options, lambda client: self._coordinator(client).prepare())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty(QUERY_ID) or ""
        written = write_transaction(self._options, _transactional_id(self._options.application), iterator)
        return TaskMessage(written, query, self._state)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        if not messages:
            return
        state, query = _driver_state(messages)
        opened = _transactions(messages)
        _run(self._options, lambda client: self._coordinator(client).commit(state, query, batchId, opened))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        opened = _transactions(messages)
        if not opened:
            return
        state, _ = _driver_state(messages)
        _run(self._options, lambda client: self._coordinator(client).abort(state, opened))

    def _coordinator(self, client: Client) -> CommitCoordinator:
        options = self._options
        return CommitCoordinator(client, options.application, fail_on_data_loss=options.fail_on_data_loss)


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _transactional_id(application: str) -> str:
    """One for each attempt: what it leaves is aborted by the next batch's task, and not by another attempt."""
    context = TaskContext.get()
    assert context is not None
    return f"{application}-{context.partitionId()}-{context.attemptNumber()}"


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> list[OpenTransaction]:
    return [each.transaction for each in messages if isinstance(each, TaskMessage) and each.transaction is not None]


def _driver_state(messages: Sequence[WriterCommitMessage | None]) -> tuple[DriverState, str]:
    """The driver that began the batch, and its query."""
    for each in messages:
        if isinstance(each, TaskMessage) and each.state is not None:
            return each.state, each.query
    raise SinkError("the batch was not prepared: this Spark makes writers in another order than the sink knows")


def _run(options: SinkOptions, ask: Callable[[Client], Awaitable[T]]) -> T:
    """Ask the broker something, from Spark's thread."""

    async def asking() -> T:
        async with make_client(options) as client:
            return await ask(client)

    return asyncio.run(asking())
