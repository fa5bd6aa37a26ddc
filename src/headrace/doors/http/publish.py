"""Publishing over HTTP: one message or many, answered once they are durable.

The messages of a request are stored all or none, one batch for each partition that they go to: the one that a message
names, that of its key (as Kafka's producers choose it), and for all others of a request the same one, so that they keep
their order. A message with a deduplication id that was there before is answered with the place of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.durable import append_durably, durable
from headrace.broker.topic_config import deduplicates, delays
from headrace.broker.topics import is_internal
from headrace.doors.http.answers import Fields, bad, found
from headrace.doors.http.messages import bytes_of, headers_of
from headrace.doors.web.messages import Request, Response
from headrace.errors import InvalidTopic, PartitionOffline
from headrace.kernels import records
from headrace.kernels.deduplication import HEADER, ID_BYTES_MAX, STRIDE
from headrace.kernels.partitioning import partition_of
from headrace.log.interface import Partition, Topic, Write

DEDUPLICATION_ID = HEADER.decode()
PARTITION_MAX = (1 << 31) - 1

# Partition, its batch, and which messages of the request are in it.
Part = tuple[Partition, bytearray, list[int]]


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was asked for."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int
    """-1: as its key says."""


async def published(broker: Broker, request: Request, names: Mapping[str, str]) -> Response:
    """POST /v1/topics/{topic}/messages"""
    fields = Fields.of_body(request.body)
    given = fields.take("messages")
    if given is None:
        messages = [_message(fields, request.headers.get(DEDUPLICATION_ID))]
    else:
        fields.end()
        if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
            raise bad('messages is a list of objects, one at least, as in [{"value": "one"}, {"value": "two"}]')
        if DEDUPLICATION_ID in request.headers:
            raise bad("a deduplication id in a header is for one message; give each of several its own dedup_id")
        messages = [_message(Fields(each)) for each in given]
    name = names["topic"]
    if is_internal(name):
        raise InvalidTopic(f"the topic {name!r} is the broker's own: clients may not write to it")
    topic = await broker.topics.ensure(name)
    once = await _knows_ids(broker, topic, messages)
    if delays(topic.config):
        await broker.timer.load()
    parts = await _share_out(broker, topic, messages)
    room = broker.overflow.admit(topic)
    if room is not None:
        await room
    places = await _append(broker, topic, parts, once)
    metrics = broker.metrics.topic(topic.name)
    metrics.batches_in += len(parts)
    metrics.bytes_in += sum(len(batch) for _, batch, _ in parts)
    answers = [_answer(*places[number]) for number in range(len(messages))]
    return found({"topic": name, **answers[0]} if given is None else {"topic": name, "messages": answers})


def _message(fields: Fields, id: str | None = None) -> Message:
    key = bytes_of(fields, "key")
    value = bytes_of(fields, "value")
    headers = headers_of(fields)
    partition = fields.number("partition", -1, -1, PARTITION_MAX)
    said = fields.take("dedup_id", id)
    fields.end()
    if key is None and value is None:
        raise bad("a message needs a value (value or value_base64), or a key at least")
    if said is not None:
        if not isinstance(said, str) or not 1 <= len(said.encode("utf-8", "surrogatepass")) <= ID_BYTES_MAX:
            raise bad(f"dedup_id is a text of 1 to {ID_BYTES_MAX} bytes")
        if any(name == DEDUPLICATION_ID for name, _ in headers):
            raise bad(f"dedup_id and the header {DEDUPLICATION_ID} are both given: one of them is enough")
        headers.append((DEDUPLICATION_ID, said.encode("utf-8", "surrogatepass")))
    return Message(key, value, headers, partition)


async def _knows_ids(broker: Broker, topic: Topic, messages: list[Message]) -> bool:
    """Whether messages are to be told from those that were there before; the topic's ids are loaded then."""
    deduplication = broker.deduplication
    asked = any(name == DEDUPLICATION_ID for message in messages for name, _ in message.headers)
    if asked and deduplication.heeds(topic):
        await deduplication.load(topic)
    return asked and deduplicates(topic.config)


async def _share_out(broker: Broker, topic: Topic, messages: list[Message]) -> list[Part]:
    """A batch for each partition that messages go to, which is ready to be appended to then."""
    partitions = topic.partitions
    own = int.from_bytes(broker.ground.random.bytes(4), "big") % len(partitions)
    shares: dict[int, list[int]] = {}
    for number, message in enumerate(messages):
        index = message.partition
        if index < 0:
            index = own if message.key is None else partition_of(message.key, len(partitions))
        elif index >= len(partitions):
            raise bad(f"partition is {index}, but the topic {topic.name!r} has {len(partitions)}, the first being 0")
        shares.setdefault(index, []).append(number)
    for index in shares:
        if not partitions[index].loaded:
            await partitions[index].load()
        offline = partitions[index].offline
        if offline:
            raise PartitionOffline(offline)
    now = broker.ground.clock.now_ms()
    return [
        (
            partitions[index],
            records.build([(now, messages[each].key, messages[each].value, messages[each].headers) for each in share]),
            share,
        )
        for index, share in shares.items()
    ]


async def _append(broker: Broker, topic: Topic, parts: list[Part], once: bool) -> dict[int, tuple[int, int, bool]]:
    """Append everything, and wait until it is durable; for each message, by its number in the request, partition and
    offset, and whether it was there before."""
    places: dict[int, tuple[int, int, bool]] = {}
    bases: list[int] = []
    if once:
        waiter, done = durable()
        stored = broker.deduplication.publish([(partition, batch) for partition, batch, _ in parts], done)
        await waiter
        bases = [each.base_offset for each in stored]
        for (_, _, share), each in zip(parts, stored, strict=True):
            repeated = each.duplicates
            for at in range(0, len(repeated), STRIDE):
                places[share[repeated[at]]] = (repeated[at + 2], repeated[at + 3], True)
    elif delays(topic.config):
        for partition, batch, _ in parts:
            waiter, done = durable()
            appended = broker.timer.produce(partition, batch, done)
            if not appended.durable:
                await waiter
            bases.append(appended.base_offset)
    else:
        writes = [Write(partition, batch) for partition, batch, _ in parts]
        bases = [each.base_offset for each in await append_durably(broker.log, writes)]
    for (partition, _, share), base in zip(parts, bases, strict=True):
        for index, number in enumerate(share):
            places.setdefault(number, (partition.index, base + index, False))
    return places


def _answer(partition: int, offset: int, duplicate: bool) -> dict[str, Any]:
    # What waits in the timer has no place in the topic yet.
    return {"partition": partition, "offset": offset if offset >= 0 else None, "duplicate": duplicate}
