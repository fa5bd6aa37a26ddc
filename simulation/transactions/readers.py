"""Readers of a simulated broker with transactions: of committed records, of all records, and of where groups stand.

What is committed is sifted here as Kafka's Java client does it, from the list of aborted transactions and the markers
in the log, and not by the code of the client library, which may have the same mistake as the broker.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.client import wire
from headrace.client.connection import Connection
from headrace.client.errors import ClientError
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.format.markers import control_type
from simulation.broker.history import Record
from simulation.broker.producer import PATIENCE_S, KafkaClient
from simulation.kafka.codec import Codec
from simulation.kafka.reader import SessionReader
from simulation.transactions.history import Place

if TYPE_CHECKING:
    from simulation.transactions.campaign import TransactionLife


def sifted(fetched: wire.Fetched, offset: int, committed: bool) -> tuple[list[Record], int]:
    """The records of a reply from `offset` on, and the offset behind the last whole batch."""
    aborted = sorted(fetched.aborted, key=lambda each: each[1])
    skipped: set[int] = set()
    found: list[Record] = []
    following = offset
    for position, header in batches_in(fetched.records):
        while aborted and aborted[0][1] <= header.last_offset:
            skipped.add(aborted.pop(0)[0])
        following = max(following, header.last_offset + 1)
        batch = fetched.records[position : position + header.size]
        if header.is_control:
            if not control_type(batch)[0]:
                skipped.discard(header.producer_id)
            continue
        if committed and header.is_transactional and header.producer_id in skipped:
            continue
        for at, _, _, value, _ in records.parse(batch, 1 << 20):
            if at >= offset:
                found.append((at, (value or b"").decode().partition(" ")[0]))
    return found, following


class Reader(SessionReader["TransactionLife", Place]):
    """A reader of committed records, or of all of them."""

    def __init__(self, life: TransactionLife, name: str, positions: dict[Place, int], committed: bool) -> None:
        super().__init__(life, name, positions)
        self._committed = committed

    async def _fetch(
        self, connection: Connection, session: int, epoch: int, told: dict[Place, int]
    ) -> tuple[ErrorCode, int]:
        wanted = [
            wire.Wanted(*place, position, self._rng.choice((500, 1 << 20)))
            for place, position in self._positions.items()
            if told.get(place) != position
        ]
        history = self._life.account.history
        since = {place: history.view(place).stable for place in self._positions}
        wait, least = self._rng.choice((0, 5, 50, 500)), self._rng.choice((1, 1, 1_000))
        body, decode = self._dialect.fetch(wanted, wait, least, session, epoch, self._committed)
        asked = dict(self._positions)
        answer = connection.send(wire.FETCH, self._dialect.fetch_version, body, decode, PATIENCE_S)
        error, found, session = await answer
        if not error:
            told.update(asked)
            for fetched in found:
                place = fetched.topic, fetched.partition
                following = self._life.take(place, fetched, self._positions[place], since[place], self._committed)
                self._positions[place] = following
        return ErrorCode(error), session


class GroupOffsetReader:
    """Asks where groups stand, whether a transaction may change that or not."""

    def __init__(self, life: TransactionLife) -> None:
        self._life = life
        self._rng = life.stream("group onlooker")
        self._caller = KafkaClient(life, "group-onlooker")

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            connection = await self._caller.connection()
            copy = self._rng.choice(self._life.account.copies)
            try:
                await self._life.stands(connection, copy.group, copy.place, False)
            except ClientError as error:
                self._life.cut("group-onlooker", error)
            await asyncio.sleep(self._rng.expovariate(1 / 0.02))
        self._caller.close()


async def fetch_one(
    life: TransactionLife, connection: Connection, codec: Codec, place: Place, position: int, committed: bool
) -> tuple[list[Record], int, wire.Fetched | None]:
    """What one request brings of one partition; None where the broker asked to come again."""
    since = life.account.history.view(place).stable
    wanted = [wire.Wanted(*place, position, life.rng.choice((300, 2_000, 1 << 20)))]
    body, decode = codec.fetch(wanted, 0, 1, 0, -1, committed)
    error, found, _ = await connection.send(wire.FETCH, codec.fetch_version, body, decode, PATIENCE_S)
    life.require(not error and len(found) == 1, f"{place}: a fetch was refused with {error}")
    [fetched] = found
    following = life.take(place, fetched, position, since, committed)
    if fetched.error:
        return [], position, None
    return sifted(fetched, position, committed)[0], following, fetched
