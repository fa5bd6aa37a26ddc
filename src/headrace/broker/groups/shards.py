"""All partitions of `__consumer_offsets`: which of them keeps a group, and whether it can be used yet.

The topic is made when a group first has something to write, and taken up as it is found after a start; the number of
its partitions is then fixed, because it decides where each group is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import lru_cache

import structlog

from headrace.broker.groups.classic_state import Host
from headrace.broker.groups.consumer.consumer_group import ConsumerHost
from headrace.broker.groups.protocol import GroupError, Problem
from headrace.broker.groups.shard import TOPIC, Shard, shard_of
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import StateTopic
from headrace.broker.topics import Topics
from headrace.errors import HeadraceError
from headrace.log.interface import Log, Topic
from headrace.runtime import Runtime

log = structlog.get_logger("headrace.groups")

# A replay that takes longer goes on, but the requests that wait for it are refused for now.
LOAD_SECONDS = 5.0
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "durability": "sync",
    "segment.bytes": str(100 << 20),
    "max.message.bytes": str(32 << 20),
}

_index_of = lru_cache(maxsize=1_024)(shard_of)


class Shards:
    """The shards of the topic; none while there is no topic."""

    def __init__(
        self, runtime: Runtime, log: Log, topics: Topics, config: BrokerSettings, host: Host, consumers: ConsumerHost
    ) -> None:
        self.all: list[Shard] = []
        self._state = StateTopic(runtime, log, topics, config, TOPIC, TOPIC_CONFIG, config.offsets_partitions)
        self._log = log
        self._host = host
        self._consumers = consumers
        self._topic: Topic | None = None
        self._making: asyncio.Task[Topic] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End all groups; whatever waits is refused."""
        self._stopped = True
        if self._making is not None:
            self._making.cancel()
        for shard in self.all:
            shard.stop()

    def home(self, group_id: str) -> Shard:
        """The shard of a group that is in memory."""
        return self.all[_index_of(group_id, len(self.all))]

    async def of(self, group_id: str) -> Shard | None:
        """The loaded shard of a group; None while there are no groups at all. Raises GroupError."""
        if not self._ready():
            return None
        shard = self.home(group_id)
        if not shard.ready:
            await self._load(shard)
        return shard

    async def for_change(self, group_id: str) -> Shard:
        """The loaded shard of a group, whose topic is made if it is missing. Raises GroupError."""
        shard = await self.of(group_id)
        if shard is not None:
            return shard
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._state.open())
        try:
            await asyncio.shield(self._making)
        except (HeadraceError, OSError) as error:
            log.warning("could not make the topic of the groups", topic=TOPIC, error=str(error))
            raise GroupError(Problem.COORDINATOR_NOT_AVAILABLE) from error
        shard = await self.of(group_id)
        if shard is None:
            raise GroupError(Problem.COORDINATOR_NOT_AVAILABLE)
        return shard

    async def warm(self, index: int) -> None:
        """Load one shard. Raises GroupError."""
        if self._ready() and index < len(self.all) and not self.all[index].ready:
            await self._load(self.all[index])

    async def loaded(self) -> AsyncIterator[Shard]:
        """All shards, one after the other as they are loaded. Raises GroupError."""
        if not self._ready():
            return
        for shard in list(self.all):
            if not shard.ready:
                await self._load(shard)
            yield shard

    def _ready(self) -> bool:
        """Whether there is a topic. It is taken up when it appears; what was known of a deleted one is gone."""
        if self._stopped:
            raise GroupError(Problem.COORDINATOR_NOT_AVAILABLE)
        if self._topic is not None and not self._topic.deleted:
            return True
        for shard in self.all:
            shard.stop()
        self._topic = self._state.topic
        count = 0 if self._topic is None else len(self._topic.partitions)
        self.all = [Shard(index, self._state, self._log, self._host, self._consumers) for index in range(count)]
        return self._topic is not None

    async def _load(self, shard: Shard) -> None:
        try:
            await asyncio.wait_for(shard.load(), LOAD_SECONDS)
        except TimeoutError:
            raise GroupError(Problem.COORDINATOR_LOAD_IN_PROGRESS) from None
        except (HeadraceError, OSError) as error:
            log.warning("could not load groups", error=str(error))
            raise GroupError(Problem.COORDINATOR_NOT_AVAILABLE) from error
