"""What one task of the sink does: all its rows in one Kafka transaction, which it leaves open.

Arrow's columns become record batches, which the producer takes whole. Rows with a key go where Kafka's own clients
would send them; rows without one stay together for a batch, and batches go around.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from time import time_ns
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import BrokerError, Client
from headrace.errors import HeadraceError
from headrace.format import records
from headrace.format.compression import NAMES
from headrace.pipeline.broker import make_client
from headrace.pipeline.encode import Texts, build_rows, partitions_of
from headrace.pipeline.options import SinkOptions
from headrace.pipeline.sink_commit import OpenTransaction

BATCH_BYTES = 512 << 10
# What a batch takes besides its records, and more.
HEAD_BYTES = 100
# What a record takes besides its fields, and a header besides its own.
RECORD_BYTES, HEADER_BYTES = 24, 16
TEXT = ("string", "binary")


class InvalidRows(HeadraceError):
    """Rows that the sink cannot write."""


def check_schema(fields: dict[str, str], topic: str) -> None:
    """Raise unless the columns (names, and types as Spark's DDL has them) can be written."""
    if "value" not in fields:
        raise InvalidRows(f"there is no column 'value' among {', '.join(fields) or 'none'}: it holds what is written")
    if not topic and "topic" not in fields:
        raise InvalidRows("the rows have no topic. Give the option topic, or a column of that name.")
    wanted = {
        "value": TEXT,
        "key": TEXT,
        "topic": ("string",),
        "partition": ("int",),
        "headers": ("array<struct<key:string,value:binary>>",),
        "timestamp": ("timestamp",),
    }
    for name, kind in fields.items():
        if name not in wanted:
            raise InvalidRows(f"the sink has no column {name!r}: it has {', '.join(wanted)}")
        if kind not in wanted[name]:
            raise InvalidRows(f"the column {name} is {kind}: it must be {' or '.join(wanted[name])}")


def write_transaction(
    options: SinkOptions, transactional_id: str, blocks: Iterator[pa.RecordBatch]
) -> OpenTransaction | None:
    """Write all rows and leave the transaction open; None where there are no rows. After an error it is aborted."""
    return asyncio.run(_write_transaction(options, transactional_id, blocks))


async def _write_transaction(
    options: SinkOptions, transactional_id: str, blocks: Iterator[pa.RecordBatch]
) -> OpenTransaction | None:
    rows = 0
    async with make_client(options) as client:
        producer = client.transactional(transactional_id, transaction_timeout=options.transaction_timeout)
        encoder = Encoder(client, options)
        try:
            # In a thread: what comes slowly must not keep the answers to what was sent from being read.
            while (block := await asyncio.to_thread(next, blocks, None)) is not None:
                if not block.num_rows:
                    continue
                if not rows:
                    await producer.init()
                    producer.begin()
                rows += block.num_rows
                for topic, partition, batch in await encoder.batches(block):
                    await producer.send_batch(topic, partition, batch)
            if not rows:
                return None
            await producer.flush()
        except BaseException:
            await producer.close()
            raise
        # Not closed: that would abort it.
        return OpenTransaction(transactional_id, *producer.identity, rows)


class Encoder:
    """Arrow's columns into record batches."""

    def __init__(self, client: Client, options: SinkOptions) -> None:
        self._client = client
        self._topic = options.topic
        self._codec = NAMES.index(options.compression)
        self._turn = time_ns() // 1000
        self._limits: dict[str, int] = {}
        """By topic, about how much goes into a batch."""

    async def batches(self, block: pa.RecordBatch) -> list[tuple[str, int, bytearray]]:
        """The rows of a block as batches, each with its topic and partition; rows of one partition in their order."""
        columns = {name: block.column(index) for index, name in enumerate(block.schema.names)}
        if self._topic:
            return await self._of_topic(self._topic, columns)
        topics = columns["topic"]
        if topics.null_count:
            raise InvalidRows("a row has no topic: give the option topic, or a topic in each row")
        found = []
        for name in pc.unique(topics).to_pylist():
            rows = pc.indices_nonzero(pc.equal(topics, name))
            found += await self._of_topic(name, {each: column.take(rows) for each, column in columns.items()})
        return found

    async def _of_topic(self, topic: str, columns: dict[str, Any]) -> list[tuple[str, int, bytearray]]:
        count = len((await self._client.cluster.topic(topic, create=True)).partitions)
        values = _texts(columns["value"])
        keys = _texts(columns["key"] if "key" in columns else pa.nulls(values.rows, pa.binary()))
        sizes = RECORD_BYTES + np.maximum(values.lengths, 0) + np.maximum(keys.lengths, 0)
        headers = _headers(columns.get("headers"))
        if headers is not None:
            sizes += _header_bytes(columns["headers"])
        wanted = self._partitions(columns.get("partition"), keys, count, topic)
        most = await self._limit(topic)
        now = time_ns() // 1_000_000
        times = _times(columns.get("timestamp"), now)
        found = []
        for partition in np.unique(wanted).tolist():
            rows = np.nonzero(wanted == partition)[0]
            for part in _cut(rows, sizes[rows], most):
                if headers is None:
                    rows_of = part.astype("<i8").tobytes()
                    own = b"" if times is None else times.tobytes()
                    batch = build_rows(rows_of, now, keys.texts, values.texts, self._codec, own)
                else:
                    listed = (
                        (now if times is None else int(times[row]), keys.get(row), values.get(row), headers[row])
                        for row in part.tolist()
                    )
                    batch = records.build(listed, compression=self._codec)
                if partition < 0:
                    self._turn += 1
                found.append((topic, partition if partition >= 0 else self._turn % count, batch))
        return found

    async def _limit(self, topic: str) -> int:
        if topic not in self._limits:
            try:
                settings = {each.name: each.value for each in await self._client.admin.topic_config(topic)}
            except BrokerError:
                # A client that may write need not have the right to describe.
                settings = {}
            limit = settings.get("max.message.bytes")
            self._limits[topic] = min(BATCH_BYTES, (int(limit) - HEAD_BYTES) // 2) if limit else BATCH_BYTES
        return self._limits[topic]

    def _partitions(self, column: Any, keys: Column, count: int, topic: str) -> Any:
        """The partition of each row; -1: any."""
        wanted = np.frombuffer(partitions_of(keys.texts, count), "<i8")
        if column is not None and column.null_count < len(column):
            given = pc.fill_null(column, -1).to_numpy(zero_copy_only=False)
            is_given = pc.is_valid(column).to_numpy(zero_copy_only=False)
            wrong = given[is_given & ((given < 0) | (given >= count))]
            if len(wrong):
                raise InvalidRows(f"a row is for partition {wrong[0]} of {topic}, which has {count}: from 0 on")
            wanted = np.where(is_given, given, wanted)
        return wanted


@dataclass(frozen=True)
class Column:
    """A column of byte strings, as the kernel takes it."""

    texts: Texts
    starts: Any
    lengths: Any

    @property
    def rows(self) -> int:
        return len(self.lengths)

    def get(self, row: int) -> bytes | None:
        start, length = int(self.starts[row]), int(self.lengths[row])
        return None if length < 0 else self.texts.data[start : start + length]


def _texts(column: Any) -> Column:
    column = column.cast(pa.binary())
    _, offsets_at, data_at = column.buffers()
    offsets = np.frombuffer(offsets_at, "<i4", len(column) + 1, column.offset * 4).astype("<i8")
    lengths = np.diff(offsets)
    if column.null_count:
        lengths[pc.is_null(column).to_numpy(zero_copy_only=False)] = -1
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    data = data_at.slice(first, size).to_pybytes() if size else b""
    starts = offsets[:-1] - first
    return Column(Texts(data, starts.tobytes(), lengths.tobytes()), starts, lengths)


def _cut(rows: Any, sizes: Any, most: int) -> list[Any]:
    """Rows in parts of less than twice as much as `most`; one that is larger than `most` stands alone."""
    large = sizes > most
    apart = (np.diff(np.cumsum(sizes) // max(1, most)) > 0) | large[1:] | large[:-1]
    return np.split(rows, np.nonzero(apart)[0] + 1)


def _header_bytes(headers: Any) -> Any:
    """The bytes that each row's headers take, about."""
    fields = headers.flatten()
    inner = pc.add(
        pc.fill_null(pc.binary_length(fields.field(0)), 0), pc.fill_null(pc.binary_length(fields.field(1)), 0)
    ).to_numpy(zero_copy_only=False)
    found: Any = np.zeros(len(headers), np.int64)
    np.add.at(found, pc.list_parent_indices(headers).to_numpy(zero_copy_only=False), inner + HEADER_BYTES)
    return found


def _times(column: Any, now: int) -> Any:
    """The time of each row in milliseconds, now where it has none; None where no row has one."""
    if column is None or column.null_count == len(column):
        return None
    millis = pc.fill_null(pc.divide(column.cast(pa.int64()), 1000), now).to_numpy(zero_copy_only=False)
    if (millis < 0).any():
        raise InvalidRows("a row's timestamp is before 1970, which no record can have")
    return millis.astype("<i8")


def _headers(column: Any) -> list[list[tuple[str, bytes | None]]] | None:
    """The headers of each row; None where no row has any."""
    if column is None or not len(column.flatten()):
        return None
    found = []
    for row in column.to_pylist():
        for each in row or ():
            if each is None or each["key"] is None:
                raise InvalidRows("a header has no key: leave it out, or name it")
        found.append([(each["key"], each["value"]) for each in row or ()])
    return found
