"""Reading a queue: the records of a partition from an offset on, as RocketMQ's messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.broker.reading import POISON, batches
from headrace.doors.rocketmq import messages
from headrace.doors.rocketmq.messages import Host, StoredMessage
from headrace.doors.rocketmq.names import rocketmq_name
from headrace.doors.rocketmq.records import message_of
from headrace.doors.rocketmq.subscriptions import RecordFilter
from headrace.format import records
from headrace.format.batch import BatchHeader
from headrace.format.records import Record
from headrace.log.interface import Partition

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# What one read looks at, whether it is for the reader or not: about two milliseconds.
RECORDS_MAX = 1_024
READ_BYTES = 262_144


@dataclass(slots=True)
class Found:
    """What a read came to."""

    next_offset: int
    """Where to go on."""
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    looked_at: int = 0


class QueueReader:
    """Reads queues."""

    def __init__(self, remoting: Remoting) -> None:
        self._broker = remoting.broker

    async def read(
        self,
        partition: Partition,
        offset: int,
        count_max: int,
        bytes_max: int,
        wanted: RecordFilter,
        store_host: Host,
    ) -> Found:
        """Messages from an offset on that the reader accepts: at most so many and so large, but one at least if there
        is any among those that are looked at. Raises OffsetOutOfRange."""
        broker = self._broker
        found = Found(offset)
        looks_max = max(RECORDS_MAX // wanted.cost, 1)
        for header, batch in await batches(broker.runtime, partition, offset, READ_BYTES):
            if header.last_offset < found.next_offset:
                continue
            if batch is not None:
                for record in await self._records(header, batch, found.next_offset, looks_max - found.looked_at):
                    if record[0] < found.next_offset:
                        continue
                    if wanted.accepts(record):
                        message = messages.encode(await self.message(partition, record, store_host))
                        if found.parts and found.size + len(message) > bytes_max:
                            return found
                        found.parts.append(message)
                        found.size += len(message)
                    found.looked_at += 1
                    found.next_offset = record[0] + 1
                    if len(found.parts) >= count_max or found.looked_at >= looks_max:
                        return found
            found.next_offset = max(found.next_offset, header.last_offset + 1)
        return found

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
