"""Clients and their groups: heartbeats (34, 35), lists of members (38), the locks of orderly consumers (41, 42), and a
check of their subscriptions (46)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.broker.groups.rocketmq_group import RocketMqMember, RocketMqSubscription
from headrace.broker.security import Operation, Resource
from headrace.doors.rocketmq.client import Client, Consumption
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import Call, RemotingConnection
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import LANGUAGES, dump, load
from headrace.doors.rocketmq.membership import Memberships
from headrace.doors.rocketmq.names import log_name, rocketmq_name
from headrace.doors.rocketmq.producers import Producer
from headrace.doors.rocketmq.remoting.handlers.transactions import TransactionChecker
from headrace.doors.rocketmq.subscriptions import parse_subscription
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

CLIENT_ID_MAX = 255
GROUPS_MAX = 1_000
HEARTBEAT_BYTES_MAX = 2_097_152
SUBSCRIPTIONS_MAX = 10_000
WORD_MAX = 40


class ClientHandlers:
    """Knows which clients are in which groups."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._groups = remoting.broker.groups.rocketmq
        self._producers: dict[RemotingConnection, Producer] = {}

    async def heartbeat(self, call: Call) -> None:
        """HEART_BEAT: the groups of a client. Those that can take it do; what another one says is the answer."""
        if len(call.request.body) > HEARTBEAT_BYTES_MAX:
            raise ResponseError(Code.INVALID_PARAMETER, f"a heartbeat has at most {HEARTBEAT_BYTES_MAX} bytes")
        beat = load(call.request.body)
        connection = call.connection
        client_id = read_text(beat, "clientID")
        if not client_id or len(client_id) > CLIENT_ID_MAX:
            raise ResponseError(Code.INVALID_PARAMETER, f"a client's id has 1 to {CLIENT_ID_MAX} characters")
        await self._remoting.broker.rocketmq.load()
        if connection.lost:
            return
        connection.heartbeat = self._remoting.loop.time()
        if connection.memberships is None:
            connection.memberships = Memberships(self._groups)
            connection.on_lost.append(lambda: self._forget(connection))
        self._join_producers(call, client_id, beat)
        # Of one that may not consume the pulls are refused, as by RocketMQ.
        groups = [
            each
            for each in read_objects(beat, "consumerDataSet", GROUPS_MAX)
            if self._remoting.group_settings(read_text(each, "groupName")) is not None
        ]
        self._forget(connection)
        self._remoting.clients[client_id] = connection
        connection.client = Client(
            client_id,
            LANGUAGES[call.request.language],
            call.request.version,
            {read_text(each, "groupName"): _consumption(each) for each in groups},
        )

        def notify(group_id: str) -> None:
            settings = self._remoting.group_settings(group_id)
            if settings is None or settings.notifies_members:
                connection.request(Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group_id})

        refused: HeadraceError | None = None
        for group in groups:
            try:
                member = RocketMqMember(client_id, connection.address[0], _subscriptions(group), notify)
                _check_group(call, group)
                await connection.memberships.join(read_text(group, "groupName"), member)
            except HeadraceError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        call.answer()

    def _forget(self, connection: RemotingConnection) -> None:
        client_id = "" if connection.client is None else connection.client.client_id
        if self._remoting.clients.get(client_id) is connection:
            del self._remoting.clients[client_id]

    def _join_producers(self, call: Call, client_id: str, beat: dict[str, Any]) -> None:
        groups = [read_text(each, "groupName") for each in read_objects(beat, "producerDataSet", GROUPS_MAX)]
        connection = call.connection
        producer = self._producers.get(connection)
        if producer is None:
            if not groups:
                return
            producer = TransactionChecker(self._remoting, connection).join(client_id, call)
            self._producers[connection] = producer
            connection.on_lost.append(lambda: self._producers.__delitem__(connection))
        producer.client_id = client_id
        producer.heard_ms = self._remoting.broker.runtime.clock.now_ms()
        for group in groups:
            self._remoting.producers.join(group, producer)

    def unregister(self, call: Call) -> None:
        """UNREGISTER_CLIENT."""
        connection = call.connection
        producer = self._producers.get(connection)
        if producer is not None:
            self._remoting.producers.leave(call.text("producerGroup", ""), producer)
        group = call.text("consumerGroup", "")
        if group and connection.memberships is not None:
            connection.memberships.leave(group)
        if (client := connection.client) is not None:
            kept = {name: each for name, each in client.consumers.items() if name != group}
            connection.client = replace(client, consumers=kept)
        call.answer()

    def check(self, call: Call) -> None:
        """CHECK_CLIENT_CONFIG: whether a subscription can be read, which a consumer asks before it starts."""
        asked = load(call.request.body).get("subscriptionData")
        if isinstance(asked, dict):
            parse_subscription(read_text(asked, "subString"), read_text(asked, "expressionType"))
        call.answer()

    def list(self, call: Call) -> None:
        """GET_CONSUMER_LIST_BY_GROUP."""
        group_id = call.text("consumerGroup")
        group = self._groups.find(group_id)
        if group is None or group.is_vacant:
            raise ResponseError(Code.SYSTEM_ERROR, f"no consumer for this group, {group_id}")
        call.answer(body=dump({"consumerIdList": list(group.members)}))

    def lock(self, call: Call) -> None:
        """LOCK_BATCH_MQ: the queues of which this client is now, or still, the only reader."""
        group_id, client_id, queues = _queues(call)
        group = self._groups.find(group_id)
        now = self._remoting.broker.runtime.clock.now_ms()
        locked = [
            queue
            for queue in queues
            if group is not None and self._is_there(*queue) and group.lock(queue, client_id, now)
        ]
        broker_name = self._remoting.settings.rocketmq_broker_name
        call.answer(
            body=dump(
                {
                    "lockOKMQSet": [
                        {"brokerName": broker_name, "queueId": index, "topic": rocketmq_name(topic) or topic}
                        for topic, index in locked
                    ]
                }
            )
        )

    def _is_there(self, topic: str, index: int) -> bool:
        """Whether there is such a queue: no others are kept in memory."""
        found = self._remoting.broker.topics.get(topic)
        if found is None:
            return index == 0 and self._remoting.topics.is_expected(rocketmq_name(topic) or "")
        return index < len(found.partitions)

    def unlock(self, call: Call) -> None:
        """UNLOCK_BATCH_MQ."""
        group_id, client_id, queues = _queues(call)
        group = self._groups.find(group_id)
        if group is not None:
            for queue in queues:
                group.unlock(queue, client_id)
        call.answer()


