"""What happens to producers that are faster than readers: `overflow` = spill, block, reject or drop-oldest.

A topic that spills, as all do by default, has nothing here. Every other one has a gate, which a door asks before it
appends for a client. A gate has a bound: of the lag (of the slowest queue, or of a named group) for `block`
and `reject`, of the bytes kept of each partition for `drop-oldest`. A request that does not fit waits in line; one at a
time is let through and appends before the next is looked at, so a bound on the lag is exceeded by one request at most,
and the bound on bytes never.

The lag is looked up when a gate seems full, and now and then. In between it is what it was, and what was appended
since: readers only make that too high, so the bound holds.

What the broker itself appends (dead letters, fired timers, its own topics) never waits here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import structlog

from headrace.broker.groups import GroupCoordinator
from headrace.broker.groups.protocol import Problem
from headrace.broker.metrics import Metrics, TopicMetrics
from headrace.broker.rate_limit import RateLimit
from headrace.broker.settings import BrokerSettings
from headrace.broker.topic_config import SEGMENTS_UNDER_BOUND, SETTINGS
from headrace.broker.topics import Topics
from headrace.errors import HeadraceError, TopicBlocked, TopicFull, UnknownTopic
from headrace.log.interface import Durability, Partition, Topic
from headrace.log.local import LocalLog, LocalPartition

log = structlog.get_logger("headrace.overflow")

SPILL, BLOCK, REJECT, DROP_OLDEST = "spill", "block", "reject", "drop-oldest"

# How often a full topic's lag is looked up while producers wait.
POLL_SECONDS = 0.005
# How long a gate rests after a failure.
RETRY_SECONDS = 0.1
# How old a looked-up lag may be: a new queue or a reset group adds to it without an append.
STALE_SECONDS = 0.1
# Turns of the loop in which a request that was let through appends, through whatever awaits stand between.
APPEND_TURNS = 4

Parts = Sequence[tuple[int, int]]
"""Partitions that are about to grow, and by how many bytes."""
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What a topic asks for."""

    kind: str
    lag: int
    group: str
    bytes: int
    block_seconds: float


def policy_of(config: Mapping[str, str]) -> Policy:
    """The policy in a topic's own settings."""

    def text(name: str) -> str:
        return config.get(name, SETTINGS[name].default)

    return Policy(
        text("overflow"),
        int(text("overflow.lag")),
        text("overflow.group"),
        int(text("overflow.bytes")),
        int(text("overflow.block.ms")) / 1000,
    )


class Bound:
    """What may be used up. This one never is: the bound of a topic that spills again while producers were in line."""

    async def warm(self) -> None:
        """Learn what must be known before anything can be judged. Raises a HeadraceError."""

    def excess(self, parts: Parts) -> str | None:
        """Why there is no room for a request, or None."""
        return None

    async def make_room(self, parts: Parts) -> None:
        """Do what can be done about it, or let some time pass."""


