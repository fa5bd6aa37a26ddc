"""Single messages, and the batches that they become.

Messages for now become one batch for each partition that they go to: the one that a message names, that of its key (as
Kafka's producers choose it), or the session's own, so that all others of a request keep their order. Messages for later
become a batch for each partition and time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.broker.deduplication import Stored
from headrace.broker.deduplication.ids import HEADER, STRIDE
from headrace.broker.security import Session
from headrace.errors import InvalidDelay, UnknownPartition
from headrace.format import records
from headrace.format.delay import DELIVER_AT, MAX_DELAY_MS
from headrace.format.partitioning import partition_of
from headrace.log.interface import Partition, Topic

DEDUPLICATION_ID = HEADER.decode()
DELIVER_AT_HEADER = DELIVER_AT.decode()

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a client asks for it."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int = -1
    """-1: as its key says."""
    due_ms: int = 0
    """When it is to be delivered; 0, or a time that has passed: now."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message went."""

    partition: int
    offset: int = -1
    """-1: it has none yet, or is a duplicate of one that has none."""
    due_ms: int = 0
    timer: str = ""
    """The id by which a delayed message is found and cancelled."""
    is_duplicate: bool = False
    """It was not stored: partition and offset are those of the first with its deduplication id."""


@dataclass(frozen=True, slots=True)
class Part:
    """Messages that go the same way: to one partition, at one time."""

    partition: Partition
    due_ms: int
    batch: bytearray
    numbers: list[int]
    """Of its messages in the request."""


def check_times(messages: Sequence[Message], now_ms: int) -> None:
    """Raise InvalidDelay where a message is to be delivered too far ahead."""
    for message in messages:
        if message.due_ms > now_ms + MAX_DELAY_MS:
            raise InvalidDelay(f"a message cannot be delivered at {message.due_ms}: that is more than 25 years ahead")


def has_ids(messages: Sequence[Message]) -> bool:
    """Whether one of the messages has a deduplication id."""
    return any(name == DEDUPLICATION_ID for message in messages for name, _ in message.headers)


def apply_header(message: Message, now_ms: int) -> Message:
    """The message of a topic with `delay=true`, where a header may say when it is due, too. Raises InvalidDelay."""
    value = next((value for name, value in message.headers if name == DELIVER_AT_HEADER), b"")
    if not any(name == DELIVER_AT_HEADER for name, _ in message.headers):
        return message
    if message.due_ms:
        raise InvalidDelay(f"a delay and the header {DELIVER_AT_HEADER} are both given. Give one of them.")
    given = value or b""
    due_ms = -1
    if given.isdigit() and len(given) <= 18:
        due_ms = int(given)
    elif len(given) == 8 and given[0] < 0x80 and not given.isdigit():
        due_ms = int.from_bytes(given, "big")
    if not 0 <= due_ms <= now_ms + MAX_DELAY_MS:
        raise InvalidDelay(
            f"the header {DELIVER_AT_HEADER} is {given!r}, which is not a time within 25 years. Give milliseconds "
            "since 1970 as decimal text, or as 8 bytes, big-endian"
        )
    return replace(message, due_ms=due_ms)


def route(session: Session, topic: Topic, messages: Sequence[Message]) -> list[Partition]:
    """The partition of each message. Raises UnknownPartition."""
    partitions = topic.partitions
    own = session.partition_of(topic)
    places = []
    for message in messages:
        if message.partition >= len(partitions):
            raise UnknownPartition(
                f"partition is {message.partition}, but the topic {topic.name!r} has {len(partitions)}, the first "
                "being 0"
            )
        if message.partition >= 0:
            places.append(partitions[message.partition])
        else:
            places.append(own if message.key is None else partitions[partition_of(message.key, len(partitions))])
    return places


def divide(messages: Sequence[Message], places: Sequence[Partition], now_ms: int) -> list[Part]:
    """A batch for each partition and time, those for now in front."""
    shares: dict[tuple[Partition, int], list[int]] = {}
    for number, (message, partition) in enumerate(zip(messages, places, strict=True)):
        due_ms = message.due_ms if message.due_ms > now_ms else 0
        shares.setdefault((partition, due_ms), []).append(number)
    parts = []
    for (partition, due_ms), numbers in shares.items():
        chosen = [messages[number] for number in numbers]
        batch = records.build([(now_ms, each.key, each.value, each.headers) for each in chosen])
        parts.append(Part(partition, due_ms, batch, numbers))
    return sorted(parts, key=lambda part: part.due_ms)


def places_of(parts: Sequence[Part], stored: Sequence[Stored]) -> list[Place]:
    """Where each message went, in the order of the request."""
    found = {number: place for part, each in zip(parts, stored, strict=True) for number, place in _places(part, each)}
    return [found[number] for number in range(len(found))]


def _places(part: Part, stored: Stored) -> Iterator[tuple[int, Place]]:
    repeated = stored.duplicates
    first = {repeated[at]: (repeated[at + 2], repeated[at + 3]) for at in range(0, len(repeated), STRIDE)}
    timers = iter(stored.timers)
    for index, number in enumerate(part.numbers):
        if index in first:
            partition, offset = first[index]
            yield number, Place(partition, offset, is_duplicate=True)
        elif part.due_ms:
            yield number, Place(part.partition.index, -1, part.due_ms, next(timers))
        else:
            yield number, Place(part.partition.index, stored.base_offset + index)
