"""What only a log of files on this machine's disk can tell and do, beside what every log has (`interface.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.log.interface import Log, Partition

# The offset that retention may not pass on a partition, or None.
Hold = Callable[[Partition], int | None]

# Called on the loop when a partition's start has moved, with where it was.
Trimmed = Callable[[Partition, int], None]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """What the log remembers of an idempotent producer on a partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int
    """First offset of the open transaction, or -1."""


class LocalPartition(Partition, Protocol):
    """A partition in files of this disk."""

    @property
    def flushed(self) -> int:
        """This node has everything below this offset, in the sense of the topic's durability. At or above the high
        watermark, and the same where there is no other replica to wait for."""
        ...

    async def raise_epoch(self, epoch: int) -> None:
        """Begin a leader epoch, durably: batches are appended in it from now on. The current one again changes nothing.
        Raises OwnerFenced if a later one has begun."""
        ...

    async def truncate(self, offset: int) -> int:
        """Forget the records from `offset` on, durably; the new end, which is that of the last whole batch before it.
        Unlike what readers are promised elsewhere, this may go below the high watermark: only for a replica that finds
        its log to differ from its leader's. A crash leaves the old end or the new one. Raises OffsetOutOfRange."""
        ...

    def size(self) -> int:
        """Bytes kept."""
        ...

    def freed_by(self, before: int) -> int:
        """Bytes that a trim to `before` would give free: those of whole segments."""
        ...

    async def shrink(self, limit: int) -> int:
        """Forget the oldest records, durably, until at most `limit` bytes are kept, as far as whole segments of durable
        records go; the new start."""
        ...

    def expires_within(self, ahead_ms: int) -> int:
        """The offset before which all records expire, by time and size, in so many milliseconds, if nothing comes
        until then."""
        ...

    def producers(self) -> list[ActiveProducer]: ...


class LocalLog(Log, Protocol):
    """All topics of a data directory."""

    @property
    def cluster_id(self) -> str:
        """Drawn once, when the data directory was made."""
        ...

    @property
    def epoch(self) -> int:
        """Raised by every unclean start, and with it the leader epochs of all partitions."""
        ...

    def local(self, partition: Partition) -> LocalPartition:
        """One of its partitions, with what is known of its files."""
        ...

    @property
    def trimmed(self) -> list[Trimmed]:
        """Whom to call when a start moves, whatever moved it."""
        ...

    @property
    def holds(self) -> list[Hold]:
        """Whom retention asks before it moves a start."""
        ...

    def held_from(self, partition: Partition) -> int | None:
        """The offset that retention may not pass; None: it may pass any."""
        ...

    def tune(self, *, compaction_check_ms: int, producer_id_expiration_ms: int) -> None:
        """Go by other values than those of the configuration, from the next round of the background work on."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """Figures for metrics: bytes kept, journal bytes, open files, ..."""
        ...
