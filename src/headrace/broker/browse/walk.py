"""The records of a partition, some at a time: from an offset on, or from one backwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from headrace.broker.reading import POISON, batches
from headrace.broker.unpacking import Unpacker
from headrace.errors import OffsetOutOfRange
from headrace.format import records
from headrace.format.records import Record
from headrace.log.interface import Partition
from headrace.runtime import Runtime

READ_BYTES = 262_144
# What is taken out of a batch between two turns of the loop.
STEP_RECORDS = 64
STEP_BYTES = 262_144
# Offsets that are read at once on the way back; twice as many if there was nothing in them.
BACK_OFFSETS = 256
BACK_OFFSETS_MAX = 1 << 20


class Stretch(NamedTuple):
    """A part of a partition."""

    records: list[Record]
    next: int
    """Where to go on: the first offset that was not looked at, or on the way back the one behind it."""
    size: int
    """Bytes that were read for it."""


async def forwards(
    runtime: Runtime, unpacking: Unpacker, partition: Partition, offset: int, end: int
) -> AsyncIterator[Stretch]:
    """From an offset up to an end. A batch that cannot be read is stepped over."""
    while (offset := max(offset, partition.start)) < end:
        try:
            found = await batches(runtime, partition, offset, READ_BYTES)
        except OffsetOutOfRange:
            return
        before = offset
        for header, batch in found:
            if header.last_offset < offset:
                continue
            after = min(header.last_offset + 1, end)
            if batch is None:
                yield Stretch([], after, 0)
            else:
                try:
                    picker = await unpacking.read(records.Picker, batch)
                    while offset < after:
                        wanted = list(range(offset, min(offset + STEP_RECORDS, after)))
                        some = picker.pick(wanted, STEP_BYTES, STEP_RECORDS, True)
                        offset = max(min(picker.after, after), offset)
                        yield Stretch(some, offset, sum(_size(each) for each in some))
                        await asyncio.sleep(0)
                except POISON:
                    yield Stretch([], after, header.size)
            offset = after
            if offset >= end:
                break
        if offset == before:
            return


async def backwards(
    runtime: Runtime, unpacking: Unpacker, partition: Partition, offset: int, first: int
) -> AsyncIterator[Stretch]:
    """From before an offset back to a first one; the records of a stretch stand in falling order."""
    span = BACK_OFFSETS
    while offset > (lowest := max(first, partition.start)):
        begin = max(offset - span, lowest)
        found: list[Record] = []
        size = 0
        async for each in forwards(runtime, unpacking, partition, begin, offset):
            found += each.records
            size += each.size
        yield Stretch(found[::-1], begin, size)
        span = BACK_OFFSETS if found else min(span * 2, BACK_OFFSETS_MAX)
        offset = begin


def _size(record: Record) -> int:
    return len(record[2] or b"") + len(record[3] or b"")
