"""What clients and administrators ask of a name server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import Call, Handlers
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import dump
from headrace.doors.rocketmq.names import DEFAULT_TOPIC, log_name
from headrace.doors.rocketmq.namesrv.registration import RegistrationHandlers
from headrace.doors.rocketmq.namesrv.registry import RegisteredBroker
from headrace.doors.rocketmq.topics import RETRY_SHAPE, WRITE, TopicShape

if TYPE_CHECKING:
    from headrace.doors.rocketmq.namesrv.listener import NameServer

# What tools may store under one name: RocketMQ's own settings are far below.
KV_BYTES_MAX = 16_384
NAME_BYTES_MAX = 4_096
MASTER = "0"


class NameServerHandlers:
    """The requests that a name server answers."""

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._state = server.broker.rocketmq

    # --- routes -------------------------------------------------------------------------------------------------------

    async def route(self, call: Call) -> None:
        """GET_ROUTEINFO_BY_TOPIC."""
        server = self._server
        name = call.text("topic")
        shape = server.topics.shape(name) if server.presence.port else None
        if shape is None and server.presence.port and await server.topics.is_of_group(name):
            shape = RETRY_SHAPE
        brokers, queues = [], []
        if shape is not None:
            perm = shape.perm if server.is_writable else shape.perm & ~WRITE
            brokers.append(self._broker_data(call))
            queues.append(_queue_data(server.settings.rocketmq_broker_name, shape, perm))
        for others in server.registry.named():
            found = others[0].topics.get(name)
            if found is not None:
                brokers.append(_other_data(others))
                queues.append(_queue_data(others[0].name, found, found.perm))
        if not queues:
            raise ResponseError(
                Code.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {name}. Create it, or send to it first.",
            )
        call.answer(body=dump({"brokerDatas": brokers, "filterServerTable": {}, "queueDatas": queues}))

    def cluster(self, call: Call) -> None:
        """GET_BROKER_CLUSTER_INFO."""
        settings = self._server.settings
        name = settings.rocketmq_broker_name
        brokers: dict[str, object] = {}
        clusters: dict[str, list[str]] = {}
        if self._server.presence.port:
            brokers[name] = self._broker_data(call, with_slaves=True)
            clusters[settings.rocketmq_cluster] = [name]
        for others in self._server.registry.named():
            brokers[others[0].name] = _other_data(others)
            clusters.setdefault(others[0].cluster, []).append(others[0].name)
        call.answer(body=dump({"brokerAddrTable": brokers, "clusterAddrTable": clusters}))

    def _broker_data(self, call: Call, *, with_slaves: bool = False) -> dict[str, object]:
        """This broker: in a group, the node that leads. Administrators see the nodes that follow as its slaves. Clients
        do not: they would send their heartbeats to each of them, which forwards them here, and be there several times.
        """
        settings = self._server.settings
        local = call.connection.transport.get_extra_info("sockname")
        addresses = {MASTER: self._server.presence.address(str(local[0]))}
        group = self._server.broker.membership
        for number, view in sorted(group.nodes.items()) if with_slaves else ():
            if number != group.node_id and "rocketmq" in view.addresses:
                addresses[str(number + 1)] = view.addresses["rocketmq"]
        return {
            "brokerAddrs": addresses,
            "brokerName": settings.rocketmq_broker_name,
            "cluster": settings.rocketmq_cluster,
            "enableActingMaster": False,
        }

    async def topics(self, call: Call) -> None:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        others = (name for brokers in self._server.registry.named() for name in brokers[0].topics)
        self._answer_topics(call, {*await self._server.topics.all_names(), *others})

    async def topics_by_cluster(self, call: Call) -> None:
        """GET_TOPICS_BY_CLUSTER."""
        cluster = call.text("cluster")
        found = set(await self._server.topics.all_names() if cluster == self._server.settings.rocketmq_cluster else ())
        for brokers in self._server.registry.named():
            if brokers[0].cluster == cluster:
                found |= set(brokers[0].topics)
        self._answer_topics(call, found)

    def system_topics(self, call: Call) -> None:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS."""
        settings = self._server.settings
        self._answer_topics(call, (settings.rocketmq_cluster, settings.rocketmq_broker_name, DEFAULT_TOPIC))

    @staticmethod
    def _answer_topics(call: Call, names: Iterable[str]) -> None:
        call.answer(body=dump({"topicList": sorted(call.sees(names))}))

    def delete_topic(self, call: Call) -> None:
        """DELETE_TOPIC_IN_NAMESRV: the broker deletes the topic, and with it the route."""
        log_name(call.text("topic"))
        call.answer()

    # --- permission to write ------------------------------------------------------------------------------------------

    def wipe_write(self, call: Call) -> None:
        """WIPE_WRITE_PERM_OF_BROKER."""
        call.answer(fields={"wipeTopicCount": str(self._set_writable(call, False))})

    def add_write(self, call: Call) -> None:
        """ADD_WRITE_PERM_OF_BROKER."""
        call.answer(fields={"addTopicCount": str(self._set_writable(call, True))})

    def _set_writable(self, call: Call, is_writable: bool) -> int:
        """Change whether routes let producers write; how many topics that concerns."""
        server = self._server
        if (name := call.text("brokerName")) != server.settings.rocketmq_broker_name:
            return server.registry.set_writable(name, is_writable)
        server.is_writable = is_writable
        return sum(1 for _ in server.topics.names())

    # --- configuration ------------------------------------------------------------------------------------------------

    async def get_kv(self, call: Call) -> None:
        """GET_KV_CONFIG."""
        await self._state.load()
        namespace, key = call.text("namespace"), call.text("key")
        value = self._state.kv.get(namespace, {}).get(key)
        if value is None:
            raise ResponseError(Code.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        call.answer(fields={"value": value})

    async def put_kv(self, call: Call) -> None:
        """PUT_KV_CONFIG."""
        namespace, key, value = call.text("namespace"), call.text("key"), call.text("value")
        if max(len(namespace.encode()), len(key.encode())) > NAME_BYTES_MAX or len(value.encode()) > KV_BYTES_MAX:
            raise ResponseError(
                Code.INVALID_PARAMETER,
                f"a namespace and a key have at most {NAME_BYTES_MAX} bytes, a value {KV_BYTES_MAX}",
            )
        await self._state.load()
        most = self._server.settings.rocketmq_namesrv_values_max
        if key not in self._state.kv.get(namespace, {}) and sum(map(len, self._state.kv.values())) >= most:
            raise ResponseError(
                Code.SYSTEM_ERROR, f"the name server has {most} values (rocketmq_namesrv_values_max). Delete some."
            )
        await self._state.put_kv(namespace, key, value)
        call.answer()

    async def delete_kv(self, call: Call) -> None:
        """DELETE_KV_CONFIG."""
        await self._state.put_kv(call.text("namespace"), call.text("key"), None)
        call.answer()

    async def list_kv(self, call: Call) -> None:
        """GET_KVLIST_BY_NAMESPACE."""
        await self._state.load()
        namespace = call.text("namespace")
        found = self._state.kv.get(namespace)
        if found is None:
            raise ResponseError(Code.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        call.answer(body=dump({"table": found}))


def _queue_data(broker_name: str, shape: TopicShape, perm: int) -> dict[str, object]:
    return {
        "brokerName": broker_name,
        "perm": perm,
        "readQueueNums": shape.read_queues,
        "topicSysFlag": 0,
        "writeQueueNums": shape.write_queues,
    }


def _other_data(brokers: Sequence[RegisteredBroker]) -> dict[str, object]:
    return {
        "brokerAddrs": {str(each.id): each.address for each in brokers},
        "brokerName": brokers[0].name,
        "cluster": brokers[0].cluster,
        "enableActingMaster": False,
    }


def of(server: NameServer) -> Handlers:
    """The handlers of a name server's requests."""
    handlers, others = NameServerHandlers(server), RegistrationHandlers(server)
    return {
        Request.GET_ROUTEINFO_BY_TOPIC: handlers.route,
        Request.GET_BROKER_CLUSTER_INFO: handlers.cluster,
        Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: handlers.topics,
        Request.GET_TOPICS_BY_CLUSTER: handlers.topics_by_cluster,
        Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: handlers.system_topics,
        Request.DELETE_TOPIC_IN_NAMESRV: handlers.delete_topic,
        Request.WIPE_WRITE_PERM_OF_BROKER: handlers.wipe_write,
        Request.ADD_WRITE_PERM_OF_BROKER: handlers.add_write,
        Request.GET_KV_CONFIG: handlers.get_kv,
        Request.PUT_KV_CONFIG: handlers.put_kv,
        Request.DELETE_KV_CONFIG: handlers.delete_kv,
        Request.GET_KVLIST_BY_NAMESPACE: handlers.list_kv,
        Request.REGISTER_BROKER: others.register,
        Request.UNREGISTER_BROKER: others.unregister,
        Request.QUERY_DATA_VERSION: others.version,
        Request.BROKER_HEARTBEAT: others.heartbeat,
    }
