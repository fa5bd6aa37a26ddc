"""The whole broker in the simulator: log, broker and Kafka door, and clients on the other side of a network.

A run is one seed: a few lives of a broker on one machine. In each, clients speak Kafka's wire protocol over connections
that are cut, delayed and chopped, until the broker stops, is killed, or the power goes. Clients remember
(`BrokerClients`); the next life must keep what the last one promised them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from headrace.runtime import Runtime
from simulation.broker.consumers import GroupMember, PartitionReader, read_whole
from simulation.broker.history import CommitHistory, PartitionHistory, Survived
from simulation.broker.library import Library
from simulation.broker.producer import Producer, ProducerState, Target
from simulation.broker.topics import RecreatedTopic, RecreatedTopicReader, RecreatedTopics
from simulation.campaign import LivesCampaign
from simulation.history import Place, require
from simulation.kafka.client import KafkaClient
from simulation.kafka.life import KafkaLife
from simulation.life import gather
from simulation.world import Ending, World

# Name, partitions, durability.
TOPICS = (("kept", 2, "sync"), ("kept-too", 1, "sync"), ("cached", 1, "async"), ("fleeting", 1, "memory"))
SURVIVED = {
    Ending.DONE: Survived.EVERYTHING,
    Ending.KILLED: Survived.CACHE,
    Ending.POWER_CUT: Survived.DEVICE,
}


@dataclass(slots=True)
class BrokerClients:
    """What all clients know, from the first life to the last."""

    histories: dict[Place, PartitionHistory]
    producers: list[ProducerState]
    readers: dict[str, dict[Place, int]]
    commits: dict[str, CommitHistory]
    created: set[str] = field(default_factory=set)
    identities: set[int] = field(default_factory=set)
    recreated: dict[str, RecreatedTopic] = field(default_factory=dict)


def new_clients(rng: random.Random) -> BrokerClients:
    """Topics, producers, readers and groups of one run."""
    histories = {
        (name, index): PartitionHistory(f"{name}-{index}", durability=durability)
        for name, count, durability in TOPICS
        for index in range(count)
    }
    places = list(histories)
    producers = []
    for number in range(rng.randint(2, 4)):
        chosen = sorted(rng.sample(range(len(places)), rng.randint(1, 3)))
        targets = [Target(places[at], histories[places[at]]) for at in chosen]
        producers.append(ProducerState(f"p{number}", rng.random() < 0.6, targets))
    readers = {f"reader-{number}": dict.fromkeys(places, 0) for number in range(2)}
    commits = {f"group-{number}": CommitHistory(f"group-{number}") for number in range(3)}
    return BrokerClients(histories, producers, readers, commits)


class BrokerLife(KafkaLife):
    """One life of the broker, with its clients."""

    def __init__(self, world: World, known: BrokerClients, runtime: Runtime, steps: int) -> None:
        super().__init__(world, runtime)
        self.known = known
        self.steps = steps
        self.histories = known.histories

    def register_producer(self, identity: tuple[int, int]) -> None:
        """No two producers ever get the same id."""
        require(identity[0] not in self.known.identities, f"the producer id {identity[0]} was given twice")
        self.known.identities.add(identity[0])

    async def clients(self) -> None:
        known, rng = self.known, self.rng
        client = KafkaClient(self, "first")
        await self._create_topics(client)
        # What a crash may have taken must be known before anything else is written there; the rest must hold anyway.
        for place, history in self.histories.items():
            if history.forgiving or rng.random() < 0.5:
                await read_whole(self, client, place)
        tasks = [Producer(self, each, self.steps).run() for each in known.producers]
        for name, positions in known.readers.items():
            for place, history in self.histories.items():
                if history.durability != "sync" or rng.random() < 0.5:
                    positions[place] = 0
            tasks.append(PartitionReader(self, name, positions).run(self.steps))
        for number, (group, commits) in enumerate(known.commits.items()):
            tasks.append(GroupMember(self, group, ("kept", 0), commits, joins=number == 0).run(self.steps // 2))
        tasks.append(RecreatedTopics(self, known.recreated).run(self.steps // 4))
        tasks.append(RecreatedTopicReader(self).run(self.steps))
        kept = [place for place, history in self.histories.items() if history.durability == "sync"]
        tasks.append(Library(self, kept).run(self.steps))
        await gather(tasks)
        for place in self.histories:
            await read_whole(self, client, place)
        client.close()

    async def _create_topics(self, client: KafkaClient) -> None:
        created = self.known.created
        for name, partitions, durability in TOPICS:
            if name in created and self.rng.random() < 0.5:
                continue
            code = await client.create_topic(name, partitions, {"durability": durability, "retention.ms": "-1"})
            require(code is not ErrorCode.none or name not in created, f"the topic {name} was lost")
            created.add(name)
        await self.learn_ids(client, [name for name, _, _ in TOPICS])


@dataclass(frozen=True)
class BrokerCampaign(LivesCampaign[BrokerClients]):
    """Many seeds of the whole broker."""

    # Short lives and many: crashes find more than traffic does.
    steps: int = 12
    lives: int = 5

    def prepare(self, world: World) -> BrokerClients:
        return new_clients(world.stream("account"))

    def life(self, world: World, known: BrokerClients, runtime: Runtime, last: bool) -> BrokerLife:
        return BrokerLife(world, known, runtime, 4 if last else self.steps)

    def on_ended(self, world: World, known: BrokerClients, ending: Ending) -> None:
        for history in known.histories.values():
            history.end_life(SURVIVED[ending])
