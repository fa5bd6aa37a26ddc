"""Reading the log's bytes inside the broker: what is in memory at once, what is on a cold disk off the loop."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.broker.unpacking import Unpacker
from headrace.errors import CorruptBatch, InvalidRecords, OffsetOutOfRange, UnsupportedBatch
from headrace.format import records
from headrace.format.aborted import Aborted
from headrace.format.batch import BatchHeader, batches_in
from headrace.log.interface import Chunk, Partition
from headrace.runtime import Runtime

AnyBytes = TypeVar("AnyBytes", bytes, memoryview)

# Records stepped over between two turns of the loop: about half a millisecond.
SKIPPED_RECORDS = 8_192
FIND_BYTES = 65_536
# The errors of a batch that cannot be read, and never will be.
POISON = (InvalidRecords, CorruptBatch, UnsupportedBatch)


def bytes_now(chunk: Chunk) -> bytes | None:
    """The chunk's bytes, if no part of it would wait for the device; its files are let go. None: nothing was let go,
    and `bytes_of` is the way."""
    parts = chunk.parts
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return parts[0]
    if not all(part.is_resident() for part in chunk.ranges):
        return None
    try:
        return chunk.read()
    finally:
        chunk.release()


async def bytes_of(runtime: Runtime, chunk: Chunk) -> bytes:
    """The chunk's bytes, its files read off the loop and let go."""
    try:
        return await runtime.offload.run(chunk.read) if chunk.ranges else chunk.read()
    finally:
        chunk.release()


async def chunk_at(runtime: Runtime, partition: Partition, offset: int, max_bytes: int, committed: bool) -> Chunk:
    """The chunk at an offset, whose place in a cold file is looked up off the loop."""
    while (chunk := partition.read(offset, max_bytes, committed=committed)).cold is not None:
        await runtime.offload.run(chunk.cold)
    return chunk


async def read(runtime: Runtime, partition: Partition, offset: int, max_bytes: int, *, committed: bool = True) -> bytes:
    """Whole batches from the one that holds `offset`; the last may be cut. Raises OffsetOutOfRange."""
    chunk = await chunk_at(runtime, partition, offset, max_bytes, committed)
    data = bytes_now(chunk)
    return await bytes_of(runtime, chunk) if data is None else data


async def batches(
    runtime: Runtime, partition: Partition, offset: int, max_bytes: int
) -> list[tuple[BatchHeader, bytes | None]]:
    """Whole batches from the one that holds `offset`, for readers of committed records: None in the place of one
    that has none, because it is a marker or was aborted. Raises OffsetOutOfRange."""
    chunk = await chunk_at(runtime, partition, offset, max_bytes, True)
    return list(_select_committed(await bytes_of(runtime, chunk), chunk))


def batches_now(
    partition: Partition, offset: int, max_bytes: int
) -> Iterator[tuple[BatchHeader, memoryview | None]] | None:
    """The same, one by one, if no part of it would wait for the device. Raises OffsetOutOfRange."""
    chunk = partition.read(offset, max_bytes, committed=True)
    if chunk.cold is not None:
        return None
    raw = bytes_now(chunk)
    if raw is None:
        chunk.release()
        return None
    return _select_committed(memoryview(raw), chunk)


def _select_committed(raw: AnyBytes, chunk: Chunk) -> Iterator[tuple[BatchHeader, AnyBytes | None]]:
    aborted = Aborted(chunk.aborted)
    for at, header in batches_in(raw):
        is_left_out = header.is_control or (
            header.is_transactional and aborted.has(header.producer_id, header.base_offset)
        )
        yield header, None if is_left_out else raw[at : at + header.size]


@dataclass(slots=True)
class Found:
    """What `RecordFinder.find` came to know of offsets: each is in one of the three."""

    records: list[records.Record] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    """The log has no record there any more."""
    broken: list[int] = field(default_factory=list)
    """Their batch cannot be read."""


class RecordFinder:
    """Finds the records of a partition at single offsets. Asked for rising ones, it reads and unpacks each batch once,
    however many of its records are wanted, and never holds the loop for long."""

    def __init__(self, runtime: Runtime, partition: Partition, unpacking: Unpacker) -> None:
        self._runtime = runtime
        self._partition = partition
        self._unpacking = unpacking
        # The last chunk, and the batch that is open: without a picker, it cannot be read.
        self._chunk: list[tuple[BatchHeader, bytes | None]] = []
        self._open: tuple[BatchHeader, records.Picker | None] | None = None

    async def find(self, offsets: list[int], size_max: int) -> Found:
        """The records at the first of `offsets`, at most `size_max` bytes of them, but one at least."""
        found = Found()
        size = 0
        at = 0
        while at < len(offsets) and size < size_max:
            opened = await self._batch_at(offsets[at])
            if opened is None:
                found.gone.append(offsets[at])
                at += 1
                continue
            header, picker = opened
            asked = offsets[at:]
            some: list[records.Record] = []
            after = header.last_offset + 1
            try:
                if picker is None:
                    raise InvalidRecords("the batch cannot be unpacked")
                some = picker.pick(asked, size_max - size, SKIPPED_RECORDS, not found.records)
                after = picker.after
            except POISON:
                found.broken += asked[: bisect_left(asked, after)]
            else:
                known = {record[0] for record in some}
                found.gone += [offset for offset in asked[: bisect_left(asked, after)] if offset not in known]
            found.records += some
            size += sum(len(key or b"") + len(value or b"") for _, _, key, value, _ in some)
            progress = bisect_left(offsets, after, at) - at
            at += progress
            if not progress and found.records:
                break
            if not progress or header.size > FIND_BYTES:
                await asyncio.sleep(0)
        return found

    async def _batch_at(self, offset: int) -> tuple[BatchHeader, records.Picker | None] | None:
        """The open batch that holds an offset; None where none does."""
        if self._open is not None:
            header, picker = self._open
            # What lies before the place that it has reached it would call gone.
            reached = header.base_offset if picker is None else picker.after
            if reached <= offset <= header.last_offset:
                return self._open
        within = self._in_chunk(offset)
        if within is None:
            try:
                self._chunk = await batches(self._runtime, self._partition, offset, FIND_BYTES)
            except OffsetOutOfRange:
                return None
            within = self._in_chunk(offset)
        if within is None or within[1] is None:
            return None
        try:
            self._open = within[0], await self._unpacking.read(records.Picker, within[1])
        except POISON:
            self._open = within[0], None
        return self._open

    def _in_chunk(self, offset: int) -> tuple[BatchHeader, bytes | None] | None:
        for header, batch in self._chunk:
            if header.base_offset <= offset <= header.last_offset:
                return header, batch
        return None
