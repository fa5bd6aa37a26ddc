"""The narrow interface between the broker and the log: what every log has, wherever it keeps its batches.

The broker and everything above reach the log through the two classes here and nothing else. A log implements their
abstract members, thirteen of them; the catalogue, the plain attributes of a partition and waiting for more it inherits.
What only a log of files on this machine's disk can tell or do (sizes, retention, producers) is in `local.py`, and a
part of the broker that needs it declares that it does. What is private to the native log (segments, the journal) is in
neither.

Two ideas shape it. Appending is a plain call that assigns offsets at once, in the order of the calls; *durability*
arrives later, for everything in the same flush together, by a callback. And a partition may be cold after a start:
nothing of it was read from disk. `loaded` says so and `load()` warms it; the hot path never awaits on a warm partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import UUID

from headrace.log.header_check import AFTER_MAX_MS, BEFORE_MAX_MS
from headrace.runtime.disk import FileRange

# Called on the loop, once, when a partition has more to read, has been deleted, or has moved its start.
Wake = Callable[[], None]
# Called on the loop with a partition that has gone offline or has another leader epoch.
PartitionChanged = Callable[["Partition"], None]

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3


class Done(Protocol):
    """What to call on the loop when an append has become durable (None) or has failed (the reason): exactly once if its
    answer was not `durable`, and never if it was. Not before the append has returned. `Appended.complete` is for
    callers to which it makes no difference."""

    def __call__(self, error: Exception | None, /) -> None: ...


class Durability(Enum):
    """What an acknowledgement of a topic promises."""

    SYNC = "sync"
    """The device has it: survives a power cut."""
    ASYNC = "async"
    """The operating system has it: survives kill -9, not a power cut."""
    MEMORY = "memory"
    """Never written: gone with the process."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What the log must know of a topic. The broker maps its own configuration (Kafka's names) to this."""

    durability: Durability = Durability.SYNC
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    """-1: no limit."""
    retention_bytes: int = -1
    """-1: no limit; for `memory` topics, 64 MiB."""
    delete: bool = True
    """Retention by time and size applies."""
    compact: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    delete_retention_ms: int = 24 * 3600 * 1000
    max_batch_bytes: int = 1_048_588
    log_append_time: bool = False
    """The log stamps batches itself instead of keeping the producer's time."""
    timestamp_before_max_ms: int = BEFORE_MAX_MS
    timestamp_after_max_ms: int = AFTER_MAX_MS
    index: str = ""
    """What records can be searched for (`headrace.format.terms`): fields, with commas between them."""

    @property
    def bounds_times(self) -> bool:
        """Whether all records' times are looked at: where they are bounded more than by default. Elsewhere the largest
        counts, by the word of their producer."""
        return self.timestamp_before_max_ms < BEFORE_MAX_MS or self.timestamp_after_max_ms < AFTER_MAX_MS

    @property
    def roll_ms(self) -> int:
        """The age at which a segment rolls: compaction leaves the newest alone, and may not be late for that."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms


class Appended(NamedTuple):
    """Where a batch went. A tuple, because one is made for every batch."""

    base_offset: int
    log_append_time: int
    """-1 where the producer's time was kept."""
    durable: bool
    """True: acknowledge it now. False: `done` is called, once, when it may be acknowledged or has failed. All answers
    to one append say the same."""
    duplicate: bool = False
    """The batch had been appended before; `base_offset` is the first one's."""

    def complete(self, done: Done) -> None:
        """Call `done` now if the append is durable: nothing else calls it then."""
        if self.durable:
            done(None)


@dataclass(frozen=True, slots=True)
class Write:
    """One batch (or several, one behind the other) for one partition of an atomic append."""

    partition: Partition
    batches: bytearray | memoryview
    """Writable: the log patches base offset and leader epoch in place."""
    sparse: bool = False
    """The broker took records out of a producer's batch: some of its offsets, or all, have no record."""
    moved: bool = False
    """The broker moves records that it has taken before: what the topic asks of producers (`max_batch_bytes`, times
    near the broker's clock) is not asked again. A batch may have what the broker can read (`decompressed_max_bytes`).
    """
    as_is: bool = False
    """The batches come from the partition's leader: their offsets and leader epochs are kept, and must follow the end
    of the log. Raises BatchDiverges where they do not."""


class AbortedTransaction(NamedTuple):
    """A producer whose records from `first_offset` up to its abort marker must be skipped by committed readers."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The marker's."""


@dataclass(slots=True)
class Chunk:
    """What a read found: whole batches, except that the last may be cut at the end (clients expect that of Kafka)."""

    parts: list[bytes | FileRange] = field(default_factory=list)
    size: int = 0
    available: int = 0
    """Bytes that there are of what was asked for: more than `size` where the last of them are no whole batch."""
    before: int = 0
    """Every batch in it ends before this offset."""
    aborted: Sequence[AbortedTransaction] = ()
    """The aborted transactions that committed readers skip in it, in the order of their markers: a transactional batch
    was aborted if its producer has one that it lies in. Some may lie behind what was read."""
    cold: Callable[[], None] | None = None
    """Nothing was read, since finding the place would wait for the device: run this off the loop, then read again."""

    @property
    def ranges(self) -> list[FileRange]:
        """Those of its parts that lie in files."""
        return [part for part in self.parts if isinstance(part, FileRange)]

    def read(self) -> bytes:
        """All of it, in one piece. Blocks if a part of it is not resident. Its files are still to be released."""
        return b"".join([part.read() if isinstance(part, FileRange) else part for part in self.parts])

    def release(self) -> None:
        """Let go of its files. On the loop."""
        for part in self.ranges:
            part.release()


