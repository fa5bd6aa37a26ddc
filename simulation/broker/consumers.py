"""Readers of a simulated broker: fetch sessions with long polls, whole looks after a start, and members of groups.

Everything a reader is told goes into the history at once, so that what it saw before a crash must still be there
afterwards.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.client import wire
from headrace.client.connection import Connection
from headrace.client.errors import ClientError
from headrace.client.messages import request
from headrace.format import records
from headrace.format.batch import HEADER, PREFIX_BYTES
from simulation.broker.history import CommitHistory, Record
from simulation.broker.producer import PATIENCE_S, KafkaClient
from simulation.kafka.reader import SessionReader

if TYPE_CHECKING:
    from simulation.broker.campaign import BrokerLife, Place

EARLIEST, LATEST = -2, -1


def records_in(fetched: wire.Fetched, offset: int) -> list[Record]:
    """The records of a reply from `offset` on; the last batch may be cut short."""
    view = fetched.records
    found: list[Record] = []
    while len(view) > PREFIX_BYTES:
        size = HEADER.unpack_from(view)[1] + PREFIX_BYTES if len(view) >= HEADER.size else len(view) + 1
        if size > len(view):
            break
        for at, _, _, value, _ in records.parse(view[:size], 1 << 20):
            if at >= offset:
                found.append((at, (value or b"").decode().partition(" ")[0]))
        view = view[size:]
    return found


async def look(life: BrokerLife, caller: KafkaClient, place: Place) -> None:
    """Read one partition from its start to its end, and compare."""
    while not await _look(life, caller, place):
        life.world.note(f"{place.history.name} was trimmed under a reader")


async def _look(life: BrokerLife, caller: KafkaClient, place: Place) -> bool:
    told = place.history.told()
    start, end = [await _offset(life, caller, place, which) for which in (EARLIEST, LATEST)]
    position, found = start, list[Record]()
    while position < end:
        connection = await caller.connection()
        wanted = [wire.Wanted(place.topic, place.index, position, life.rng.choice((100, 2_000, 1 << 20)))]
        body = wire.encode_fetch(wanted, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, committed=False)
        try:
            error, [fetched] = await connection.send(wire.FETCH, wire.FETCH_VERSION, body, wire.decode_fetch)
        except ClientError as cut:
            life.cut("look", cut)
            continue
        if fetched.error == ErrorCode.offset_out_of_range and place.history.trims:
            return False
        if error or fetched.error:
            life.asked_back(place.history.name, error or fetched.error)
            await asyncio.sleep(0.01)
            continue
        got = records_in(fetched, position)
        life.require(bool(got), f"{place.history.name}: nothing at {position}, though the end is {end}")
        found += got
        position = got[-1][0] + 1
    life.world.note(f"looked {place.history.name} {start} {end}")
    # What came meanwhile belongs to the next look.
    place.history.found(told, start, [each for each in found if each[0] < end], end)
    return True


async def _offset(life: BrokerLife, caller: KafkaClient, place: Place, which: int) -> int:
    topics = [{"name": place.topic, "partitions": [{"partition_index": place.index, "timestamp": which}]}]
    reply = await caller.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=topics)
    [answer] = reply.topics[0].partitions
    life.require(not answer.error_code, f"{place.history.name}: no offsets: {answer.error_code!r}")
    return int(answer.offset)


class PartitionReader(SessionReader["BrokerLife", "Place"]):
    """A reader that holds what it is told against the history."""

    async def _fetch(
        self, connection: Connection, session: int, epoch: int, told: dict[Place, int]
    ) -> tuple[ErrorCode, int]:
        wanted = [
            wire.Wanted(place.topic, place.index, position, self._rng.choice((500, 1 << 20)))
            for place, position in self._positions.items()
            if told.get(place) != position
        ]
        max_wait = self._rng.choice((0, 5, 50, 500))
        least = self._rng.choice((1, 1, 1_000))
        body, decode = self._dialect.fetch(wanted, max_wait, least, session, epoch)
        asked = dict(self._positions)
        answer = connection.send(wire.FETCH, self._dialect.fetch_version, body, decode, PATIENCE_S)
        error, found, session = await answer
        if not error:
            told.update(asked)
            for fetched in found:
                self._take(fetched)
        return ErrorCode(error), session

    def _take(self, fetched: wire.Fetched) -> None:
        place = self._life.place(fetched.topic, fetched.partition)
        position = self._positions[place]
        if fetched.error == ErrorCode.offset_out_of_range and place.history.trims:
            self._positions[place] = max(position, place.history.high)
            return
        if fetched.error:
            self._life.asked_back(place.history.name, fetched.error)
            return
        got = records_in(fetched, position)
        if got:
            self._life.world.note(f"{self._name} {place.history.name} {position} {len(got)}")
        self._positions[place] = place.history.read(position, got, fetched.high_watermark)


class GroupMember:
    """A member of a group that commits ever larger offsets, and asks now and then where the group stands."""

    def __init__(self, life: BrokerLife, group: str, place: Place, history: CommitHistory, joins: bool) -> None:
        self._life = life
        self._group = group
        self._place = place
        self._history = history
        self._joins = joins
        self._rng = life.stream(f"member {group}")
        self._caller = KafkaClient(life, group)
        self._member, self._generation = "", -1

    async def run(self, steps: int) -> None:
        await self._check()
        for _ in range(steps):
            if self._joins and not self._member:
                await self._join()
            else:
                await self._commit()
            if self._rng.random() < 0.2:
                await self._check()
            await asyncio.sleep(self._rng.expovariate(1 / 0.01))
        await self._check()
        self._caller.close()

    async def _check(self) -> None:
        topics = [{"name": self._place.topic, "partition_indexes": [self._place.index]}]
        reply = await self._caller.call("offset_fetch", 8, groups=[{"group_id": self._group, "topics": topics}])
        [group] = reply.groups
        if group.error_code:
            # The coordinator reads its part of the log after a start; nothing else may be in the way.
            self._life.require(group.error_code.retriable, f"{self._group}: {group.error_code!r}")
            return
        [answer] = group.topics[0].partitions
        self._life.world.note(f"{self._group} stands at {answer.committed_offset}")
        self._history.fetched(int(answer.committed_offset))

    async def _commit(self) -> None:
        if self._place.history.high <= self._history.last:
            return
        offset = self._rng.randint(self._history.last + 1, self._place.history.high)
        partition = {"partition_index": self._place.index, "committed_offset": offset, "committed_metadata": ""}
        connection = await self._caller.connection()
        self._history.committing(offset)
        try:
            reply = await connection.call(
                request(
                    "offset_commit",
                    8,
                    group_id=self._group,
                    generation_id_or_member_epoch=self._generation,
                    member_id=self._member,
                    topics=[{"name": self._place.topic, "partitions": [partition]}],
                )
            )
        except ClientError as error:
            self._life.cut(self._group, error)
            return
        code = reply.topics[0].partitions[0].error_code
        self._life.world.note(f"{self._group} commits {offset}: {code.name}")
        if not code:
            self._history.committed(offset)
            return
        self._history.asked.remove(offset)
        if self._joins:
            self._member, self._generation = "", -1
        else:
            self._life.require(code.retriable, f"{self._group}: a commit was refused with {code!r}")

    async def _join(self) -> None:
        protocols = [{"name": "range", "metadata": b""}]
        connection = await self._caller.connection()
        member, leader = "", None
        try:
            while leader is None:
                joined = await connection.call(
                    request(
                        "join_group",
                        7,
                        group_id=self._group,
                        session_timeout=6_000,
                        rebalance_timeout=6_000,
                        member_id=member,
                        protocol_type="consumer",
                        protocols=protocols,
                    )
                )
                if joined.error_code is ErrorCode.member_id_required:
                    member = joined.member_id
                    continue
                if joined.error_code:
                    self._life.require(joined.error_code.retriable, f"{self._group}: join: {joined.error_code!r}")
                    return
                member, leader = joined.member_id, joined.leader
            assignments = [{"member_id": member, "assignment": b"all"}] if leader == member else []
            synced = await connection.call(
                request(
                    "sync_group",
                    5,
                    group_id=self._group,
                    generation_id=joined.generation_id,
                    member_id=member,
                    protocol_type="consumer",
                    protocol_name="range",
                    assignments=assignments,
                )
            )
        except ClientError as error:
            self._life.cut(self._group, error)
            return
        if not synced.error_code:
            self._member, self._generation = member, int(joined.generation_id)
        self._life.world.note(f"{self._group} joined: {synced.error_code.name}")
