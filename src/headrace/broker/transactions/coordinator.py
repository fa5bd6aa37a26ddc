"""The transaction coordinator: who has a transactional id now, what its transaction has touched, and how it ends.

One idea carries it: the log appends to several partitions all or nothing. The end of a transaction is one such append
(the markers in every partition that it touched, the one in `__consumer_offsets`, and its state), so there is nothing to
resume after a crash: a transaction is open or over. In the same way partitions enter a transaction together with the
first batches that go to them, where the client leaves that to the broker (KIP-890, `transactional_append.py`): one
flush for both.

Requests about one transactional id take turns, and go on when the connection that brought them is gone. Only a Produce
does not wait for its turn: where the end is on its way it is told to come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from typing import NamedTuple, TypeVar

import structlog

from headrace.broker.durable import durable, submit
from headrace.broker.groups import Commit, Committer, GroupCoordinator, Problem
from headrace.broker.groups.deadline import Deadline
from headrace.broker.groups.offsets import TopicPartition
from headrace.broker.groups.shard import TOPIC as OFFSETS
from headrace.broker.periodic import Periodic
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.rate_limit import RateLimit
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import Topics
from headrace.broker.transactions.expiry import EXPIRY_CHECK_SECONDS, STEP_IDS, Expiry
from headrace.broker.transactions.store import Entry, Store
from headrace.broker.transactions.transaction import NO_EPOCH, NO_PRODUCER, Status, Transaction
from headrace.broker.transactions.transactional_append import (
    BROKER_ADDS,
    Outcome,
    TransactionalAppend,
    TransactionalBatch,
)
from headrace.broker.transactions.unused import NO_HOLDER, Holder
from headrace.broker.turns import Turns
from headrace.errors import (
    HeadraceError,
    InvalidTransactionalId,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    PartitionOffline,
    ProducerFenced,
    ProducerIdMismatch,
    TooManyTransactionalIds,
    UnknownTransactionalId,
)
from headrace.format.records import ABORT, COMMIT, control
from headrace.log.interface import Appended, Done, Log, Partition, Write
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.transactions")

Result = TypeVar("Result")

# Records hold the id with a 16-bit length, and a character takes up to four bytes.
ID_CHARACTERS_MAX = 8_191
LOAD_AGAIN_SECONDS = 5.0
TIMEOUT_CHECK_SECONDS = 1.0
SAY_UNENDED_SECONDS = 60.0


class Granted(NamedTuple):
    """Under what a producer may write from now on."""

    producer_id: int
    epoch: int


class TransactionCoordinator:
    """All transactional ids of this broker."""

    def __init__(
        self,
        runtime: Runtime,
        log: Log,
        topics: Topics,
        groups: GroupCoordinator,
        ids: ProducerIds,
        config: BrokerSettings,
    ) -> None:
        self.committed = 0
        self.aborted = 0
        self.timed_out = 0
        self._runtime = runtime
        self._log = log
        self._groups = groups
        self._ids = ids
        self._config = config
        self._store = Store(runtime, log, topics, config)
        self._turns = Turns()
        # Ids whose transaction was open when last looked at.
        self._open: dict[str, Entry] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._unended = RateLimit(SAY_UNENDED_SECONDS)
        loop = asyncio.get_running_loop()
        self._timeouts = Deadline(loop, self._look_for_timeouts)
        self._expiry = Expiry(runtime, self._store, self._turns, config, self._in_turn, self._write)
        what = "forget expired transactional ids"
        self._expiry_rounds = Periodic(EXPIRY_CHECK_SECONDS, self._expiry.expire, what, logger)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to read what was open, and to look for what has had its time."""
        self._spawn(self._load_in_time())
        self._expiry_rounds.start()

    async def stop(self) -> None:
        """What is open stays open: producers go on after the next start."""
        self._timeouts.cancel()
        self._expiry_rounds.cancel()
        self._store.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, self._expiry_rounds.stop(), return_exceptions=True)

    @property
    def loaded(self) -> bool:
        """Whether what was stored has been read."""
        return self._store.loaded

    async def load(self) -> None:
        """Read what was stored. Raises what the log raises; the next call then tries again."""
        if not self._store.loaded:
            await self._store.load()

    async def _load_in_time(self) -> None:
        """Until it works: what is open holds committed readers back, though no client asks for it."""
        while not self.loaded:
            try:
                await self.load()
            except (HeadraceError, OSError) as error:
                logger.warning("could not read the transactions yet", error=str(error))
                await asyncio.sleep(LOAD_AGAIN_SECONDS)
        for at, entry in enumerate(list(self._store.entries.values()), 1):
            self._note(entry)
            if at % STEP_IDS == 0:
                await asyncio.sleep(0)

    def _spawn(self, work: Coroutine[object, object, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _in_turn(self, transactional_id: str, work: Coroutine[object, object, Result]) -> Result:
        """Do something with a transactional id when it is its turn, to the end, be its caller gone or not."""

        async def take_turn() -> Result:
            try:
                await self.load()
                async with self._turns.of(transactional_id):
                    return await work
            finally:
                work.close()

        return await asyncio.shield(self._spawn(take_turn()))

    # --- beginning ----------------------------------------------------------------------------------------------------

    async def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER,
        epoch: int = NO_EPOCH,
        holder: Holder = NO_HOLDER,
    ) -> Granted:
        """InitProducerId: the producer that had the transactional id before is fenced, and what it left open is
        aborted. A producer that goes on after an error names itself, and gets its next epoch only if no other has come
        since."""
        if not transactional_id or len(transactional_id) > ID_CHARACTERS_MAX:
            raise InvalidTransactionalId(
                f"a transactional id must have 1 to {ID_CHARACTERS_MAX} characters (got {len(transactional_id)})"
            )
        longest = self._config.transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest:
            raise InvalidTransactionTimeout(
                f"a transaction's timeout must be 1 to {longest} ms (transaction_max_timeout_ms; got {timeout_ms})"
            )
        return await self._in_turn(
            transactional_id, self._take_id(transactional_id, timeout_ms, producer_id, epoch, holder)
        )

    async def _take_id(
        self, transactional_id: str, timeout_ms: int, producer_id: int, epoch: int, holder: Holder
    ) -> Granted:
        try:
            return await self._init(transactional_id, timeout_ms, producer_id, epoch, holder)
        finally:
            entry = self._store.entries.get(transactional_id)
            if entry is not None and entry.now is None:
                # It was never written, and must not count as one that is known.
                self._store.drop(transactional_id)

    async def _init(
        self, transactional_id: str, timeout_ms: int, producer_id: int, epoch: int, holder: Holder
    ) -> Granted:
        entry = self._store.entries.get(transactional_id)
        if entry is None or entry.now is None:
            entry = await self._new_entry(transactional_id, holder)
            granted = Granted(await self._ids.next(), 0)
        else:
            state = entry.now
            if producer_id != NO_PRODUCER:
                if self._repeats_init(entry, state, producer_id, epoch):
                    return Granted(state.producer_id, state.epoch)
                if producer_id != state.producer_id or epoch != state.epoch:
                    raise ProducerFenced(
                        f"producer {producer_id} with epoch {epoch} no longer has the transactional id "
                        f"{transactional_id!r}: producer {state.producer_id} with epoch {state.epoch} does"
                    )
            granted = await self._next(state)
        now = self._runtime.clock.now_ms()
        before = entry.now
        started = before.started_ms if before is not None else -1
        after = Transaction(granted.producer_id, granted.epoch, timeout_ms, now, started_ms=started)
        entry.holder = holder
        holder.latest = transactional_id
        if before is not None and before.status is Status.ONGOING:
            await self._end(entry, before, False, before.epoch + 1, after)
        else:
            await self._write(entry, after)
        entry.last_epoch = epoch
        if before is not None and before.producer_id != granted.producer_id:
            entry.last_epoch = NO_EPOCH
        return granted

    async def _new_entry(self, transactional_id: str, holder: Holder) -> Entry:
        """Make room for one more id, and take it."""
        store = self._store
        home = await store.home(transactional_id)
        await self._expiry.make_room(holder.address)
        if len(store.entries) >= self._config.transactional_ids_max:
            raise TooManyTransactionalIds(
                f"{len(store.entries)} transactional ids are known, and no more are allowed (transactional_ids_max). "
                "Reuse ids, or raise the limit."
            )
        entry = store.entries[transactional_id] = Entry(transactional_id, home)
        return entry

    def _repeats_init(self, entry: Entry, state: Transaction, producer_id: int, epoch: int) -> bool:
        """Whether a producer asks again for what it was given, because the answer was lost."""
        return (
            epoch != NO_EPOCH
            and producer_id == state.producer_id
            and epoch == entry.last_epoch == state.epoch - 1
            and state.status is Status.EMPTY
        )

    async def _next(self, state: Transaction) -> Granted:
        """The next epoch, or the next producer id once there is none."""
        if state.exhausted:
            return Granted(await self._ids.next(), 0)
        return Granted(state.producer_id, state.epoch + 1)

    # --- what a transaction touches -----------------------------------------------------------------------------------

    async def add(
        self, transactional_id: str, producer_id: int, epoch: int, places: Collection[TopicPartition]
    ) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn: the transaction is about to write there. Answered when that is durable,
        so that whatever is written can be ended after a crash."""
        await self._in_turn(transactional_id, self._add(transactional_id, producer_id, epoch, frozenset(places)))

    async def _add(
        self, transactional_id: str, producer_id: int, epoch: int, places: frozenset[TopicPartition]
    ) -> None:
        entry, state = self._of(transactional_id)
        state.check(transactional_id, producer_id, epoch)
        if state.status is Status.ONGOING and places <= state.places and entry.sure is state:
            return
        await self._write(entry, state.begun(places, self._runtime.clock.now_ms(), 0))
        self._note(entry)

    async def add_group(self, transactional_id: str, producer_id: int, epoch: int, group_id: str) -> None:
        """AddOffsetsToTxn: the transaction is about to commit offsets of a group."""
        partition = await self._groups.home(group_id)
        await self.add(transactional_id, producer_id, epoch, [(OFFSETS, partition.index)])

    async def verify(self, transactional_id: str, producer_id: int, epoch: int) -> frozenset[TopicPartition]:
        """What the transaction of this producer has touched."""
        await self.load()
        _, state = self._of(transactional_id)
        state.check(transactional_id, producer_id, epoch)
        return state.places if state.status is Status.ONGOING else frozenset()

    def produce(
        self, transactional_id: str | None, offered: Sequence[TransactionalBatch], client_version: int
    ) -> list[Outcome]:
        """Append the batches of one request within a transaction; what became of each. The coordinator is loaded."""
        try:
            if transactional_id is None:
                raise InvalidTransactionState("a transactional batch came without a transactional id")
            entry, _ = self._of(transactional_id)
        except HeadraceError as error:
            return [error] * len(offered)
        outcomes = TransactionalAppend(self._store, entry, client_version, self._runtime.clock.now_ms()).append(offered)
        self._note(entry)
        return outcomes

    async def commit_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        group_id: str,
        commits: Sequence[Commit],
        client_version: int,
        committer: Committer,
    ) -> list[Problem]:
        """TxnOffsetCommit: offsets that count once the transaction commits."""
        await self.load()
        _, state = self._of(transactional_id)
        state.check(transactional_id, producer_id, epoch)
        await self._groups.home(group_id)

        def append(home: Partition, batch: bytearray, done: Done) -> Appended:
            [outcome] = self.produce(transactional_id, [TransactionalBatch(home, batch, done)], client_version)
            if isinstance(outcome, HeadraceError):
                raise outcome
            return outcome

        return await self._groups.commit_within(group_id, commits, committer, producer_id, epoch, append)

    # --- ending -------------------------------------------------------------------------------------------------------

    async def end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, client_version: int
    ) -> Granted:
        """EndTxn: answered when the decision is durable in every partition. Who asks again gets the same answer."""
        return await self._in_turn(
            transactional_id, self._end_asked(transactional_id, producer_id, epoch, commit, client_version)
        )

    async def _end_asked(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, client_version: int
    ) -> Granted:
        entry, state = self._of(transactional_id)
        wanted = Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT
        if client_version >= BROKER_ADDS and state.repeats_end(producer_id, epoch):
            if state.status is not wanted:
                raise state.refuse_end(transactional_id, commit)
            return Granted(state.producer_id, state.epoch)
        state.check(transactional_id, producer_id, epoch)
        now = self._runtime.clock.now_ms()
        if client_version < BROKER_ADDS:
            if state.status is Status.ONGOING:
                await self._end(entry, state, commit, epoch, state.ended(commit, producer_id, epoch, now, 0))
            elif state.status is not wanted:
                raise state.refuse_end(transactional_id, commit)
            return Granted(producer_id, epoch)
        if state.status is not Status.ONGOING and commit:
            raise state.refuse_end(transactional_id, commit)
        # An abort of nothing is allowed: the client does not know whether its first batch has arrived.
        granted = await self._next(state)
        if entry.now is not state:
            # A batch has brought a partition in meanwhile, which needs its marker too.
            return await self._end_asked(transactional_id, producer_id, epoch, commit, client_version)
        after = state.ended(commit, granted.producer_id, granted.epoch, now, client_version)
        await self._end(entry, state, commit, epoch + 1, after)
        return granted

    async def _end(self, entry: Entry, state: Transaction, commit: bool, marker_epoch: int, after: Transaction) -> None:
        """Write the markers and the state after them, in one append."""
        entry.busy = True
        try:
            partitions = await self._partitions(state.places)
            kind = COMMIT if commit else ABORT
            now, own_epoch = self._runtime.clock.now_ms(), entry.partition.epoch
            writes = [
                Write(partition, control(kind, own_epoch, state.producer_id, marker_epoch, now))
                for partition in partitions
            ]
            await self._write(entry, after, writes)
        finally:
            entry.busy = False
        self._open.pop(entry.id, None)
        if state.status is Status.ONGOING:
            self.committed += commit
            self.aborted += not commit
        offsets = [partition.index for partition in partitions if partition.topic.name == OFFSETS]
        self._groups.end_transaction(state.producer_id, commit, offsets)

    async def _partitions(self, places: Iterable[TopicPartition]) -> list[Partition]:
        """The partitions that a transaction has touched, loaded; without those that are gone. Raises PartitionOffline:
        what is open there would stay so for ever, or end as its producer's next transaction does."""
        found = []
        for name, index in sorted(places):
            topic = self._log.topics.get(name)
            if topic is None or index >= len(topic.partitions):
                continue
            partition = topic.partitions[index]
            if name == OFFSETS:
                await self._groups.warm(index)
            await partition.load()
            found.append(partition)
        # A topic may have gone while another was loaded, or a disk.
        found = [each for each in found if not each.topic.deleted]
        for each in found:
            if each.offline:
                raise PartitionOffline(each.offline)
        return found

    async def write_marker(
        self, producer_id: int, epoch: int, commit: bool, coordinator_epoch: int, place: TopicPartition
    ) -> None:
        """WriteTxnMarkers, for one partition: end what a producer has open there, whatever its coordinator thinks. An
        administrator's way out of a transaction that is never ended."""
        for partition in await self._partitions([place]):
            now = self._runtime.clock.now_ms()
            marker = control(COMMIT if commit else ABORT, coordinator_epoch, producer_id, epoch, now)
            await submit(self._log, [Write(partition, marker)])
            if partition.topic.name == OFFSETS:
                self._groups.end_transaction(producer_id, commit, [partition.index])

    # --- timeouts -----------------------------------------------------------------------------------------------------

    def _note(self, entry: Entry) -> None:
        """Remember an open transaction, so that it can time out."""
        if entry.now is not None and entry.now.status is Status.ONGOING:
            self._open[entry.id] = entry
            if not self._timeouts.pending:
                self._timeouts.set(TIMEOUT_CHECK_SECONDS)

    def _look_for_timeouts(self) -> None:
        now = self._runtime.clock.now_ms()
        for entry in list(self._open.values()):
            state = entry.now
            if state is None or state.status is not Status.ONGOING:
                del self._open[entry.id]
            elif now - state.started_ms >= state.timeout_ms and not entry.busy:
                self._spawn(self._time_out(entry.id, state))
        if self._open:
            self._timeouts.set(TIMEOUT_CHECK_SECONDS)

    async def _time_out(self, transactional_id: str, seen: Transaction) -> None:
        try:
            await self._in_turn(transactional_id, self._abort_late(transactional_id, seen))
        except (HeadraceError, OSError) as error:
            # It is tried every second, for as long as a partition may be offline.
            times = self._unended.count(asyncio.get_running_loop().time())
            if times:
                logger.warning(
                    "could not abort a transaction that took too long; trying again every second",
                    id=transactional_id,
                    error=str(error),
                    times=times,
                )

    async def _abort_late(self, transactional_id: str, seen: Transaction) -> None:
        """Abort, and fence the producer: it must not go on as if nothing had happened."""
        entry, state = self._of(transactional_id)
        if state.status is not Status.ONGOING or state.started_ms != seen.started_ms or state.epoch != seen.epoch:
            return
        granted = await self._next(state)
        if entry.now is not state:
            return await self._abort_late(transactional_id, seen)
        now = self._runtime.clock.now_ms()
        after = state.ended(False, granted.producer_id, granted.epoch, now, state.client_version)
        await self._end(entry, state, False, state.epoch + 1, after)
        self.timed_out += 1
        logger.info("a transaction took too long and was aborted", id=transactional_id, timeout_ms=state.timeout_ms)

    # --- administration -----------------------------------------------------------------------------------------------

    async def describe(self, transactional_id: str) -> Transaction:
        """DescribeTransactions, one of them. Raises UnknownTransactionalId or PartitionOffline."""
        await self.load()
        entry = self._store.find(transactional_id)
        if entry is None or entry.now is None:
            raise UnknownTransactionalId(f"there is no transactional id {transactional_id!r}")
        return entry.now

    async def abort(self, transactional_id: str) -> None:
        """An administrator's end for a transaction that is open: it is aborted, and its producer fenced. Raises
        UnknownTransactionalId or PartitionOffline."""
        seen = await self.describe(transactional_id)
        if seen.status is Status.ONGOING:
            await self._in_turn(transactional_id, self._abort_late(transactional_id, seen))

    async def list(self) -> list[tuple[str, Transaction]]:
        """ListTransactions: all of them."""
        await self.load()
        return [(entry.id, entry.now) for entry in self._store.entries.values() if entry.now is not None]

    @property
    def open(self) -> int:
        """Transactions that are open."""
        return sum(entry.now is not None and entry.now.status is Status.ONGOING for entry in self._open.values())

    # --- finding and writing ------------------------------------------------------------------------------------------

    def _of(self, transactional_id: str) -> tuple[Entry, Transaction]:
        entry = self._store.find(transactional_id)
        if entry is None or entry.now is None:
            # Kafka's answer to an id that it does not know, because it expired or was never begun with.
            raise ProducerIdMismatch(
                f"the transactional id {transactional_id!r} is not known: begin anew with InitProducerId"
            )
        return entry, entry.now

    async def _write(self, entry: Entry, state: Transaction | None, writes: Sequence[Write] = ()) -> None:
        waiter, done = durable(None)
        self._store.append(entry, state, writes, done)
        await waiter
