"""`__half` and its table: loaded after a start, read when a body is wanted, written by all that happens.

The topic has one partition. One loop owns all partitions and one journal takes their flushes together, so a second one
would make nothing faster; and one log has by itself the order in which things happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.broker.durable import durable
from headrace.broker.internal import STATE_CONFIG
from headrace.broker.prepared import entries
from headrace.broker.prepared.entries import TOPIC, Decided, Message, Prepared
from headrace.broker.prepared.table import Pending, Table
from headrace.broker.reading import read
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Row, StateTopic, batches_of
from headrace.broker.topics import Topics
from headrace.errors import CorruptLog, OffsetOutOfRange, UnknownHalf
from headrace.format import records
from headrace.format.batch import BatchHeader, batches_in
from headrace.log.interface import Partition, Topic, Write
from headrace.log.local import LocalLog
from headrace.runtime import Runtime

TOPIC_CONFIG = dict(STATE_CONFIG)


class Store:
    """The one partition, and the table that follows from it."""

    def __init__(self, runtime: Runtime, log: LocalLog, topics: Topics, config: BrokerSettings) -> None:
        self.runtime = runtime
        self.log = log
        self.table = Table(config.half_decided_max, config.half_check_interval_ms)
        self.state = StateTopic(runtime, log, topics, config, TOPIC, TOPIC_CONFIG)
        self._config = config
        self._topic: Topic | None = None

    @property
    def exists(self) -> bool:
        """Whether a message was ever prepared."""
        return self.state.topic is not None

    @property
    def topic(self) -> Topic:
        assert self._topic is not None, "half messages are not loaded"
        return self._topic

    @property
    def partition(self) -> Partition:
        return self.topic.partitions[0]

    def id_of(self, number: int) -> str:
        return entries.id_of(self.topic.id, number)

    def now(self) -> int:
        return self.runtime.clock.now_ms()

    async def load(self) -> None:
        """Find or make the topic, and replay it. Raises what the log raises."""
        topic = await self.state.open()
        # Anew each time: a load that failed halfway leaves nothing behind.
        table = self.table = Table(self._config.half_decided_max, self._config.half_check_interval_ms)
        now = self.now()

        def apply(record: records.Record, header: BatchHeader) -> None:
            table.apply(entries.read(record), record[0], header.size // header.record_count, now)

        await self.state.load(topic.partitions[0], apply)
        self._topic = topic

    def write(self, *rows: Row) -> Write:
        return Write(self.partition, batches_of(rows))

    async def append(self, writes: Sequence[Write], then: Callable[[Exception | None, int], None]) -> None:
        """Append all or nothing, durably. `then` is called in any case, even if the caller no longer waits: with the
        reason if that failed, and with the first offset of the last write. Raises an AppendRefused."""
        waiter, done = durable(None)
        place = -1

        def on_durable(error: Exception | None) -> None:
            then(error, place)
            done(error)

        try:
            place = self.state.append(writes, on_durable)[-1].base_offset
        except Exception as error:
            on_durable(error)
        await waiter

    def outcome(self, number: int) -> Decided:
        """What became of a message that is not undecided. Raises UnknownHalf."""
        known = self.table.decided.get(number)
        if known is None:
            raise UnknownHalf(
                f"there is no half message {self.id_of(number)!r}: none was prepared under that id, or it was decided "
                "so long ago that the outcome is forgotten (half_decided_max)"
            )
        return known

    async def message(self, entry: Pending) -> Message:
        """The message itself, from the log. Raises CorruptLog."""
        partition = self.partition
        while True:
            place = entry.place
            try:
                raw = await read(self.runtime, partition, place, 1, committed=False)
            except OffsetOutOfRange:
                if entry.place != place:
                    continue  # moved forward meanwhile, and the log trimmed
                raise
            for at, header in batches_in(raw):
                if header.base_offset <= place <= header.last_offset:
                    batch = raw[at : at + header.size]
                    limit = self._config.decompressed_max_bytes
                    (record,) = records.parse(batch, limit, place - header.base_offset, 1)
                    try:
                        found = entries.read(record)
                    except (ValueError, KeyError, TypeError) as error:
                        raise CorruptLog(
                            f"{TOPIC} has a record at offset {place} that cannot be read: {error!r}"
                        ) from None
                    if isinstance(found, Prepared) and found.number == entry.number:
                        return found.message
            raise CorruptLog(f"{TOPIC} has no prepared message at offset {place}")
