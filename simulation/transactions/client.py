"""Clients of a simulated broker that write in transactions, in both generations of the protocol.

What a client must not forget when the broker dies is plain data here (`ClientState`): its ids, what its transaction
has still to do, and what of that was sent and not answered. It does that again, over a new connection or to the next
life of the broker, as the Java client would. Some copy: they read a partition as committed, write an effect for each
record, and commit how far they have read in the same transaction.

Clients die in the middle of things, stall until their time is over, and go on while a second client has taken their
transactional id. A client that gets a fencing error must have been fenced: by another, or by its own slowness.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client import wire
from headrace.client.connection import Connection
from headrace.client.errors import ClientError
from headrace.client.messages import request
from headrace.format import records
from headrace.format.batch import TRANSACTIONAL
from simulation.history import Place, require
from simulation.kafka.client import IN_FLIGHT, KafkaClient
from simulation.transactions.history import Attempt, Owner, Progress, Written

if TYPE_CHECKING:
    from simulation.transactions.campaign import TransactionLife

FENCED = (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping)
# The first generation adds partitions by itself; the second leaves that to the broker, and each end gives a new epoch.
FIRST_PRODUCE, SECOND_PRODUCE = (8, 9, 11), (12, 13)


class CopyTask(NamedTuple):
    """What a copying client reads, and for which group."""

    group: str
    place: Place


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one transaction for one partition; encoded when they first leave."""

    place: Place
    values: list[tuple[str, tuple[str, str] | None]]
    """And of which record each is the effect."""
    written: list[Written] = field(default_factory=list)
    encoded: bytes = b""

    def split(self, rng: random.Random) -> Batch | None:
        """Leave some values to another batch."""
        if len(self.values) < 2 or rng.random() < 0.3:
            return None
        kept = rng.randint(1, len(self.values) - 1)
        rest = Batch(self.place, self.values[kept:])
        del self.values[kept:]
        return rest


@dataclass(slots=True, eq=False)
class ClientState:
    """What a client knows."""

    name: str
    transactional_id: str
    second: bool
    """Of the second generation."""
    timeout_ms: int
    places: list[Place]
    copy: CopyTask | None = None
    owner: Owner | None = None
    identity: tuple[int, int] = (-1, -1)
    sequences: dict[Place, int] = field(default_factory=dict)
    number: int = 0
    transactions: int = 0
    position: int | None = None
    renewing: bool = False
    """It asks for its next epoch, as after an error."""
    dead: bool = False

    # The transaction of now.
    attempt: Attempt | None = None
    to_send: deque[list[Batch]] = field(default_factory=deque)
    progress: Progress | None = None
    commits: bool = True
    added: set[Place | str] = field(default_factory=set)
    """Of the first generation: what was added for sure."""
    begun_ms: int | None = None
    """When the broker could first have learnt of the transaction."""
    unsure_ms: int | None = None
    """When a request of this client was first left without an answer."""
    unsure_end: bool = False
    """The end was asked for and not answered."""


