"""QueryRoute and QueryAssignment: the queues of a topic, and those that a consumer receives from.

All queues are this broker's, at the address that the client itself came by. Where messages may make topics
(`auto_create_topics`), a topic that is not there yet has a route: clients ask for one before they send, and have no
other way to make it.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.doors.rocketmq.grpc.clients import Clients
from headrace.doors.rocketmq.grpc.methods import Caller
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, definition, service
from headrace.doors.rocketmq.grpc.resources import group_of, topic_of
from headrace.doors.rocketmq.grpc.status import ResponseError, make_status
from headrace.doors.rocketmq.names import DEAD, RETRY
from headrace.doors.rocketmq.settings import RocketMqSettings
from headrace.doors.rocketmq.topics import READ, WRITE, RocketMqTopics, TopicShape

_d: Any = definition
_s: Any = service
# What a topic of no declared type takes, as far as a route tells: clients refuse a route with a type that they do not
# know, as older ones do not know priorities.
MESSAGE_TYPES = (_d.NORMAL, _d.FIFO, _d.DELAY, _d.TRANSACTION)
_ONE_TYPE = {_d.MessageType.Name(each): (each,) for each in (*MESSAGE_TYPES, _d.PRIORITY)}
_PERMISSIONS = {READ | WRITE: _d.READ_WRITE, READ: _d.READ, WRITE: _d.WRITE}
# The queue of an assignment to receive from any.
ANY_QUEUE = -1


class RouteHandlers:
    """Tells clients where queues are."""

    def __init__(self, broker: Broker, settings: RocketMqSettings, topics: RocketMqTopics, clients: Clients) -> None:
        self._broker = broker
        self._settings = settings
        self._topics = topics
        self._clients = clients

    async def query_route(self, caller: Caller, request: Proto) -> Proto:
        """QueryRoute."""
        topic = topic_of(request.topic)
        shape = self._shape(topic)
        queues = []
        for index in range(max(shape.read_queues, shape.write_queues)):
            perm = (READ if index < shape.read_queues else 0) | (WRITE if index < shape.write_queues else 0)
            queue = self._queue(request, index, perm & shape.perm)
            queue.accept_message_types.extend(_ONE_TYPE.get(shape.message_type, MESSAGE_TYPES))
            queues.append(queue)
        return _s.QueryRouteResponse(status=make_status(), message_queues=queues)

    async def query_assignment(self, caller: Caller, request: Proto) -> Proto:
        """QueryAssignment: any queue for those who need no order, else each of them."""
        topic = topic_of(request.topic)
        group_of(request.group)
        shape = self._shape(topic)
        client = self._clients.find(caller.client_id)
        is_fifo = client is not None and client.settings.subscription.fifo
        indexes = range(shape.read_queues) if is_fifo else [ANY_QUEUE] * bool(shape.read_queues)
        assignments = [
            _d.Assignment(message_queue=self._queue(request, index, shape.perm))
            for index in indexes
            if shape.perm & READ
        ]
        return _s.QueryAssignmentResponse(status=make_status(), assignments=assignments)

    def _shape(self, topic: str) -> TopicShape:
        shape = self._topics.shape(topic)
        if shape is None and self._broker.config.auto_create_topics and not topic.startswith((RETRY, DEAD)):
            queues = self._topics.queues_of_new
            shape = TopicShape(queues, queues, READ | WRITE)
        if shape is None:
            raise ResponseError(
                Code.TOPIC_NOT_FOUND,
                f"No topic route info for the topic: {topic}. Create it; no message makes it (auto_create_topics).",
            )
        return shape

    def _queue(self, request: Proto, index: int, perm: int) -> Proto:
        broker = _d.Broker(name=self._settings.rocketmq_broker_name, id=0, endpoints=request.endpoints)
        return _d.MessageQueue(topic=request.topic, id=index, permission=_PERMISSIONS.get(perm, _d.NONE), broker=broker)