def _queues(call: Call) -> tuple[str, str, list[tuple[str, int]]]:
    """Group, client, and queues by the log's names of their topics."""
    asked = load(call.request.body)
    queues = []
    for each in read_objects(asked, "mqSet", SUBSCRIPTIONS_MAX):
        index = each.get("queueId")
        if type(index) is not int or index < 0:
            raise ResponseError(Code.INVALID_PARAMETER, "a queue in mqSet has no queueId")
        queues.append((log_name(read_text(each, "topic")), index))
    group = read_text(asked, "consumerGroup")
    call.check(Operation.READ, Resource.GROUP, group)
    return group, read_text(asked, "clientId"), queues


def _check_group(call: Call, group: dict[str, Any]) -> None:
    """Raise NotAuthorized unless the client may be in a group, and read what it says that it reads."""
    call.check(Operation.READ, Resource.GROUP, read_text(group, "groupName"))
    for each in read_objects(group, "subscriptionDataSet", SUBSCRIPTIONS_MAX):
        call.check_topic(Operation.READ, read_text(each, "topic"))


def _consumption(group: dict[str, Any]) -> Consumption:
    words = (read_text(group, name) for name in ("consumeType", "messageModel", "consumeFromWhere"))
    return Consumption(*(word[:WORD_MAX] for word in words))


def _subscriptions(group: dict[str, Any]) -> dict[str, RocketMqSubscription]:
    found = {}
    for each in read_objects(group, "subscriptionDataSet", SUBSCRIPTIONS_MAX):
        version = each.get("subVersion", 0)
        found[log_name(read_text(each, "topic"))] = parse_subscription(
            read_text(each, "subString"), read_text(each, "expressionType"), version if type(version) is int else 0
        )
    return found


def read_text(value: Mapping[str, Any], name: str) -> str:
    """A text of an object; empty where there is none."""
    found = value.get(name)
    return found if isinstance(found, str) else ""


def read_objects(value: Mapping[str, Any], name: str, most: int) -> list[dict[str, Any]]:
    """A list of objects in an object. Raises ResponseError."""
    found = value.get(name) or []
    if not isinstance(found, list) or len(found) > most or not all(isinstance(each, dict) for each in found):
        raise ResponseError(Code.INVALID_PARAMETER, f"{name} must be a list of at most {most} objects")
    return found
