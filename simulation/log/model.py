"""What the log has promised, written down beside it, and held against what is found after a restart.

The model is a plain record of every append: what was sent, where it went, whether it was acknowledged, whether a
reader saw it. After each start the partitions are read whole and compared. What must be there depends on the topic's
durability and on how the last life ended; what else is there must be something that was once sent to that very
offset.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from headrace.format import records
from headrace.format.batch import BatchHeader
from headrace.format.markers import control_type
from headrace.log.interface import Durability, TopicSettings
from simulation.history import Violation, require
from simulation.world import Ending

MAX_DECODED = 1 << 24
CRC_AT = 17


def fates(batches: Iterable[tuple[BatchHeader, bytes]]) -> dict[int, bool | None]:
    """Of each transactional batch, by its first offset: committed, aborted, or None while its transaction is open. It
    has the fate that the next marker of its producer gives it."""
    found: dict[int, bool | None] = {}
    undecided: dict[int, list[int]] = {}
    for header, body in batches:
        if header.is_control:
            committed, _ = control_type(bytes(CRC_AT) + body)
            for base in undecided.pop(header.producer_id, ()):
                found[base] = committed
        elif header.is_transactional:
            found[header.base_offset] = None
            undecided.setdefault(header.producer_id, []).append(header.base_offset)
    return found


class Outcome(Enum):
    """What the sender of an append knows."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Append:
    """One call of `append`, to one partition or several: all of it or nothing."""

    answered: asyncio.Future[None]
    entries: list[Entry] = field(default_factory=list)
    outcome: Outcome = Outcome.PENDING

    def acknowledge(self) -> None:
        self.answered.set_result(None)
        self.outcome = Outcome.ACKNOWLEDGED
        for entry in self.entries:
            entry.append.outcome = Outcome.ACKNOWLEDGED

    def fail(self) -> None:
        self.answered.set_result(None)
        self.outcome = Outcome.FAILED
        for entry in self.entries:
            if entry.append is self:
                entry.partition.fail(entry)

    def check_whole(self) -> None:
        """All or nothing, as far as it is known. Several batches for one partition may be cut between them."""
        if len({entry.partition for entry in self.entries}) == 1:
            return
        fates = {entry.found for entry in self.entries if not entry.partition.topic.gone} - {None}
        if fates == {True, False}:
            where = ", ".join(f"{entry} {'found' if entry.found else 'missing'}" for entry in self.entries)
            raise Violation(f"an append to several partitions is there in part: {where}")


