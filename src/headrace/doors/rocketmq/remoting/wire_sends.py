"""Sends that are like nearly all others: from the bytes of their frame to the batch of this turn of the loop.

What such a send takes to be let in is decided once for each client and topic, and kept while its admission is valid.
Everything else about sends is the handler's of SEND_MESSAGE, which these are not passed to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.doors.rocketmq.messages import offset_id
from headrace.doors.rocketmq.names import DEFAULT_TOPIC, log_name
from headrace.doors.rocketmq.remoting import send_wire
from headrace.doors.rocketmq.send_routes import Producer, Route
from headrace.doors.rocketmq.topics import WRITE, shape_of
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.doors.rocketmq.connection import RemotingConnection
    from headrace.doors.rocketmq.remoting.listener import Remoting

# Topics of one client that are kept; one that sends to more begins anew.
ROUTES_MAX = 16_384


class WireSends:
    """Takes them."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._broker = remoting.broker
        self._sender = remoting.sender
        self._body_max = remoting.settings.rocketmq_max_message_size

    def take(self, connection: RemotingConnection, buffer: bytearray, position: int, stop: int) -> bool:
        """Append what the frame between two positions sends; False where it is something else, or takes more."""
        producer = connection.producer
        if producer is None:
            # Asked anew when the client shows who it is.
            if self._remoting.gate.is_closed(connection):
                return False
            producer = connection.producer = self._producer(connection)
        send = send_wire.parse(buffer, position, stop, producer.born_host, self._body_max)
        if send is None:
            return False
        route = producer.routes.get(send.topic)
        if route is None or not route.admission.valid:
            route = self._route(connection, producer, send.topic)
            if route is None:
                return False
        if send.queue_id >= len(route.partitions):
            return False
        partition = route.partitions[send.queue_id]
        sends = self._sender.waiting.get(partition)
        if sends is None:
            if not self._sender.can_append(route.admission, partition):
                return False
            sends = self._sender.begin(partition)
        self._remoting.metrics_of(send.code).requests += 1
        connection.hold(send.body_bytes)
        send.connection = connection
        send.admission = route.admission
        send.host = producer.store_host
        sends.append(send)
        return True

    def _producer(self, connection: RemotingConnection) -> Producer:
        born_host = send_wire.header(send_wire.BORN_HOST, str(self._remoting.born_host(connection)).encode())
        return Producer(born_host, offset_id(self._remoting.store_host(connection), 0)[:-16].encode())

    def _route(self, connection: RemotingConnection, producer: Producer, name: bytes) -> Route | None:
        """The route of a topic; None where a send to it takes more than an append."""
        if not self._broker.rocketmq.loaded or name == DEFAULT_TOPIC.encode():
            return None
        try:
            topic = self._broker.topics.get(log_name(name.decode()))
            if topic is None or not shape_of(topic).perm & WRITE:
                return None
            admission = self._broker.publisher.admit(connection.session, topic)
        except HeadraceError:
            # The handler reports it.
            return None
        if not admission.is_plain or self._broker.quotas.meter(connection.session) is not None:
            return None
        if len(producer.routes) >= ROUTES_MAX:
            producer.routes.clear()
        route = producer.routes[name] = Route(admission, topic.partitions)
        return route
