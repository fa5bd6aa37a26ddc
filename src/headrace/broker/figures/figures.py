"""The look at everything that a watcher sees: topics, queues, groups, doors, their APIs, and the node.

However many watch, there is at most one look at a time, and none within `figures_interval_ms` of the last; while nobody
asks, nothing is done. A look takes a turn of the loop for so much work (`pace.py`), and goes on in the next. It warms
nothing: what was not used since the start has no figures yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.broker.figures.changes import START, Changed, Place
from headrace.broker.figures.columns import APIS, DOORS, NODE
from headrace.broker.figures.groups import GroupFigures
from headrace.broker.figures.overview import Sample, Samples
from headrace.broker.figures.pace import Pace
from headrace.broker.figures.queues import QueueFigures
from headrace.broker.figures.rows import Rows
from headrace.broker.figures.topics import TopicFigures
from headrace.runtime import Disk
from headrace.runtime.process import cpu_seconds, memory_bytes

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class Figures:
    """The figures of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.rows = Rows()
        self.changes = self.rows.changes
        self.tag = broker.runtime.random.bytes(6).hex()
        """Another one after each start: numbers of changes mean something with it alone."""
        self.at_ms = 0
        """When it was looked."""
        self.samples = Samples()
        self.pace = Pace()
        self._broker = broker
        self._interval = broker.config.figures_interval_ms / 1000
        self._looked = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._started_ms = broker.runtime.clock.now_ms()
        self._topics = TopicFigures(broker, self.rows)
        self._queues = QueueFigures(broker, self.rows)
        self._groups = GroupFigures(broker, self.rows)

    @property
    def rates(self) -> Mapping[str, tuple[float, float]]:
        """Of topics with traffic: messages and bytes a second that came between the last two looks."""
        return self._topics.rates

    @property
    def lags(self) -> Mapping[str, tuple[int, int]]:
        """Of groups in all their topics: messages, and for how long the oldest of them has waited."""
        return self._groups.lags

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

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have a position in a topic, as of the last look."""
        return self._groups.of_topic(topic)

    def version_of(self, place: Place) -> str:
        """What a reader brings to be told what changed since."""
        return f"{self.tag}:{place.number}:{place.round}"

    # --- the look -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        node: Counter[str] = Counter()
        await self._topics.look(self.pace, now - self._looked)
        await self._queues.look(self.pace)
        await self._groups.look(self.pace)
        self._look_at_doors(node)
        await self._look_at_node(node)
        await self.changes.compact()
        self._looked = now
        self.at_ms = self._broker.runtime.clock.now_ms()
        totals = self._topics.totals
        self.samples.add(
            Sample(
                *(now, self._topics.messages_in, totals.bytes_in, totals.bytes_out, node["requests"], node["errors"])
            )
        )

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
        broker, totals = self._broker, self._topics.totals
        capacity, free = await broker.runtime.offload.run(_capacity_and_free, broker.runtime.disk)
        log, membership = broker.log, broker.membership
        in_sync = not log.is_replicated or len(membership.isr) == len(membership.replicas)
        self.changes.put(
            (NODE, str(broker.node_id)),
            (
                *(self._started_ms, len(self._topics), totals.partitions, totals.offline, in_sync),
                *(totals.bytes, capacity, free, round(cpu_seconds(), 3), memory_bytes()),
                *(self._topics.messages_in, totals.bytes_in, totals.bytes_out, node["connections"]),
                *(node["requests"], node["errors"], broker.timer.pending),
                *(broker.prepared.pending, broker.prepared.parked, broker.transactions.open),
                *(self._queues.ready, self._queues.dead, self._groups.lag),
            ),
        )


def _capacity_and_free(disk: Disk) -> tuple[int, int]:
    return disk.capacity_bytes(), disk.free_bytes()
