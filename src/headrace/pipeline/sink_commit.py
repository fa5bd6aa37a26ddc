"""How the driver makes the transactions of many tasks one: all of a batch are committed, or none.

One idea: a note decides. Tasks leave their transactions open. The driver writes down durably which they are, and from
then on they are to be committed, by this driver or by the next one; before, they are to be aborted. The note
is a record of the compacted topic `headrace-sink`, under the application's name as its key. It is written under a
transactional id of the driver's own, so that a driver which another one has replaced can decide nothing any more.

A batch runs again if the driver dies before Spark knows of its commit. The note knows, and what the second run has
written is aborted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from headrace.client import EARLIEST, LATEST, Client
from headrace.client.errors import ClientError, ProducerFenced, TransactionAbortable, UnsupportedApi
from headrace.client.transactional import TransactionalProducer
from headrace.errors import HeadraceError

log = structlog.get_logger("headrace.pipeline")

NOTES = "headrace-sink"
NOTES_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "segment.ms": "86400000"}
PLACE = (NOTES, 0)
# The driver's own transactions are one small record long. While one is open, other applications wait to read theirs.
DRIVER_TIMEOUT = 10.0
AT_ONCE = 16


class SinkError(HeadraceError):
    """A batch cannot be committed; nothing of it was."""


class SinkReplaced(SinkError):
    """Another driver writes under the same application id."""


class RowsLost(SinkError):
    """Some transactions of a batch were committed, and others had run into their timeout."""


@dataclass(frozen=True)
class OpenTransaction:
    """A task's transaction, flushed and not ended."""

    transactional_id: str
    producer_id: int
    epoch: int
    rows: int


@dataclass(frozen=True)
class Note:
    """What is decided: batches up to this one are written, as soon as the listed transactions are committed."""

    query: str
    batch: int
    transactions: tuple[OpenTransaction, ...] = ()
    done: bool = True

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> Note:
        fields: dict[str, Any] = json.loads(text)
        return cls(
            fields["query"],
            fields["batch"],
            tuple(OpenTransaction(**each) for each in fields["transactions"]),
            fields["done"],
        )


@dataclass(frozen=True)
class DriverState:
    """What a driver found when it began a batch: who it is, and what was decided last."""

    producer_id: int
    epoch: int
    note: Note | None


class CommitCoordinator:
    """The decisions about one application's batches."""

    def __init__(self, client: Client, application: str, *, fail_on_data_loss: bool = True) -> None:
        self._client = client
        self._application = application
        self._fail_on_data_loss = fail_on_data_loss

    # --- what a driver does ---

    async def prepare(self) -> DriverState:
        """Before the tasks of a batch: replace other drivers, and finish what the last one had decided.

        It cannot wait: tasks take the transactional ids that the last batch had, and that aborts what is open.
        """
        if not any(topic.name == NOTES for topic in await self._client.cluster.topics()):
            await self._client.admin.ensure_topic(NOTES, 1, NOTES_CONFIG)
        driver = self._driver()
        await driver.init()
        note = await self._read_last()
        if note is not None and not note.done:
            note = await self._finish(driver, note)
        await sweep(self._client, self._application)
        return DriverState(*driver.identity, note)

    async def commit(self, state: DriverState, query: str, batch: int, transactions: Sequence[OpenTransaction]) -> None:
        """Decide that a batch is written, and commit its transactions."""
        if not transactions:
            return
        driver = await self._resume(state)
        last = state.note
        try:
            if last is not None and self._is_written(last, query, batch):
                await abort(self._client, transactions)
                return
            await check_open(self._client, transactions)
        except SinkError:
            await abort(self._client, transactions)
            raise
        note = Note(query, batch, tuple(transactions), done=False)
        await self._write(driver, note)
        await self._finish(driver, note)
        await sweep(self._client, self._application)

    async def abort(self, state: DriverState, transactions: Sequence[OpenTransaction]) -> None:
        """Undo a batch, unless it was decided already: Spark asks for this, too, when a commit has failed halfway."""
        try:
            await self._resume(state)
        except SinkReplaced as error:
            # By this batch's own commit, perhaps. The next driver reads what it decided, and ends what is open.
            log.warning("the batch is left to the next start", application=self._application, reason=str(error))
            return
        last = await self._read_last()
        if last is not None and not last.done and set(transactions) & set(last.transactions):
            log.warning("the batch is decided: the next start commits it", application=self._application)
            return
        await abort(self._client, transactions)
        await sweep(self._client, self._application)

    # --- parts of it ---

    def _driver(self) -> TransactionalProducer:
        return self._client.transactional(f"{self._application}-driver", transaction_timeout=DRIVER_TIMEOUT)

    async def _resume(self, state: DriverState) -> TransactionalProducer:
        """The driver that prepared the batch, if no other has come since then."""
        driver = self._driver()
        try:
            await driver.init(state.producer_id, state.epoch)
        except ProducerFenced as error:
            raise SinkReplaced(
                f"another driver has begun to write as {self._application}: one application id is for one query"
            ) from error
        return driver

    def _is_written(self, last: Note, query: str, batch: int) -> bool:
        other = bool(query and last.query and query != last.query)
        if batch < last.batch or (batch == last.batch and other):
            raise SinkError(
                f"batch {batch} of application {self._application} is older than batch {last.batch}, which is written: "
                "a new checkpoint begins to count anew, and needs an applicationId of its own"
            )
        return batch == last.batch

    async def _finish(self, driver: TransactionalProducer, note: Note) -> Note:
        """Commit what a note lists, and note that this is done."""
        lost = [each for each in await commit(self._client, note.transactions) if each is not None]
        if lost and len(lost) == len(note.transactions):
            # Nothing of it is to be seen: the batch may run again.
            log.warning("all transactions of the batch had timed out", application=self._application, batch=note.batch)
            settled = Note(note.query, note.batch - 1)
        elif lost and self._fail_on_data_loss:
            raise RowsLost(self._describe_loss(note, lost))
        else:
            if lost:
                log.error("rows are lost", problem=self._describe_loss(note, lost))
            settled = replace(note, transactions=(), done=True)
        await self._write(driver, settled)
        return settled

    def _describe_loss(self, note: Note, lost: Sequence[OpenTransaction]) -> str:
        names = ", ".join(f"{each.transactional_id} ({each.rows} rows)" for each in lost)
        return (
            f"batch {note.batch} of application {self._application} is written in part: {len(lost)} of its "
            f"{len(note.transactions)} transactions were aborted by their timeout before the driver came back, and "
            f"{sum(each.rows for each in lost)} rows with them: {names}. failOnDataLoss=false goes on without these "
            "rows; another applicationId writes the whole batch again. A longer transactionTimeout prevents it"
        )

    async def _write(self, driver: TransactionalProducer, note: Note) -> None:
        async with driver.transaction():
            await driver.send(NOTES, note.encode(), key=self._application.encode(), partition=0)

    async def _read_last(self) -> Note | None:
        """The application's last note. The end is that of all records, and what is open before it is waited for."""
        end = (await self._client.admin.list_offsets({PLACE: LATEST}))[PLACE].offset
        found: Note | None = None
        async with self._client.consumer(committed=True, max_wait=0.1) as consumer:
            await consumer.assign({PLACE: EARLIEST})
            async with asyncio.timeout(DRIVER_TIMEOUT + self._client.cluster.timeout):
                async for record in consumer.records({PLACE: end}):
                    if record.key == self._application.encode() and record.value is not None:
                        found = Note.decode(record.value)
        return found


