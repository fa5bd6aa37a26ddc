"""The state in `__rocketmq`: read when a client first needs it, appended to with every change.

A key begins with a byte for its kind: the number of a span of a partition (`physical_offsets.py`), a value of the name
server's configuration, the settings of a group (`subscription_groups.py`), or how a group reads a topic
(`request_modes.py`). A record without a value ends what its key names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from headrace.broker.fields import INT32, INT64, Reader, string
from headrace.broker.internal import ROCKETMQ
from headrace.broker.loading import SharedLoad
from headrace.broker.rocketmq.physical_offsets import NUMBERS_MAX, OFFSET_BITS, PhysicalOffsets, Span
from headrace.broker.rocketmq.request_modes import RequestMode
from headrace.broker.rocketmq.subscription_groups import SubscriptionGroup
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import Change, StateTopic
from headrace.broker.topics import Topics
from headrace.errors import HeadraceError, StorageFailed
from headrace.format.batch import BatchHeader
from headrace.format.records import Record
from headrace.log.interface import Log, Partition, Topic
from headrace.runtime import Runtime

COUNTER = "rocketmq-numbers"
TOPIC_CONFIG = {"cleanup.policy": "compact", "durability": "sync", "segment.bytes": str(16 << 20)}

_NUMBER = b"n"
_KV = b"k"
_GROUP = b"g"
_MODE = b"m"


class RocketMqState:
    """What outlives the process of what RocketMQ's clients need."""

    def __init__(self, runtime: Runtime, log: Log, topics: Topics, config: BrokerSettings) -> None:
        self.offsets = PhysicalOffsets()
        self.kv: dict[str, dict[str, str]] = {}
        """The name server's configuration, by namespace and key."""
        self.groups: dict[str, SubscriptionGroup] = {}
        """The groups that have settings of their own."""
        self.modes: dict[tuple[str, str], RequestMode] = {}
        """How groups read topics, by RocketMQ's names, where that was set."""
        self.loaded = False
        self._log = log
        self._state = StateTopic(runtime, log, topics, config, ROCKETMQ, TOPIC_CONFIG)
        self._loading = SharedLoad(self._load)
        self._partition: Partition | None = None
        # One at a time, so that no span gets two numbers.
        self._numbering = asyncio.Lock()
        topics.changed.append(self._topic_changed)

    async def load(self) -> None:
        """Read the state, unless that is done. Raises StorageFailed; the next call tries again."""
        if not self.loaded:
            await self._loading.load()

    async def _load(self) -> None:
        try:
            topic = await self._state.open()
            partition = topic.partitions[0]
            await self._state.load(partition, self._apply)
        except (HeadraceError, OSError) as error:
            raise StorageFailed(f"the state of RocketMQ's clients cannot be read yet: {error}") from error
        self._partition = partition
        self.loaded = True
        known = self._log.topics.by_id
        await self._forget([number for number, span in self.offsets.spans.items() if span.topic_id not in known])

    def _apply(self, record: Record, header: BatchHeader) -> None:
        _, _, key, value, _ = record
        reader = Reader((key or b"")[1:])
        if (key or b"")[:1] == _NUMBER:
            number = reader.int64()
            if value is None:
                self.offsets.drop(number)
            else:
                of = Reader(value)
                self.offsets.put(number, Span(of.uuid(), of.int32(), of.int64()))
        elif (key or b"")[:1] == _KV:
            namespace, name = reader.string(), reader.string()
            self._apply_kv(namespace, name, None if value is None else value.decode())
        elif (key or b"")[:1] == _GROUP:
            name = reader.string()
            self._apply_group(name, None if value is None else SubscriptionGroup.parse(name, json.loads(value)))
        elif (key or b"")[:1] == _MODE:
            place = reader.string(), reader.string()
            if value is None:
                self.modes.pop(place, None)
            else:
                self.modes[place] = RequestMode.decode(value)

    def _apply_kv(self, namespace: str, name: str, value: str | None) -> None:
        if value is not None:
            self.kv.setdefault(namespace, {})[name] = value
        elif (values := self.kv.get(namespace)) is not None:
            values.pop(name, None)
            if not values:
                del self.kv[namespace]

    async def _write(self, changes: Sequence[Change]) -> None:
        assert self._partition is not None
        await self._state.submit([self._state.write(self._partition, changes)])

    # --- physical offsets ---------------------------------------------------------------------------------------------

    async def number(self, topic: Topic) -> None:
        """Give a number to each partition of a topic that has none for its offsets of now. Raises StorageFailed."""
        await self.load()
        async with self._numbering:
            missing = [span for span in _spans(topic) if not self.offsets.has(span)]
            if not missing or topic.deleted:
                return
            # The first one is not 0: that would be the physical offset of a message that has none.
            first = await self._log.reserve(COUNTER, len(missing)) + 1
            if first + len(missing) > NUMBERS_MAX:
                raise StorageFailed(
                    f"all {NUMBERS_MAX} numbers of partitions are used up: RocketMQ's clients cannot use more topics"
                )
            numbered = list(enumerate(missing, first))
            await self._write(
                [
                    (
                        _NUMBER + INT64.pack(number),
                        span.topic_id.bytes + INT32.pack(span.partition) + INT64.pack(span.number),
                    )
                    for number, span in numbered
                ]
            )
            for number, span in numbered:
                self.offsets.put(number, span)

    def _topic_changed(self, topic: Topic) -> None:
        if topic.deleted and self.loaded:
            numbers = self.offsets.of_topic(topic.id)
            if numbers:
                task = asyncio.get_running_loop().create_task(self._forget(numbers))
                # Where this fails, the next start finds that the topic is gone.
                task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.offsets.drop(number)
        if numbers:
            await self._write([(_NUMBER + INT64.pack(number), None) for number in numbers])

    # --- the name server's configuration ------------------------------------------------------------------------------

    async def put_kv(self, namespace: str, name: str, value: str | None) -> None:
        """Set a value, durably; None: delete it."""
        await self.load()
        if value is None and name not in self.kv.get(namespace, {}):
            return
        await self._write([(_KV + string(namespace) + string(name), None if value is None else value.encode())])
        self._apply_kv(namespace, name, value)

    # --- the settings of groups ---------------------------------------------------------------------------------------

    def _apply_group(self, name: str, group: SubscriptionGroup | None) -> None:
        if group is None:
            self.groups.pop(name, None)
        else:
            self.groups[name] = group

    async def put_group(self, name: str, group: SubscriptionGroup | None) -> None:
        """Store the settings of a group, durably; None: it has none of its own from now on."""
        await self.load()
        await self._write([(_GROUP + string(name), None if group is None else group.encode())])
        self._apply_group(name, group)

    async def put_mode(self, group: str, topic: str, mode: RequestMode) -> None:
        """Store how a group reads a topic, durably."""
        await self.load()
        await self._write([(_MODE + string(group) + string(topic), mode.encode())])
        self.modes[group, topic] = mode


def _spans(topic: Topic) -> list[Span]:
    return [
        Span(topic.id, partition.index, number)
        for partition in topic.partitions
        for number in range(partition.start >> OFFSET_BITS, (partition.end >> OFFSET_BITS) + 1)
    ]
