"""Clients and their groups: heartbeats (34, 35), lists of members (38), and the locks of orderly consumers (41, 42)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.groups.rocketmq_group import RocketMqMember, RocketMqSubscription
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import Call, RemotingConnection
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import dump, load
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
SUBSCRIPTIONS_MAX = 10_000


class ClientHandlers:
    """Knows which clients are in which groups."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._groups = remoting.broker.groups.rocketmq
        self._producers: dict[RemotingConnection, Producer] = {}

    async def heartbeat(self, call: Call) -> None:
        """HEART_BEAT: the groups of a client. Those that can take it do; what another one says is the answer."""
        beat = load(call.request.body)
        connection = call.connection
        client_id = _text(beat, "clientID")
        if not client_id or len(client_id) > CLIENT_ID_MAX:
            raise ResponseError(Code.INVALID_PARAMETER, f"a client's id has 1 to {CLIENT_ID_MAX} characters")
        connection.heartbeat = self._remoting.loop.time()
        if connection.memberships is None:
            connection.memberships = Memberships(self._groups)
        self._join_producers(call, client_id, beat)
        groups = _objects(beat, "consumerDataSet", GROUPS_MAX)
        refused: HeadraceError | None = None
        for group in groups:

            def notify(group_id: str) -> None:
                connection.request(Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group_id})

            try:
                member = RocketMqMember(client_id, connection.address[0], _subscriptions(group), notify)
                await connection.memberships.join(_text(group, "groupName"), member)
            except HeadraceError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        call.answer()

    def _join_producers(self, call: Call, client_id: str, beat: dict[str, Any]) -> None:
        groups = [_text(each, "groupName") for each in _objects(beat, "producerDataSet", GROUPS_MAX)]
        connection = call.connection
        producer = self._producers.get(connection)
        if producer is None:
            if not groups:
                return
            producer = TransactionChecker(self._remoting, connection).join(client_id, call)
            self._producers[connection] = producer
            connection.on_lost.append(lambda: self._producers.__delitem__(connection))
        for group in groups:
            self._remoting.producers.join(group, producer)

    def unregister(self, call: Call) -> None:
        """UNREGISTER_CLIENT."""
        producer = self._producers.get(call.connection)
        if producer is not None:
            self._remoting.producers.leave(call.text("producerGroup", ""), producer)
        group = call.text("consumerGroup", "")
        if group and call.connection.memberships is not None:
            call.connection.memberships.leave(group)
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
    for each in _objects(asked, "mqSet", SUBSCRIPTIONS_MAX):
        index = each.get("queueId")
        if type(index) is not int or index < 0:
            raise ResponseError(Code.INVALID_PARAMETER, "a queue in mqSet has no queueId")
        queues.append((log_name(_text(each, "topic")), index))
    return _text(asked, "consumerGroup"), _text(asked, "clientId"), queues


def _subscriptions(group: dict[str, Any]) -> dict[str, RocketMqSubscription]:
    found = {}
    for each in _objects(group, "subscriptionDataSet", SUBSCRIPTIONS_MAX):
        version = each.get("subVersion", 0)
        found[log_name(_text(each, "topic"))] = parse_subscription(
            _text(each, "subString"), _text(each, "expressionType"), version if type(version) is int else 0
        )
    return found


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    return found if isinstance(found, str) else ""


def _objects(value: dict[str, Any], name: str, most: int) -> list[dict[str, Any]]:
    found = value.get(name) or []
    if not isinstance(found, list) or len(found) > most or not all(isinstance(each, dict) for each in found):
        raise ResponseError(Code.INVALID_PARAMETER, f"{name} is no list of at most {most} objects")
    return found
