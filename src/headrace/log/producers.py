"""What a partition remembers of idempotent producers: enough to refuse a repeated or misplaced batch, and no more.

For each producer id: its epoch, its last five batches (a client has at most five in flight, so any batch that it may
repeat is one of them), and where its open transaction began. The state is a fold over the batches of the log; a
`.snapshot` file, in Kafka's format, holds it as of a segment's base, so that a start folds only what came after.

Kafka keeps one batch a producer in a snapshot. Here each of the five is an entry, oldest first: Kafka's reader lets
the last entry of a producer win, so it sees what it expects, and a restart here forgets nothing.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import InvalidRecords, OutOfOrderSequence, OwnerFenced, ProducerFenced
from headrace.format.batch import NO_SEQUENCE, NO_TIMESTAMP, BatchHeader
from headrace.log.local import ActiveProducer

REMEMBERED = 5
SEQUENCE_MAX = (1 << 31) - 1

SNAPSHOT_VERSION = 1
SNAPSHOT_HEAD = Struct(">hI")
SNAPSHOT_COUNT = Struct(">i")
# Producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, open transaction.
SNAPSHOT_ENTRY = Struct(">qhiqiqiq")


class AppendedBatch(NamedTuple):
    """One of a producer's last batches."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


# Epoch, last batches, coordinator epoch, last timestamp, first offset of the open transaction.
State = tuple[int, tuple[AppendedBatch, ...], int, int, int | None]


