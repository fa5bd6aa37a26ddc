"""Reading a queue: the records of a partition from an offset on, as RocketMQ's messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.broker.reading import POISON, batches, batches_now
from headrace.broker.rocketmq.physical_offsets import OFFSET_BITS
from headrace.doors.rocketmq import messages, stored_wire
from headrace.doors.rocketmq.messages import Host, StoredMessage, hash_tag
from headrace.doors.rocketmq.names import rocketmq_name
from headrace.doors.rocketmq.records import host_bytes, message_of
from headrace.doors.rocketmq.subscriptions import RecordFilter
from headrace.format import records
from headrace.format.batch import COMPRESSION_MASK, BatchHeader
from headrace.format.records import Record
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# What one read looks at, whether it is for the reader or not: about two milliseconds.
RECORDS_MAX = 1_024
READ_BYTES = 262_144
FIRST_BYTES = 65_536
ORIGINS_MAX = 16_384


@dataclass(slots=True)
class Found:
    """What a read came to."""

    next_offset: int
    """Where to go on."""
    parts: list[bytes | bytearray] = field(default_factory=list)
    """Messages, one or several in each."""
    count: int = 0
    """Of messages."""
    size: int = 0
    looked_at: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader asks for."""

    offset: int
    count_max: int
    bytes_max: int
    filter: RecordFilter

    @property
    def looks_max(self) -> int:
        """How many records are looked at."""
        return max(RECORDS_MAX // self.filter.cost, 1)


class QueueReader:
    """Reads queues."""

    def __init__(self, remoting: Remoting) -> None:
        self._broker = remoting.broker
        self._origins: dict[tuple[Partition, int, Host], stored_wire.Origin] = {}

    def read_now(self, partition: Partition, wanted: Wanted, store_host: Host) -> Found | None:
        """As `read`, without waiting; None where something is to be waited for."""
        if not wanted.filter.is_by_tag:
            return None
        found = Found(wanted.offset)
        size = 0
        # Most readers have enough with the first part.
        while size < READ_BYTES and found.next_offset < partition.last_stable:
            some = batches_now(partition, found.next_offset, READ_BYTES if size else FIRST_BYTES)
            if some is None:
                return found if found.count else None
            for header, batch in some:
                if header.attributes & COMPRESSION_MASK:
                    return found if found.count else None
                size += header.size
                if header.last_offset < found.next_offset:
                    continue
                if batch is not None:
                    origin = self._origin(partition, header, store_host)
                    if origin is None:
                        return None
                    try:
                        encoded = stored_wire.encode(batch, READ_BYTES, origin, *_bounds(found, wanted))
                    except POISON:
                        # It is the same for every reader, for ever: they go on behind it.
                        pass
                    else:
                        if _add(found, encoded):
                            return found
                found.next_offset = max(found.next_offset, header.last_offset + 1)
        return found

    async def read(self, partition: Partition, wanted: Wanted, store_host: Host) -> Found:
        """Messages from an offset on that the reader accepts: at most so many and so large, but one at least if there
        is any among those that are looked at. Raises OffsetOutOfRange."""
        broker = self._broker
        found = Found(wanted.offset)
        for header, batch in await batches(broker.runtime, partition, wanted.offset, READ_BYTES):
            if header.last_offset < found.next_offset:
                continue
            if batch is not None:
                origin = self._origin(partition, header, store_host) if wanted.filter.is_by_tag else None
                if origin is None:
                    if await self._read_slowly(found, partition, header, batch, wanted, store_host):
                        return found
                else:
                    bounds = _bounds(found, wanted)
                    try:
                        encoded = await broker.unpacking.read(stored_wire.encode, batch, origin, *bounds)
                    except POISON:
                        pass
                    else:
                        if _add(found, encoded):
                            return found
            found.next_offset = max(found.next_offset, header.last_offset + 1)
        return found

    async def _read_slowly(
        self, found: Found, partition: Partition, header: BatchHeader, batch: bytes, wanted: Wanted, store_host: Host
    ) -> bool:
        """Look at the records of a batch one by one; whether that is all."""
        looks_max = wanted.looks_max
        for record in await self._records(header, batch, found.next_offset, looks_max - found.looked_at):
            if record[0] < found.next_offset:
                continue
            if wanted.filter.accepts(record):
                message = messages.encode(await self.message(partition, record, store_host))
                if found.count and found.size + len(message) > wanted.bytes_max:
                    return True
                found.parts.append(message)
                found.count += 1
                found.size += len(message)
            found.looked_at += 1
            found.next_offset = record[0] + 1
            if found.count >= wanted.count_max or found.looked_at >= looks_max:
                return True
        return False

    def _origin(self, partition: Partition, header: BatchHeader, store_host: Host) -> stored_wire.Origin | None:
        """What the messages of a batch have in common; None where they have no physical offsets, or of two spans."""
        span = header.base_offset >> OFFSET_BITS
        if header.last_offset >> OFFSET_BITS != span:
            return None
        found = self._origins.get((partition, span, store_host))
        return self._make_origin(partition, span, store_host) if found is None else found

    def _make_origin(self, partition: Partition, span: int, store_host: Host) -> stored_wire.Origin | None:
        topic, index, first = partition.topic, partition.index, span << OFFSET_BITS
        physical = self._broker.rocketmq.offsets.encode(topic.id, index, first)
        if physical is None:
            return None
        shift, name = physical - first, rocketmq_name(topic.name) or topic.name

        def encode_slowly(record: Record) -> bytes:
            return messages.encode(message_of(record, name, index, record[0] + shift, store_host))

        if len(self._origins) >= ORIGINS_MAX:
            self._origins.clear()
        address = store_host.ip + store_host.port.to_bytes(4, "big")
        origin = stored_wire.Origin(name.encode(), index, shift, address, host_bytes, hash_tag, encode_slowly)
        self._origins[partition, span, store_host] = origin
        return origin

    async def _records(self, header: BatchHeader, batch: bytes, offset: int, limit: int) -> list[Record]:
        """Records of a batch, from an offset on; none where they cannot be read."""
        # Without gaps the place of an offset is known.
        has_gaps = header.record_count != header.last_offset - header.base_offset + 1
        start = 0 if has_gaps else max(offset - header.base_offset, 0)
        try:
            return await self._broker.unpacking.read(records.parse, batch, start, -1 if has_gaps else limit)
        except POISON:
            # It is the same for every reader, for ever: they go on behind it.
            return []

    async def message(self, partition: Partition, record: Record, store_host: Host) -> StoredMessage:
        """A record as a message."""
        offsets, topic = self._broker.rocketmq.offsets, partition.topic
        physical = offsets.encode(topic.id, partition.index, record[0])
        if physical is None:
            await self._broker.rocketmq.number(topic)
            physical = offsets.encode(topic.id, partition.index, record[0])
        name = rocketmq_name(topic.name) or topic.name
        return message_of(record, name, partition.index, physical or 0, store_host)

    async def at(self, partition: Partition, offset: int) -> Record | None:
        """The record at an offset, if there is one. Raises OffsetOutOfRange."""
        for header, batch in await batches(self._broker.runtime, partition, offset, READ_BYTES):
            if header.base_offset <= offset <= header.last_offset and batch is not None:
                found = await self._records(header, batch, offset, 1)
                return next((record for record in found if record[0] == offset), None)
        return None


def _bounds(
    found: Found, wanted: Wanted
) -> tuple[int, frozenset[int] | None, Callable[[Record], bool], int, int, int, bool]:
    """Where a kernel is to begin, what it looks for, and how much of it."""
    return (
        found.next_offset,
        wanted.filter.tags,
        wanted.filter.accepts,
        wanted.count_max - found.count,
        wanted.looks_max - found.looked_at,
        wanted.bytes_max - found.size,
        not found.count,
    )


def _add(found: Found, encoded: tuple[bytearray, int, int, int, bool]) -> bool:
    """Add what a kernel has found; whether that is all."""
    part, count, looked_at, next_offset, is_full = encoded
    if count:
        found.parts.append(part)
    found.count += count
    found.size += len(part)
    found.looked_at += looked_at
    found.next_offset = next_offset
    return is_full