class LagBound(Bound):
    """Readers may be so many messages behind."""

    def __init__(self, topic: Topic, policy: Policy, groups: GroupCoordinator, queue_lag: Callable[[str], int]) -> None:
        self._topic = topic
        self._bound = policy.lag
        self._group = policy.group
        self._groups = groups
        self._queue_lag = queue_lag
        self._loop = asyncio.get_running_loop()
        self._lag = 0
        self._end = 0
        self._looked_up = -STALE_SECONDS

    async def warm(self) -> None:
        if self._group:
            indexes = range(len(self._topic.partitions))
            problem, _ = await self._groups.committed(self._group, {self._topic.name: indexes})
            if problem is not Problem.NONE:
                raise HeadraceError(f"the offsets of group '{self._group}' cannot be read now: {problem.name}")

    def excess(self, parts: Parts) -> str | None:
        now = self._loop.time()
        end = sum([partition.end for partition in self._topic.partitions])
        lag = self._lag + end - self._end
        if lag >= self._bound or now - self._looked_up >= STALE_SECONDS:
            lag = self._lag = self._look_up()
            self._end = end
            self._looked_up = now
        if lag < self._bound:
            return None
        reader = f"group '{self._group}'" if self._group else "its slowest queue"
        return f"{reader} is {lag} messages behind, and overflow.lag allows {self._bound}"

    async def make_room(self, parts: Parts) -> None:
        await asyncio.sleep(POLL_SECONDS)

    def _look_up(self) -> int:
        partitions = self._topic.partitions
        if not self._group:
            # Queues see what is durable; what is on its way there counts too.
            return self._queue_lag(self._topic.name) + sum([each.end - each.high_watermark for each in partitions])
        committed = self._groups.committed_now(self._group, self._topic)
        # Where the group has committed nothing, everything is yet to be read. What is in an open transaction cannot be
        # read: if it counted, a large one would wait for room that only its own end can make.
        return sum(
            [
                max(
                    each.end - each.high_watermark + each.last_stable - max(committed.get(each.index, 0), each.start), 0
                )
                for each in partitions
            ]
        )


