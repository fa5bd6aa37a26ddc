"""A producer whose sends come in transactions: all of them can be read as committed, or none.

One idea: a transaction has one state, and every failure moves it. What may pass is retried below, with the old sequence
numbers; the first thing that fails for good spoils the transaction, drops what has not left, and leaves only `abort`.
Fencing ends the producer. An end that was asked for and not answered stays open until it is asked for again, since the
broker's answer to the same question is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any

from headrace.client import wire
from headrace.client.cluster import BACKOFF_TRANSACTION, Cluster, Partition
from headrace.client.coordinator import NO_IDENTITY, Coordinator, Identity, fatal
from headrace.client.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    TransactionAbortable,
    TransactionError,
    TransactionUnresolved,
)
from headrace.client.producer import Producer
from headrace.client.send_buffer import Batch, SendBuffer
from headrace.format.error_codes import ErrorCode

ENROLL = "enroll"
# The errors of a partition's leader for a producer that is not the present one: only the coordinator knows why.
STALE = {ErrorCode.invalid_producer_epoch, ErrorCode.invalid_txn_state}


class State(Enum):
    """Where a transactional producer stands."""

    NEW = auto()
    """It has not taken its transactional id."""
    READY = auto()
    """Between transactions."""
    OPEN = auto()
    SPOILED = auto()
    """Something failed: the transaction can only be aborted."""
    ENDING = auto()
    """Commit or abort was asked for, and not answered yet."""
    DEAD = auto()
    """Fenced, or otherwise at its end."""


class TransactionalProducer(Producer):
    """Sends records in transactions. Make it with `Client.transactional`.

    async with client.transactional("orders-3") as producer:
        async with producer.transaction():
            await producer.send("orders", b"paid", key=b"17")
            await producer.send_offsets("billing", {("payments", 0): 42})
    """

    # Right behind a transaction, its markers may still be under way: they take milliseconds.
    backoff = BACKOFF_TRANSACTION

    def __init__(
        self, cluster: Cluster, transactional_id: str, *, transaction_timeout: float = 60.0, **options: Any
    ) -> None:
        super().__init__(cluster, idempotent=True, **options)
        self._transactional_id = transactional_id
        self._coordinator = Coordinator(cluster, transactional_id, transaction_timeout)
        self._state = State.NEW
        self._failure: TransactionError | None = None
        self._commits: bool | None = None
        """While ending: which end; None where either may be asked for."""
        self._enrolled: set[Partition] = set()
        self._begun = False
        """The coordinator knows of the transaction."""
        self._doubt = False
        """It may know of it: an announcement was not answered."""

    async def __aenter__(self) -> TransactionalProducer:
        if self._state is State.NEW:
            await self.init()
        return self

    @property
    def identity(self) -> Identity:
        """Producer id and epoch, after `init` or `resume`."""
        return self._producer or NO_IDENTITY

    # --- what callers do ---

    async def init(self, producer_id: int = -1, epoch: int = -1) -> None:
        """Take the transactional id: earlier owners are fenced, and what they had open is aborted.

        With the identity of an earlier owner, only if no other producer has taken the id since: else ProducerFenced.
        """
        self._require(State.NEW, "init")
        await self._coordinator.agree()
        try:
            identity = await self._coordinator.init((producer_id, epoch))
        except ClientError as error:
            raise self._check_fatal(error) or error from error
        self._start(identity)
        self._state = State.READY

    async def resume(self, producer_id: int, epoch: int) -> None:
        """Take over an open transaction of this identity, to commit or to abort it: nothing can be added to it.

        An end that was reached already is fine, unless another producer has taken the id since.
        """
        self._require(State.NEW, "resume")
        await self._coordinator.agree()
        self._start((producer_id, epoch))
        self._begun = True
        self._commits = None
        self._state = State.ENDING

    def begin(self) -> None:
        """Begin a transaction."""
        self._require(State.READY, "begin")
        self._enrolled.clear()
        self._begun = self._doubt = False
        self._first_error = None
        self._state = State.OPEN

    async def send_offsets(
        self,
        group: str,
        offsets: Mapping[Partition, int | tuple[int, str]],
        *,
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
    ) -> None:
        """Commit offsets of a group (the next ones to read) with the transaction.

        Without generation and member, the group must have no members; with them, only its present member can.
        """
        self._accept()
        if not offsets:
            return
        assert self._producer is not None
        entries = {each: (at, "") if isinstance(at, int) else at for each, at in offsets.items()}
        try:
            if not self._coordinator.second:
                await self._announce(self._coordinator.add_offsets(self._producer, group))
            # In the second generation a transaction that the coordinator does not know can be aborted.
            self._begun = True
            await self._coordinator.commit_offsets(self._producer, group, entries, generation, member, instance)
        except ClientError as error:
            self._spoil(error)
            raise self._failure or error from error

    async def flush(self) -> None:
        """Wait until everything sent so far is with the brokers. It can be read when the transaction is committed."""
        try:
            await super().flush()
        except ClientError as error:
            raise self._failure or error from error

    async def commit(self) -> None:
        """Deliver what was sent, and commit. Returns when the transaction is committed."""
        if self._state is not State.ENDING:
            self._require(State.OPEN, "commit")
            await self.flush()
            self._require(State.OPEN, "commit")
            self._start_ending(True)
        await self._end(True)

    async def abort(self) -> None:
        """Undo the transaction. Records that have not left fail; those under way are waited for."""
        if self._state is not State.ENDING:
            if self._state is not State.SPOILED:
                self._require(State.OPEN, "abort")
            self._start_ending(False)
            self._drop(ClientError(f"the transaction of {self._transactional_id} was aborted"))
        if self._commits is not True:
            await asyncio.gather(*(task for task in self._tasks if task.get_name() == ENROLL))
            await self._wait_idle()
        await self._end(False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[TransactionalProducer]:
        """A transaction around a block: committed at its end, if it is still open; aborted where the block raises."""
        self.begin()
        try:
            yield self
        except BaseException:
            if self._state in (State.OPEN, State.SPOILED):
                await self.abort()
            raise
        if self._state is not State.READY:
            try:
                await self.commit()
            except TransactionAbortable:
                await self.abort()
                raise

    async def close(self, *, flush: bool = True) -> None:
        """Stop. An open transaction is aborted; where the broker cannot be reached, by its timeout."""
        if self._state in (State.OPEN, State.SPOILED) and not self._closed:
            try:
                await self.abort()
            except ClientError:
                pass
        await super().close(flush=False)

    # --- the state ---

    def _require(self, state: State, what: str) -> None:
        if self._closed:
            raise ClientClosed("the producer is closed")
        if self._state is state:
            return
        if self._failure is not None:
            raise self._failure
        raise ClientError(f"{what}() of {self._transactional_id}: {HINTS[self._state]}")

    def _accept(self) -> None:
        self._require(State.OPEN, "send")

    def _start(self, identity: Identity) -> None:
        self._form = wire.ENROLLING if self._coordinator.second else wire.FIXED
        self._adopt(identity)

    def _spoil(self, error: ClientError) -> None:
        """Something of the transaction has failed for good."""
        if self._state is not State.OPEN or self._check_fatal(error) is not None:
            return
        self._only_abort(error)

    def _only_abort(self, error: ClientError) -> None:
        self._state = State.SPOILED
        self._failure = TransactionAbortable(
            f"the transaction of {self._transactional_id} can only be aborted: {error}"
        )
        self._failure.__cause__ = error
        self._drop(self._failure)

    def _check_fatal(self, error: ClientError) -> TransactionError | None:
        """The producer's end, where an error means that."""
        death = fatal(error, self._transactional_id or "")
        if death is not None:
            self._failure = death
            self._state = State.DEAD
            self._drop(death)
        return death

    def _start_ending(self, commit: bool) -> None:
        self._state = State.ENDING
        self._commits = commit

    async def _end(self, commit: bool) -> None:
        if self._commits is not None and self._commits is not commit:
            asked = "commit" if self._commits else "abort"
            raise ClientError(f"{asked}() of {self._transactional_id} was asked for and not answered: call it again")
        self._commits = commit
        assert self._producer is not None
        try:
            if self._begun or self._doubt:
                await self._ask_for(commit)
            if self._renew:
                # Sequence numbers have gaps, or an announcement may still arrive: a new epoch forgets both.
                self._adopt(await self._coordinator.init(self._producer))
        except ClientError as error:
            if commit and isinstance(error, BrokerError) and error.error in self._abortable_codes():
                self._only_abort(error)
                raise self._failure or error from error
            if (death := self._check_fatal(error)) is not None:
                raise death from error
            if error.retriable:
                raise TransactionUnresolved(
                    f"the {'commit' if commit else 'abort'} of {self._transactional_id} was not answered: {error}"
                ) from error
            raise
        self._failure = None
        self._state = State.READY

    async def _ask_for(self, commit: bool) -> None:
        assert self._producer is not None
        try:
            identity = await self._coordinator.end(self._producer, commit)
        except BrokerError as error:
            if self._begun or error.error is not ErrorCode.invalid_txn_state:
                raise
            return  # The announcement had not arrived: there is nothing to end.
        if identity != self._producer:
            self._adopt(identity)

    async def _announce(self, announcing: Awaitable[None]) -> None:
        """Wait for an announcement of the first generation."""
        try:
            await announcing
        except ClientError as error:
            if error.retriable:
                self._doubt = self._renew = True
            raise
        self._begun = True

    def _abortable_codes(self) -> set[ErrorCode]:
        """Errors of a commit after which an abort is possible."""
        if not self._coordinator.second:
            return {ErrorCode.transaction_abortable}
        # The transaction ran into its timeout: in this generation its producer gets the next epoch by an abort.
        return {ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state}

    def _drop(self, error: ClientError) -> None:
        """Fail everything that has not left."""
        for buffers in self._topics.values():
            for buffer in buffers:
                unsealed = [buffer.filling] if buffer.filling is not None else []
                dropped = [*unsealed, *buffer.queued, *buffer.retries]
                buffer.filling = None
                buffer.queued.clear()
                buffer.retries.clear()
                for batch in dropped:
                    self._resolve(batch, error)
        self._unsealed.clear()
        self._ready.clear()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None

    # --- what is different from any other producer ---

    def _prepare(self) -> bool:
        if self._state is State.OPEN and not all(map(self._admits, self._ready)):
            self._start_task(self._enroll(), ENROLL)
        return self._state is State.OPEN

    async def _enroll(self) -> None:
        assert self._producer is not None
        new = [(buffer.topic, buffer.partition) for buffer in self._ready if not self._admits(buffer)]
        if not new:
            # Aborted meanwhile. An announcement of nothing has no place for an error: it would pass for a success.
            return
        try:
            await self._announce(self._coordinator.add_partitions(self._producer, new))
        except ClientError as error:
            self._spoil(error)
        else:
            self._enrolled.update(new)

    def _admits(self, buffer: SendBuffer) -> bool:
        return self._coordinator.second or (buffer.topic, buffer.partition) in self._enrolled

    def _take(self, node: int) -> list[Batch]:
        taken = super()._take(node) if self._state is State.OPEN else []
        self._begun = self._begun or bool(taken)
        return taken

    def _on_failure(self, batch: Batch, error: ClientError) -> None:
        code = error.error if isinstance(error, BrokerError) else None
        behind = batch.buffer.failing and code is ErrorCode.out_of_order_sequence_number
        if self._state is State.OPEN and (error.retriable or behind) and not self._is_overdue(batch):
            super()._on_failure(batch, error)
            return
        batch.buffer.failing = True
        self._resolve(batch, error)

    def _resolve(self, batch: Batch, outcome: int | ClientError) -> None:
        if isinstance(outcome, int):
            super()._resolve(batch, outcome)
            return
        # A number that was given and is not in the log leaves a gap.
        self._renew = self._renew or batch.sequence >= 0
        super()._resolve(batch, outcome)
        if self._state is not State.OPEN:
            return
        if isinstance(outcome, BrokerError) and outcome.error in STALE:
            self._only_abort(outcome)
        else:
            self._spoil(outcome)


HINTS = {
    State.NEW: "the producer has no identity yet: call init() first, or use `async with`",
    State.READY: "there is no transaction: call begin() first",
    State.OPEN: "a transaction is open already: commit() or abort() it first",
    State.SPOILED: "the transaction can only be aborted",
    State.ENDING: "the end of the last transaction is not known: call commit() or abort() again",
    State.DEAD: "the producer is at its end: make a new one",
}
