"""What clients and administrators ask of a name server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.connection import Call, Handlers
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import dump
from headrace.doors.rocketmq.names import DEFAULT_TOPIC, log_name
from headrace.doors.rocketmq.topics import RETRY_SHAPE, WRITE

if TYPE_CHECKING:
    from headrace.doors.rocketmq.namesrv.listener import NameServer

# What tools may store under one name: RocketMQ's own settings are far below.
KV_BYTES_MAX = 16_384
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
        if shape is None:
            raise ResponseError(
                Code.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {name}. Create it, or send to it first.",
            )
        settings = server.settings
        perm = shape.perm if server.is_writable else shape.perm & ~WRITE
        call.answer(
            body=dump(
                {
                    "brokerDatas": [self._broker_data(call)],
                    "filterServerTable": {},
                    "queueDatas": [
                        {
                            "brokerName": settings.rocketmq_broker_name,
                            "perm": perm,
                            "readQueueNums": shape.read_queues,
                            "topicSysFlag": 0,
                            "writeQueueNums": shape.write_queues,
                        }
                    ],
                }
            )
        )

    def cluster(self, call: Call) -> None:
        """GET_BROKER_CLUSTER_INFO."""
        settings = self._server.settings
        name = settings.rocketmq_broker_name
        is_open = bool(self._server.presence.port)
        call.answer(
            body=dump(
                {
                    "brokerAddrTable": {name: self._broker_data(call)} if is_open else {},
                    "clusterAddrTable": {settings.rocketmq_cluster: [name]} if is_open else {},
                }
            )
        )

    def _broker_data(self, call: Call) -> dict[str, object]:
        settings = self._server.settings
        local = call.connection.transport.get_extra_info("sockname")
        return {
            "brokerAddrs": {MASTER: self._server.presence.address(str(local[0]))},
            "brokerName": settings.rocketmq_broker_name,
            "cluster": settings.rocketmq_cluster,
            "enableActingMaster": False,
        }

    async def topics(self, call: Call) -> None:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        self._answer_topics(call, await self._server.topics.all_names())

    async def topics_by_cluster(self, call: Call) -> None:
        """GET_TOPICS_BY_CLUSTER."""
        is_own = call.text("cluster") == self._server.settings.rocketmq_cluster
        self._answer_topics(call, await self._server.topics.all_names() if is_own else ())

    def system_topics(self, call: Call) -> None:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS."""
        settings = self._server.settings
        self._answer_topics(call, (settings.rocketmq_cluster, settings.rocketmq_broker_name, DEFAULT_TOPIC))

    @staticmethod
    def _answer_topics(call: Call, names: Iterable[str]) -> None:
        call.answer(body=dump({"topicList": sorted(names)}))

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
        if call.text("brokerName") != server.settings.rocketmq_broker_name:
            return 0
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
        if len(namespace) + len(key) + len(value) > KV_BYTES_MAX:
            raise ResponseError(Code.INVALID_PARAMETER, f"a value and its name have at most {KV_BYTES_MAX} characters")
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

    # --- other brokers ------------------------------------------------------------------------------------------------

    def refuse_broker(self, call: Call) -> None:
        """REGISTER_BROKER and UNREGISTER_BROKER: they could take over the routes of this one."""
        raise ResponseError(Code.NO_PERMISSION, "this name server takes no other brokers. Register with another one.")


def of(server: NameServer) -> Handlers:
    """The handlers of a name server's requests."""
    handlers = NameServerHandlers(server)
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
        Request.REGISTER_BROKER: handlers.refuse_broker,
        Request.UNREGISTER_BROKER: handlers.refuse_broker,
    }
