"""Queues in the simulator: the broker and the log without doors, consumers that settle, give back, or forget.

A run is one seed: a few lives of a broker on one machine. In each, messages are appended, handed to consumers, and
finished, requeued, deferred, touched or left to time out (`consumer.py`), or leased and settled by handles, in later
lives too (`leases.py`), while queues are made, configured, paused, emptied and deleted, messages are moved aside, dead
letters sent back, topics grow, the disk fills up or fails (`administrator.py`), until the broker stops, is killed, or
the power goes. `QueuesModel` writes down what queues have promised; the next life must keep it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.durable import append
from headrace.broker.queues import Queue, state
from headrace.broker.reading import read
from headrace.errors import HeadraceError, TopicExists
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.log.interface import EARLIEST, Partition, Topic, Write
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.campaign import LivesCampaign
from simulation.faults import FaultSchedule, Killed
from simulation.history import require
from simulation.life import Life, gather, small_config
from simulation.queues.administrator import QueueAdministrator
from simulation.queues.consumer import QueueConsumer
from simulation.queues.leases import LeasedConsumer, answer_late
from simulation.queues.model import FILTER, Letter, QueueModel, QueuesModel, identity
from simulation.world import Ending, World

# Name, partitions, settings. The batches of `wide` have gaps, so that the state of its queues has many pages; what is
# consumed goes from `eaten`, and what stays behind there is moved aside.
TOPICS: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("kept", 2, {"durability": "sync", "retention.ms": "-1"}),
    ("cached", 1, {"durability": "async", "retention.ms": "-1"}),
    ("wide", 1, {"durability": "sync", "retention.ms": "-1"}),
    ("eaten", 1, {"durability": "sync", "retention": "consumed", "consumed.pinned.segments": "1"}),
)
# Here every message that was acknowledged is there until it is settled.
SAFE = ("kept", "wide", "eaten")
# What each queue is for: its settings when it is made.
QUEUES: dict[tuple[str, str], dict[str, object]] = {
    ("kept", "plain"): {"timeout_ms": 400},
    ("kept", "mortal"): {"timeout_ms": 300, "max_attempts": 2},
    ("kept", "ordered"): {"timeout_ms": 300, "order_by_key": True, "max_attempts": 4, "backoff_ms": [5, 40]},
    ("kept", "choosy"): {"timeout_ms": 400, "filter": FILTER},
    ("kept", "strict"): {"timeout_ms": 300, "order_by_key": True, "max_attempts": 2, "dead_key": "park"},
    ("cached", "plain"): {"timeout_ms": 400},
    ("cached", "mortal"): {"timeout_ms": 300, "max_attempts": 2},
    ("wide", "plain"): {"timeout_ms": 400, "max_attempts": 3},
    ("eaten", "plain"): {"timeout_ms": 400, "max_attempts": 3},
}
KEYS = (b"a", b"b", b"c", None)
# Between the pieces of a snapshot anything can happen: they are small here.
PIECE_BYTES = 40
GAP = 700
SETTLED_WITHIN_S = 120.0


class QueueLife(Life):
    """One life of the broker."""

    idle_s = 0.3

    def __init__(self, world: World, known: QueuesModel, runtime: Runtime, steps: int) -> None:
        super().__init__(world, runtime)
        self.known = known
        self.last = steps == 0
        self.broker_stopped = False
        self._steps = steps
        rng = world.stream("queue config")
        config = replace(
            small_config(world.stream("config")),
            message_max_bytes=1 << 20,
            log_segment_bytes=world.stream("segments").choice((4_000, 40_000)),
            queue_state_partitions=2,
            queue_flush_ms=rng.choice((1, 20, 50)),
            queue_leases_max=rng.choice((5, 1_000)),
            queue_snapshot_bytes=rng.choice((500, 3_000)),
            consumed_check_ms=rng.choice((50, 500)),
            consumed_free_bytes=1,
            consumed_quiet_ms=200,
        )
        self._log = NativeLog(runtime, config)
        self.broker = Broker(runtime, self._log, config)
        self._queues = self.broker.queues
        self._administrator = QueueAdministrator(self)
        self._write_down = self._queues.state_writer.flush
        # The one thing that is asked of the broker's inside: when a flush is over, so that what it made sure is known.
        self._queues.state_writer.flush = self._flush  # type: ignore[method-assign]

    async def run(self) -> None:
        await self.or_exit(self._log.start())
        await self.or_exit(self.broker.start())
        self._check_queues()
        self._check_partitions()
        await self.or_exit(self._check_letters())
        if all(name in self._log.topics for name, _, _ in TOPICS) and self.rng.random() < 0.5:
            # Before any queue is open: offsets that the last life lost may be given out again by then.
            await self._publish()
        await self.or_exit(self._make())
        if self.last:
            await self._settle_everything()
        else:
            tasks = [self._publish(), self._publish(), self._administrator.administer(self._steps)]
            tasks += [self._consume(name) for name in QUEUES for _ in range(self.rng.randint(1, 2))]
            tasks += [self._lease(name) for name in QUEUES if self.rng.random() < 0.5]
            tasks.append(answer_late(self))
            if self.rng.random() < 0.15:
                tasks.append(self._administrator.fill())
            await gather(tasks)
            await self.maybe_crash_idle()
        self.world.note("stop")
        self.broker_stopped = True
        await self.or_exit(self.broker.stop())
        await self.or_exit(self._log.stop())

    async def attempt(self, work: Awaitable[object]) -> bool:
        """Do something that a disk that is full, or fails, may refuse; whether it did not."""
        try:
            await work
        except (HeadraceError, OSError) as error:
            if not self.disk_refuses:
                raise
            self.world.note(f"refused {error!r}")
            return False
        return True

    async def or_exit(self, step: Awaitable[object]) -> None:
        if not await self.attempt(step):
            self.world.machine.disk.die(Killed("exit"))

    async def _flush(self) -> None:
        facts = []
        for name, model in self.known.queues.items():
            queue = self._queues.get(*name)
            if queue is not None and not any(lane.settling for lane in queue.lanes.values()):
                facts.append((model, model.facts()))
        await self._write_down()
        for model, known in facts:
            model.flush(known)

    # --- after a start ---

    def _check_queues(self) -> None:
        """The queues that were made are there, with the settings that were given last; deleted ones are not."""
        for name, model in self.known.queues.items():
            queue = self._queues.get(*name)
            model.check_found(queue is not None, None if queue is None else queue.settings.as_json())
        for passing, before in self.known.passing.items():
            there = self._queues.get("kept", passing) is not None
            require(before in (None, there), f"the queue {passing} is {'' if there else 'not '}there after a start")
            self.known.passing[passing] = there

    def _check_partitions(self) -> None:
        """A topic that has grown stays so."""
        for name, counts in self.known.partitions.items():
            count = len(self.topic(name).partitions)
            require(count in counts, f"the topic {name} has {count} partitions after a start, not one of {counts}")
            self.known.partitions[name] = (count, count)

    async def _check_letters(self) -> None:
        """Dead letters stand once, each with the word where it comes from."""
        for name, model in self.known.queues.items():
            topic = self._log.topics.get(f"{name[0]}.{name[1]}.dead")
            letters = [] if topic is None else [each for index in topic.partitions for each in await self._read(index)]
            model.check_dead_letters(
                [Letter(identity(value, headers), key, dict(headers)) for _, key, value, headers in letters]
            )

    async def _read(self, partition: Partition) -> list[tuple[int, bytes | None, bytes | None, Any]]:
        await partition.load()
        found = []
        position = partition.start
        while position < partition.high_watermark:
            raw = await read(self.runtime, partition, position, 65_536)
            for at, header in batches_in(raw):
                if header.last_offset >= position and not header.is_control:
                    for offset, _, key, value, headers in records.parse(raw[at : at + header.size], 1 << 24):
                        if offset >= position:
                            found.append((offset, key, value, headers))
                position = max(position, header.last_offset + 1)
        return found

    # --- making ---

    async def _make(self) -> None:
        for name, partitions, config in TOPICS:
            try:
                await self.broker.topics.create(name, partitions, config)
            except TopicExists:
                pass
        for (topic, name), settings in QUEUES.items():
            model = self.known.queues.setdefault((topic, name), QueueModel(f"{topic}/{name}", topic in SAFE))
            model.start_create()
            queue = await self._queues.ensure(self.topic(topic), name, EARLIEST)
            model.create()
            if not model.settings:
                model.start_configure(settings)
                await self._queues.configure(queue, settings)
                model.configure()

    def topic(self, name: str) -> Topic:
        return self._log.topics[name]

    def queue(self, topic: str, name: str) -> Queue:
        queue = self._queues.get(topic, name)
        assert queue is not None
        return queue

    # --- traffic ---

    async def _publish(self) -> None:
        rng = self.stream(f"publisher {self.rng.random()}")
        for _ in range(self._steps):
            await self.attempt(self._publish_some(rng))
            await asyncio.sleep(rng.expovariate(1 / 0.03))

    async def _publish_some(self, rng: random.Random) -> None:
        known = self.known
        name = rng.choice([name for name, _, _ in TOPICS])
        partition = rng.choice(self.topic(name).partitions)
        await partition.load()
        made = [known.message(name) for _ in range(rng.choice((1, 2, 5, 12)))]
        for model in known.queues.values():
            if model.is_being_purged:
                model.start_purge(made)
        now = self.now_ms()
        rows: list[tuple[int, bytes | None, bytes, list[Any]]] = [(now, rng.choice(KEYS), value, []) for value in made]
        known.keys.update((value, key) for _, key, value, _ in rows)
        if name == "wide":
            rows = [row for each in rows for row in [each, *[(now, None, b"", [])] * GAP]]
            keep = bytes(bool(row[2]) for row in rows)
            batch = records.retain(records.build(rows), keep, 1 << 24, None)
            assert batch is not None
            append(self._log, [Write(partition, batch, sparse=True)], partial(self._on_appended, made))
        else:
            encoded = records.build(rows, compression=rng.choice((0, 4)))
            append(self._log, [Write(partition, encoded)], partial(self._on_appended, made))

    def _on_appended(self, values: list[bytes], error: Exception | None) -> None:
        if error is None:
            self.known.acknowledged.update(dict.fromkeys(values))

    async def _consume(self, name: tuple[str, str]) -> None:
        rng = self.stream(f"consumer {name} {self.rng.random()}")
        for _ in range(3):
            queue = self.queue(*name)
            client = QueueConsumer(self, queue, self.known.queues[name], rng)
            client.consumer.ready(rng.choice((1, 3, 50)))
            await asyncio.sleep(rng.expovariate(1 / 0.25))
            client.close()

    async def _lease(self, name: tuple[str, str]) -> None:
        rng = self.stream(f"leases {name} {self.rng.random()}")
        await LeasedConsumer(self, self.queue(*name), self.known.queues[name], rng).run()

    # --- the last look ---

    async def _settle_everything(self) -> None:
        """Consumers that settle all they get: afterwards every message of the log was settled by every queue."""
        for name in QUEUES:
            await self._queues.pause(self.queue(*name), False)
            client = QueueConsumer(self, self.queue(*name), self.known.queues[name], self.stream(f"last {name}"))
            client.consumer.ready(100)
        waited = 0.0
        while open_ := [name for name in QUEUES if self.queue(*name).unsettled]:
            await asyncio.sleep(0.5)
            waited += 0.5
            figures = [(name, self.queue(*name).figures()) for name in open_]
            require(waited < SETTLED_WITHIN_S, f"queues do not get empty: {figures}")
        await self._check_letters()
        for topic, _, _ in TOPICS:
            await self._check_settled(topic)

    async def _check_settled(self, topic: str) -> None:
        """Whatever the log has, or has taken and may not have lost, is settled; and it has nothing twice."""
        found: dict[bytes, tuple[bytes | None, str]] = {}
        for partition in self.topic(topic).partitions:
            for offset, key, value, headers in await self._read(partition):
                message, where = identity(value, headers), f"at {partition.index}/{offset}"
                require(message not in found, f"{message!r} is {where} and {found.get(message, ('', ''))[1]}")
                found[message] = key, where
        if topic in SAFE:
            for message in self.known.acknowledged:
                if message.startswith(topic.encode() + b"-"):
                    found.setdefault(message, (self.known.keys[message], "which was acknowledged"))
        for (of_topic, name), model in self.known.queues.items():
            for message, (key, where) in found.items() if of_topic == topic else ():
                if message.partition(b"@")[2] in (b"", name.encode()):
                    model.require_settled(message, key, where)


@dataclass(frozen=True)
class QueueCampaign(LivesCampaign[QueuesModel]):
    """Many seeds of queues."""

    steps: int = 14
    lives: int = 5
    schedule = FaultSchedule(exponents=(4, 10), seconds=0.6, sync_errors=0.12)

    def prepare(self, world: World) -> QueuesModel:
        return QueuesModel()

    def life(self, world: World, known: QueuesModel, runtime: Runtime, last: bool) -> QueueLife:
        return QueueLife(world, known, runtime, 0 if last else self.steps)

    def live(self, world: World) -> Iterator[str]:
        usual, state.RECORD_BYTES = state.RECORD_BYTES, PIECE_BYTES
        try:
            yield from super().live(world)
        finally:
            state.RECORD_BYTES = usual

    def on_ended(self, world: World, known: QueuesModel, ending: Ending) -> None:
        require(not known.broken, known.broken)
        for model in known.queues.values():
            model.end_life()
