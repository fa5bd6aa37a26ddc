"""The batches that one request writes within a transaction.

A batch for a partition that is part of the transaction goes to the log like any other. Where the client leaves it to
the broker to add partitions (KIP-890), a batch may bring a new one in, and is appended together with the state that
says so: in two appends, a power cut between them could leave a transaction that is not known. The state lists all
partitions, so with one append for each, many new ones would cost as much as their square. Therefore those of a request
come in together, in one append. That is all or nothing, but what a client did wrong is each partition's own: what the
log refuses is left out, and the rest is appended again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.groups.offsets import TopicPartition
from headrace.broker.transactions.store import Entry, Store
from headrace.broker.transactions.transaction import Status, Transaction
from headrace.errors import AppendRefused, ConcurrentTransactions, HeadraceError, InvalidTransactionState
from headrace.format.batch import header_at
from headrace.log.interface import Appended, Done, Partition, Write

# A client of this version lets the broker add partitions, and gets a new epoch with every end.
BROKER_ADDS = 2


class TransactionalBatch(NamedTuple):
    """One batch of a transaction. Its partition is loaded."""

    partition: Partition
    batch: bytearray | memoryview
    done: Done
    """See `Partition.append`."""


Outcome = Appended | HeadraceError
"""What became of a batch."""

# With their numbers in the request.
_Numbered = tuple[int, TransactionalBatch]


class TransactionalAppend:
    """One request on its way into one transaction."""

    def __init__(self, store: Store, entry: Entry, client_version: int, now_ms: int) -> None:
        self._store = store
        self._entry = entry
        self._client_version = client_version
        self._now_ms = now_ms
        self._outcomes: dict[int, Outcome] = {}

    def append(self, offered: Sequence[TransactionalBatch]) -> list[Outcome]:
        """Append what can be; what became of each."""
        waiting = list(enumerate(offered))
        while waiting:
            state = self._entry.now
            assert state is not None
            waiting = self._append(state, waiting)
        return [self._outcomes[number] for number in range(len(offered))]

    def _append(self, state: Transaction, offered: list[_Numbered]) -> list[_Numbered]:
        """The same, but for those whose partition another one in front of them is about to bring in."""
        entering: dict[TopicPartition, _Numbered] = {}
        behind: list[_Numbered] = []
        for number, each in offered:
            place = (each.partition.topic.name, each.partition.index)
            if place in entering:
                behind.append((number, each))
                continue
            try:
                if self._check(state, place, each):
                    self._outcomes[number] = each.partition.append(each.batch, each.done)
                else:
                    entering[place] = number, each
            except HeadraceError as error:
                self._outcomes[number] = error
        while entering:
            entering = self._enter(state, entering)
        return behind

    def _check(self, state: Transaction, place: TopicPartition, offered: TransactionalBatch) -> bool:
        """Whether a batch is for a partition of the transaction already. Raises if its producer may not write there."""
        entry, header = self._entry, header_at(offered.batch)
        state.check(entry.id, header.producer_id, header.producer_epoch)
        if entry.busy:
            raise ConcurrentTransactions(f"the transaction of {entry.id!r} is just being ended: try again in a moment")
        if state.status is Status.ONGOING and place in state.places:
            return True
        if self._client_version < BROKER_ADDS:
            raise InvalidTransactionState(
                f"{place[0]}-{place[1]} is not part of the transaction of {entry.id!r}: add it first"
            )
        return False

    def _enter(self, state: Transaction, entering: dict[TopicPartition, _Numbered]) -> dict[TopicPartition, _Numbered]:
        """Append batches together with the state that has their partitions. Where the log refuses some of them, or has
        them already, nothing is appended: the others, which are to be tried again."""
        taken: list[TransactionalBatch] = []

        def done(error: Exception | None) -> None:
            for each in taken:
                each.done(error)

        begun = state.begun(frozenset(entering), self._now_ms, self._client_version)
        writes = [Write(each.partition, each.batch) for _, each in entering.values()]
        rest = {}
        try:
            _, *appended = self._store.append(self._entry, begun, writes, done)
        except HeadraceError as error:
            refused = error.refused if isinstance(error, AppendRefused) else {}
            # The state itself is the first write.
            is_general = not refused or 0 in refused
            for at, (place, (number, each)) in enumerate(entering.items(), 1):
                if is_general or at in refused:
                    self._outcomes[number] = refused.get(at, error)
                else:
                    rest[place] = number, each
            return rest
        for (place, (number, each)), answer in zip(entering.items(), appended, strict=True):
            if not answer.duplicate:
                taken.append(each)
                self._outcomes[number] = answer
            elif answer.base_offset < 0:
                rest[place] = number, each
            else:
                # The answer of the first time.
                self._outcomes[number] = each.partition.append(each.batch, each.done)
        return rest
