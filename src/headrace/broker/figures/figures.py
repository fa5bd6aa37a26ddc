"""The look at everything that a watcher sees: topics, queues, groups, doors, their APIs, and the node.

However many watch, there is at most one look at a time, and none within `figures_interval_ms` of the last; while nobody
asks, nothing is done. A look takes a turn of the loop for so many topics, and goes on in the next. It warms nothing:
what was not used since the start has no figures yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.figures.changes import START, Changed, Changes, Place, Row
from headrace.broker.figures.columns import APIS, DOORS, GROUPS, KINDS, NODE, QUEUE_FIGURES, QUEUES, TOPICS
from headrace.broker.figures.overview import Sample, Samples
from headrace.broker.figures.unread import UnreadSince
from headrace.broker.groups.protocol import GroupError
from headrace.broker.internal import is_internal
from headrace.broker.metrics import TopicMetrics
from headrace.log.interface import Partition, Topic
from headrace.log.local import LocalPartition
from headrace.runtime.process import cpu_seconds, memory_bytes

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.groups.shard import AnyGroup

# What is looked at between two turns of the loop, in partitions: about half a millisecond.
STEP_PARTITIONS = 128
# What a queue and a place of a group count as.
QUEUE_WEIGHT = 4
# Ages of queues are read from the log: those of so many in a look.
AGES_A_LOOK = 100
NO_TRAFFIC = TopicMetrics()


class Figures:
    """The figures of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.changes = Changes()
        self.tag = broker.runtime.random.bytes(6).hex()
        """Another one after each start: numbers of changes mean something with it alone."""
        self.at_ms = 0
        """When it was looked."""
        self.rates: dict[str, tuple[float, float]] = {}
        """Of topics with traffic: messages and bytes a second that came between the last two looks."""
        self.samples = Samples()
        self.lags: dict[str, tuple[int, int]] = {}
        """Of groups in all their topics: messages, and for how long the oldest of them has waited."""
        self._broker = broker
        self._interval = broker.config.figures_interval_ms / 1000
        self._looked = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._unread = UnreadSince(broker.runtime)
        self._started_ms = broker.runtime.clock.now_ms()
        self._done = 0
        self._messages_in = 0
        self._known: dict[str, set[tuple[str, ...]]] = {kind: set() for kind in KINDS}
        self._next_age = 0

    async def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def renew(self) -> None:
        """Look, unless that was done just now."""
        loop = asyncio.get_running_loop()
        if self._looking is None or self._looking.done():
            if loop.time() - self._looked < self._interval:
                return
            self._looking = loop.create_task(self._look())
        await asyncio.shield(self._looking)

    def after(self, version: str, limit: int, kinds: Iterable[str]) -> Changed:
        """What changed since a version that `version_of` gave, of some kinds."""
        tag, *numbers = version.split(":")
        known = tag == self.tag and len(numbers) == 2 and all(each.isdecimal() and len(each) < 20 for each in numbers)
        since = Place(*map(int, numbers)) if known else START
        wanted = frozenset(kinds)
        return self.changes.after(since, limit, lambda key: key[0] in wanted)

    def names(self, kind: str) -> Iterable[tuple[str, ...]]:
        """Those of all rows of a kind, as of the last look."""
        return list(self._known[kind])

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have a position in a topic, as of the last look."""
        return sorted(group for group, name in self._known[GROUPS] if name == topic)

    def version_of(self, place: Place) -> str:
        """What a reader brings to be told what changed since."""
        return f"{self.tag}:{place.number}:{place.round}"

    # --- the look -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        passed = now - self._looked
        self._done = 0
        node: Counter[str] = Counter()
        await self._look_at_topics(node, passed)
        await self._look_at_queues(node)
        await self._look_at_groups(node)
        self._look_at_doors(node)
        await self._look_at_node(node)
        await self.changes.compact()
        self._looked = now
        self.at_ms = self._broker.runtime.clock.now_ms()
        self.samples.add(
            Sample(now, self._messages_in, node["bytes_in"], node["bytes_out"], node["requests"], node["errors"])
        )

    async def _pause(self, weight: int) -> None:
        """Let others have a turn after so much work."""
        self._done += weight
        if self._done >= STEP_PARTITIONS:
            self._done = 0
            await asyncio.sleep(0)

    async def _look_at_topics(self, node: Counter[str], passed: float) -> None:
        metrics = self._broker.metrics.topics
        local = self._broker.log.local
        partitions = all_offline = all_bytes = bytes_in = bytes_out = 0
        rates: dict[str, tuple[float, float]] = {}
        there: set[tuple[str, ...]] = set()
        for name, topic in list(self._broker.log.topics.items()):
            if topic.deleted:
                continue
            traffic = metrics.get(name, NO_TRAFFIC)
            if len(topic.partitions) == 1:
                # Nearly all of many topics: no coroutine for each of them.
                offline, messages, messages_in, size = _sum_up_one(topic.partitions[0], local)
                self._done += 1
                if self._done >= STEP_PARTITIONS:
                    await self._pause(0)
            else:
                offline, messages, messages_in, size = await self._sum_up(topic)
            there.add((name,))
            key = (TOPICS, name)
            row: Row = (
                *(is_internal(name), len(topic.partitions), offline, messages, messages_in, size),
                *(traffic.bytes_in, traffic.bytes_out, traffic.batches_in, traffic.blocked, traffic.rejected),
                *(traffic.dropped, traffic.passed_by, traffic.duplicates),
            )
            before = self.changes.get(key)
            if before != row:
                self.changes.put(key, row)
                came = _growth(before, row, 4)
                self._messages_in += came
                if before is not None and passed > 0:
                    rates[name] = came / passed, _growth(before, row, 6) / passed
            partitions += len(topic.partitions)
            all_offline += offline
            all_bytes += size or 0
            bytes_in += traffic.bytes_in
            bytes_out += traffic.bytes_out
        node.update(topics=len(there), partitions=partitions, offline=all_offline, bytes=all_bytes)
        node.update(bytes_in=bytes_in, bytes_out=bytes_out)
        self.rates = rates
        await self._forget(TOPICS, there)

    async def _sum_up(self, topic: Topic) -> tuple[int, int | None, int | None, int | None]:
        """Of a topic: partitions that are offline, messages that are kept and that ever came, bytes; None while they
        are not known."""
        offline = messages = messages_in = size = 0
        is_known = True
        local = self._broker.log.local
        for partition in topic.partitions:
            if partition.offline is not None:
                offline += 1
            elif partition.loaded:
                messages += partition.high_watermark - partition.start
                messages_in += partition.high_watermark
                size += local(partition).size()
            else:
                is_known = False
            await self._pause(1)
        return (offline, messages, messages_in, size) if is_known else (offline, None, None, None)

    async def _look_at_queues(self, node: Counter[str]) -> None:
        there: set[tuple[str, ...]] = set()
        behind, now_ms = 0, self._broker.runtime.clock.now_ms()
        for queue in self._broker.queues.all():
            await self._pause(QUEUE_WEIGHT + len(queue.lanes))
            if queue.gone:
                continue
            names = (queue.topic.name, queue.name)
            there.add(names)
            if not all(lane.partition.loaded for lane in queue.lanes.values()):
                continue
            figures = queue.figures()
            oldest = None
            if queue.unsettled:
                row = self.changes.get((QUEUES, *names))
                oldest = None if row is None else row[-1]
                # The ages of some are read in a look: in turn.
                if oldest is None or self._next_age <= behind < self._next_age + AGES_A_LOOK:
                    age = await queue.age_ms()
                    oldest = now_ms - age if age else None
                behind += 1
            self.changes.put(
                (QUEUES, *names), (queue.paused, *(getattr(figures, name) for name in QUEUE_FIGURES), oldest)
            )
            node.update(ready=figures.depth, dead=figures.dead)
        self._next_age += AGES_A_LOOK
        if self._next_age >= behind:
            self._next_age = 0
        await self._forget(QUEUES, there)

    async def _look_at_groups(self, node: Counter[str]) -> None:
        known: set[tuple[str, ...]] = set()
        lags: dict[str, tuple[int, int]] = {}
        self._unread.begin_round()
        now_ms = self._broker.runtime.clock.now_ms()
        try:
            async for group in self._broker.groups.each():
                behind, oldest = 0, now_ms
                state = (group.family, group.state.value, group.member_count)
                for name, partitions in list(group.offsets.by_topic.items()):
                    topic = self._broker.log.topics.get(name)
                    if topic is None:
                        continue
                    positions = {index: each.offset for index, each in partitions.items() if each.is_of(topic)}
                    lag, since = await self._lag_of(group, topic, positions)
                    known.add((group.group_id, name))
                    self.changes.put((GROUPS, group.group_id, name), (*state, sum(positions.values()), lag, since))
                    behind, oldest = behind + lag, min(oldest, now_ms if since is None else since)
                if not group.offsets.by_topic:
                    known.add((group.group_id, ""))
                    self.changes.put((GROUPS, group.group_id, ""), (*state, 0, 0, None))
                lags[group.group_id] = behind, now_ms - oldest
                node.update(lag=behind)
                await self._pause(QUEUE_WEIGHT)
        except GroupError:
            # The groups are being read still, or the broker stops: what is known of them stays.
            return
        self.lags = lags
        await self._forget(GROUPS, known)

    async def _lag_of(self, group: AnyGroup, topic: Topic, positions: dict[int, int]) -> tuple[int, int | None]:
        """Messages that a group has not read of a topic, and the time of the oldest of them."""
        lag = 0
        oldest: int | None = None
        for index, committed in positions.items():
            await self._pause(1)
            if index >= len(topic.partitions):
                continue
            partition = topic.partitions[index]
            if not partition.loaded or partition.offline:
                continue
            position = max(committed, partition.start)
            unread = partition.high_watermark - position
            if unread <= 0:
                continue
            lag += unread
            since = await self._unread.find(group.group_id, partition, position)
            if since is not None:
                oldest = since if oldest is None else min(oldest, since)
        return lag, oldest

    def _look_at_doors(self, node: Counter[str]) -> None:
        requests: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for (door, name), api in list(self._broker.metrics.apis.items()):
            failed = sum(api.errors.values())
            requests[door] += api.requests
            errors[door] += failed
            if api.requests:
                seconds = round(api.latency.total, 6)
                self.changes.put((APIS, door, name), (api.requests, failed, seconds, tuple(api.latency.counts)))
        for door, each in self._broker.metrics.doors.items():
            counts = (each.connections_accepted, each.connections_refused, each.connections_unread)
            self.changes.put(
                (DOORS, door),
                (each.connections, *counts, each.handshakes_failed, requests[door], errors[door]),
            )
            node.update(connections=each.connections)
        node.update(requests=requests.total(), errors=errors.total())

    async def _look_at_node(self, node: Counter[str]) -> None:
        broker = self._broker
        disk, run = broker.runtime.disk, broker.runtime.offload.run
        capacity, free = await run(disk.capacity_bytes), await run(disk.free_bytes)
        log, membership = broker.log, broker.membership
        in_sync = not log.is_replicated or len(membership.isr) == len(membership.replicas)
        self.changes.put(
            (NODE, str(broker.node_id)),
            (
                *(self._started_ms, node["topics"], node["partitions"], node["offline"], in_sync),
                *(node["bytes"], capacity, free, round(cpu_seconds(), 3), memory_bytes()),
                *(self._messages_in, node["bytes_in"], node["bytes_out"], node["connections"]),
                *(node["requests"], node["errors"], broker.timer.pending),
                *(broker.prepared.pending, broker.prepared.parked, broker.transactions.open),
                *(node["ready"], node["dead"], node["lag"]),
            ),
        )

    async def _forget(self, kind: str, there: set[tuple[str, ...]]) -> None:
        """Drop the rows of what is no more."""
        for names in list(self._known[kind]):
            if names not in there:
                self.changes.drop((kind, *names))
            self._done += 1
            if self._done >= 8 * STEP_PARTITIONS:
                await self._pause(0)
        self._known[kind] = there


def _sum_up_one(
    partition: Partition, local: Callable[[Partition], LocalPartition]
) -> tuple[int, int | None, int | None, int | None]:
    """The same of a topic with one partition."""
    if partition.offline is not None:
        return 1, 0, 0, 0
    if not partition.loaded:
        return 0, None, None, None
    end = partition.high_watermark
    return 0, end - partition.start, end, local(partition).size()


def _growth(before: Row | None, row: Row, column: int) -> int:
    """What a counter has grown by; a counter that was not known, or began anew, has not."""
    old, new = None if before is None else before[column], row[column]
    return max(new - old, 0) if isinstance(old, int) and isinstance(new, int) else 0
