"""What only a log of files on this machine's disk can tell and do, beside what every log has (`interface.py`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.log.interface import Done, Log, Partition, Topic

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


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for in a range of time (ms, both ends included): any one of these terms."""

    wanted: tuple[tuple[str, int], ...]
    """Fields (`headrace.format.terms`), and the digest of a term of each; those that say most come first."""
    since: int
    until: int
    limit: int
    """The most batches of an answer."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """Where in a range of offsets records may lie that are looked for."""

    first: int
    after: int
    batches: Sequence[int] | None
    """The first offsets of the batches; a false one is rare. None: there is no index of them, and any may have it."""


class LocalPartition(Partition):
    """A partition in files of this disk."""

    __slots__ = ("flushed",)

    def __init__(self, topic: Topic, index: int, epoch: int, start: int, end: int) -> None:
        super().__init__(topic, index, epoch, start, end)
        self.flushed = end
        """This node has everything below this offset, in the sense of the topic's durability. At or above the high
        watermark, and the same where there is no other replica to wait for."""

    @abstractmethod
    async def raise_epoch(self, epoch: int) -> None:
        """Begin a leader epoch, durably: batches are appended in it from now on. The current one again changes nothing.
        Raises OwnerFenced if a later one has begun."""

    @abstractmethod
    async def truncate(self, offset: int) -> int:
        """Forget the records from `offset` on, durably; the new end, which is that of the last whole batch before it.
        Unlike what readers are promised elsewhere, this may go below the high watermark: only for a replica that finds
        its log to differ from its leader's. A crash leaves the old end or the new one. Raises OffsetOutOfRange."""

    @abstractmethod
    def size(self) -> int:
        """Bytes kept."""

    @abstractmethod
    def freed_by(self, before: int) -> int:
        """Bytes that a trim to `before` would give free: those of whole segments."""

    @abstractmethod
    async def shrink(self, limit: int) -> int:
        """Forget the oldest records, durably, until at most `limit` bytes are kept, as far as whole segments of durable
        records go; the new start."""

    @abstractmethod
    def expires_within(self, ahead_ms: int) -> int:
        """The offset before which all records expire, by time and size, in so many milliseconds, if nothing comes
        until then."""

    @abstractmethod
    def producers(self) -> list[ActiveProducer]: ...

    @abstractmethod
    async def suspects(self, question: Question, offset: int, *, backwards: bool = False) -> Suspects:
        """What the search indexes (`TopicSettings.index`) know from an offset on, or, `backwards`, up to one: of as
        many offsets as can be told at once, one at least. The offset lies between the start and the high watermark.
        Raises PartitionOffline."""


class LocalLog(Log):
    """All topics of a data directory."""

    is_replicated = False
    """Whether other nodes have a say in what counts: then `flushed` and `committed` are two things."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster_id = ""
        """Drawn once, when the data directory was made."""
        self.epoch = 0
        """Raised by every unclean start, and with it the leader epochs of all partitions."""
        self.on_trimmed: list[Trimmed] = []
        """What to call when a start moves, whatever moved it."""
        self.holds: list[Hold] = []
        """What retention asks before it moves a start."""

    def detach(self) -> None:
        """Call nothing any more that the broker above has asked for: another one takes its place."""
        self.on_partition_changed.clear()
        self.on_trimmed.clear()
        self.holds.clear()
        for topic in self.topics.values():
            for partition in topic.partitions:
                partition.wake_all()

    def held_from(self, partition: Partition) -> int | None:
        """The offset that retention may not pass; None: it may pass any."""
        return min([offset for hold in self.holds if (offset := hold(partition)) is not None], default=None)

    @abstractmethod
    def local(self, partition: Partition) -> LocalPartition:
        """One of its partitions, with what is known of its files."""

    def when_flushed(self, done: Done) -> bool:
        """Call `done` once this node has all that was appended until now, committed or not. True: it has, and `done` is
        not called. For a log that is replicated; elsewhere what is flushed is durable."""
        raise NotImplementedError

    @abstractmethod
    def tune(self, *, compaction_check_ms: int, producer_id_expiration_ms: int) -> None:
        """Go by other values than those of the configuration, from the next round of the background work on."""

    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """Figures for metrics: bytes kept, journal bytes, open files, ..."""
