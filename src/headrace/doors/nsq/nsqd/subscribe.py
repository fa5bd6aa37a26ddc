"""SUB, and what a subscriber sends and gets: RDY, FIN, REQ, TOUCH, CLS, and messages.

FINs that stand one behind the other in the receive buffer are settled by one call; messages that a queue hands over
together are one write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import queue_name
from headrace.doors.nsq.errors import CommandError, plain
from headrace.doors.nsq.names import log_name
from headrace.doors.nsq.nsqd import delivery_wire, frames
from headrace.doors.nsq.nsqd.codec import Command, State
from headrace.format.message_id import ID_BYTES, decode_id

if TYPE_CHECKING:
    from headrace.broker.queues.delivery import Claimed
    from headrace.doors.nsq.nsqd.connection import Connection

FIN_BYTES = 21
# Of the error that comes with a REQ, what is kept.
ERROR_TEXT_KEPT = 4_096


async def subscribe(connection: Connection, topic_name: str, channel: str) -> None:
    """Do a SUB: topic and channel are made if they are missing. Raises HeadraceError."""
    door = connection.door
    identity = connection.identity
    most = door.settings.nsq_max_channel_consumers
    _authorize(connection, topic_name, channel)
    topic = await door.topics.ensure(topic_name, connection.session)
    queue = await door.broker.queues.ensure(topic, channel, session=connection.session)
    if most and len(queue.consumers) >= most:
        raise CommandError(
            "E_SUB_FAILED", f"SUB failed channel consumers for {topic_name}:{channel} exceeds limit of {most}"
        )
    connection.consumer = queue.subscribe(
        connection,
        label=f"nsq {identity.client_id or connection.name} {connection.name}",
        timeout_ms=identity.msg_timeout_ms,
        sample=identity.sample_rate or 100,
    )
    if connection.closing:
        # So that an ephemeral channel, made for this client alone, goes again.
        leave(connection)
        return
    connection.codec.state = State.SUBSCRIBED
    connection.subscription = (topic_name, channel)
    door.count("SUB")
    connection.reply(frames.OK)


def _authorize(connection: Connection, topic_name: str, channel: str) -> None:
    """Raise NotAuthorized unless the client may read the channel, and make what of it is missing. It may read as long
    as it keeps the right."""
    door, session = connection.door, connection.session
    security, topic = door.broker.security, log_name(topic_name)
    queue = queue_name(topic, channel)
    for resource, name in ((Resource.TOPIC, topic), (Resource.QUEUE, queue)):
        connection.watches.append(security.watch(session, Operation.READ, resource, name, connection.revoke))
    if door.broker.topics.get(topic) is None:
        security.check_create(session, topic)
    if door.broker.queues.get(topic, channel) is None:
        security.check(session, Operation.CREATE, Resource.QUEUE, queue)


def do(connection: Connection, command: Command, buffer: bytearray) -> None:
    """Do a subscriber's command; the codec has seen that the state fits. Raises CommandError."""
    consumer = connection.consumer
    assert consumer is not None
    name = command.name
    if name == b"RDY":
        if connection.codec.state is State.SUBSCRIBED:
            connection.ready = command.number
            consumer.ready(command.number)
        return
    if name == b"CLS":
        connection.codec.state = State.CLOSING
        connection.ready = 0
        consumer.ready(0)
        connection.door.count("CLS")
        connection.reply(frames.CLOSE_WAIT)
        return
    found = decode_id(command.words[0])
    if found is None:
        done = False
    elif name == b"FIN":
        done = consumer.finish(*found)
    elif name == b"TOUCH":
        done = consumer.touch(*found)
    else:
        text = bytes(buffer[command.start : command.end])[:ERROR_TEXT_KEPT].decode("utf-8", "replace")
        done = consumer.requeue(*found, command.number, text)
    connection.door.count(name.decode())
    if not done:
        _too_late(connection, name.decode(), command.words[0], found is not None and consumer.is_anothers(*found[:2]))


def finish_run(connection: Connection, buffer: bytearray, position: int, end: int) -> int:
    """Settle the run of FINs at `position`; its bytes. 0: no kernel takes what stands there."""
    ids = delivery_wire.fins(buffer, position, end)
    if not ids:
        return 0
    consumer = connection.consumer
    assert consumer is not None
    count = len(ids) // 3
    for index in consumer.finish_many(ids):
        at = position + index * FIN_BYTES + 4
        is_anothers = consumer.is_anothers(ids[3 * index], ids[3 * index + 1])
        _too_late(connection, "FIN", bytes(buffer[at : at + ID_BYTES]), is_anothers)
    connection.door.fin.requests += count
    return count * FIN_BYTES


def _too_late(connection: Connection, name: str, number: bytes, is_anothers: bool) -> None:
    """The message timed out, was settled before, or never was: the subscription goes on."""
    reason = "client does not own message" if is_anothers else "ID not in flight"
    connection.refuse(CommandError(f"E_{name}_FAILED", f"{name} {plain(number)} failed {reason}", fatal=False))


def deliver(connection: Connection, claimed: Claimed) -> None:
    """Send messages that were just handed to the subscriber."""
    data = delivery_wire.frames(claimed, connection.codec.extended)
    assert connection.consumer is not None
    connection.door.broker.metrics.topic(connection.consumer.queue.topic.name).bytes_out += len(data)
    connection.write(data)
    quotas = connection.door.broker.quotas
    if quotas.is_active and (meter := quotas.meter(connection.session)) is not None:
        wait = meter.consumed(len(data), connection.door.loop.time())
        if wait:
            connection.hold_deliveries(wait)


def leave(connection: Connection) -> None:
    """End the subscription: what was in flight goes to others."""
    for watch in connection.watches:
        watch.end()
    connection.watches.clear()
    consumer = connection.consumer
    if consumer is None:
        return
    connection.consumer = None
    topic = consumer.queue.topic
    consumer.close()
    connection.door.topics.delete_unused(topic)
