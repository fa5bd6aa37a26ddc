"""`__transaction_state`: where the coordinator keeps what must outlive the process.

The topic is made when the first transactional id comes. After a start all of it is read, in the background and in small
steps: it is compacted and small, and a transaction that was open when the broker stopped holds committed readers back
until it times out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from headrace.broker.groups.shard import shard_of
from headrace.broker.loading import SharedLoad
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import StateTopic
from headrace.broker.topics import Topics
from headrace.broker.transactions.transaction import Transaction
from headrace.broker.transactions.transaction_codec import read_key, read_value, write_key, write_value
from headrace.broker.transactions.unused import NO_HOLDER, Holder, UnusedIds
from headrace.errors import PartitionOffline
from headrace.format.batch import BatchHeader
from headrace.format.records import Record
from headrace.log.interface import Appended, Done, Log, Partition, Write
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.transactions")

TOPIC = "__transaction_state"
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "durability": "sync",
    "segment.bytes": str(100 << 20),
    "max.message.bytes": str(32 << 20),
}


@dataclass(slots=True, eq=False)
class Entry:
    """A transactional id: its state as of the last append, and as of the last that is durable."""

    id: str
    partition: Partition
    now: Transaction | None = None
    sure: Transaction | None = None
    holder: Holder = NO_HOLDER
    """Where it was taken last."""
    busy: bool = False
    """The end of the transaction is on its way: no partition may be added to it any more."""
    last_epoch: int = -1
    """The epoch before the last InitProducerId, which may be repeated; not stored, nor is it in Kafka."""


class Store:
    """All transactional ids."""

    def __init__(self, runtime: Runtime, log: Log, topics: Topics, config: BrokerSettings) -> None:
        self.entries: dict[str, Entry] = {}
        self.unused = UnusedIds()
        self.loaded = False
        self._state = StateTopic(runtime, log, topics, config, TOPIC, TOPIC_CONFIG, config.transactions_partitions)
        self._loading = SharedLoad(self._load)

    async def load(self) -> None:
        """Read the topic unless that is done. Raises what the log raises; the next call then tries again."""
        if self.loaded:
            return
        await self._loading.load()

    def stop(self) -> None:
        self._loading.cancel()

    async def _load(self) -> None:
        topic = self._state.topic
        for partition in topic.partitions if topic is not None else ():
            try:
                await partition.load()
            except PartitionOffline as error:
                # Its transactional ids are refused until it is repaired; the others go on.
                log.error("a partition of transactions is offline", partition=partition.index, error=str(error))
                continue
            await self._state.load(partition, partial(self._take, partition))
        self.loaded = True

    def _take(self, partition: Partition, record: Record, header: BatchHeader) -> None:
        _, _, key, value, _ = record
        transactional_id = read_key(key or b"")
        if transactional_id is None:
            return
        if value is None:
            self.drop(transactional_id)
        else:
            state = read_value(value)
            entry = self.entries[transactional_id] = Entry(transactional_id, partition, state, state)
            self.unused.update(entry)

    def find(self, transactional_id: str) -> Entry | None:
        """What is known of a transactional id. Raises PartitionOffline where that cannot be known."""
        entry = self.entries.get(transactional_id)
        topic = self._state.topic
        if entry is None and topic is not None:
            home = topic.partitions[shard_of(transactional_id, len(topic.partitions))]
            if home.offline is not None:
                raise PartitionOffline(
                    f"what {transactional_id!r} was is on a partition that is offline: {home.offline}"
                )
        return entry

    def drop(self, transactional_id: str) -> None:
        """Know a transactional id no more."""
        self.entries.pop(transactional_id, None)
        self.unused.discard(transactional_id)

    async def home(self, transactional_id: str) -> Partition:
        """The partition of a transactional id that is not known, loaded."""
        topic = await self._state.open()
        partition = topic.partitions[shard_of(transactional_id, len(topic.partitions))]
        await partition.load()
        return partition

    def append(self, entry: Entry, state: Transaction | None, writes: Sequence[Write], done: Done) -> list[Appended]:
        """Write a new state (None: forget the id) together with other things, all or nothing; see `StateTopic.append`.
        `done` comes after the state has become sure or was taken back."""
        value = None if state is None else write_value(state)
        own = self._state.write(entry.partition, [(write_key(entry.id), value)])
        before = entry.now

        def on_durable(error: Exception | None) -> None:
            if error is None:
                entry.sure = state
            elif entry.now is state:
                entry.now = entry.sure
                self.unused.update(entry)
            done(error)

        appended = self._state.append([own, *writes], on_durable)
        if any(each.duplicate for each in appended):
            # Nothing was written: what is repeated came with its state the first time.
            state = before
        else:
            entry.now = state
            self.unused.update(entry)
        return appended
