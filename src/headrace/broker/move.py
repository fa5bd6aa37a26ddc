"""Moves: a message that the broker holds goes from one place of the log to another, as it is or with headers added.

Dead letters, parking, redrive, delayed messages that come due and prepared messages that are committed all move. Two
rules hold for each of them:

- What a topic asks of its producers is not asked again, be it a size (`max.message.bytes`) or a time near the broker's
  clock. The headers that a move adds take `HEADROOM_BYTES` at most, and there is room for them, whatever the target
  allows its producers. What is left are the bounds of the log itself: no batch is written that the broker could not
  read (`decompressed_max_bytes`), nor a record without a key to a compacted topic.
- A message that cannot move never blocks those behind it: `move_each` finds it among its neighbours, and they go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from headrace.errors import AppendOffline, AppendRefused, HeadraceError, InvalidRecords, PartitionOffline, StorageFailed
from headrace.format import records
from headrace.format.records import TIMESTAMP_MAX, TIMESTAMP_MIN, RecordHeaders
from headrace.log.interface import Partition, Topic, Write

# Names of topics and queues, numbers, and the error that a consumer reported: all of them are bounded.
HEADROOM_BYTES = 4_096
# What is moved in one step: about a millisecond, and batches that no target minds.
STEP_MESSAGES = 64
STEP_BYTES = 262_144

Row = tuple[int, bytes | None, bytes | None, RecordHeaders]
Item = TypeVar("Item")


def write(partition: Partition, rows: Iterable[Row]) -> Write:
    """What appends moved messages (time, key, value, headers) to a partition. A time that no batch can be built with,
    though some client has sent it, becomes none."""
    batch = records.build(
        (time if TIMESTAMP_MIN <= time <= TIMESTAMP_MAX else TIMESTAMP_MIN, key, value, headers)
        for time, key, value, headers in rows
    )
    return write_batch(partition, batch)


def write_batch(partition: Partition, batch: bytearray) -> Write:
    """What appends a batch of moved messages to a partition."""
    return Write(partition, batch, moved=True)


def writes(rows: Iterable[tuple[Partition, Row]]) -> list[Write]:
    """What appends moved messages to their partitions, in their order, a batch for each."""
    by_partition: dict[Partition, list[Row]] = {}
    for partition, row in rows:
        by_partition.setdefault(partition, []).append(row)
    return [write(partition, part) for partition, part in by_partition.items()]


def step_bytes(target: Topic) -> int:
    """About how many bytes to move together: unless a single message is larger, batches stay below what the target
    takes from its producers."""
    return min(STEP_BYTES, target.settings.max_batch_bytes // 2)


async def load(partition: Partition) -> None:
    """Make a target ready to be appended to. Raises AppendOffline."""
    if not partition.loaded:
        try:
            await partition.load()
        except PartitionOffline as error:
            raise AppendOffline(str(error)) from error


def refusal(partition: Partition, key: bytes | None) -> AppendRefused | None:
    """What a target would answer, known without an append: a million may wait for one that takes none of them."""
    topic = partition.topic
    if partition.offline:
        return AppendOffline(f"{topic.name} partition {partition.index} is offline: {partition.offline}")
    if key is None and topic.settings.compact:
        return InvalidRecords(f"the topic {topic.name} is compacted, and the message has no key")
    return None


def is_general(error: Exception) -> bool:
    """Whether it is not the message or its partition that is wrong: nothing else could move either."""
    if isinstance(error, AppendOffline):
        return False
    return isinstance(error, StorageFailed) or not isinstance(error, AppendRefused)


async def move_each(
    items: Sequence[Item], move: Callable[[Sequence[Item]], Awaitable[None]]
) -> list[tuple[Item, Exception]]:
    """Move items together, in order; where that is refused, in ever smaller parts. Those that did not move, each with
    the reason. Where the reason is a general one, it is that of all that were not tried too."""
    refused: list[tuple[Item, Exception]] = []
    parts = [items] if items else []
    while parts:
        part = parts.pop()
        try:
            await move(part)
        except (HeadraceError, OSError) as error:
            if is_general(error):
                return refused + [(item, error) for rest in (part, *reversed(parts)) for item in rest]
            if len(part) == 1:
                refused.append((part[0], error))
            else:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
    return refused
