"""PUB, MPUB and DPUB: messages into batches, batches into the log, an OK once they are durable.

PUBs to one topic that stand one behind the other in the receive buffer become one batch and one append. A connection
writes to one partition of a topic, so that what it publishes keeps its order; only keys (under the extension) go to the
partitions that Kafka's producers would choose for them. Under the extension messages may have deduplication ids too;
others have no headers, and are never looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from headrace.doors.nsq.errors import CommandError
from headrace.doors.nsq.nsqd import frames, publish_wire
from headrace.doors.nsq.nsqd.codec import Command
from headrace.errors import InvalidRecords
from headrace.log.interface import Partition, Topic

if TYPE_CHECKING:
    from headrace.broker.metrics import ApiMetrics
    from headrace.broker.publish import Admission, Loadable
    from headrace.broker.quotas import Meter
    from headrace.doors.nsq.nsqd.connection import Connection


class Target:
    """A topic that a connection publishes to."""

    __slots__ = ("admission", "meter", "name", "partition")

    def __init__(self, name: str, admission: Admission, partition: Partition, meter: Meter | None) -> None:
        self.name = name
        self.admission = admission
        self.partition = partition
        self.meter = meter
        """The client's, for as long as the admission is valid."""


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
            self.connection.door.errors.failed(f"E_{name}_FAILED")
        if self.waiting <= 0:
            self.api.latency.observe(self.connection.door.loop.time() - self.started)
            self.connection.settled()


def pub_run(connection: Connection, buffer: bytearray, position: int, end: int) -> int:
    """A run of PUBs that begin with the same line as the last one; the position behind what was taken of it."""
    target = connection.target
    if (
        target is None
        or not target.admission.valid
        or not connection.may("PUB", target.name.encode())
        or not _has_room(connection, "PUB", target.admission)
    ):
        return position
    return _append_run(connection, target, connection.line, buffer, position, end)


def pub(connection: Connection, command: Command, buffer: bytearray, position: int, end: int) -> int:
    """A PUB, and those like it that follow."""
    target = _target(connection, "PUB", command.words[0])
    if target is None:
        return position
    connection.target = target
    connection.line = bytes(buffer[position : command.line_end])
    taken = _append_run(connection, target, connection.line, buffer, position, end)
    if taken == position and not connection.held:
        # The codec found it whole, so its size fits: it is the message itself.
        raise CommandError("E_BAD_MESSAGE", "PUB message is not a key, a value and headers")
    return taken


def _append_run(connection: Connection, target: Target, line: bytes, buffer: bytearray, position: int, end: int) -> int:
    door = connection.door
    batch, count, taken = publish_wire.pubs(
        buffer,
        position,
        end,
        line,
        door.settings.nsq_max_msg_size,
        target.admission.topic.settings.max_batch_bytes,
        door.clock.now_ms(),
        connection.codec.extended,
    )
    if batch is None or (ids := _ids(connection, "PUB", target, batch)) is None:
        return position
    _append(connection, target, batch, count, door.pub, frames.OK * count, ids)
    return taken


def mpub(connection: Connection, command: Command, buffer: bytearray, position: int) -> int:
    """A MPUB: all of its messages or none."""
    target = _target(connection, "MPUB", command.words[0])
    if target is None:
        return position
    door = connection.door
    batches, count = publish_wire.mpub(
        buffer,
        command.start,
        command.end,
        door.settings.nsq_max_msg_size,
        door.settings.nsq_max_body_size,
        target.admission.topic.settings.max_batch_bytes,
        door.clock.now_ms(),
        connection.codec.extended,
    )
    ids = _ids(connection, "MPUB", target, batches)
    if ids is None:
        return position
    _append(connection, target, batches, count, door.mpub, frames.OK, ids)
    return command.end


def dpub(connection: Connection, command: Command, buffer: bytearray, position: int) -> int:
    """A DPUB: published when its delay has passed."""
    target = _target(connection, "DPUB", command.words[0], is_delayed=command.number > 0)
    if target is None:
        return position
    door = connection.door
    line = bytes(buffer[position : command.line_end])
    batch, count, _ = publish_wire.pubs(
        buffer,
        position,
        command.end,
        line,
        door.settings.nsq_max_msg_size,
        target.admission.topic.settings.max_batch_bytes,
        door.clock.now_ms(),
        connection.codec.extended,
    )
    if batch is None:
        raise CommandError("E_BAD_MESSAGE", "DPUB message is not a key, a value and headers")
    ids = _ids(connection, "DPUB", target, batch)
    if ids is None:
        return position
    if command.number:
        _schedule(connection, target, batch, door.clock.now_ms() + command.number, ids)
    else:
        _append(connection, target, batch, count, door.dpub, frames.OK, ids)
    return command.end


