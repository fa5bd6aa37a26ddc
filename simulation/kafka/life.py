"""A life of a broker behind its Kafka door, and what its clients share.

`KafkaLife` starts log, broker and door, lets the clients of a campaign talk to them over a network that breaks, and
stops them, unless the life ends before. Which clients, and what they check, is the campaign's.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from kio.schema.errors import ErrorCode

from headrace.broker.broker import Broker
from headrace.client.errors import ClientError, ConnectionLost, RequestTimeout
from headrace.doors.door import DoorContext
from headrace.doors.kafka.door import KafkaDoor
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.history import Violation, require
from simulation.kafka.client import FETCH_VERSIONS, HOST, PORT, PRODUCE_VERSIONS, Codec, KafkaClient
from simulation.life import Life, small_config
from simulation.world import World

UNSERVED_MAX = 200


class KafkaLife(Life):
    """One life of the broker, with its clients."""

    log: NativeLog
    """There once the life has begun."""

    def __init__(self, world: World, runtime: Runtime) -> None:
        super().__init__(world, runtime)
        self.ids: dict[str, UUID] = {}
        self.config = replace(
            small_config(world.stream("config")),
            kafka=f"{HOST}:{PORT}",
            offsets_partitions=2,
            transactions_partitions=2,
            log_segment_bytes=world.stream("segments").choice((4_000, 20_000)),
            auto_create_topics=False,
        )
        self._unserved = 0

    def codec(self, rng: random.Random, produce_versions: tuple[int, ...] = PRODUCE_VERSIONS) -> Codec:
        """The versions that a client uses in this life."""
        return Codec(rng.choice(produce_versions), rng.choice(FETCH_VERSIONS), self.ids)

    def may_retry(self, code: ErrorCode) -> bool:
        """Whether the broker may ask for a retry with this error now."""
        return False

    def on_cut(self, client: str, error: ClientError) -> None:
        """A client's connection broke, which the network may do; a broker that does not answer is another thing."""
        self.world.note(f"{client} cut off")
        if isinstance(error, RequestTimeout) or not isinstance(error, ConnectionLost):
            raise Violation(f"{client}: {error}")

    def on_unserved(self, partition: str, error: int) -> None:
        """A fetch was not served. A partition whose places are forgotten faster than they are looked up (there are very
        few open files here) asks its readers to retry; again and again is too much, and so is any other error."""
        self._unserved += 1
        self.world.note(f"unserved {partition} {error}")
        require(
            error == ErrorCode.kafka_storage_error and self._unserved < UNSERVED_MAX,
            f"{partition}: fetch error {ErrorCode(error)!r}, number {self._unserved}",
        )

    async def learn_ids(self, client: KafkaClient, topics: Iterable[str]) -> None:
        """Topics that were created are there, with ids."""
        names = [{"name": name} for name in topics]
        reply = await client.call("metadata", 12, topics=names, allow_auto_topic_creation=False)
        for found in reply.topics:
            require(not found.error_code, f"the topic {found.name} is not there: {found.error_code!r}")
            self.ids[str(found.name)] = found.topic_id

    async def run(self) -> None:
        log = self.log = NativeLog(self.runtime, self.config)
        await self.or_exit(log.start())
        broker = Broker(self.runtime, log, self.config)
        await self.or_exit(broker.start())
        door = KafkaDoor(DoorContext(broker, self.config, self.config))
        await door.start()
        network = self.world.network
        network.cut_chance = self.rng.choice((0.0, 0.001, 0.01, 0.03))
        await self.clients()
        network.cut_chance = 0.0
        await self.maybe_crash_idle()
        self.world.note("stop")
        await door.stop()
        await self.or_exit(broker.stop())
        await self.or_exit(log.stop())

    @abstractmethod
    async def clients(self) -> None:
        """Everything that clients do in this life."""
