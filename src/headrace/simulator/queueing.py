"""Queues in the simulator: the broker and the log without doors, consumers that settle, give back, or forget.

A run is one seed: a few lives of a broker on one machine. In each, messages are appended, handed to consumers, and
finished, requeued, deferred, touched or left to time out, while queues are made, configured, paused, emptied and
deleted, until the broker stops, is killed, or the power goes. `QueueAccount` writes down what queues have promised; the
next life must keep it.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.queues import Queue, state
from headrace.broker.reading import read
from headrace.config import Config
from headrace.errors import TopicExists, UnknownQueue
from headrace.ground import Ground
from headrace.kernels import records
from headrace.kernels.delivery import Claimed
from headrace.log.batch import batches_in
from headrace.log.interface import EARLIEST, Partition, Topic, Write
from headrace.log.native import NativeLog
from headrace.simulator.campaign import Run
from headrace.simulator.crash import Killed, PowerCut
from headrace.simulator.faults import Plan
from headrace.simulator.promises import require
from headrace.simulator.queue_promises import QueueAccount, QueuePromise
from headrace.simulator.workload import gather, small_config
from headrace.simulator.world import Ending, World

# Name, partitions, durability; the batches of the last one have gaps, so that the state of its queues has many pages.
TOPICS = (("kept", 2, "sync"), ("cached", 1, "async"), ("wide", 1, "sync"))
STEPS, LIVES = 14, 5
# What each queue is for: its settings when it is made.
QUEUES: dict[tuple[str, str], dict[str, object]] = {
    ("kept", "plain"): {"timeout_ms": 400},
    ("kept", "mortal"): {"timeout_ms": 300, "max_attempts": 2},
    ("kept", "ordered"): {"timeout_ms": 300, "order_by_key": True, "max_attempts": 4, "backoff_ms": [5, 40]},
    ("cached", "plain"): {"timeout_ms": 400},
    ("cached", "mortal"): {"timeout_ms": 300, "max_attempts": 2},
    ("wide", "plain"): {"timeout_ms": 400, "max_attempts": 3},
}
KEYS = (b"a", b"b", b"c", None)
# Between the pieces of a snapshot anything can happen: they are small here.
PIECE_BYTES = 40
GAP = 700
SETTLED_WITHIN_S = 120.0


class Taker:
    """A consumer: it settles what it gets, sooner or later, or does not."""

    def __init__(self, life: QueueLife, queue: Queue, promise: QueuePromise, rng: random.Random) -> None:
        self._life = life
        self._promise = promise
        self._rng = rng
        self.over = False
        self.consumer = queue.subscribe(self, label=f"taker-{rng.randrange(1000)}")

    def deliver(self, claimed: Claimed) -> None:
        rng, loop = self._rng, asyncio.get_running_loop()
        for offset, attempt, _, key, value, _ in claimed.messages():
            where = (claimed.lane, offset, attempt)
            self._life.world.note(f"deliver {self._promise.name} {where} {value!r}")
            self._promise.delivered(value or b"", key, where, self._life.now())
            loop.call_later(rng.expovariate(1 / 0.02), self._answer, value or b"", where)

    def gone(self, reason: str) -> None:
        self.over = True

    def _answer(self, value: bytes, where: tuple[int, int, int]) -> None:
        if self.over or not self._life.world.alive:
            return
        draw = self._rng.random() if not self._life.last else 1.0
        consumer, promise = self.consumer, self._promise
        if draw < 0.12:
            delay = self._rng.choice((0, 0, 30, 400, 3_000))
            if consumer.requeue(*where, delay, "the consumer said no"):
                promise.given_back(value, self._life.now() + delay if delay else 0)
        elif draw < 0.2:
            consumer.touch(*where)
            asyncio.get_running_loop().call_later(self._rng.expovariate(1 / 0.1), self._answer, value, where)
        elif draw < 0.25:
            # Forgotten: it times out.
            pass
        elif draw < 0.27:
            self.close()
        elif consumer.finish(*where):
            promise.finished(value)

    def close(self) -> None:
        self.over = True
        self.consumer.close()


class QueueLife:
    """One life of the broker."""

    def __init__(self, world: World, account: QueueAccount, config: Config, ground: Ground, steps: int) -> None:
        self.world = world
        self.account = account
        self.ground = ground
        self.last = steps == 0
        self.rng = self.stream("life")
        self._steps = steps
        self._log = NativeLog(ground, config)
        self._broker = Broker(ground, self._log, config)
        self._queues = self._broker.queues
        self._write_down = self._queues._flush
        # The one thing that is asked of the broker's inside: when a flush is over, so that what it made sure is known.
        self._queues._flush = self._flush  # type: ignore[method-assign]

    def stream(self, purpose: str) -> random.Random:
        return self.world.stream(f"{purpose} {self.world.lives}")

    def now(self) -> int:
        return self.ground.clock.now_ms()

    async def run(self) -> None:
        await self._log.start()
        await self._broker.start()
        self._check_queues()
        await self._check_letters()
        if all(name in self._log.topics for name, _, _ in TOPICS) and self.rng.random() < 0.5:
            # Before any queue is open: offsets that the last life lost may be given out again by then.
            await self._publish()
        await self._make()
        if self.last:
            await self._settle_everything()
        else:
            tasks = [self._publish(), self._publish(), self._administer()]
            tasks += [self._consume(name) for name in QUEUES for _ in range(self.rng.randint(1, 2))]
            await gather([asyncio.ensure_future(task) for task in tasks])
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.expovariate(1 / 0.3))
                self.world.disk.die(PowerCut("quiet") if self.rng.random() < 0.7 else Killed("quiet"))
        self.world.note("stop")
        await self._broker.stop()
        for promise in self.account.queues.values():
            promise.flushed(promise.facts())
        await self._log.stop()

    async def _flush(self) -> None:
        facts = []
        for name, promise in self.account.queues.items():
            queue = self._queues.get(*name)
            if queue is not None and not any(lane.settling for lane in queue.lanes.values()):
                facts.append((promise, promise.facts()))
        await self._write_down()
        for promise, known in facts:
            promise.flushed(known)

    # --- after a start ---

    def _check_queues(self) -> None:
        """The queues that were made are there, with the settings that were given last; deleted ones are not."""
        for name, promise in self.account.queues.items():
            queue = self._queues.get(*name)
            promise.found(queue is not None, None if queue is None else queue.settings.as_json())
        for passing, before in self.account.passing.items():
            there = self._queues.get("kept", passing) is not None
            require(before in (None, there), f"the queue {passing} is {'' if there else 'not '}there after a start")
            self.account.passing[passing] = there

    async def _check_letters(self) -> None:
        """Dead letters stand once, each with the word where it comes from."""
        for name, promise in self.account.queues.items():
            topic = self._log.topics.get(f"{name[0]}.{name[1]}.dead")
            letters = [] if topic is None else [each for index in topic.partitions for each in await self._read(index)]
            promise.buried([(value or b"", dict(headers)) for _, _, value, headers in letters])

    async def _read(self, partition: Partition) -> list[tuple[int, bytes | None, bytes | None, Any]]:
        if not partition.loaded:
            await partition.load()
        found = []
        position = partition.start
        while position < partition.durable:
            raw = await read(self.ground, partition, position, 65_536)
            for at, header in batches_in(raw):
                if header.last_offset >= position and not header.is_control:
                    for offset, _, key, value, headers in records.parse(raw[at : at + header.size], 1 << 24):
                        if offset >= position:
                            found.append((offset, key, value, headers))
                position = max(position, header.last_offset + 1)
        return found

    # --- making ---

    async def _make(self) -> None:
        for name, partitions, durability in TOPICS:
            config = {"durability": durability, "retention.ms": "-1"}
            try:
                await self._broker.topics.create(name, partitions, config)
            except TopicExists:
                pass
        for (topic, name), settings in QUEUES.items():
            promise = self.account.queues.setdefault((topic, name), QueuePromise(f"{topic}/{name}"))
            promise.making()
            queue = await self._queues.ensure(self._topic(topic), name, EARLIEST)
            promise.made()
            if not promise.settings:
                promise.configuring(settings)
                await self._queues.configure(queue, settings)
                promise.configured()

    def _topic(self, name: str) -> Topic:
        return self._log.topics[name]

    def _queue(self, topic: str, name: str) -> Queue:
        queue = self._queues.get(topic, name)
        assert queue is not None
        return queue

    # --- traffic ---

    async def _publish(self) -> None:
        rng, account = self.stream(f"publisher {self.rng.random()}"), self.account
        for _ in range(self._steps):
            name, partitions, _ = rng.choice(TOPICS)
            partition = self._topic(name).partitions[rng.randrange(partitions)]
            if not partition.loaded:
                await partition.load()
            made = [account.message(name) for _ in range(rng.choice((1, 2, 5, 12)))]
            for promise in account.queues.values():
                if promise.being_emptied:
                    promise.emptying(made)
            now = self.now()
            rows: list[tuple[int, bytes | None, bytes, list[Any]]] = [
                (now, rng.choice(KEYS), value, []) for value in made
            ]
            if name == "wide":
                rows = [row for each in rows for row in [each, *[(now, None, b"", [])] * GAP]]
                keep = bytes(bool(row[2]) for row in rows)
                batch = records.retain(records.build(rows), keep, 1 << 24, None)
                assert batch is not None
                [appended] = self._log.append([Write(partition, batch, sparse=True)], partial(self._appended, made))
            else:
                encoded = records.build(rows, compression=rng.choice((0, 4)))
                appended = partition.append(encoded, partial(self._appended, made))
            if appended.durable:
                self._appended(made, None)
            await asyncio.sleep(rng.expovariate(1 / 0.03))

    def _appended(self, values: list[bytes], error: Exception | None) -> None:
        if error is None:
            self.account.acknowledged.update(dict.fromkeys(values))

    async def _consume(self, name: tuple[str, str]) -> None:
        rng = self.stream(f"consumer {name} {self.rng.random()}")
        for _ in range(3):
            queue = self._queue(*name)
            taker = Taker(self, queue, self.account.queues[name], rng)
            taker.consumer.ready(rng.choice((1, 3, 50)))
            await asyncio.sleep(rng.expovariate(1 / 0.25))
            taker.close()

    async def _administer(self) -> None:
        rng = self.stream("administrator")
        for _ in range(self._steps):
            await asyncio.sleep(rng.expovariate(1 / 0.05))
            name = rng.choice(list(QUEUES))
            promise, queue = self.account.queues[name], self._queue(*name)
            draw = rng.random()
            if draw < 0.3:
                changes: dict[str, object] = {"timeout_ms": rng.choice((200, 300, 500))}
                if name[1] != "ordered":
                    changes["backoff_ms"] = rng.choice(([], [20], [1, 200]))
                promise.configuring(changes)
                await self._queues.configure(queue, changes)
                promise.configured()
            elif draw < 0.4:
                await self._queues.pause(queue, True)
                await asyncio.sleep(rng.expovariate(1 / 0.05))
                await self._queues.pause(queue, False)
            elif draw < 0.5 and name == ("wide", "plain"):
                await self._empty(queue, promise)
            elif draw < 0.6:
                partition = self._topic("cached").partitions[0]
                if partition.loaded and rng.random() < 0.3:
                    await partition.trim(rng.randint(partition.start, partition.durable))
            else:
                await self._come_and_go(rng)

    async def _empty(self, queue: Queue, promise: QueuePromise) -> None:
        """Everything that was acknowledged before is settled after; what came meanwhile may be."""
        before = dict(self.account.acknowledged)
        promise.emptying(self.account.all_of(queue.topic.name))
        await self._queues.empty(queue)
        promise.emptied(value for value in self.account.all_of(queue.topic.name) if value in before)

    async def _come_and_go(self, rng: random.Random) -> None:
        """A queue that is made and deleted again."""
        name = f"passing-{rng.randrange(3)}"
        there = self.account.passing.get(name, False)
        self.account.passing[name] = None
        if there:
            try:
                await self._queues.delete("kept", name)
            except UnknownQueue:
                require(False, f"the queue {name} was made and is not there")
        else:
            await self._queues.ensure(self._topic("kept"), name)
        self.account.passing[name] = not there

    # --- the last look ---

    async def _settle_everything(self) -> None:
        """Consumers that settle all they get: afterwards every message of the log was settled by every queue."""
        for name in QUEUES:
            await self._queues.pause(self._queue(*name), False)
            taker = Taker(self, self._queue(*name), self.account.queues[name], self.stream(f"last {name}"))
            taker.consumer.ready(100)
        waited = 0.0
        while open_ := [name for name in QUEUES if self._queue(*name).unsettled]:
            await asyncio.sleep(0.5)
            waited += 0.5
            figures = [(name, self._queue(*name).figures()) for name in open_]
            require(waited < SETTLED_WITHIN_S, f"queues do not get empty: {figures}")
        await self._check_letters()
        for name, promise in self.account.queues.items():
            for partition in self._topic(name[0]).partitions:
                for offset, _, value, _ in await self._read(partition):
                    promise.must_be_settled(value or b"", partition.index, offset)


@dataclass(frozen=True, slots=True)
class QueueCampaign:
    """Many seeds of queues."""

    steps: int = STEPS
    lives: int = LIVES
    ignored: frozenset[str] = frozenset()
    trace_lines: int = 200

    def run(self, seed: int) -> Run:
        """One seed."""
        world = World(seed, self.trace_lines)
        account = QueueAccount()
        endings: list[str] = []
        failure = None
        usual, state.RECORD_BYTES = state.RECORD_BYTES, PIECE_BYTES
        try:
            for _ in range(self.lives):
                endings.append(self._live(world, account, self._plan(world), self.steps))
            endings.append(self._live(world, account, (Plan(ignored=self.ignored), None), 0))
        except Exception as error:
            failure = "".join(traceback.format_exception(error))
        finally:
            state.RECORD_BYTES = usual
        return Run(seed, world.trace.digest(), world.points, endings, failure, list(world.trace.lines))

    def _plan(self, world: World) -> tuple[Plan, float | None]:
        rng = world.stream(f"plan {world.lives}")
        plan = Plan(ignored=self.ignored, kill=rng.random() < 0.4)
        draw = rng.random()
        if draw < 0.35:
            plan.crash_chance = rng.choice((0.02, 0.1, 0.3))
        elif draw < 0.6:
            plan.crash_at = int(2 ** rng.uniform(4, 10))
        elif draw < 0.85:
            return plan, rng.expovariate(1 / 0.6)
        return plan, None

    def _live(self, world: World, account: QueueAccount, plan: tuple[Plan, float | None], steps: int) -> str:
        rng = world.stream("queue config")
        config = replace(
            small_config(world.stream("config")),
            message_max_bytes=1 << 20,
            log_segment_bytes=world.stream("segments").choice((4_000, 40_000)),
            queue_state_partitions=2,
            queue_flush_ms=rng.choice((1, 20, 50)),
            queue_snapshot_bytes=rng.choice((500, 3_000)),
        )

        async def main(ground: Ground) -> None:
            await QueueLife(world, account, config, ground, steps).run()

        ending = world.run(main, plan[0], crash_after=plan[1])
        for promise in account.queues.values():
            promise.ended(ending)
        return ending.value if ending is Ending.DONE else f"{ending.value} at {world.crash_point}"

    def seeds(self, first: int, last: int) -> Iterator[Run]:
        """A run for each seed."""
        for seed in range(first, last):
            yield self.run(seed)
