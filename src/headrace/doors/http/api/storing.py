"""Storing what was published over HTTP, for now or for later: all of a request or nothing, in one append.

Messages for now become one batch for each partition that they go to: the one that a message names, that of its key (as
Kafka's producers choose it), and for all others of a request the same one, so that they keep their order. Messages for
later go to the timer, by partition and time. One journal entry holds everything, ids included.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.deduplication import Stored
from headrace.broker.deduplication.ids import HEADER, ID_BYTES_MAX, STRIDE
from headrace.broker.durable import append_durably, durable
from headrace.broker.internal import check_change
from headrace.broker.topic_config import deduplicates, delays
from headrace.doors.http.api.answers import Refused, bad
from headrace.errors import PartitionOffline
from headrace.format import records
from headrace.format.delay import DELIVER_AT, MAX_DELAY_MS
from headrace.format.partitioning import partition_of
from headrace.log.interface import Partition, Topic, Write

DEDUPLICATION_ID = HEADER.decode()
DELIVER_AT_HEADER = DELIVER_AT.decode()
PARTITION_MAX = (1 << 31) - 1
# Everybody else waits while they are taken apart: about a quarter of a second for so many.
MESSAGES_MAX = 10_000

# Of what had no duplicates.
NONE: array[int] = array("q")

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was asked for."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int = -1
    """-1: as its key says."""
    due_ms: int = 0
    """When it is to be delivered; 0, or a time that has passed: now."""


@dataclass(frozen=True, slots=True)
class Part:
    """Messages that go the same way: to one partition, at one time."""

    partition: Partition
    due_ms: int
    batch: bytearray
    numbers: list[int]
    """Of its messages in the request."""


def check_count(count: int) -> None:
    """Raise unless so many messages may come in one request."""
    if count > MESSAGES_MAX:
        raise Refused(
            413, "TooManyMessages", f"a request has {MESSAGES_MAX} messages at most: send the others in another one"
        )


def with_id(headers: Headers, id: bytes | None) -> Headers:
    """The headers of a message that was given a deduplication id."""
    if id is None:
        return headers
    if not 1 <= len(id) <= ID_BYTES_MAX:
        raise bad(f"dedup_id is a text of 1 to {ID_BYTES_MAX} bytes")
    if any(name == DEDUPLICATION_ID for name, _ in headers):
        raise bad(f"dedup_id and the header {DEDUPLICATION_ID} are both given: one of them is enough")
    return [*headers, (DEDUPLICATION_ID, id)]


async def store(broker: Broker, name: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Store messages, and return once they are durable: what to say of each. Raises a HeadraceError or Refused, and
    has then stored nothing."""
    check_change(name, "written to")
    # Before a topic is made for what it then cannot take.
    last = broker.ground.clock.now_ms() + MAX_DELAY_MS
    for message in messages:
        if message.due_ms > last:
            raise bad(f"a message cannot be delivered at {message.due_ms}: that is more than 25 years ahead")
    topic = await broker.topics.ensure(name)
    if delays(topic.config):
        messages = [_heeding_header(each, last) for each in messages]
    once = await _knows_ids(broker, topic, messages)
    if any(message.due_ms for message in messages):
        await broker.timer.load()
    places = await _places(broker, topic, messages)
    room = broker.overflow.admit(topic)
    if room is not None:
        await room
    parts = _share_out(broker, messages, places)
    answers = await _append(broker, parts, once)
    metrics = broker.metrics.topic(topic.name)
    metrics.batches_in += len(parts)
    metrics.bytes_in += sum(len(part.batch) for part in parts)
    return [answers[number] for number in range(len(messages))]


def _heeding_header(message: Message, last: int) -> Message:
    """On a topic with `delay=true` a header says when, too."""
    value = next((value for name, value in message.headers if name == DELIVER_AT_HEADER), b"")
    if not any(name == DELIVER_AT_HEADER for name, _ in message.headers):
        return message
    if message.due_ms:
        raise bad(f"a delay and the header {DELIVER_AT_HEADER} are both given: one of them is enough")
    given = value or b""
    due_ms = -1
    if given.isdigit() and len(given) <= 18:
        due_ms = int(given)
    elif len(given) == 8 and given[0] < 0x80 and not given.isdigit():
        due_ms = int.from_bytes(given, "big")
    if not 0 <= due_ms <= last:
        raise bad(
            f"the header {DELIVER_AT_HEADER} is {given!r}, which is no time within 25 years: give milliseconds since "
            "1970 as decimal text, or as 8 bytes, big-endian"
        )
    return Message(message.key, message.value, message.headers, message.partition, due_ms)


