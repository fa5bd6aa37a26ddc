"""A broker on a simulated machine, and producers of half messages that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.broker.timer.stage import read_records

from headrace.broker.broker import Broker
from headrace.broker.prepared import Check
from headrace.config import Config
from headrace.log.interface import Topic
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.world import Ending, World

Headers = list[tuple[str, bytes | None]]


class Life:
    """One life of a broker."""

    def __init__(self, runtime: Runtime, **settings: Any) -> None:
        self.runtime = runtime
        seldom = {"journal_bytes": 1 << 18, "compaction_check_ms": 3_600_000, "retention_check_ms": 3_600_000}
        self.config = Config(data="simulated", **{**seldom, **settings})
        self.log = NativeLog(runtime, self.config)

    async def start(self) -> None:
        await self.log.start()
        self.broker = Broker(self.runtime, self.log, self.config)
        self.prepared = self.broker.prepared
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.log.stop()

    def now(self) -> int:
        return self.runtime.clock.now_ms()

    async def topic(self, name: str = "orders", partitions: int = 1, **config: str) -> Topic:
        topic = self.log.topics.get(name)
        if topic is None:
            topic = await self.broker.topics.create(name, partitions, config)
        return topic

    async def values(self, name: str = "orders") -> list[bytes | None]:
        """The values that readers of a topic see, partition after partition."""
        found: list[bytes | None] = []
        for partition in self.log.topics[name].partitions:
            found += [value for _, _, value, _ in await read_records(self.runtime, partition)]
        return found

    async def rest(self, seconds: float = 0.01) -> None:
        await asyncio.sleep(seconds)


class Producer:
    """Listens for a group, and keeps what it is asked."""

    def __init__(self, life: Life, group: str = "shop", limit: int = 100) -> None:
        self.asked: list[Check] = []
        self.times: list[int] = []
        self._life = life
        self.listener = life.prepared.check_back.listen(group, self._ask, limit)

    def _ask(self, check: Check) -> None:
        self.asked.append(check)
        self.times.append(self._life.now())

    @property
    def ids(self) -> list[str]:
        return [check.id for check in self.asked]


Act = Callable[[Life], Awaitable[None]]


def play(*acts: Act, world: World | None = None, **settings: Any) -> World:
    """Each act is a life of the broker on the same disk, ended by a clean stop."""
    world = world or World(1)
    for act in acts:

        async def live(runtime: Runtime, act: Act = act) -> None:
            life = Life(runtime, **settings)
            await life.start()
            await act(life)
            await life.stop()

        assert world.run(live) is Ending.DONE
    return world
