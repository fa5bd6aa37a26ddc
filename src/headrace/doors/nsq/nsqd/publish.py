"""PUB, MPUB and DPUB: messages into batches, batches into the log, an OK once they are durable.

PUBs to one topic that stand one behind the other in the receive buffer become one batch and one append. A connection
writes to one partition of a topic, so that what it publishes keeps its order; only keys (under the extension) go to the
partitions that Kafka's producers would choose for them. Under the extension messages may have deduplication ids too;
others have no headers, and are never looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from struct import Struct
from typing import TYPE_CHECKING

from headrace.broker.deduplication.ids import HEADER as DEDUPLICATION_ID
from headrace.broker.deduplication.ids import carries_ids
from headrace.broker.topic_config import delays
from headrace.doors.nsq.nsqd import frames
from headrace.doors.nsq.nsqd import wire as kernel
from headrace.doors.nsq.nsqd.codec import Command
from headrace.doors.nsq.nsqd.errors import Refusal
from headrace.errors import (
    BatchTooLarge,
    HeadraceError,
    InvalidRecords,
    InvalidTopic,
    PartitionOffline,
    TopicFull,
)
from headrace.format.batch import PREFIX_BYTES
from headrace.log.interface import Partition, Topic, Write

if TYPE_CHECKING:
    from headrace.broker.deduplication.deduplication import Part
    from headrace.broker.metrics import ApiMetrics, TopicMetrics
    from headrace.doors.nsq.nsqd.connection import Connection

# Where a batch's header says how long it is.
LENGTH = Struct(">i")
LENGTH_AT = 8


class Target:
    """A topic that a connection publishes to."""

    __slots__ = ("metrics", "name", "partition", "topic")

    def __init__(self, name: str, topic: Topic, partition: Partition, metrics: TopicMetrics) -> None:
        self.name = name
        self.topic = topic
        self.partition = partition
        self.metrics = metrics


class Pending:
    """A reply in line: it waits for its batch to be durable, and for the replies before it."""

    __slots__ = ("api", "connection", "fatal", "reply", "started", "waiting")

    def __init__(self, connection: Connection, reply: bytes, api: ApiMetrics | None = None, waiting: int = 0) -> None:
        self.connection = connection
        self.reply = reply
        self.api = api
        self.waiting = waiting
        self.fatal = False
        self.started = connection.door.loop.time() if waiting else 0.0

    def done(self, error: Exception | None) -> None:
        """A batch is durable, or never will be."""
        assert self.api is not None
        self.waiting -= 1
        if error is not None and not self.fatal:
            name = self.api.name
            self.reply = frames.error(f"E_{name}_FAILED", f"{name} failed {error}")
            self.fatal = True
            self.connection.door.failed(f"E_{name}_FAILED")
        if self.waiting <= 0:
            self.api.latency.observe(self.connection.door.loop.time() - self.started)
            self.connection.settled()


def again(connection: Connection, buffer: bytearray, position: int, end: int) -> int:
    """A run of PUBs that begin with the same line as the last one; the position behind what was taken of it."""
    target = connection.target
    if (
        target is None
        or target.topic.deleted
        or not connection.may("PUB", target.name.encode())
        or not _has_room(connection, "PUB", target.topic)
    ):
        return position
    return _run(connection, target, connection.line, buffer, position, end)


def pub(connection: Connection, command: Command, buffer: bytearray, position: int, end: int) -> int:
    """A PUB, and those like it that follow."""
    target = _target(connection, "PUB", command.words[0])
    if target is None:
        return position
    connection.target = target
    connection.line = bytes(buffer[position : command.line_end])
    taken = _run(connection, target, connection.line, buffer, position, end)
    if taken == position and not connection.held:
        # The codec found it whole, so its size fits: it is the message itself.
        raise Refusal("E_BAD_MESSAGE", "PUB message is not a key, a value and headers")
    return taken


def _run(connection: Connection, target: Target, line: bytes, buffer: bytearray, position: int, end: int) -> int:
    door = connection.door
    batch, count, taken = kernel.pubs(
        buffer,
        position,
        end,
        line,
        door.limits.max_msg_size,
        target.topic.settings.max_batch_bytes,
        door.clock.now_ms(),
        connection.codec.extended,
    )
    if batch is None or not _knows_ids(connection, "PUB", target, batch):
        return position
    _append(connection, target, batch, count, door.pub, frames.OK * count)
    return taken


def mpub(connection: Connection, command: Command, buffer: bytearray, position: int) -> int:
    """A MPUB: all of its messages or none."""
    target = _target(connection, "MPUB", command.words[0])
    if target is None:
        return position
    door = connection.door
    batches, count = kernel.mpub(
        buffer,
        command.start,
        command.end,
        door.limits.max_msg_size,
        door.limits.max_body_size,
        target.topic.settings.max_batch_bytes,
        door.clock.now_ms(),
        connection.codec.extended,
    )
    if not _knows_ids(connection, "MPUB", target, batches):
        return position
    _append(connection, target, batches, count, door.mpub, frames.OK)
    return command.end


def dpub(connection: Connection, command: Command, buffer: bytearray, position: int) -> int:
    """A DPUB: published when its delay has passed."""
    target = _target(connection, "DPUB", command.words[0])
    if target is None:
        return position
    door = connection.door
    line = bytes(buffer[position : command.line_end])
    batch, count, _ = kernel.pubs(
        buffer,
        position,
        command.end,
        line,
        door.limits.max_msg_size,
        target.topic.settings.max_batch_bytes,
        door.clock.now_ms(),
        connection.codec.extended,
    )
    if batch is None:
        raise Refusal("E_BAD_MESSAGE", "DPUB message is not a key, a value and headers")
    if not _knows_ids(connection, "DPUB", target, batch):
        return position
    if command.number:
        _schedule(connection, target, batch, door.clock.now_ms() + command.number)
    else:
        _append(connection, target, batch, count, door.dpub, frames.OK)
    return command.end


def _schedule(connection: Connection, target: Target, batch: bytearray, due_ms: int) -> None:
    door = connection.door
    entry = Pending(connection, frames.OK, door.dpub, waiting=1)
    try:
        partitions = len(target.topic.partitions)
        index = target.partition.index
        if connection.codec.extended and partitions > 1:
            ((index, batch),) = kernel.route(batch, partitions, index, door.clock.now_ms()).items()
        if _has_ids(connection, target, batch):
            door.broker.deduplication.schedule(target.topic.partitions[index], batch, due_ms, entry.done)
        else:
            ids = door.broker.timer.schedule(target.topic, index, batch, due_ms, entry.done)
            if ids and connection.codec.extended and not entry.fatal:
                # By which it can be cancelled.
                entry.reply = frames.frame(frames.RESPONSE, b"OK " + ids[0].encode())
    except BatchTooLarge as error:
        raise Refusal("E_BAD_MESSAGE", f"DPUB {error}") from None
    except HeadraceError as error:
        raise Refusal("E_DPUB_FAILED", f"DPUB failed {error}") from None
    door.dpub.requests += 1
    _count(connection, target, 1)
    connection.enqueue(entry)


def _target(connection: Connection, name: str, topic_name: bytes) -> Target | None:
    """The topic of a publish, ready to be appended to. None: it is not ready yet, and the connection is held until the
    command can be read again."""
    if not connection.may(name, topic_name):
        return None
    door = connection.door
    text = topic_name.decode()
    target = connection.target
    if target is None or target.name != text or target.topic.deleted:
        topic = door.births.get(text)
        if topic is None:
            connection.hold_for(_warm(connection, name, text))
            return None
        partition = topic.partitions[connection.number % len(topic.partitions)]
        target = Target(text, topic, partition, door.broker.metrics.topic(topic.name))
    if not all(each.loaded for each in _reached(connection, target.topic)) or _needs_timer(connection, target.topic):
        connection.hold_for(_warm(connection, name, text))
        return None
    return target if _has_room(connection, name, target.topic) else None


def _has_room(connection: Connection, name: str, topic: Topic) -> bool:
    """Whether the topic takes more now. False: the connection is held until it does, or is refused then."""
    overflow = connection.door.broker.overflow
    if not overflow.guards(topic):
        return True
    if connection.admitted is topic:
        connection.admitted = None
        return True
    try:
        # A connection that waits is not read: its client waits too, for as long as it likes.
        room = overflow.admit(topic, limit_seconds=inf)
    except TopicFull as error:
        raise Refusal(f"E_{name}_FAILED", f"{name} failed {error}") from None
    if room is None:
        return True
    connection.hold_for(_wait_for_room(connection, name, topic, room), patient=True)
    return False


async def _wait_for_room(connection: Connection, name: str, topic: Topic, room: asyncio.Future[None]) -> None:
    try:
        await room
    except HeadraceError as error:
        raise Refusal(f"E_{name}_FAILED", f"{name} failed {error}") from None
    connection.admitted = topic


def _reached(connection: Connection, topic: Topic) -> Sequence[Partition]:
    """The partitions that a connection may write to: one, unless keys decide."""
    if connection.codec.extended:
        return topic.partitions
    return (topic.partitions[connection.number % len(topic.partitions)],)


def _needs_timer(connection: Connection, topic: Topic) -> bool:
    """Messages may say by their headers when they are due, and the timer is not ready for them."""
    return connection.codec.extended and delays(topic.config) and not connection.door.broker.timer.loaded


async def _warm(connection: Connection, name: str, topic_name: str) -> None:
    """Make the topic if it is missing, and load what the connection may write to."""
    try:
        topic = await connection.door.births.ensure(topic_name)
        for partition in _reached(connection, topic):
            if not partition.loaded:
                await partition.load()
            if partition.offline:
                raise PartitionOffline(partition.offline)
        if _needs_timer(connection, topic):
            await connection.door.broker.timer.load()
    except InvalidTopic as error:
        raise Refusal("E_BAD_TOPIC", f"{name} {error}") from None
    except HeadraceError as error:
        raise Refusal(f"E_{name}_FAILED", f"{name} failed {error}") from None


def _append(
    connection: Connection, target: Target, batches: bytearray, count: int, api: ApiMetrics, reply: bytes
) -> None:
    entry = Pending(connection, reply, api, waiting=1)
    try:
        if connection.codec.extended and (
            len(target.topic.partitions) > 1 or delays(target.topic.config) or DEDUPLICATION_ID in batches
        ):
            entry.waiting = _share_out(connection, target, batches, entry)
        elif target.partition.append(batches, entry.done).durable:
            entry.waiting = 0
    except BatchTooLarge as error:
        raise Refusal("E_BAD_MESSAGE", f"{api.name} {error}") from None
    except HeadraceError as error:
        raise Refusal(f"E_{api.name}_FAILED", f"{api.name} failed {error}") from None
    api.requests += count if api is connection.door.pub else 1
    target.metrics.batches_in += 1
    target.metrics.bytes_in += len(batches)
    _count(connection, target, count)
    if entry.waiting or connection.in_line:
        connection.enqueue(entry)
    else:
        connection.reply(reply)


def _share_out(connection: Connection, target: Target, batches: bytearray, entry: Pending) -> int:
    """Append messages that may have keys, each to the partition of its key, or headers that say when they are due; how
    many times `entry` will be told."""
    door = connection.door
    partitions = target.topic.partitions
    routed = {target.partition.index: batches}
    if len(partitions) > 1:
        routed = kernel.route(batches, len(partitions), target.partition.index, door.clock.now_ms())
    if _has_ids(connection, target, batches):
        return _append_once(connection, target, routed, entry)
    if not delays(target.topic.config):
        writes = [Write(partitions[index], part) for index, part in routed.items()]
        return 0 if all(appended.durable for appended in door.broker.log.append(writes, entry.done)) else 1
    waiting = 0
    for index, part in routed.items():
        for batch in _batches(part):
            waiting += not door.broker.timer.produce(partitions[index], batch, entry.done).durable
    return waiting


def _batches(joined: bytearray) -> Iterator[memoryview]:
    """The batches that stand one behind the other."""
    view = memoryview(joined)
    while view:
        size = PREFIX_BYTES + LENGTH.unpack_from(view, LENGTH_AT)[0]
        yield view[:size]
        view = view[size:]


def _knows_ids(connection: Connection, name: str, target: Target, batches: bytearray) -> bool:
    """Whether messages can be told from those that were there before. False: the topic's ids are not loaded, and the
    connection is held until the command can be read again."""
    if not connection.codec.extended or DEDUPLICATION_ID not in batches:
        return True
    try:
        if not _has_ids(connection, target, batches) or connection.door.broker.deduplication.ready(target.topic):
            return True
    except InvalidRecords as error:
        raise Refusal("E_BAD_MESSAGE", f"{name} {error}") from None
    connection.hold_for(_load_ids(connection, name, target.topic))
    return False


async def _load_ids(connection: Connection, name: str, topic: Topic) -> None:
    try:
        await connection.door.broker.deduplication.load(topic)
    except HeadraceError as error:
        raise Refusal(f"E_{name}_FAILED", f"{name} failed {error}") from None


def _has_ids(connection: Connection, target: Target, batches: bytearray) -> bool:
    """Whether messages have deduplication ids that count on their topic."""
    return (
        connection.codec.extended
        and DEDUPLICATION_ID in batches
        and connection.door.broker.deduplication.heeds(target.topic)
        and carries_ids(batches, len(batches))
    )


def _append_once(connection: Connection, target: Target, routed: Mapping[int, bytearray], entry: Pending) -> int:
    """Append messages but for those that were there before; how many times `entry` will be told."""
    deduplication = connection.door.broker.deduplication
    partitions = target.topic.partitions
    rounds: list[list[Part]] = []
    for index, part in routed.items():
        for number, batch in enumerate(_batches(part)):
            if len(batch) > target.topic.settings.max_batch_bytes:
                # Said before anything is appended: a MPUB is stored whole or not at all.
                raise BatchTooLarge(
                    f"a message of {len(batch)} bytes is larger than the topic {target.topic.name} takes, "
                    f"{target.topic.settings.max_batch_bytes} (max.message.bytes)"
                )
            if number == len(rounds):
                rounds.append([])
            rounds[number].append((partitions[index], batch))
    # Nearly always one. They are of the same turn of the loop, and so of the same flush.
    for parts in rounds:
        deduplication.publish(parts, entry.done)
    return len(rounds)


def _count(connection: Connection, target: Target, count: int) -> None:
    connection.published[target.name] = connection.published.get(target.name, 0) + count