def _schedule(connection: Connection, target: Target, batch: bytearray, due_ms: int, ids: bool) -> None:
    door = connection.door
    entry = Pending(connection, frames.OK, door.dpub, waiting=1)
    later = [(partition, part, due_ms) for partition, part in _route(connection, target, batch)]
    (stored,) = door.broker.publisher.store(target.admission, (), later, entry.done, ids=ids)
    if stored.timers and connection.codec.extended and not ids:
        # By which it can be cancelled. What has a deduplication id is answered as its repetition would be.
        entry.reply = frames.frame(frames.RESPONSE, b"OK " + stored.timers[0].encode())
    door.dpub.requests += 1
    _count(connection, target, 1, len(batch))
    connection.enqueue(entry)


def _target(connection: Connection, name: str, topic_name: bytes, *, is_delayed: bool = False) -> Target | None:
    """The topic of a publish, ready to be appended to. None: it is not ready yet, and the connection is held until the
    command can be read again."""
    if not connection.may(name, topic_name):
        return None
    door = connection.door
    publisher = door.broker.publisher
    text = topic_name.decode()
    target = connection.target
    if target is None or target.name != text or not target.admission.valid:
        topic = door.topics.get(text)
        if topic is None:
            connection.hold_for(name, door.topics.ensure_to_publish(connection.session, text))
            return None
        session = connection.session
        meter = door.broker.quotas.meter(session)
        target = Target(text, publisher.admit(session, topic), session.partition_of(topic), meter)
    admission = target.admission
    extended = connection.codec.extended
    # Under the extension keys decide, and headers may have the times at which messages are due.
    partitions = admission.topic.partitions if extended else (target.partition,)
    cold = publisher.cold(admission, partitions, timer=is_delayed or (extended and admission.delays))
    if cold:
        connection.hold_for(name, _load(cold))
        return None
    return target if _has_room(connection, name, admission) else None


async def _load(cold: Sequence[Loadable]) -> None:
    for each in cold:
        await each.load()


def _has_room(connection: Connection, name: str, admission: Admission) -> bool:
    """Whether the topic takes more now. False: the connection is held until it does, or is refused then."""
    if not admission.is_guarded:
        return True
    topic = admission.topic
    if connection.admitted is topic:
        connection.admitted = None
        return True
    # A connection that waits is not read: its client waits too, for as long as it likes.
    room = connection.door.broker.overflow.admit(topic, limit_seconds=inf)
    if room is None:
        return True
    connection.hold_for(name, _wait_for_room(connection, topic, room), patient=True)
    return False


async def _wait_for_room(connection: Connection, topic: Topic, room: asyncio.Future[None]) -> None:
    await room
    connection.admitted = topic


def _ids(connection: Connection, name: str, target: Target, batches: bytearray) -> bool | None:
    """Whether messages have deduplication ids that count. None: the topic's are not loaded, and the connection is held
    until the command can be read again."""
    if not connection.codec.extended:
        return False
    publisher = connection.door.broker.publisher
    try:
        ids = publisher.has_ids(target.admission, batches)
    except InvalidRecords as error:
        raise CommandError("E_BAD_MESSAGE", f"{name} {error}") from None
    cold = publisher.cold(target.admission, (), ids=ids)
    if cold:
        connection.hold_for(name, _load(cold))
        return None
    return ids


def _append(
    connection: Connection, target: Target, batches: bytearray, count: int, api: ApiMetrics, reply: bytes, ids: bool
) -> None:
    entry = Pending(connection, reply, api, waiting=1)
    publisher = connection.door.broker.publisher
    if connection.codec.extended:
        parts = _route(connection, target, batches)
        is_durable = publisher.append_all(target.admission, parts, entry.done, ids=ids)
    else:
        is_durable = publisher.append(target.admission, target.partition, batches, entry.done).durable
    if is_durable:
        entry.waiting = 0
    api.requests += count if api is connection.door.pub else 1
    _count(connection, target, count, len(batches))
    if entry.waiting or connection.in_line:
        connection.enqueue(entry)
    else:
        connection.reply(reply)


def _route(connection: Connection, target: Target, batches: bytearray) -> list[tuple[Partition, bytearray]]:
    """Messages that may have keys, each with the partition of its key."""
    partitions = target.admission.topic.partitions
    if not connection.codec.extended or len(partitions) == 1:
        return [(target.partition, batches)]
    now = connection.door.clock.now_ms()
    routed = publish_wire.route(batches, len(partitions), target.partition.index, now)
    return [(partitions[index], part) for index, part in routed.items()]


def _count(connection: Connection, target: Target, count: int, size: int) -> None:
    connection.published[target.name] = connection.published.get(target.name, 0) + count
    if target.meter is not None and (wait := target.meter.produced(size, connection.door.loop.time())):
        connection.mute(wait)