class Producer:
    """One producer id."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "transaction_first")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[AppendedBatch] = deque(maxlen=REMEMBERED)
        self.coordinator_epoch = -1
        self.last_timestamp = NO_TIMESTAMP
        self.transaction_first: int | None = None

    def state(self) -> State:
        """How the producer stands."""
        return (
            self.epoch, tuple(self.batches), self.coordinator_epoch, self.last_timestamp, self.transaction_first
        )  # fmt: skip

    @classmethod
    def of(cls, state: State) -> Producer:
        """A producer that stands so."""
        producer = cls(state[0])
        producer.batches.extend(state[1])
        _, _, producer.coordinator_epoch, producer.last_timestamp, producer.transaction_first = state
        return producer


class ProducerStates:
    """All producers of a partition."""

    __slots__ = ("_before", "_ended", "_open", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        # Producer id -> first offset. Transactions begin in the order of offsets, so the first in here is the oldest.
        self._open: dict[int, int] = {}
        # First offset and marker of transactions that ended, until no power cut can take back their markers.
        self._ended: deque[tuple[int, int]] = deque()
        # Offset of a batch that may not be durable, its producer, and how that one stood before; the oldest first.
        self._before: deque[tuple[int, int, State | None]] = deque()

    def __len__(self) -> int:
        return len(self._producers)

    # --- appending ---

    def check(self, header: BatchHeader, coordinator_epoch: int | None = None) -> int | None:
        """None: the batch may be appended. A number: it was before, at this base offset. For a marker give the epoch of
        its coordinator. Raises OutOfOrderSequence, ProducerFenced, OwnerFenced or InvalidRecords."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None  # forgotten or new: it may start anywhere
        epoch = header.producer_epoch
        if epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {header.producer_id} wrote with epoch {epoch}, but epoch {producer.epoch} has since; "
                "stop this one"
            )
        if header.is_control:
            if coordinator_epoch is not None and coordinator_epoch < producer.coordinator_epoch:
                raise OwnerFenced(
                    f"a marker for producer {header.producer_id} came from coordinator epoch {coordinator_epoch}, but "
                    f"epoch {producer.coordinator_epoch} has written since"
                )
            return None
        first = header.base_sequence
        if first == NO_SEQUENCE and header.is_transactional:
            return None  # written by the broker within a client's transaction: it does not repeat itself
        if epoch > producer.epoch:
            if first != 0:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} began epoch {epoch} with sequence {first}, not with 0"
                )
            self._check_within(producer, header)
            return None
        last_sequence = NO_SEQUENCE
        if producer.batches:
            last_sequence = producer.batches[-1].last_sequence
        if first == (0 if last_sequence == SEQUENCE_MAX else last_sequence + 1):
            self._check_within(producer, header)
            return None
        last = increment(first, header.last_offset_delta)
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch.base_offset
        raise OutOfOrderSequence(
            f"producer {header.producer_id} (epoch {epoch}) wrote sequence {first}, but its last one is {last_sequence}"
        )

    @staticmethod
    def _check_within(producer: Producer, header: BatchHeader) -> None:
        """While a transaction is open, its producer writes only inside of it, in whatever epoch."""
        if producer.transaction_first is not None and not header.is_transactional:
            raise InvalidRecords(
                f"producer {header.producer_id} has a transaction open since offset {producer.transaction_first}, "
                "but wrote a batch outside of it"
            )

    def remember(self, producer_id: int, base_offset: int, high_watermark: int) -> None:
        """Keep how a producer stands before a batch at `base_offset` is taken into account: until that is durable,
        `truncate` may have to go back to it. No counting back would do: a new epoch and a marker both forget."""
        before = self._before
        while before and before[0][0] < high_watermark:
            before.popleft()
        producer = self._producers.get(producer_id)
        before.append((base_offset, producer_id, None if producer is None else producer.state()))

    def update(self, header: BatchHeader, marker: tuple[bool, int] | None = None) -> tuple[int, int, int] | None:
        """Take an appended batch into account, with its offsets assigned. For a control batch, `marker` is what
        `control_type` said, and the answer that of `end_transaction`."""
        if marker is not None:
            return self.end_transaction(header, *marker)
        producer = self._producer(header)
        if header.base_sequence != NO_SEQUENCE:
            producer.batches.append(
                AppendedBatch(
                    header.base_sequence,
                    increment(header.base_sequence, header.last_offset_delta),
                    header.base_offset,
                    header.base_offset + header.last_offset_delta,
                    header.max_timestamp,
                )
            )
        producer.last_timestamp = header.max_timestamp
        if header.is_transactional and producer.transaction_first is None:
            producer.transaction_first = header.base_offset
            self._open[header.producer_id] = header.base_offset
        return None

    def end_transaction(
        self, header: BatchHeader, committed: bool, coordinator_epoch: int
    ) -> tuple[int, int, int] | None:
        """Take a marker into account: producer id, first offset and last offset (the marker's) of the transaction that
        it ended, or None if none was open."""
        producer = self._producer(header)
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        first = producer.transaction_first
        if first is None:
            return None
        producer.transaction_first = None
        del self._open[header.producer_id]
        self._ended.append((first, header.base_offset))
        return header.producer_id, first, header.base_offset

    def _producer(self, header: BatchHeader) -> Producer:
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer(header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        return producer

    # --- what readers may see ---

    def first_unstable(self, upto: int | None = None) -> int | None:
        """The first offset of the oldest open transaction. One whose marker is not below `upto` counts as open:
        no reader may see a decision that a power cut could take back."""
        first = next(iter(self._open.values()), None)
        if upto is not None:
            for began, marker in reversed(self._ended):
                if marker < upto:
                    break
                if first is None or began < first:
                    first = began
        return first

    def settle(self, point: int) -> None:
        """Nothing below `point` can be taken back any more."""
        while self._ended and self._ended[0][1] < point:
            self._ended.popleft()

    def active(self) -> list[ActiveProducer]:
        """All producers, by id."""
        return [
            ActiveProducer(
                producer_id,
                producer.epoch,
                producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE,
                producer.last_timestamp,
                producer.coordinator_epoch,
                -1 if producer.transaction_first is None else producer.transaction_first,
            )
            for producer_id, producer in sorted(self._producers.items())
        ]

    def newest(self) -> dict[int, tuple[int, int]]:
        """Producer id -> epoch, and last offset of its newest batch (-1: only a marker is known). Compaction keeps
        these batches, empty if need be, so that the state can be read from the log again."""
        return {
            producer_id: (producer.epoch, producer.batches[-1].last_offset if producer.batches else -1)
            for producer_id, producer in self._producers.items()
        }

    # --- forgetting ---

    def expire(self, now_ms: int, after_ms: int) -> int:
        """Forget the producers that have been silent for `after_ms` and have no transaction open; how many."""
        silent = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_first is None and now_ms - producer.last_timestamp >= after_ms
        ]
        for producer_id in silent:
            del self._producers[producer_id]
        return len(silent)

    def end_before(self, offset: int) -> None:
        """Transactions that began before `offset` have all ended, and their markers may be gone."""
        for producer in self._producers.values():
            if producer.transaction_first is not None and producer.transaction_first < offset:
                producer.transaction_first = None
        self._order_open()

    def truncate(self, offset: int) -> None:
        """Go back to how all stood before the batch at `offset`; a transaction that ended there is open again. What was
        not to be remembered cannot be undone: fold the log again instead."""
        while self._before and self._before[-1][0] >= offset:
            _, producer_id, state = self._before.pop()
            if state is None:
                self._producers.pop(producer_id, None)
            else:
                self._producers[producer_id] = Producer.of(state)
        self._ended = deque(each for each in self._ended if each[1] < offset)
        self._order_open()

    def _order_open(self) -> None:
        """Who has a transaction open, the oldest first."""
        begun = [(p.transaction_first, key) for key, p in self._producers.items() if p.transaction_first is not None]
        self._open = {key: first for first, key in sorted(begun)}

    # --- the snapshot ---

    def dump(self) -> bytes:
        """The contents of a `.snapshot` file."""
        entries = []
        for producer_id, producer in sorted(self._producers.items()):
            known = list(producer.batches) or [AppendedBatch(NO_SEQUENCE, NO_SEQUENCE, -1, -1, producer.last_timestamp)]
            for batch in known:
                newest = batch is known[-1]
                first = producer.transaction_first if newest else None
                entries.append(
                    SNAPSHOT_ENTRY.pack(
                        producer_id,
                        producer.epoch,
                        batch.last_sequence,
                        batch.last_offset,
                        batch.last_offset - batch.base_offset,
                        producer.last_timestamp if newest else batch.timestamp,
                        producer.coordinator_epoch,
                        -1 if first is None else first,
                    )
                )
        body = SNAPSHOT_COUNT.pack(len(entries)) + b"".join(entries)
        return SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def load(cls, contents: bytes) -> ProducerStates:
        """The states that a `.snapshot` file holds. Raises ValueError."""
        head = SNAPSHOT_HEAD.size
        if len(contents) < head + SNAPSHOT_COUNT.size:
            raise ValueError(f"a producer snapshot of {len(contents)} bytes is cut off")
        version, crc = SNAPSHOT_HEAD.unpack_from(contents)
        if version != SNAPSHOT_VERSION:
            raise ValueError(
                f"a producer snapshot of version {version} cannot be read; only {SNAPSHOT_VERSION} is known"
            )
        if crc32c(memoryview(contents)[head:]) != crc:
            raise ValueError("a producer snapshot does not fit its checksum")
        (count,) = SNAPSHOT_COUNT.unpack_from(contents, head)
        body = memoryview(contents)[head + SNAPSHOT_COUNT.size :]
        if count < 0 or len(body) != count * SNAPSHOT_ENTRY.size:
            raise ValueError(f"a producer snapshot announces {count} entries in {len(body)} bytes")
        states = cls()
        for fields in SNAPSHOT_ENTRY.iter_unpack(body):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first = fields
            producer = states._producers.get(producer_id)
            if producer is None or producer.epoch != epoch:
                producer = states._producers[producer_id] = Producer(epoch)
            if last_offset >= 0:
                producer.batches.append(
                    AppendedBatch(
                        decrement(last_sequence, delta), last_sequence, last_offset - delta, last_offset, timestamp
                    )
                )
            producer.last_timestamp = timestamp
            producer.coordinator_epoch = coordinator_epoch
            producer.transaction_first = first if first >= 0 else None
        states._order_open()
        return states


def increment(sequence: int, by: int) -> int:
    """A sequence number moved on; behind the largest comes 0."""
    return (sequence + by) & SEQUENCE_MAX


def decrement(sequence: int, by: int) -> int:
    """A sequence number moved back."""
    return (sequence - by) & SEQUENCE_MAX