async def _knows_ids(broker: Broker, topic: Topic, messages: Sequence[Message]) -> bool:
    """Whether messages are to be told from those that were there before; the topic's ids are loaded then."""
    deduplication = broker.deduplication
    asked = any(name == DEDUPLICATION_ID for message in messages for name, _ in message.headers)
    if asked and deduplication.heeds(topic):
        await deduplication.load(topic)
    return asked and deduplicates(topic.config)


async def _places(broker: Broker, topic: Topic, messages: Sequence[Message]) -> list[Partition]:
    """The partition of each message, ready to be appended to."""
    partitions = topic.partitions
    own = int.from_bytes(broker.ground.random.bytes(4), "big") % len(partitions)
    places = []
    for message in messages:
        index = message.partition
        if index < 0:
            index = own if message.key is None else partition_of(message.key, len(partitions))
        elif index >= len(partitions):
            raise bad(f"partition is {index}, but the topic {topic.name!r} has {len(partitions)}, the first being 0")
        places.append(partitions[index])
    for partition in dict.fromkeys(places):
        if not partition.loaded:
            await partition.load()
        if partition.offline:
            raise PartitionOffline(partition.offline)
    return places


def _share_out(broker: Broker, messages: Sequence[Message], places: Sequence[Partition]) -> list[Part]:
    """A batch for each partition and time, those for now in front."""
    now = broker.ground.clock.now_ms()
    shares: dict[tuple[Partition, int], list[int]] = {}
    for number, (message, partition) in enumerate(zip(messages, places, strict=True)):
        due_ms = message.due_ms if message.due_ms > now else 0
        shares.setdefault((partition, due_ms), []).append(number)
    parts = []
    for (partition, due_ms), numbers in shares.items():
        chosen = [messages[number] for number in numbers]
        batch = records.build([(now, each.key, each.value, each.headers) for each in chosen])
        parts.append(Part(partition, due_ms, batch, numbers))
    return sorted(parts, key=lambda part: part.due_ms)


async def _append(broker: Broker, parts: Sequence[Part], once: bool) -> dict[int, dict[str, Any]]:
    """Append everything, and wait until it is durable; what to say of each message, by its number."""
    now = [part for part in parts if not part.due_ms]
    later = [(part.partition, part.batch, part.due_ms) for part in parts if part.due_ms]
    stored: list[Stored]
    if once:
        waiter, done = durable()
        stored = broker.deduplication.publish_timed([(part.partition, part.batch) for part in now], later, done)
        await waiter
    elif later:
        waiter, done = durable()
        writes = [Write(part.partition, part.batch) for part in now]
        timers, appended = broker.timer.schedule_together(later, done, writes)
        await waiter
        stored = [Stored(each.base_offset, -1, NONE) for each in appended]
        stored += [Stored(-1, -1, NONE, ids) for ids in timers]
    else:
        writes = [Write(part.partition, part.batch) for part in now]
        stored = [Stored(each.base_offset, -1, NONE) for each in await append_durably(broker.log, writes)]
    answers: dict[int, dict[str, Any]] = {}
    for part, each in zip(parts, stored, strict=True):
        _tell(part, each, answers)
    return answers


def _tell(part: Part, stored: Stored, answers: dict[int, dict[str, Any]]) -> None:
    repeated = stored.duplicates
    for at in range(0, len(repeated), STRIDE):
        # What waits in the timer has no place in the topic yet.
        offset = repeated[at + 3] if repeated[at + 3] >= 0 else None
        answers[part.numbers[repeated[at]]] = {"partition": repeated[at + 2], "offset": offset, "duplicate": True}
    timers = iter(stored.timers)
    for index, number in enumerate(part.numbers):
        if number in answers:
            continue
        said: dict[str, Any] = {"partition": part.partition.index, "offset": None, "duplicate": False}
        if part.due_ms:
            said |= {"deliver_at": part.due_ms, "timer": next(timers)}
        else:
            said["offset"] = stored.base_offset + index
        answers[number] = said