@dataclass(frozen=True, slots=True)
class OffsetAtTime:
    """The answer to a look-up by time; offset -1 where there is none."""

    offset: int
    timestamp: int
    leader_epoch: int


class Partition(ABC):
    """One partition. What it is now is in plain attributes, which its log keeps up to date; those of offsets mean
    something once it is `loaded`."""

    __slots__ = ("_waiters", "end", "epoch", "high_watermark", "index", "offline", "start", "topic")

    def __init__(self, topic: Topic, index: int, epoch: int, start: int, end: int) -> None:
        self.topic = topic
        self.index = index
        self.offline: str | None = None
        """Why the partition serves nothing, or None."""
        self.epoch = epoch
        """The leader epoch: of the batches that are appended from now on. Known without loading."""
        self.start = start
        """The log start offset: the first that may be read."""
        self.high_watermark = end
        """Readers stop before this offset: what is below it is never taken back."""
        self.end = end
        """The log end offset: the next one to be assigned; at or above the high watermark."""
        self._waiters: list[Wake] = []

    @property
    @abstractmethod
    def loaded(self) -> bool: ...

    @abstractmethod
    async def load(self) -> None:
        """Warm the partition: recover it if the last stop was not clean. Raises PartitionOffline."""

    @property
    @abstractmethod
    def last_stable(self) -> int:
        """Committed readers stop before this offset: the first of an open transaction, or the high watermark."""

    @abstractmethod
    def append(self, batches: bytearray | memoryview, done: Done | None = None) -> Appended:
        """Append one batch, or several one behind the other; see `Log.append`. The log copies what it keeps: the buffer
        is the caller's again on return."""

    @abstractmethod
    def read(self, offset: int, max_bytes: int, *, committed: bool = False, at_least_one: bool = True) -> Chunk:
        """Batches from the one that holds `offset`, at most `max_bytes` of them, but the first one whole (if
        `at_least_one`), up to the high watermark or (`committed`) the last stable offset, and then with what was
        aborted of them. Raises OffsetOutOfRange. Release what it gives. Its parts in files may be cold: read off the
        loop what is not resident."""

    @abstractmethod
    async def offset_at(self, timestamp: int) -> OffsetAtTime:
        """The first record at or after `timestamp` (ms), or the record with the largest timestamp (MAX_TIMESTAMP)."""

    @abstractmethod
    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below `epoch`, and the offset at which it ended; (-1, -1) where unknown."""

    @abstractmethod
    async def trim(self, before: int) -> int:
        """Forget the records before `before` (-1: before the high watermark), durably; the new start."""

    # --- waiting for more ---

    def wait(self, wake: Wake) -> None:
        """Call `wake` once when readers can get further than now."""
        self._waiters.append(wake)

    def unwait(self, wake: Wake) -> None:
        """Do not call `wake` after all, if it still waits."""
        try:
            self._waiters.remove(wake)
        except ValueError:
            pass

    def wake_all(self) -> None:
        """For the log: readers can get further, or never will."""
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()


@dataclass(slots=True, eq=False)
class Topic:
    """A topic of the catalogue. The same object for as long as the topic lives; `deleted` once it does not."""

    name: str
    id: UUID
    config: Mapping[str, str]
    """The broker's own configuration as it was given, kept for it."""
    settings: TopicSettings
    partitions: Sequence[Partition] = ()
    deleted: bool = False


class Catalogue(dict[str, Topic]):
    """The topics of a log, by name and by id. Only the log adds and removes."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        super().__init__()
        self.by_id: dict[UUID, Topic] = {}

    def add(self, topic: Topic) -> None:
        self[topic.name] = self.by_id[topic.id] = topic

    def remove(self, topic: Topic) -> None:
        topic.deleted = True
        self.pop(topic.name, None)
        self.by_id.pop(topic.id, None)


class Log(ABC):
    """All topics of a data directory."""

    def __init__(self) -> None:
        self.topics = Catalogue()
        self.on_partition_changed: list[PartitionChanged] = []
        """What to call when a partition goes offline, unless its topic is deleted, or gets another leader epoch."""

    @abstractmethod
    async def create(self, name: str, partitions: int, config: Mapping[str, str], settings: TopicSettings) -> Topic:
        """Make a topic, durably. Raises TopicExists. The name is the broker's to judge."""

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Drop a topic and its data, durably. Raises UnknownTopic."""

    @abstractmethod
    async def alter(
        self, name: str, *, partitions: int | None = None, config: tuple[Mapping[str, str], TopicSettings] | None = None
    ) -> Topic:
        """Grow a topic or change its configuration, durably."""

    @abstractmethod
    def append(self, writes: Sequence[Write], done: Done | None = None) -> list[Appended]:
        """Append to several partitions, all or nothing, even through a power cut. Raises an AppendRefused and has then
        changed nothing; its `refused` says what is wrong with each write. If one of the batches had been appended
        before, all are taken for duplicates, and nothing is appended: those that had been have their first offset in
        the answer, the others -1."""

    @abstractmethod
    async def reserve(self, name: str, count: int) -> int:
        """Take `count` numbers from the durable counter `name` (producer ids, for one); the first of them."""