class BytesBound(Bound):
    """Each partition may keep so many bytes; the oldest segments make room. That begins well below the bound, so that
    producers seldom wait for it."""

    def __init__(self, log: LocalLog, topic: Topic, policy: Policy, metrics: TopicMetrics, spawn: Spawn) -> None:
        self._local = log.local
        self._topic = topic
        self._bound = policy.bytes
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._spawn = spawn
        self._in_memory = topic.settings.durability is Durability.MEMORY
        self._shrinking: dict[int, asyncio.Task[None]] = {}
        self._starts: dict[Partition, int] = {}
        self._dropped = RateLimit()

    def excess(self, parts: Parts) -> str | None:
        if self._in_memory:
            # Such a topic keeps to its bound by itself; what that took is known after the appends of this turn.
            if not self._starts:
                self._loop.call_soon(self._count_in_memory)
            for partition, _ in self._places(parts):
                self._starts.setdefault(partition, partition.start)
            return None
        step = self._bound // SEGMENTS_UNDER_BOUND
        full = None
        for partition, size in self._places(parts):
            kept = partition.size() + size
            if kept > self._bound:
                full = f"partition {partition.index} would keep {kept} bytes, and overflow.bytes allows {self._bound}"
            if kept > self._bound - step:
                self._shrink(partition, size)
        return full

    async def make_room(self, parts: Parts) -> None:
        moved = False
        for partition, size in self._places(parts):
            if partition.size() + size > self._bound:
                before = partition.start
                await self._shrink(partition, size)
                moved = moved or partition.start > before
        if not moved:
            # What is not durable yet cannot go; it will be in a moment.
            await asyncio.sleep(POLL_SECONDS)

    def _places(self, parts: Parts) -> list[tuple[LocalPartition, int]]:
        partitions = self._topic.partitions
        wanted = parts or [(index, 0) for index in range(len(partitions))]
        return [(self._local(partitions[index]), size) for index, size in wanted if partitions[index].loaded]

    def _shrink(self, partition: LocalPartition, size: int) -> asyncio.Task[None]:
        """Make room for `size` bytes, and for some more to come."""
        limit = self._bound - max(2 * (self._bound // SEGMENTS_UNDER_BOUND), size)
        running = self._shrinking.get(partition.index)
        if running is None:
            running = self._shrinking[partition.index] = self._spawn(self._shrink_to(partition, limit))
        return running

    async def _shrink_to(self, partition: LocalPartition, limit: int) -> None:
        before = partition.start
        try:
            await partition.shrink(limit)
        except (HeadraceError, OSError) as error:
            log.warning("the oldest records could not be dropped", topic=self._topic.name, error=str(error))
        finally:
            del self._shrinking[partition.index]
        self._count_dropped(partition.start - before)

    def _count_in_memory(self) -> None:
        starts, self._starts = self._starts, {}
        self._count_dropped(sum([partition.start - before for partition, before in starts.items()]))

    def _count_dropped(self, count: int) -> None:
        if count:
            self._metrics.dropped += count
            dropped = self._dropped.count(self._loop.time(), count)
            if dropped:
                log.warning(
                    "oldest records dropped", topic=self._topic.name, records=dropped, overflow_bytes=self._bound
                )


@dataclass(slots=True, eq=False)
class Waiter:
    """One request in line."""

    done: asyncio.Future[None]
    parts: Parts
    size: int
    expiry: asyncio.TimerHandle | None = None


class Gate:
    """What stands before one topic."""

    def __init__(self, overflow: Overflow, topic: Topic, policy: Policy) -> None:
        self._overflow = overflow
        self._topic = topic
        self._metrics = overflow.metrics.topic(topic.name)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiter] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._refused = RateLimit()
        self._held_back = RateLimit()
        self.follow(policy)

    def follow(self, policy: Policy) -> None:
        """Take up a policy; those in line are judged by it from now on."""
        self.policy = policy
        self._bound = self._overflow.bound(self._topic, policy)
        # Nothing needs to be learned, most of the time.
        self._warm = not policy.group and all(partition.loaded for partition in self._topic.partitions)

    def admit(self, parts: Parts, limit: float | None) -> asyncio.Future[None] | None:
        """See `Overflow.admit`."""
        if self._warm and not self._waiting:
            why = self._bound.excess(parts)
            if why is None:
                return None
            if self.policy.kind == REJECT:
                raise self._full(why)
        longest = self.policy.block_seconds
        if limit is None or self.policy.kind == DROP_OLDEST:
            limit = longest
        return self._wait(parts, limit if limit == inf else min(limit, longest))

    def _wait(self, parts: Parts, limit: float) -> asyncio.Future[None]:
        size = sum([each for _, each in parts])
        held, most = self._overflow.held_bytes + size, self._overflow.held_bytes_max
        if limit <= 0:
            raise TopicBlocked(f"topic '{self._topic.name}' is full, and the request has no time left to wait")
        if held > most:
            raise TopicBlocked(
                f"topic '{self._topic.name}' is full, and {held} bytes of requests would wait, of {most} that may "
                "(overflow_held_bytes). Try again."
            )
        waiter = Waiter(self._loop.create_future(), parts, size)
        if limit != inf:
            waiter.expiry = self._loop.call_later(limit, self._expire, waiter)
        waiter.done.add_done_callback(lambda _: self._leave(waiter))
        self._overflow.held_bytes += size
        self._metrics.blocked += 1
        self._waiting.append(waiter)
        if self._serving is None:
            self._serving = self._overflow.spawn(self._serve())
        return waiter.done

    def _leave(self, waiter: Waiter) -> None:
        if waiter.expiry is not None:
            waiter.expiry.cancel()
        self._overflow.held_bytes -= waiter.size
        self._metrics.blocked -= 1

    def _expire(self, waiter: Waiter) -> None:
        if waiter.done.done():
            return
        if self.policy.kind == DROP_OLDEST:
            # It never refuses: better too much for once than a producer that stands still.
            waiter.done.set_result(None)
            return
        why = self._bound.excess(waiter.parts) if self._warm else "what its readers have read is not known yet"
        waiter.done.set_exception(TopicBlocked(f"topic '{self._topic.name}' is still full: {why}. Try again."))

    def close(self, error: Exception) -> None:
        """Refuse all that wait in line."""
        if self._serving is not None:
            self._serving.cancel()
        for waiter in self._waiting:
            if not waiter.done.done():
                waiter.done.set_exception(error)
        self._waiting.clear()

    async def _serve(self) -> None:
        """Let those in line through, one after the other."""
        try:
            while self._waiting:
                try:
                    await self._serve_first(self._waiting[0])
                except Exception:
                    log.exception("a request in line could not be judged", topic=self._topic.name)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._serving = None

    async def _serve_first(self, waiter: Waiter) -> None:
        if waiter.done.done():
            self._waiting.popleft()
        elif not self._warm:
            await self._warm_up()
        elif (why := self._bound.excess(waiter.parts)) is None:
            self._waiting.popleft()
            waiter.done.set_result(None)
            # It appends before the next one is judged.
            for _ in range(APPEND_TURNS):
                await asyncio.sleep(0)
        elif self.policy.kind == REJECT:
            self._waiting.popleft()
            waiter.done.set_exception(self._full(why))
        else:
            if self.policy.kind == BLOCK and self._held_back.count(self._loop.time()):
                log.info("producers wait", topic=self._topic.name, why=why, waiting=len(self._waiting))
            await self._bound.make_room(waiter.parts)

    async def _warm_up(self) -> None:
        bound = self._bound
        try:
            for partition in self._topic.partitions:
                if not partition.loaded and not partition.offline:
                    await partition.load()
            await bound.warm()
        except HeadraceError as error:
            log.warning("a bound cannot be judged yet", topic=self._topic.name, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            return
        if bound is self._bound:
            self._warm = True

    def _full(self, why: str) -> TopicFull:
        self._metrics.rejected += 1
        refused = self._refused.count(self._loop.time())
        if refused:
            log.warning("producers refused", topic=self._topic.name, requests=refused, why=why)
        return TopicFull(f"topic '{self._topic.name}' is full: {why}")


class Overflow:
    """The gates of all topics that have one."""

    def __init__(
        self,
        log: LocalLog,
        topics: Topics,
        groups: GroupCoordinator,
        metrics: Metrics,
        config: BrokerSettings,
        queue_lag: Callable[[str], int],
    ) -> None:
        self._log = log
        self.metrics = metrics
        self.held_bytes = 0
        """Of the requests that wait."""
        self.held_bytes_max = config.overflow_held_bytes
        self._groups = groups
        self._queue_lag = queue_lag
        self._gates: dict[Topic, Gate] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stopped = False
        topics.changed.append(self._topic_changed)

    def guards(self, topic: Topic) -> bool:
        """Whether `admit` must be asked at all."""
        return topic.config.get("overflow", SPILL) != SPILL

    def admit(self, topic: Topic, parts: Parts = (), limit_seconds: float | None = None) -> asyncio.Future[None] | None:
        """Whether a client's request may be appended to a topic. None: at once. A future: when it is done. Raises
        TopicFull (as the future may) where the topic rejects, and TopicBlocked where there was no room in time: as long
        as the topic allows, or `limit_seconds` if that is less; `inf`: however long it takes. `parts` are partitions
        with the bytes for each; where a door gives none, the bound on bytes may be exceeded by one request."""
        if not self.guards(topic):
            return None
        if self._stopped:
            raise TopicBlocked("the broker is stopping. Try again.")
        gate = self._gates.get(topic)
        if gate is None:
            gate = self._gates[topic] = Gate(self, topic, policy_of(topic.config))
        return gate.admit(parts, limit_seconds)

    def bound(self, topic: Topic, policy: Policy) -> Bound:
        """What a policy measures."""
        if policy.kind == DROP_OLDEST:
            return BytesBound(self._log, topic, policy, self.metrics.topic(topic.name), self.spawn)
        if policy.kind == SPILL:
            return Bound()
        return LagBound(topic, policy, self._groups, self._queue_lag)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside; a stop waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def stop(self) -> None:
        """Refuse all that wait, and admit no more."""
        self._stopped = True
        for gate in self._gates.values():
            gate.close(TopicBlocked("the broker is stopping. Try again."))
        self._gates.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _topic_changed(self, topic: Topic) -> None:
        gate = self._gates.get(topic)
        if topic.deleted:
            self._gates.pop(topic, None)
            if gate is not None:
                gate.close(UnknownTopic(f"topic '{topic.name}' was deleted"))
        elif gate is not None and gate.policy != (policy := policy_of(topic.config)):
            gate.follow(policy)