async def check_open(client: Client, transactions: Sequence[OpenTransaction]) -> None:
    """Raise unless every one of them is open: as long as nothing is decided, the batch may simply run again."""

    async def look(each: OpenTransaction) -> None:
        try:
            found = await client.transactions.describe(each.transactional_id)
        except UnsupportedApi:
            return
        if (found.state, found.producer_id, found.epoch) != ("Ongoing", each.producer_id, each.epoch):
            raise SinkError(
                f"the transaction {each.transactional_id} was aborted before its batch was done (it is {found.state}): "
                "it ran into its timeout, or another query has this applicationId. Nothing of the batch is written; "
                "give a longer transactionTimeout, or smaller batches"
            )

    await _some_at_once(look, transactions)


async def commit(client: Client, transactions: Sequence[OpenTransaction]) -> list[OpenTransaction | None]:
    """Commit each; those that were aborted meanwhile are returned. To commit one again is fine."""

    async def end(each: OpenTransaction) -> OpenTransaction | None:
        producer = client.transactional(each.transactional_id)
        await producer.resume(each.producer_id, each.epoch)
        try:
            await producer.commit()
        except (ProducerFenced, TransactionAbortable):
            return each
        return None

    return await _some_at_once(end, transactions)


async def abort(client: Client, transactions: Sequence[OpenTransaction]) -> None:
    """Abort each that is open. One that cannot be aborted runs into its timeout, or is fenced by the next batch."""

    async def end(each: OpenTransaction) -> None:
        producer = client.transactional(each.transactional_id)
        try:
            await producer.resume(each.producer_id, each.epoch)
            await producer.abort()
        except ClientError as error:
            log.warning("a transaction was not aborted", transaction=each.transactional_id, error=str(error))

    await _some_at_once(end, transactions)


async def sweep(client: Client, application: str) -> None:
    """Abort what tasks have left open that the driver does not know of: killed ones, and the slower of two attempts.

    Nothing depends on it but readers, who wait before an open transaction.
    """
    ours = re.compile(re.escape(application) + r"-\d+-\d+")
    try:
        for each in await client.transactions.list_all(states=["Ongoing"]):
            if ours.fullmatch(each.transactional_id):
                await client.transactions.abort(each.transactional_id)
    except ClientError as error:
        log.warning("open transactions of tasks were not looked for", application=application, error=str(error))


async def _some_at_once(work: Any, each: Iterable[OpenTransaction]) -> list[Any]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(what: OpenTransaction) -> Any:
        async with turn:
            return await work(what)

    found = await asyncio.gather(*map(one, each), return_exceptions=True)
    for outcome in found:
        if isinstance(outcome, BaseException):
            raise outcome
    return found