class RequestRefused(Exception):
    """The broker refused, and not for a moment."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class RetryLater(Exception):
    """The broker asked for a retry."""


class TransactionalClient:
    """One client in one life."""

    def __init__(self, life: TransactionLife, client: ClientState) -> None:
        self._life = life
        self._client = client
        self._history = life.known.history
        self._rng = life.stream(f"client {client.name}")
        self._kafka = KafkaClient(life, client.name)
        self._codec = life.codec(self._rng, SECOND_PRODUCE if client.second else FIRST_PRODUCE)

    async def run(self, steps: int) -> None:
        """Do so many steps, and finish in the last life; the broker's next life goes on where this one ends."""
        client, rng, life = self._client, self._rng, self._life
        while not client.dead and (steps > 0 or (life.last and client.attempt is not None)):
            steps -= 1
            connection = await self._kafka.connection()
            try:
                await self._step(connection, steps > 0)
            except ClientError as error:
                life.on_cut(client.name, error)
                self._mark_unsure()
                connection.close()
            except RetryLater:
                self._mark_unsure()
                await asyncio.sleep(rng.expovariate(1 / 0.02))
            except RequestRefused as refused:
                self._handle_refusal(refused.code)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.expovariate(1 / 0.004))
        self._kafka.close()

    async def _step(self, connection: Connection, more: bool) -> None:
        client = self._client
        if client.owner is None:
            await self._claim_id(connection)
        elif client.renewing:
            await self._claim_id(connection, client.identity)
        elif client.attempt is None:
            if more:
                await self._begin(connection)
        elif client.to_send:
            await self._produce(connection)
        elif client.progress is not None:
            await self._commit_offsets(connection, client.progress)
        else:
            await self._end(connection)

    # --- what went wrong ---

    def _mark_unsure(self) -> None:
        if self._client.unsure_ms is None:
            self._client.unsure_ms = self._life.now_ms()

    def _check(self, what: str, code: ErrorCode) -> None:
        """Go on where a request was taken."""
        if not code:
            return
        self._life.world.note(f"{self._client.name} {what}: {code.name}")
        if self._life.may_retry(code):
            raise RetryLater
        raise RequestRefused(code)

    def _handle_refusal(self, code: ErrorCode) -> None:
        """A client that is fenced stops, and another one may take over."""
        client, life = self._client, self._life
        # One of the second generation that was too slow to commit learns that there is nothing to commit any more.
        late = client.second and client.commits and code is ErrorCode.invalid_txn_state and not client.to_send
        require(
            (code in FENCED or late) and client.owner is not None,
            f"{client.name}: refused with {code.name} in {client.attempt and client.attempt.name}",
        )
        assert client.owner is not None
        since = min((each for each in (client.begun_ms, client.unsure_ms) if each is not None), default=life.now_ms())
        require(
            (code in FENCED and self._history.has_rivals(client.owner)) or life.now_ms() - since >= client.timeout_ms,
            f"{client.name}: fenced with {code.name}, and no other client has taken {client.transactional_id}",
        )
        if client.attempt is not None and not client.unsure_end:
            self._history.abort(client.attempt)
        self._die()

    def _die(self) -> None:
        self._client.dead = True
        self._life.world.note(f"{self._client.name} is over")
        if self._rng.random() < 0.7:
            self._life.follow(self._client, self._rng)

    # --- taking the transactional id ---

    async def _claim_id(self, connection: Connection, known: tuple[int, int] = (-1, -1)) -> None:
        client = self._client
        owner = self._history.claim(client.transactional_id, client.name)
        reply = await connection.call(
            request(
                "init_producer_id",
                self._rng.choice((3, 4, 5)),
                transactional_id=client.transactional_id,
                transaction_timeout=client.timeout_ms,
                producer_id=known[0],
                producer_epoch=known[1],
            )
        )
        self._check("init", reply.error_code)
        self._history.on_claimed(owner)
        client.owner, client.renewing = owner, False
        client.begun_ms = client.unsure_ms = client.position = None
        self._identify(int(reply.producer_id), int(reply.producer_epoch))

    def _identify(self, producer_id: int, epoch: int) -> None:
        if self._client.identity != (producer_id, epoch):
            self._client.identity = producer_id, epoch
            self._client.sequences.clear()
        self._life.world.note(f"{self._client.name} is {producer_id} {epoch}")

    def _producer_fields(self) -> dict[str, Any]:
        producer_id, epoch = self._client.identity
        return {
            "transactional_id": self._client.transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

    # --- a transaction ---

    async def _begin(self, connection: Connection) -> None:
        """Decide what the next transaction does. Nothing is sent yet."""
        client, rng, life = self._client, self._rng, self._life
        draw = rng.random()
        if draw < 0.04:
            client.dead = True
            life.follow(client, rng)
            return
        if draw < 0.1:
            life.follow(client, rng)
        elif draw < 0.14:
            client.renewing = True
            return
        assert client.owner is not None
        causes: list[str | None] = [None] * rng.choice((1, 2, 4))
        progress = None
        if client.copy is not None:
            group, source = client.copy
            if client.position is None:
                client.position = max(0, await life.committed_offset(connection, group, source, True))
            found, following, _ = await life.fetch_one(connection, self._codec, source, client.position, True)
            if following == client.position:
                return
            causes = [value for _, value in found]
            progress = Progress(group, source, client.position, following)
        client.transactions += 1
        client.attempt = self._history.begin(f"{client.name}.{client.transactions}", client.owner)
        client.progress = progress
        client.commits = rng.random() < 0.75
        client.added.clear()
        client.begun_ms, client.unsure_end = None, False
        if progress is not None:
            client.attempt.progress.append(progress)
        batches: dict[Place, Batch] = {}
        for cause in causes:
            client.number += 1
            place = rng.choice(client.places)
            batch = batches.setdefault(place, Batch(place, []))
            given = None if cause is None or client.copy is None else (client.copy.group, cause)
            batch.values.append((f"{client.attempt.name}/{client.number}", given))
        waiting = list(batches.values())
        while waiting:
            count = rng.randint(1, len(waiting))
            client.to_send.append(waiting[:count])
            # Several batches for one partition, in requests that may be under way together.
            waiting = [rest for batch in waiting[:count] if (rest := batch.split(rng))] + waiting[count:]
        if not client.to_send and progress is None:
            client.attempt = None

    def _mark_begun(self) -> None:
        """The broker may learn of the transaction by the next request."""
        if self._client.begun_ms is None:
            self._client.begun_ms = self._life.now_ms()

    async def _stall(self) -> None:
        """Now and then wait, until the broker takes the transaction for dead; or die."""
        client, rng, life = self._client, self._rng, self._life
        draw = rng.random()
        if draw < 0.03 and client.timeout_ms < 5_000:
            await asyncio.sleep(client.timeout_ms / 1000 * rng.choice((0.9, 1.0, 1.5, 4)))
        elif draw < 0.05:
            life.world.note(f"{client.name} dies")
            client.dead = True
            if rng.random() < 0.5:
                life.follow(client, rng)

    async def _ask_and_die(self, asked: Coroutine[Any, Any, Any]) -> None:
        """The request has left, or a part of it, and no client gets the answer."""
        self._client.dead = True
        self._life.world.note(f"{self._client.name} dies at the end")
        with contextlib.suppress(asyncio.TimeoutError, ClientError):
            await asyncio.wait_for(asked, self._rng.expovariate(1 / 0.0005))
        self._life.follow(self._client, self._rng)

    async def _add(self, connection: Connection, places: Iterable[Place]) -> None:
        client = self._client
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(places):
            if (topic, index) not in client.added:
                topics.setdefault(topic, []).append(index)
        if not topics:
            return
        self._mark_begun()
        named = [{"name": name, "partitions": indexes} for name, indexes in topics.items()]
        who = {f"v3_and_below_{name}": value for name, value in self._producer_fields().items()}
        reply = await connection.call(request("add_partitions_to_txn", 3, v3_and_below_topics=named, **who))
        for topic in reply.results_by_topic_v3_and_below:
            for each in topic.results_by_partition:
                self._check(f"add {topic.name}-{each.partition_index}", each.partition_error_code)
                client.added.add((str(topic.name), int(each.partition_index)))

    async def _produce(self, connection: Connection) -> None:
        """Send some of what is to be sent, in requests that are under way together."""
        client = self._client
        await self._stall()
        if client.dead:
            return
        flying = [list(each) for each in itertools.islice(client.to_send, self._rng.choice((1, 1, 2, IN_FLIGHT)))]
        if not client.second:
            await self._add(connection, [batch.place for batches in flying for batch in batches])
        self._mark_begun()
        answers = [self._send(connection, batches) for batches in flying]
        problems: list[tuple[Place, ErrorCode]] = []
        try:
            for batches, answer in zip(flying, answers, strict=True):
                self._land(batches, await answer, problems)
        finally:
            for answer in answers:
                # Looked at, or the loop would call it forgotten.
                if answer.done() and not answer.cancelled():
                    answer.exception()
            while client.to_send and not client.to_send[0]:
                client.to_send.popleft()
        # A refusal before a request to come again: that would hide it.
        for place, code in sorted(problems, key=lambda each: each[1] not in FENCED):
            self._check(f"produce to {place}", code)

    def _send(self, connection: Connection, batches: list[Batch]) -> asyncio.Future[list[wire.Produced]]:
        for batch in batches:
            if not batch.encoded:
                self._encode(batch)
        written = [(batch.place, batch.encoded) for batch in batches]
        return self._codec.produce(connection, written, transactional_id=self._client.transactional_id)

    def _land(self, batches: list[Batch], answer: list[wire.Produced], problems: list[tuple[Place, ErrorCode]]) -> None:
        client, life = self._client, self._life
        produced = {(each.topic, each.partition): each for each in answer}
        for batch in batches:
            each = produced.get(batch.place)
            require(each is not None, f"the answer does not name {batch.place}")
            assert each is not None
            if not each.error:
                life.world.note(f"{client.name} wrote {batch.written[0].value} at {batch.place} {each.base_offset}")
                for offset, written in enumerate(batch.written, each.base_offset):
                    self._history.acknowledge(written, offset)
                next(waiting for waiting in client.to_send if batch in waiting).remove(batch)
            elif each.error != ErrorCode.out_of_order_sequence_number or all(at != batch.place for at, _ in problems):
                problems.append((batch.place, ErrorCode(each.error)))
            else:
                # Its forerunner was not taken.
                life.world.note(f"{client.name} follows at {batch.place}")

    def _encode(self, batch: Batch) -> None:
        client, rng = self._client, self._rng
        assert client.attempt is not None
        padding = "." * rng.choice((0, 0, 10, 200, 3_000))
        for value, cause in batch.values:
            number = len(client.attempt.written) + client.number * 1_000
            batch.written.append(self._history.send(client.attempt, batch.place, value, number, cause))
        now = self._life.now_ms()
        first = client.sequences.get(batch.place, 0)
        client.sequences[batch.place] = first + len(batch.values)
        # A key of its own for each: compaction takes none of them.
        batch.encoded = bytes(
            records.build(
                [(now, value.encode(), f"{value} {padding}".encode(), []) for value, _ in batch.values],
                compression=rng.choice((0, 0, 4)),
                producer_id=client.identity[0],
                producer_epoch=client.identity[1],
                base_sequence=first,
                attributes=TRANSACTIONAL,
            )
        )

    async def _commit_offsets(self, connection: Connection, progress: Progress) -> None:
        client = self._client
        await self._stall()
        if client.dead:
            return
        self._mark_begun()
        if not client.second and progress.group not in client.added:
            reply = await connection.call(
                request(
                    "add_offsets_to_txn", self._rng.choice((3, 4)), group_id=progress.group, **self._producer_fields()
                )
            )
            self._check("add offsets", reply.error_code)
            client.added.add(progress.group)
        topic, index = progress.place
        partition = {"partition_index": index, "committed_offset": progress.next, "committed_metadata": ""}
        reply = await connection.call(
            request(
                "txn_offset_commit",
                5 if client.second else self._rng.choice((3, 4)),
                group_id=progress.group,
                generation_id=-1,
                member_id="",
                topics=[{"name": topic, "partitions": [partition]}],
                **self._producer_fields(),
            )
        )
        self._check("offsets", reply.topics[0].partitions[0].error_code)
        client.progress = None

    async def _end(self, connection: Connection) -> None:
        client, history, life = self._client, self._history, self._life
        assert client.attempt is not None
        if not client.unsure_end:
            await self._stall()
            if client.dead:
                return
        if client.commits:
            history.start_commit(client.attempt)
        before, client.unsure_end = client.unsure_end, True
        version = 5 if client.second else self._rng.choice((3, 4))
        asked = connection.call(request("end_txn", version, committed=client.commits, **self._producer_fields()))
        if self._rng.random() < 0.04 and not life.last:
            await self._ask_and_die(asked)
            return
        reply = await asked
        if reply.error_code in (*FENCED, ErrorCode.invalid_txn_state):
            # A clear answer to the only question that was asked.
            client.unsure_end = before
        self._check(f"end {client.attempt.name}", reply.error_code)
        life.world.note(f"{client.name} {'committed' if client.commits else 'aborted'} {client.attempt.name}")
        if client.commits:
            history.commit(client.attempt)
        else:
            history.abort(client.attempt)
        if client.copy is not None:
            done = client.attempt.progress[0]
            client.position = done.next if client.commits else None
        client.attempt, client.begun_ms = None, None
        if client.second:
            self._identify(int(reply.producer_id), int(reply.producer_epoch))