@dataclass(slots=True, eq=False)
class Entry:
    """One batch at its place."""

    partition: PartitionModel
    append: Append
    epoch: int
    sent: bytes
    """The batch as it was handed over."""
    header: BatchHeader
    """Of what was handed over: without its place."""
    base: int = -1
    seen: bool = False
    """A reader got it."""
    settled: bool = False
    """It was there after a clean stop: durable in every sense."""
    found: bool | None = None
    """After the last restart; None: not known, or trimmed away."""

    @property
    def count(self) -> int:
        return self.header.record_count

    @property
    def body(self) -> bytes:
        """Everything from the checksum on: what the log must not change."""
        return self.sent[CRC_AT:]

    @property
    def producer(self) -> tuple[int, int, int]:
        """Producer id, epoch, base sequence."""
        return self.header.producer_id, self.header.producer_epoch, self.header.base_sequence

    @property
    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values."""
        return [(key, value) for _, _, key, value, _ in records.parse(self.sent, MAX_DECODED)]

    @property
    def end(self) -> int:
        return self.base + self.count

    @property
    def numbered(self) -> bool:
        """It can be sent again to see whether the log remembers it. (A marker may make it forget those before it.)"""
        return self.producer[0] >= 0 and not self.header.is_transactional

    @property
    def relied_on(self) -> bool:
        return self.seen or self.append.outcome is Outcome.ACKNOWLEDGED

    def __str__(self) -> str:
        return (
            f"{self.partition}@{self.base}..{self.end - 1}({self.append.outcome.value}{', seen' if self.seen else ''})"
        )


@dataclass(slots=True, eq=False)
class TopicModel:
    """A topic that was asked for."""

    name: str
    id: UUID | None
    settings: TopicSettings
    config: dict[str, str]
    partitions: list[PartitionModel] = field(default_factory=list)
    certain: bool = False
    """`create` has returned."""
    deleting: bool = False
    """`delete` was called."""
    gone: bool = False
    """`delete` has returned, or the topic was found missing when it could be."""
    growing_to: int | None = None
    """Partitions asked for by an `alter` that has not returned."""

    @property
    def durability(self) -> Durability:
        return self.settings.durability


@dataclass(slots=True, eq=False)
class PartitionModel:
    """What is known of one partition."""

    topic: TopicModel
    index: int
    entries: list[Entry] = field(default_factory=list)
    ghosts: list[Entry] = field(default_factory=list)
    """Batches whose append failed and whose offsets went to others: they may still come back after a crash."""
    attempts: list[Entry] = field(default_factory=list)
    """Batches of a call of `append` that has not returned; their offsets are -1."""
    trimmed: int = 0
    """The start that a `trim` returned."""
    trim_asked: int = 0
    """The furthest trim that was asked for."""
    start: int = 0
    end: int = 0
    origin: int = 0
    """The end of the log when there was nothing in it."""
    producers: dict[int, Entry] = field(default_factory=dict)
    """The last batch of each idempotent producer."""
    retired: set[int] = field(default_factory=set)
    """Producers of which five batches failed, or the first of an epoch. The log remembers five batches of one epoch: it
    may know nothing of them any more."""
    verified: bool = False
    ending: Ending = Ending.DONE
    """The worst ending since the partition was last verified."""
    sync_failed: bool = False
    """A sync has failed since then: the operating system may have lost what it had."""
    observed: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """What readers saw at each (offset, epoch)."""

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.index}"

    # --- while the log runs ---

    def add(self, entry: Entry) -> None:
        """A batch was given its place. Whatever stood there must be something that no client relied on."""
        while self.entries and self.entries[-1].end > entry.base:
            self._give_up(self.entries.pop(), f"its place went to a new batch at {entry.base}")
        self.attempts.clear()
        if self.entries:
            last = self.entries[-1]
            require(last.end == entry.base, f"{self}: a hole between {last.end} and {entry.base}")
        else:
            require(entry.base == self.origin, f"{self}: offset {entry.base} was given where {self.origin} is next")
        self.entries.append(entry)
        self.end = entry.end
        if entry.numbered:
            self.producers[entry.producer[0]] = entry

    def fail(self, entry: Entry) -> None:
        """The append of a batch has failed: its place, and all behind it, is free again."""
        if any(each is entry for each in self.entries):
            while self.entries and self.entries[-1].base >= entry.base:
                self._give_up(self.entries.pop(), f"the append at {entry.base} before it has failed")

    def _give_up(self, entry: Entry, why: str) -> None:
        require(not entry.relied_on, f"{entry} was relied on, but {why}")
        self.ghosts.append(entry)
        if self.producers.get(entry.producer[0]) is entry:
            self._restore_producer(entry.producer[0])

    def _restore_producer(self, producer: int) -> None:
        failed = [ghost.producer for ghost in self.ghosts if ghost.producer[0] == producer]
        if len(failed) >= 5 or any(sequence == 0 for _, _, sequence in failed):
            self.retired.add(producer)
            del self.producers[producer]
            return
        for entry in reversed(self.entries):
            if entry.producer[0] == producer:
                self.producers[producer] = entry
                return
        self.producers.pop(producer, None)

    def at(self, base: int) -> Entry | None:
        entry = self._around(base)
        return entry if entry is not None and entry.base == base else None

    def observe(self, header: BatchHeader, body: bytes) -> None:
        """A reader got a batch in this life."""
        key = (header.base_offset, header.leader_epoch)
        if self.topic.settings.compact:
            self._match_records(header, body).seen = True
            return
        before = self.observed.setdefault(key, body)
        require(before == body, f"{self}: readers saw two different batches at offset {key[0]} of epoch {key[1]}")
        entry = self.at(header.base_offset)
        require(entry is not None, f"{self}: a reader got a batch at {header.base_offset} that was never sent there")
        assert entry is not None
        require(entry.body == body, f"{entry}: a reader got other bytes than were sent")
        entry.seen = True

    def _match_records(self, header: BatchHeader, body: bytes) -> Entry:
        """On a compacted topic: the batch that was sent there and has every record that was found."""
        found = [(offset, key, value) for offset, _, key, value, _ in decode(header, body)]
        for entry in (self._around(header.base_offset), *self.ghosts, *self.attempts):
            if entry is None or entry.count != header.last_offset_delta + 1:
                continue
            base = header.base_offset
            if entry.base not in (-1, base):
                continue
            sent = entry.records
            if all(sent[offset - base] == (key, value) for offset, key, value in found):
                entry.base, entry.epoch = base, header.leader_epoch
                return entry
        raise Violation(f"{self}: the records found at {header.base_offset} are none that were sent there")

    def _around(self, offset: int) -> Entry | None:
        """The batch that ends behind `offset` first."""
        place = bisect_right(self.entries, offset, key=lambda entry: entry.end)
        return self.entries[place] if place < len(self.entries) else None

    # --- after a restart ---

    def must_survive(self, entry: Entry) -> bool:
        """Whether a batch has to be there after how the last life ended."""
        durability = self.topic.durability
        if durability is Durability.MEMORY:
            return False
        if entry.settled:
            return True
        if durability is Durability.ASYNC and (self.ending is Ending.POWER_CUT or self.sync_failed):
            return False
        return entry.relied_on or (self.ending is Ending.DONE and entry.append.outcome is not Outcome.FAILED)

    def verify(self, start: int, end: int, found: list[tuple[BatchHeader, bytes]], now_ms: int) -> None:
        """Hold what is found after a restart against what was promised."""
        settings = self.topic.settings
        if settings.durability is Durability.MEMORY:
            require(not found, f"{self}: a memory topic still has batches after a restart")
            self._begin_again(start, end, [])
            return
        require(start >= self.trimmed, f"{self}: it starts at {start}, but was trimmed to {self.trimmed}")
        self._check_start(start, end, now_ms)
        kept = [self._match(header, body) for header, body in found]
        if settings.compact:
            self._check_compacted(start, end, found)
        else:
            self._check_contiguous(start, end, kept)
            present = {id(entry) for entry in kept}
            for entry in self.entries:
                if entry.end > start:
                    entry.found = id(entry) in present
                    require(entry.found or not self.must_survive(entry), f"{entry} is missing; the log ends at {end}")
            for entry in (*self.ghosts, *self.attempts):
                entry.found = id(entry) in present
        touched = {id(entry.append): entry.append for entry in (*self.entries, *self.ghosts, *self.attempts)}
        self._begin_again(start, end, kept)
        for append in touched.values():
            append.check_whole()

    def _begin_again(self, start: int, end: int, kept: list[Entry]) -> None:
        survivors = kept
        if self.topic.settings.compact:
            # Batches that were compacted away still record what was sent to their offsets.
            taken = {offset for entry in kept for offset in range(entry.base, entry.end)}
            others = [entry for entry in self.entries if start < entry.end <= end and entry.base not in taken]
            survivors = sorted([*kept, *others], key=lambda entry: entry.base)
        # Of producers whose batches are all trimmed away, only a clean stop keeps the memory.
        clean = self.ending is Ending.DONE and not self.sync_failed and self.topic.durability is not Durability.MEMORY
        for producer, entry in list(self.producers.items()):
            if not (any(each is entry for each in survivors) or (clean and entry.end <= start)):
                del self.producers[producer]
        for entry in survivors:
            entry.seen = True
            if entry.numbered and entry.producer[0] not in self.retired and (entry.end > start or clean):
                self.producers[entry.producer[0]] = entry
        self.entries = survivors
        self.ghosts, self.attempts = [], []
        self.start, self.end, self.origin = start, end, end
        self.verified, self.ending, self.sync_failed = True, Ending.DONE, False

    def _match(self, header: BatchHeader, body: bytes) -> Entry:
        if self.topic.settings.compact:
            return self._match_records(header, body)
        for entry in (self.at(header.base_offset), *reversed(self.ghosts)):
            if entry is not None and entry.base == header.base_offset and entry.body == body:
                require(
                    entry.epoch == header.leader_epoch,
                    f"{entry} came back in epoch {header.leader_epoch} instead of {entry.epoch}",
                )
                return entry
        for entry in self.attempts:
            if entry.base < 0 and entry.body == body:
                entry.base, entry.epoch = header.base_offset, header.leader_epoch
                return entry
        raise Violation(f"{self}: the batch found at {header.base_offset} is none that was sent there")

    def _check_contiguous(self, start: int, end: int, kept: list[Entry]) -> None:
        position = start
        for entry in kept:
            require(
                entry.base == position or (entry.base < position < entry.end and position == start),
                f"{self}: a hole between {position} and {entry.base}",
            )
            position = entry.end
        require(position == end, f"{self}: its end is {end}, but its batches end at {position}")

    def _check_start(self, start: int, end: int, now_ms: int) -> None:
        """A log starts where it did, where a trim put it, or where retention allows."""
        require(start >= self.start, f"{self}: its start went back from {self.start} to {start}")
        if start <= max(self.trim_asked, self.start):
            return
        settings = self.topic.settings
        require(settings.delete, f"{self}: it starts at {start}, but nothing allowed to drop anything")
        remaining = sum(entry.header.size for entry in self.entries if entry.end > start)
        for entry in self.entries:
            if entry.base >= start or entry.end <= max(self.start, self.trim_asked):
                continue
            by_time = settings.retention_ms >= 0 and entry.header.max_timestamp < now_ms - settings.retention_ms
            by_size = settings.retention_bytes >= 0 and remaining >= settings.retention_bytes
            require(by_time or by_size, f"{entry} was dropped although it is young and the partition small")

    def _aborted(self) -> dict[int, bool]:
        """Whether each batch of a transaction was, or could have been, aborted by a marker that was sent behind it."""
        found: dict[int, bool] = {}
        since: dict[int, list[int]] = {}
        for entry in sorted((*self.entries, *self.ghosts, *self.attempts), key=lambda entry: entry.base):
            if entry.header.is_control and not control_type(entry.sent)[0]:
                for base in since.pop(entry.producer[0], ()):
                    found[base] = True
            elif entry.header.is_control and self.must_survive(entry):
                since.pop(entry.producer[0], None)
            elif entry.header.is_transactional and not entry.header.is_control:
                since.setdefault(entry.producer[0], []).append(entry.base)
        return found

    def _check_compacted(self, start: int, end: int, found: list[tuple[BatchHeader, bytes]]) -> None:
        latest: dict[bytes | None, int] = {}
        decided = fates(found)
        aborted = self._aborted()
        position = -1
        for header, body in found:
            require(header.base_offset > position, f"{self}: batches out of order at {header.base_offset}")
            position = header.last_offset
            if not header.is_control and decided.get(header.base_offset) is not False:
                for offset, _, key, _, _ in decode(header, body):
                    latest[key] = offset
        needed: dict[bytes | None, tuple[int, bool]] = {}
        for entry in self.entries:
            must = self.must_survive(entry)
            require(not must or entry.end <= end, f"{entry} lies beyond the end of the log, {end}")
            # What is in no transaction, or in one that was committed, or in one that a crash left open.
            if entry.header.is_control or (entry.header.is_transactional and aborted.get(entry.base, False)):
                continue
            for number, (key, value) in enumerate(entry.records):
                # A tombstone, even one that was never acknowledged, may have taken its key away with itself.
                if must or value is None:
                    needed[key] = (entry.base + number, value is None)
        for key, (offset, tombstone) in needed.items():
            if offset >= start and not tombstone:
                require(
                    latest.get(key, -1) >= offset,
                    f"{self}: the latest value of {key!r}, at {offset}, is missing; the log ends at {end}",
                )


def decode(header: BatchHeader, body: bytes) -> list[records.Record]:
    """The records of a batch as it was read."""
    whole = header.base_offset.to_bytes(8, "big") + header.length.to_bytes(4, "big")
    whole += header.leader_epoch.to_bytes(4, "big", signed=True) + b"\x02" + body
    return records.parse(whole, MAX_DECODED)


@dataclass(slots=True)
class LogModel:
    """Everything that one data directory has promised."""

    topics: dict[str, TopicModel] = field(default_factory=dict)
    deleted: set[UUID] = field(default_factory=set)
    cluster_id: str | None = None
    epoch: int | None = None
    started: bool = False
    """The start of this life has returned."""
    unclean: bool = False
    """A life that had started did not end by a clean stop: the epoch must rise."""
    reserved: int = 0

    def end_life(self, ending: Ending, sync_failed: bool) -> None:
        """A life has ended: nothing is known for sure until it was looked at."""
        self.unclean = ending is not Ending.DONE and (self.unclean or self.started)
        self.started = False
        for topic in self.topics.values():
            for partition in topic.partitions:
                for entry in (*partition.entries, *partition.ghosts, *partition.attempts):
                    entry.found = None
                if ending is Ending.DONE and partition.verified and not sync_failed:
                    for entry in partition.entries:
                        entry.settled = entry.append.outcome is not Outcome.FAILED
                partition.verified = False
                if ending is Ending.POWER_CUT or (ending is Ending.KILLED and partition.ending is Ending.DONE):
                    partition.ending = ending
                partition.sync_failed = partition.sync_failed or sync_failed

    def partitions(self) -> list[PartitionModel]:
        return [partition for topic in self.topics.values() if not topic.gone for partition in topic.partitions]
