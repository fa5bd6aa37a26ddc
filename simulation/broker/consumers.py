"""Readers of a simulated broker: fetch sessions with long polls, whole looks after a start, and members of groups.

Everything that a reader gets goes into the history at once, so that what it saw before a crash must still be there
afterwards.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.client import wire
from simulation.broker.history import CommitHistory
from simulation.history import Place, Record, require
from simulation.kafka.client import Codec, KafkaClient, sift
from simulation.kafka.reader import SessionReader

if TYPE_CHECKING:
    from simulation.broker.campaign import BrokerLife

EARLIEST, LATEST = -2, -1


async def read_whole(life: BrokerLife, client: KafkaClient, place: Place) -> None:
    """Read one partition from its start to its end, and compare."""
    while not await _read_whole(life, client, place):
        life.world.note(f"{place} was trimmed under a reader")


async def _read_whole(life: BrokerLife, client: KafkaClient, place: Place) -> bool:
    history, codec = life.histories[place], Codec()
    snapshot = history.snapshot()
    start, end = [await client.list_offset(place, which) for which in (EARLIEST, LATEST)]
    position, found = start, list[Record]()
    while position < end:
        wanted = [(place, position, life.rng.choice((100, 2_000, 1 << 20)))]
        answer = await client.attempt(partial(codec.fetch, wanted=wanted, max_wait=100))
        if answer is None:
            continue
        error, [fetched], _ = answer
        if fetched.error == ErrorCode.offset_out_of_range and history.trims:
            return False
        if error or fetched.error:
            life.on_unserved(history.name, error or fetched.error)
            await asyncio.sleep(0.01)
            continue
        got, _ = sift(fetched, position)
        require(bool(got), f"{history}: nothing at {position}, though the end is {end}")
        found += got
        position = got[-1][0] + 1
    life.world.note(f"looked {history.name} {start} {end}")
    # What came meanwhile belongs to the next look.
    history.check(snapshot, start, [each for each in found if each[0] < end], end)
    return True


class PartitionReader(SessionReader["BrokerLife"]):
    """A reader that holds what it gets against the history."""

    def take(self, place: Place, fetched: wire.Fetched, position: int) -> int:
        history = self._life.histories[place]
        if fetched.error == ErrorCode.offset_out_of_range and history.trims:
            return max(position, history.high)
        if fetched.error:
            self._life.on_unserved(history.name, fetched.error)
            return position
        got, _ = sift(fetched, position)
        if got:
            self._life.world.note(f"{self._name} {history.name} {position} {len(got)}")
        return history.read(position, got, fetched.high_watermark)


class GroupMember:
    """A member of a group that commits ever larger offsets, and fetches now and then what the group committed."""

    def __init__(self, life: BrokerLife, group: str, place: Place, history: CommitHistory, joins: bool) -> None:
        self._life = life
        self._group = group
        self._place = place
        self._history = history
        self._joins = joins
        self._rng = life.stream(f"member {group}")
        self._client = KafkaClient(life, group)
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
        self._client.close()

    async def _check(self) -> None:
        topics = [{"name": self._place[0], "partition_indexes": [self._place[1]]}]
        reply = await self._client.call("offset_fetch", 8, groups=[{"group_id": self._group, "topics": topics}])
        [group] = reply.groups
        if group.error_code:
            # The coordinator reads its part of the log after a start; nothing else may be in the way.
            require(group.error_code.retriable, f"{self._group}: {group.error_code!r}")
            return
        [answer] = group.topics[0].partitions
        self._life.world.note(f"{self._group} committed {answer.committed_offset}")
        self._history.observe(int(answer.committed_offset))

    async def _commit(self) -> None:
        high = self._life.histories[self._place].high
        if high <= self._history.last:
            return
        offset = self._rng.randint(self._history.last + 1, high)
        partition = {"partition_index": self._place[1], "committed_offset": offset, "committed_metadata": ""}
        # Recorded once it is about to leave.
        await self._client.connection()
        self._history.start_commit(offset)
        reply = await self._client.call_once(
            "offset_commit",
            8,
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member,
            topics=[{"name": self._place[0], "partitions": [partition]}],
        )
        if reply is None:
            return
        code = reply.topics[0].partitions[0].error_code
        self._life.world.note(f"{self._group} commits {offset}: {code.name}")
        if not code:
            self._history.commit(offset)
            return
        self._history.asked.remove(offset)
        if self._joins:
            self._member, self._generation = "", -1
        else:
            require(code.retriable, f"{self._group}: a commit was refused with {code!r}")

    async def _join(self) -> None:
        member, joined = "", None
        while joined is None or joined.error_code is ErrorCode.member_id_required:
            joined = await self._client.call_once(
                "join_group",
                7,
                group_id=self._group,
                session_timeout=6_000,
                rebalance_timeout=6_000,
                member_id=member,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b""}],
            )
            if joined is None:
                return
            member = joined.member_id
        if joined.error_code:
            require(joined.error_code.retriable, f"{self._group}: join: {joined.error_code!r}")
            return
        synced = await self._client.call_once(
            "sync_group",
            5,
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": member, "assignment": b"all"}] if joined.leader == member else [],
        )
        if synced is None:
            return
        if not synced.error_code:
            self._member, self._generation = member, int(joined.generation_id)
        self._life.world.note(f"{self._group} joined: {synced.error_code.name}")
