"""Transactions in the simulator: log, broker and Kafka door, and clients that write, copy and read over a network.

A run is one seed: a few lives of a broker on one machine, ended by a stop, a kill or a power cut at any disk operation,
some with a disk that is full or fails. Everything that clients did and saw goes into one `TransactionHistory`. In the
last life every client finishes, timeouts run out, and the history is held against what is there.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial

from kio.schema.errors import ErrorCode

from headrace.broker.groups.shard import TOPIC as OFFSETS
from headrace.broker.topic_config import settings_of
from headrace.broker.transactions.store import TOPIC as STATE
from headrace.client import wire
from headrace.client.connection import Connection
from headrace.client.messages import request
from headrace.errors import StorageFailed
from headrace.runtime import Runtime
from simulation.campaign import LivesCampaign
from simulation.faults import FaultSchedule
from simulation.history import Place, Record, require
from simulation.kafka.client import Codec, KafkaClient, sift
from simulation.kafka.life import KafkaLife
from simulation.transactions.client import ClientState, CopyTask, RetryLater, TransactionalClient
from simulation.transactions.history import Found, TransactionHistory
from simulation.transactions.library import TransactionLibrary
from simulation.transactions.readers import GroupOffsetReader, Reader
from simulation.world import World

# Name, partitions, settings.
TOPICS: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("in", 2, {}),
    ("out", 2, {}),
    ("packed", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}),
)
# The broker's own topics have large segments: without that setting they are as small as all others here.
INTERNAL_SETTINGS = {"segment.bytes": None, "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
TIMEOUTS_MS = (300, 2_000, 30_000)
FOLLOWERS_MAX = 6
LATEST = -1
# Errors that ask for a retry, on a disk that works and on one that does not.
MOMENTS = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    # What a batch of the first generation gets for `concurrent_transactions`.
    ErrorCode.not_enough_replicas,
    ErrorCode.unstable_offset_commit,
)
FAILURES = (ErrorCode.kafka_storage_error, ErrorCode.coordinator_not_available, ErrorCode.unknown_server_error)


@dataclass(slots=True)
class TransactionClients:
    """What all clients know, from the first life to the last."""

    places: list[Place]
    clients: list[ClientState]
    copies: list[CopyTask]
    history: TransactionHistory = field(default_factory=TransactionHistory)
    made: int = 0


def new_clients(rng: random.Random) -> TransactionClients:
    """Topics and clients of one run."""
    places = [(name, index) for name, count, _ in TOPICS for index in range(count)]
    known = TransactionClients(places, [], [])
    for number in range(rng.randint(1, 2)):
        chosen = sorted([*rng.sample(places, rng.randint(1, len(places))), ("in", number)])
        known.clients.append(_client(known, rng, f"write-{number}", list(dict.fromkeys(chosen)), None))
    for number in range(rng.randint(1, 2)):
        copy = CopyTask(f"copiers-{number}", ("in", number))
        known.copies.append(copy)
        chosen = [place for place in places if place[0] != "in"]
        known.clients.append(_client(known, rng, f"copy-{number}", chosen, copy))
    return known


def _client(
    known: TransactionClients, rng: random.Random, transactional_id: str, places: list[Place], copy: CopyTask | None
) -> ClientState:
    known.made += 1
    name = f"{transactional_id}-{known.made}"
    return ClientState(name, transactional_id, rng.random() < 0.5, rng.choice(TIMEOUTS_MS), places, copy)


class TransactionLife(KafkaLife):
    """One life of the broker, with its clients."""

    def __init__(self, world: World, known: TransactionClients, runtime: Runtime, steps: int, *, last: bool) -> None:
        super().__init__(world, runtime)
        self.known = known
        self.steps = steps
        self.last = last
        self._followers: list[tuple[ClientState, float]] = []
        self._follows = 0
        self._wake = asyncio.Event()

    def follow(self, client: ClientState, rng: random.Random) -> None:
        """Another client takes the transactional id of this one, soon."""
        if self.last or self._follows >= FOLLOWERS_MAX:
            return
        self._follows += 1
        follower = _client(self.known, rng, client.transactional_id, client.places, client.copy)
        self._followers.append((follower, rng.expovariate(1 / 0.02)))
        self._wake.set()

    def may_retry(self, code: ErrorCode) -> bool:
        return code in MOMENTS or (code in FAILURES and self.disk_refuses)

    # --- what clients share ---

    def take(
        self, place: Place, fetched: wire.Fetched, position: int, since: int, committed: bool
    ) -> tuple[list[Record], int]:
        """Put what a reader got into the history; the records, and the position to go on at."""
        if fetched.error:
            if not self.may_retry(ErrorCode(fetched.error)):
                self.on_unserved(f"{place}", fetched.error)
            return [], position
        history = self.known.history
        stable, high = fetched.last_stable, fetched.high_watermark
        require(stable <= high, f"{place}: the last stable offset {stable} is beyond the high watermark {high}")
        history.observe_stable(place, stable, since)
        found, following = sift(fetched, position, committed)
        if found:
            self.world.note(f"read {place} {position} {len(found)} {committed}")
        if committed:
            history.read(place, position, found, following, stable)
        else:
            require(following <= high, f"{place}: a reader came to {following}, the end is {high}")
            history.read_all(place, found)
        return found, following

    async def fetch_one(
        self, connection: Connection, codec: Codec, place: Place, position: int, committed: bool
    ) -> tuple[list[Record], int, wire.Fetched | None]:
        """What one request brings of one partition; None where the broker asked for a retry."""
        since = self.known.history.view(place).stable
        wanted = [(place, position, self.rng.choice((300, 2_000, 1 << 20)))]
        error, answers, _ = await codec.fetch(connection, wanted, committed=committed)
        require(not error and len(answers) == 1, f"{place}: a fetch was refused with {error}")
        [fetched] = answers
        found, following = self.take(place, fetched, position, since, committed)
        return found, following, None if fetched.error else fetched

    async def committed_offset(self, connection: Connection, group: str, place: Place, stable: bool) -> int:
        """What a group has committed."""
        history = self.known.history
        since = history.last_committed(group, place)
        topics = [{"name": place[0], "partition_indexes": [place[1]]}]
        reply = await connection.call(
            request("offset_fetch", 8, groups=[{"group_id": group, "topics": topics}], require_stable=stable)
        )
        [answer] = reply.groups
        code = answer.error_code
        if not code:
            [partition] = answer.topics[0].partitions
            code = partition.error_code
        if code:
            self.world.note(f"{group} stands: {code.name}")
            require(self.may_retry(code), f"{group}: no offsets: {code!r}")
            if stable:
                raise RetryLater
            return -1
        offset = int(partition.committed_offset)
        self.world.note(f"{group} stands at {offset}")
        history.observe_committed(group, place, offset, since)
        return offset

    # --- the life ---

    async def clients(self) -> None:
        known, rng = self.known, self.rng
        client = KafkaClient(self, "first")
        for name, partitions, settings in TOPICS:
            await client.create_topic(name, partitions, {"durability": "sync", "retention.ms": "-1"} | settings)
        await self.learn_ids(client, [name for name, _, _ in TOPICS])
        tasks = [asyncio.ensure_future(TransactionalClient(self, each).run(self.steps)) for each in self._living()]
        background = [asyncio.ensure_future(self._introduce(tasks))]
        for number, committed in enumerate((True, True, False)):
            positions = dict.fromkeys(known.places, 0)
            reader = Reader(self, f"reader-{number}", positions, committed)
            tasks.append(asyncio.ensure_future(reader.run(self.steps)))
        tasks.append(asyncio.ensure_future(GroupOffsetReader(self).run(self.steps)))
        tasks.append(asyncio.ensure_future(self._shrink()))
        if not self.last:
            library = TransactionLibrary(self, [place for place in known.places if place[0] != "in"])
            tasks.append(asyncio.ensure_future(library.run(self.steps)))
        if self.disk_fails or (rng.random() < 0.15 and not self.last):
            tasks.append(asyncio.ensure_future(self._fill()))
        try:
            # Followers join while others are waited for.
            done = 0
            while done < len(tasks):
                await tasks[done]
                done += 1
        finally:
            for task in (*tasks, *background):
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        if self.last:
            await self._settle(client)
        client.close()

    def _living(self) -> list[ClientState]:
        """The clients of this life: those that outlived the last one, and one for each id that has none."""
        known, rng = self.known, self.rng
        for each in known.clients:
            # Some die with the broker, in the middle of whatever they asked of it.
            each.dead = each.dead or rng.random() < 0.15
        living = {each.transactional_id for each in known.clients if not each.dead}
        ids = {each.transactional_id: each for each in known.clients}
        for transactional_id, each in ids.items():
            if transactional_id not in living and not self.last:
                known.clients.append(_client(known, rng, transactional_id, each.places, each.copy))
        known.clients[:] = [each for each in known.clients if not each.dead or each is ids[each.transactional_id]]
        return [each for each in known.clients if not each.dead]

    async def _introduce(self, tasks: list[asyncio.Task[None]]) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._followers:
                follower, delay = self._followers.pop(0)
                await asyncio.sleep(delay)
                self.known.clients.append(follower)
                tasks.append(asyncio.ensure_future(TransactionalClient(self, follower).run(self.steps)))

    async def _fill(self) -> None:
        """The disk fills up for a while."""
        rng = self.stream("full disk")
        await asyncio.sleep(rng.expovariate(1 / 0.1))
        self.limit_disk(rng)
        await self.free_disk(rng, 0.3)
        # What failed then is reported a little later.
        await asyncio.sleep(5)
        self.disk_full = False

    async def _shrink(self) -> None:
        """Make the segments of the broker's own topics small, once they are there, so that they are compacted. No
        client may do that."""
        left = [STATE, OFFSETS]
        for _ in range(10):
            for name in [name for name in left if name in self.log.topics]:
                changed = {**self.log.topics[name].config, **INTERNAL_SETTINGS}
                config = {key: value for key, value in changed.items() if value is not None}
                try:
                    await self.log.alter(name, config=(config, settings_of(config, self.config)))
                except StorageFailed as error:
                    self.world.note(f"{name} could not be altered: {error}")
                else:
                    left.remove(name)
            if not left:
                break
            await asyncio.sleep(0.02)

    # --- the end ---

    async def _settle(self, client: KafkaClient) -> None:
        """Wait until every timeout has run out, look at everything, and judge."""
        await asyncio.sleep(max(TIMEOUTS_MS) / 1000 + 5)
        reply = await client.call("list_transactions", 1, state_filters=["Ongoing"], duration_filter=-1)
        require(not reply.transaction_states, f"still open: {reply.transaction_states}")
        committed: dict[Place, list[Record]] = {}
        ends: dict[Place, tuple[int, int]] = {}
        codec = self.codec(self.rng)
        for place in self.known.places:
            await self._read_whole(client, codec, place, False)
            committed[place], ends[place] = await self._read_whole(client, codec, place, True)
        for place, (stable, _) in ends.items():
            listed = await client.list_offset(place, LATEST, committed=True)
            require(listed == stable, f"{place}: the last stable offset is {stable}, and listed as {listed}")
        groups = {}
        for copy in self.known.copies:
            fetch = partial(self.committed_offset, group=copy.group, place=copy.place, stable=True)
            try:
                while (offset := await client.attempt(fetch)) is None:
                    pass
            except RetryLater:
                require(False, f"{copy.group}: its offsets are not stable, though no client is left")
            else:
                groups[copy.group, copy.place] = offset
        self.known.history.check(Found(committed, ends, groups))

    async def _read_whole(
        self, client: KafkaClient, codec: Codec, place: Place, committed: bool
    ) -> tuple[list[Record], tuple[int, int]]:
        found: list[Record] = []
        position = 0
        while True:
            answer = await client.attempt(
                partial(self.fetch_one, codec=codec, place=place, position=position, committed=committed)
            )
            if answer is None:
                continue
            some, following, fetched = answer
            if fetched is None:
                await asyncio.sleep(0.01)
                continue
            found += some
            if following == position:
                ends = fetched.last_stable, fetched.high_watermark
                end = ends[0] if committed else ends[1]
                require(position == end, f"{place}: nothing at {position}, though the end is {end}")
                return found, ends
            position = following


@dataclass(frozen=True)
class TransactionCampaign(LivesCampaign[TransactionClients]):
    """Many seeds of transactions."""

    steps: int = 30
    lives: int = 5
    schedule = FaultSchedule(sync_errors=0.25)

    def prepare(self, world: World) -> TransactionClients:
        return new_clients(world.stream("account"))

    def life(self, world: World, known: TransactionClients, runtime: Runtime, last: bool) -> TransactionLife:
        return TransactionLife(world, known, runtime, self.steps, last=last)
