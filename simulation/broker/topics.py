"""Topics that come and go: made, written, read back, deleted and made again under the same name.

One client does all of it, one step after the other, so that it always knows which incarnation of a name it speaks to.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.client import wire
from headrace.format import records
from simulation.history import require
from simulation.kafka.client import Codec, KafkaClient, sift

if TYPE_CHECKING:
    from simulation.broker.campaign import BrokerLife

NAMES = ("passing-a", "passing-b")
LOOKS = (ErrorCode.none, ErrorCode.unknown_topic_or_partition, ErrorCode.kafka_storage_error)


@dataclass(slots=True)
class RecreatedTopic:
    """What its client knows of a topic that comes and goes."""

    exists: bool | None = False
    """None: asked for, and not answered."""
    wanted: bool = False
    number: int = 0
    """Of the newest incarnation that was asked for; its records carry it."""
    acknowledged: dict[int, str] = field(default_factory=dict)


class RecreatedTopics:
    """The client in one life."""

    def __init__(self, life: BrokerLife, topics: dict[str, RecreatedTopic]) -> None:
        self._life = life
        self._rng = life.stream("passing topics")
        self._client = KafkaClient(life, "passing")
        self._codec = Codec()
        self._topics = topics

    async def run(self, steps: int) -> None:
        for name in NAMES:
            topic = self._topics.setdefault(name, RecreatedTopic())
            await self._check_start(name, topic)
        for _ in range(steps):
            name = self._rng.choice(NAMES)
            topic = self._topics[name]
            if not topic.exists:
                await self._create(name, topic)
            elif self._rng.random() < 0.7:
                await self._write(name, topic)
            else:
                await self._read(name, topic)
                await self._delete(name, topic)
            await asyncio.sleep(self._rng.expovariate(1 / 0.01))
        self._client.close()

    async def _check_start(self, name: str, topic: RecreatedTopic) -> None:
        """After a start: what was answered holds, what was not may be either way."""
        reply = await self._client.call("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False)
        there = reply.topics[0].error_code is not ErrorCode.unknown_topic_or_partition
        require(topic.exists in (None, there), f"{name}: exists={topic.exists} was answered, and now {there}")
        if topic.exists is None and not there:
            topic.acknowledged.clear()
        topic.exists = there
        if there:
            await self._read(name, topic)

    async def _create(self, name: str, topic: RecreatedTopic) -> None:
        topic.exists = None
        topic.number += 1
        topic.acknowledged.clear()
        await self._client.create_topic(name, 1, {})
        topic.exists = True
        self._life.world.note(f"made {name} {topic.number}")
        await self._read(name, topic)

    async def _delete(self, name: str, topic: RecreatedTopic) -> None:
        topic.exists = None
        reply = await self._client.call("delete_topics", 6, topics=[{"name": name}], timeout=30_000)
        code = reply.responses[0].error_code
        require(
            code in (ErrorCode.none, ErrorCode.unknown_topic_or_partition), f"{name} could not be deleted: {code!r}"
        )
        topic.exists = False
        self._life.world.note(f"deleted {name} {topic.number}")

    async def _write(self, name: str, topic: RecreatedTopic) -> None:
        value = f"{name}/{topic.number}/{self._rng.random()}"
        batch = bytes(records.build([(self._life.now_ms(), None, value.encode(), [])]))
        produced = await self._client.attempt(partial(self._codec.produce, batches=[((name, 0), batch)], acks=1))
        if produced is None:
            return
        [answer] = produced
        require(not answer.error, f"{name}: a batch was refused with {answer.error}")
        before = topic.acknowledged.setdefault(answer.base_offset, value)
        require(before == value, f"{name}: two batches were acknowledged at {answer.base_offset}")

    async def _read(self, name: str, topic: RecreatedTopic) -> None:
        """Everything acknowledged to this incarnation is there, and nothing of the ones before."""
        missing = dict(topic.acknowledged)
        position = 0
        while True:
            wanted = [((name, 0), position, 1 << 20)]
            answer = await self._client.attempt(partial(self._codec.fetch, wanted=wanted))
            if answer is None:
                continue
            error, [fetched], _ = answer
            if error or fetched.error:
                self._life.on_unserved(name, error or fetched.error)
                await asyncio.sleep(0.01)
                continue
            found, _ = sift(fetched, position)
            for offset, value in found:
                require(offset == position, f"{name}: {offset} stands where {position} should")
                require(
                    value.startswith(f"{name}/{topic.number}/"),
                    f"{name}: {value} at {offset} is of another topic than number {topic.number}",
                )
                require(missing.pop(offset, value) == value, f"{name}: another record than acknowledged at {offset}")
                position = offset + 1
            if not found or position >= fetched.high_watermark:
                break
        require(not missing, f"{name}: the acknowledged {missing} are lost; the end is {position}")


class RecreatedTopicReader:
    """A reader that stays in its fetch session while the topics come and go under it."""

    def __init__(self, life: BrokerLife) -> None:
        self._life = life
        self._rng = life.stream("onlooker")
        self._client = KafkaClient(life, "onlooker")
        # Ids change with each incarnation; names stay.
        self._codec = Codec(fetch=self._rng.choice((wire.FETCH_VERSION, 12)))

    async def run(self, steps: int) -> None:
        session, epoch = 0, 0
        while steps > 0:
            steps -= 1
            wanted = [((name, 0), 0, self._rng.choice((100, 1 << 20))) for name in NAMES] if not epoch else []
            fetch = partial(
                self._codec.fetch, wanted=wanted, max_wait=self._rng.choice((0, 20, 200)), session=(session, epoch)
            )
            answer = await self._client.attempt(fetch)
            if answer is None:
                # The broker may have moved on without telling: a session of its own survives that.
                session, epoch = 0, 0
                continue
            error, found, session = answer
            require(not error, f"the onlooker's session: {ErrorCode(error)!r}")
            epoch = epoch + 1 if session else 0
            for each in found:
                self._check_answer(each)
            # A session that has news answers at once.
            await asyncio.sleep(self._rng.expovariate(1 / 0.01))
        self._client.close()

    def _check_answer(self, fetched: wire.Fetched) -> None:
        """One reply never mixes two incarnations, and errors are those of a topic that is not there."""
        code = ErrorCode(fetched.error)
        self._life.world.note(f"onlooker {fetched.topic} {code.name} {len(fetched.records)}")
        require(code in LOOKS, f"{fetched.topic}: the onlooker got {code!r}")
        numbers = {value.split("/")[1] for _, value in sift(fetched, 0)[0]}
        require(len(numbers) <= 1, f"{fetched.topic}: one reply has records of {sorted(numbers)}")
