"""Producers of a simulated broker: they speak Kafka's wire protocol through the simulated network, and outlive it.

What a producer must not forget when the broker dies is plain data here (`ProducerState`): its id, its sequence
numbers, and the batches that were never answered. An idempotent producer sends those again, over a new connection or
to the next life of the broker, as the Java client would; the others never send a record twice. Both pipeline, and send
to several partitions in one request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.client import wire
from headrace.client.connection import Connection
from headrace.client.errors import ClientError
from headrace.format import records
from simulation.broker.history import PartitionHistory, Sent, State
from simulation.history import Place, Violation, require
from simulation.kafka.client import IN_FLIGHT, KafkaClient

if TYPE_CHECKING:
    from simulation.broker.campaign import BrokerLife

SEQUENCE_LOST = (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id)


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one producer for one partition."""

    records: list[Sent]
    encoded: bytes


@dataclass(slots=True, eq=False)
class Target:
    """A producer's way to one partition."""

    place: Place
    history: PartitionHistory
    sequence: int = 0
    pending: list[Batch] = field(default_factory=list)
    """Idempotent batches that are not answered yet, in order."""
    unanswered: list[Sent] = field(default_factory=list)
    """Records sent with acks=0 over the connection of now."""
    losses: int = 0
    """Of the partition, when the producer got its id."""


@dataclass(slots=True, eq=False)
class ProducerState:
    """What a producer knows."""

    name: str
    idempotent: bool
    targets: list[Target]
    identity: tuple[int, int] | None = None
    number: int = 0
    connections: int = 0


class Producer:
    """One producer in one life."""

    def __init__(self, life: BrokerLife, producer: ProducerState, steps: int) -> None:
        self._life = life
        self._producer = producer
        self._steps = steps
        self._rng = life.stream(f"producer {producer.name}")
        self._client = KafkaClient(life, producer.name)
        self._codec = life.codec(self._rng)
        self._flights: deque[tuple[asyncio.Future[list[wire.Produced]], list[tuple[Target, Batch]]]] = deque()

    async def run(self) -> None:
        producer = self._producer
        while self._steps > 0 or any(target.pending for target in producer.targets):
            if producer.idempotent and producer.identity is None:
                await self._take_identity()
            connection = await self._client.connection()
            producer.connections += 1
            for target in producer.targets:
                target.unanswered.clear()
            try:
                await self._talk(connection)
            except ClientError as error:
                self._life.on_cut(producer.name, error)
                for future, _ in self._flights:
                    # Looked at, or the loop would call it forgotten.
                    if future.done() and not future.cancelled():
                        future.exception()
                self._flights.clear()
                connection.close()
        self._client.close()

    async def _take_identity(self) -> None:
        reply = await self._client.call("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)
        require(not reply.error_code, f"no producer id: {reply.error_code!r}")
        self._producer.identity = int(reply.producer_id), int(reply.producer_epoch)
        self._life.register_producer(self._producer.identity)
        for target in self._producer.targets:
            target.sequence, target.losses = 0, target.history.losses

    async def _talk(self, connection: Connection) -> None:
        """Send over one connection until there is nothing left to send, or it breaks."""
        rng, producer = self._rng, self._producer
        window = rng.choice((1, 2, IN_FLIGHT))
        again = {target: deque(target.pending) for target in producer.targets}
        while self._steps > 0 or self._flights or any(again.values()):
            sending: list[tuple[Target, Batch]] = []
            acks = -1 if producer.idempotent else rng.choice((0, 1, 1))
            if producer.identity is not None or not producer.idempotent:
                for target in rng.sample(producer.targets, rng.randint(1, len(producer.targets))):
                    if again[target]:
                        sending.append((target, again[target].popleft()))
                    elif self._steps > 0 and len(target.pending) < IN_FLIGHT:
                        sending.append((target, self._batch(target)))
                        self._steps -= 1
            elif not self._flights:
                return
            if sending:
                await connection.wait_drained()
                self._send(connection, sending, acks)
            while self._flights and (len(self._flights) >= window or not sending or rng.random() < 0.2):
                await self._land()
            if not sending or rng.random() < 0.5:
                await asyncio.sleep(rng.expovariate(1 / 0.004))

    def _batch(self, target: Target) -> Batch:
        producer, rng = self._producer, self._rng
        source = producer.name if producer.idempotent else f"{producer.name}/{producer.connections}"
        # Most are small; some are large enough to go straight to their segment, or not to fit in one piece of network.
        padding = "." * rng.choice((0, 0, 0, 10, 200, 3_000))
        made = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            producer.number += 1
            made.append(Sent(f"{producer.name}-{producer.number}", source, producer.number))
            target.history.send(made[-1])
        producer_id, epoch = producer.identity or (-1, -1)
        now = self._life.now_ms()
        encoded = records.build(
            [(now, None, f"{each.value} {padding}".encode(), []) for each in made],
            compression=rng.choice((0, 0, 4)),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=target.sequence if producer.idempotent else -1,
        )
        batch = Batch(made, bytes(encoded))
        if producer.idempotent:
            target.sequence += len(made)
            target.pending.append(batch)
        return batch

    def _send(self, connection: Connection, sending: list[tuple[Target, Batch]], acks: int) -> None:
        batches = [(target.place, batch.encoded) for target, batch in sending]
        if acks == 0:
            self._codec.produce_unanswered(connection, batches)
        else:
            self._flights.append((self._codec.produce(connection, batches, acks), sending))
        if not self._producer.idempotent:
            # In line with those of acks=0: the answer speaks for what went before it, too.
            for target, batch in sending:
                target.unanswered += batch.records

    async def _land(self) -> None:
        answer, sending = self._flights[0]
        produced = {(each.topic, each.partition): each for each in await answer}
        self._flights.popleft()
        for target, batch in sending:
            each = produced.get(target.place)
            require(each is not None, f"the answer does not name {target.history.name}")
            assert each is not None
            if each.error:
                self._on_failed(target, batch, ErrorCode(each.error))
            else:
                self._on_acknowledged(target, batch, each.base_offset)

    def _on_acknowledged(self, target: Target, batch: Batch, base: int) -> None:
        self._life.world.note(f"acknowledged {target.history.name} {base} {batch.records[0].value}")
        for offset, record in enumerate(batch.records, base):
            target.history.acknowledge(record, offset)
        if batch in target.pending:
            target.pending.remove(batch)
        elif not self._producer.idempotent and batch.records[-1] in target.unanswered:
            behind = target.unanswered.index(batch.records[-1])
            for record in target.unanswered[:behind]:
                target.history.settle(record)
            del target.unanswered[: behind + 1]

    def _on_failed(self, target: Target, batch: Batch, code: ErrorCode) -> None:
        self._life.world.note(f"refused {target.history.name} {code.name} {batch.records[0].value}")
        producer = self._producer
        lost = target.history.losses > target.losses or producer.identity is None
        if not (producer.idempotent and code in SEQUENCE_LOST and lost):
            raise Violation(f"{target.history.name}: {batch.records[0].value} was refused with {code.name}")
        # The broker lost what came before, as it may: the producer starts anew, and what was open stays so.
        producer.identity = None
        for each in producer.targets:
            each.pending.clear()
        for record in batch.records:
            if record.state is State.OPEN and record.value not in target.history.offsets:
                target.history.refuse(record)
