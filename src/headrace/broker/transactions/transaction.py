"""The state of one transactional id, and which steps lead where.

A `Transaction` is a value: every step makes a new one, so that a step whose append fails is undone by going back to the
last that is durable. Kafka's coordinator prepares the end of a transaction, writes markers to other brokers, and then
completes it; here the markers, the offsets' marker and the new state are one append that is there whole or not at all,
so the states between (PrepareCommit, PrepareAbort) never come to be.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum

from headrace.broker.groups.offsets import TopicPartition
from headrace.errors import InvalidTransactionState, ProducerFenced, ProducerIdMismatch

# Kafka keeps the last epoch of a producer id for the marker that fences it.
EPOCH_MAX = 32_767
NO_PRODUCER = -1
NO_EPOCH = -1


class Status(IntEnum):
    """Kafka's numbers, as they stand in the records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """As Kafka's tools spell it."""
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transactional id at one time."""

    producer_id: int
    epoch: int
    timeout_ms: int
    updated_ms: int
    status: Status = Status.EMPTY
    places: frozenset[TopicPartition] = field(default_factory=frozenset)
    started_ms: int = -1
    """When the last transaction began; -1 where there was none."""
    previous_producer_id: int = NO_PRODUCER
    """The id that ran out of epochs, while its last request may still be repeated."""
    client_version: int = 0
    """2 where the client lets the broker add partitions and takes a new epoch with every end (KIP-890)."""

    @property
    def is_used(self) -> bool:
        """Whether the transactional id ever had a transaction."""
        return self.started_ms >= 0

    @property
    def exhausted(self) -> bool:
        """Whether the producer id has no epoch left to give."""
        return self.epoch >= EPOCH_MAX - 1

    def begun(self, places: frozenset[TopicPartition], now_ms: int, client_version: int) -> Transaction:
        """With more partitions in it; it begins with the first."""
        ongoing = self.status is Status.ONGOING
        return replace(
            self,
            status=Status.ONGOING,
            places=self.places | places if ongoing else places,
            started_ms=self.started_ms if ongoing else now_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def ended(self, commit: bool, producer_id: int, epoch: int, now_ms: int, client_version: int) -> Transaction:
        """Over, and the next one is under this producer id and epoch."""
        return replace(
            self,
            status=Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT,
            places=frozenset(),
            producer_id=producer_id,
            epoch=epoch,
            updated_ms=now_ms,
            client_version=client_version,
            previous_producer_id=self.producer_id if producer_id != self.producer_id else NO_PRODUCER,
        )

    def check(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """Raise unless a request comes from the producer that has the transactional id now."""
        if producer_id != self.producer_id:
            raise ProducerIdMismatch(
                f"the transactional id {transactional_id!r} belongs to producer {self.producer_id}, not {producer_id}: "
                "begin anew with InitProducerId"
            )
        if epoch != self.epoch:
            raise ProducerFenced(
                f"producer {producer_id} of the transactional id {transactional_id!r} came with epoch {epoch}, but "
                f"epoch {self.epoch} has it now; stop this one"
            )

    def repeats_end(self, producer_id: int, epoch: int) -> bool:
        """Whether a request to end comes from the producer as it was before its last transaction ended, and gave it a
        new epoch."""
        if self.client_version < 2 or self.status not in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT):
            return False
        if producer_id == self.producer_id:
            return epoch == self.epoch - 1
        return producer_id == self.previous_producer_id and self.epoch == 0 and epoch == EPOCH_MAX - 1

    def refuse_end(self, transactional_id: str, commit: bool) -> InvalidTransactionState:
        """What to raise where there is nothing to end that way."""
        wanted = "commit" if commit else "abort"
        return InvalidTransactionState(
            f"the transaction of {transactional_id!r} is {self.status.title}: there is nothing to {wanted}"
        )
