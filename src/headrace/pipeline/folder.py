"""Records of a broker's data folder, with no broker running.

The folder is opened by the log's own code on a disk that keeps changes to itself (`runtime/overlay.py`): what a start
would recover, the journal included, is read, and the folder stays as it is. A folder that a broker holds is refused,
and a broker that wants to start while a job reads is refused too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from headrace.errors import CorruptLog, DataDirectoryInvalid, DataDirectoryLocked, HeadraceError, OffsetOutOfRange
from headrace.format.aborted import Aborted
from headrace.format.batch import batches_in, crc_fits
from headrace.log import checkpoint
from headrace.log.interface import EARLIEST, LATEST
from headrace.log.local import LocalPartition
from headrace.log.native import NativeLog
from headrace.log.settings import LogSettings
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import Partition
from headrace.pipeline.origin import Origin, Range, range_lost
from headrace.runtime.overlay import read_only_runtime

READ_BYTES = 8 << 20


class FolderInUse(HeadraceError):
    """A broker runs on the folder."""


class FolderOrigin:
    """A data folder."""

    def __init__(self, log: NativeLog, name: str) -> None:
        self._log = log
        self.name = name

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: str) -> AsyncIterator[Origin]:
        runtime = read_only_runtime(folder)
        if not runtime.disk.exists(checkpoint.PATH):
            raise DataDirectoryInvalid(
                f"{folder} is not a broker's data directory: it has no file {checkpoint.PATH!r}; give the directory "
                "that `headrace serve --data` has"
            )
        log = NativeLog(runtime, LogSettings())
        try:
            await log.open()
        except DataDirectoryLocked:
            raise FolderInUse(
                f"a broker runs on {folder}: read from that broker (kafka.bootstrap.servers), or stop it first"
            ) from None
        try:
            yield cls(log, folder)
        finally:
            log.close()

    async def topics(self) -> Mapping[str, int]:
        return {name: len(topic.partitions) for name, topic in self._log.topics.items()}

    async def _partition(self, topic: str, index: int) -> LocalPartition:
        partition = self._log.local(self._log.topics[topic].partitions[index])
        await partition.load()
        return partition

    async def offsets(self, wanted: Mapping[Partition, int], *, committed: bool) -> dict[Partition, int]:
        found = {}
        for each, when in wanted.items():
            partition = await self._partition(*each)
            end = partition.last_stable if committed else partition.high_watermark
            if when == EARLIEST:
                found[each] = partition.start
            elif when == LATEST:
                found[each] = end
            else:
                offset = (await partition.offset_at(when)).offset
                found[each] = offset if offset < end else -1
        return found

    async def group(self, name: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        raise InvalidOption("startingGroup needs a running broker: a folder alone is read by offsets or times")

    async def follow(self, group: str, offsets: Mapping[Partition, int]) -> None:
        raise InvalidOption("kafka.group.id needs a running broker: nothing is written to a folder that is read")

    async def sizes(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        return {each: (await self._partition(*each)).size() for each in partitions}

    async def compacted(self, topics: Sequence[str]) -> set[str]:
        return {topic for topic in topics if self._log.topics[topic].settings.compact}

    async def batches(
        self, wanted: Range, *, committed: bool, skip_lost: bool
    ) -> AsyncGenerator[list[memoryview], None]:
        topic = self._log.topics.get(wanted.topic)
        if topic is None or wanted.partition >= len(topic.partitions):
            raise range_lost(wanted.topic, wanted.partition, wanted.start, wanted.end)
        partition = await self._partition(wanted.topic, wanted.partition)
        offset = wanted.start
        while offset < wanted.end:
            try:
                found, aborted = _read(partition, offset, committed)
            except OffsetOutOfRange:
                if not skip_lost or partition.start <= offset:
                    raise range_lost(wanted.topic, wanted.partition, offset, wanted.end) from None
                offset = partition.start
                continue
            if not found:
                return
            view = memoryview(found)
            kept = []
            for position, header in batches_in(found):
                if header.last_offset < offset:
                    continue
                if not crc_fits(view, position, header):
                    raise CorruptLog(
                        f"{wanted.topic}-{wanted.partition}: the batch at offset {header.base_offset} does not fit "
                        "its checksum: `headrace log verify` reports what else is damaged"
                    )
                offset = header.last_offset + 1
                is_aborted = header.is_transactional and aborted.has(header.producer_id, header.base_offset)
                if not header.is_control and not is_aborted:
                    kept.append(view[position : position + header.size])
                if offset >= wanted.end:
                    break
            yield kept


def _read(partition: LocalPartition, offset: int, committed: bool) -> tuple[bytes, Aborted]:
    chunk = partition.read(offset, READ_BYTES, committed=committed)
    while chunk.cold is not None:
        chunk.cold()
        chunk = partition.read(offset, READ_BYTES, committed=committed)
    try:
        return chunk.read(), Aborted(chunk.aborted)
    finally:
        chunk.release()
