"""The store of the broker's own topics: how a part of the broker keeps its state in the log.

The state is what the records of a topic say, applied in their order. A part loads it after a start and appends one more
record for each change, alone or in one atomic append with other writes, so that a crash leaves all of them or none.
Compaction keeps such a topic short, or the part forgets what precedes a snapshot. What is the same for all of them is
here; a part brings the codec of its records and its rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from headrace.broker import durable
from headrace.broker.fields import UnreadableRecord
from headrace.broker.reading import read
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import Topics
from headrace.broker.unpacking import Unpacker
from headrace.errors import CorruptLog, HeadraceError
from headrace.format import records
from headrace.format.batch import BatchHeader, batches_in
from headrace.format.markers import control_type
from headrace.log.interface import Appended, Done, Log, Partition, Topic, Write
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.store")

# One batch is about this large at most, far below what a topic takes.
BATCH_BYTES = 524_288
# What a record takes beside its key, value and headers, generously.
RECORD_BYTES = 40
# What is read at once, and the records that are applied between two turns of the loop: about half a millisecond.
LOAD_BYTES = 262_144
STEP_RECORDS = 128
UNBOUND = 1 << 62
# What a codec raises for a record that it cannot read.
UNREADABLE = (UnreadableRecord, ValueError, LookupError, TypeError)

# A key and its value; None: the key is no more.
Change = tuple[bytes, bytes | None]
# What goes into a batch: time, key, value, headers.
Row = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
# Takes one record into the state, and the header of the batch that it came in.
Apply = Callable[[records.Record, BatchHeader], None]
# Called with a producer whose transaction ends here, and whether it commits.
OnMarker = Callable[[int, bool], None]


def batches_of(rows: Iterable[Row]) -> bytearray:
    """Rows in their order as batches, one behind the other: as many as the bound on a batch asks for."""
    out = bytearray()
    part: list[Row] = []
    size = 0
    for row in rows:
        _, key, value, headers = row
        more = len(key or b"") + len(value or b"") + RECORD_BYTES
        for name, content in headers:
            more += len(name) + len(content or b"")
        if part and size + more > BATCH_BYTES:
            out += records.build(part)
            part, size = [], 0
        part.append(row)
        size += more
    if part:
        out += records.build(part)
    return out


class StateTopic:
    """One of the broker's own topics."""

    def __init__(
        self,
        runtime: Runtime,
        log: Log,
        topics: Topics,
        config: BrokerSettings,
        name: str,
        settings: Mapping[str, str],
        partitions: int = 1,
    ) -> None:
        self.name = name
        self._runtime = runtime
        self._log = log
        self._topics = topics
        self._settings = settings
        self._partitions = partitions
        self._unpacking = Unpacker(runtime.offload, config.decompressed_max_bytes)

    @property
    def topic(self) -> Topic | None:
        """The topic, if it was made."""
        return self._log.topics.get(self.name)

    async def open(self) -> Topic:
        """The topic, which is made if it is missing."""
        return await self._topics.open(self.name, self._partitions, self._settings, internal=True)

    async def load(self, partition: Partition, apply: Apply, on_marker: OnMarker | None = None, first: int = 0) -> int:
        """Apply all that is durable in a partition from an offset on, with turns of the loop between; the offset where
        that ends. A record that cannot be read is logged and skipped. Raises PartitionOffline or CorruptLog."""
        await partition.load()
        position, end = max(first, partition.start), partition.high_watermark
        step = 0
        while position < end:
            raw = await read(self._runtime, partition, position, LOAD_BYTES, committed=False)
            before = position
            for at, header in batches_in(raw):
                if header.last_offset < position:
                    continue
                batch = raw[at : at + header.size]
                if header.is_control:
                    # A marker is a step too, and so is a batch that compaction left empty.
                    step += 1
                    if on_marker is not None:
                        on_marker(header.producer_id, control_type(batch)[0])
                else:
                    # Unpacked once, however many records it has.
                    picker = await self._unpacking.read(records.Picker, batch)
                    # The offset behind the last record makes the kernel check that there is nothing more.
                    for begin in range(max(header.base_offset, first), header.last_offset + 2, STEP_RECORDS):
                        wanted = list(range(begin, min(begin + STEP_RECORDS, header.last_offset + 2)))
                        found = picker.pick(wanted, UNBOUND, UNBOUND, True)
                        self._apply(partition, apply, found, header)
                        step += len(found) + 1
                        if step >= STEP_RECORDS:
                            step = 0
                            await asyncio.sleep(0)
                position = header.last_offset + 1
            if position == before:
                raise CorruptLog(f"{self.name} partition {partition.index} has no whole batch at offset {position}")
        return position

    def _apply(self, partition: Partition, apply: Apply, found: list[records.Record], header: BatchHeader) -> None:
        for record in found:
            try:
                apply(record, header)
            except UNREADABLE as error:
                where = {"topic": self.name, "partition": partition.index, "offset": record[0]}
                log.error("skipped a record", **where, why=repr(error))

    def write(self, partition: Partition, changes: Iterable[Change]) -> Write:
        """Changes in their order as a part of an append, with the time of now."""
        now = self._runtime.clock.now_ms()
        return Write(partition, batches_of((now, key, value, ()) for key, value in changes))

    def append(self, writes: Sequence[Write], done: Done) -> list[Appended]:
        """Append changes, and what else is to be written with them, all or nothing. `done` is always called, and never
        before this returns. Raises an AppendRefused."""
        return durable.append(self._log, writes, done)

    def submit(self, writes: Sequence[Write]) -> asyncio.Future[list[Appended]]:
        """The same now, in the order of the calls; the future is done once that is durable, or fails."""
        return durable.submit(self._log, writes)

    async def forget(self, partition: Partition, before: int) -> bool:
        """Trim what precedes an offset, because the state no longer needs it; False where that fails, which is logged:
        the next call tries again."""
        try:
            await partition.trim(before)
        except (HeadraceError, OSError) as error:
            where = {"topic": self.name, "partition": partition.index, "before": before}
            log.warning("could not trim old state: the next round tries again", **where, error=str(error))
            return False
        return True
