"""Registration of other brokers: REGISTER_BROKER (103), UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322) and
BROKER_HEARTBEAT (904), where `rocketmq_namesrv_registration` lets them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import dump, load
from headrace.doors.rocketmq.namesrv.registry import MASTER, SILENCE_MS, SILENCE_MS_MAX, RegisteredBroker

if TYPE_CHECKING:
    from headrace.doors.rocketmq.namesrv.listener import NameServer

ORDER_CONFIG = "ORDER_TOPIC_CONFIG"


class RegistrationHandlers:
    """Takes other brokers in."""

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._registry = server.registry

    async def register(self, call: Call) -> None:
        """REGISTER_BROKER: answered with the master, for slaves, and the configuration of ordered topics."""
        self._check(call)
        body = call.request.body
        if (expected := call.number("bodyCrc32", 0)) and crc32(body) & 0x7FFFFFFF != expected:
            raise ResponseError(Code.SYSTEM_ERROR, "the body of the registration is damaged: its CRC does not match")
        compressed = call.flag("compressed")
        topics, version = await self._server.broker.runtime.offload.run(self._registry.read_body, body, compressed)
        silence = call.number("heartbeatTimeoutMillis", SILENCE_MS)
        broker = RegisteredBroker(
            call.text("clusterName"),
            call.text("brokerName"),
            call.number("brokerId"),
            call.text("brokerAddr"),
            call.text("haServerAddr", ""),
            call.connection,
            min(max(silence, 1), SILENCE_MS_MAX) / 1000,
            topics,
            version,
        )
        self._registry.register(broker, self._server.loop.time())
        fields = {}
        if broker.id != MASTER and (master := self._registry.master(broker.cluster, broker.name)) is not None:
            fields = {"masterAddr": master.address, "haServerAddr": master.ha_address}
        await self._server.broker.rocketmq.load()
        ordered = self._server.broker.rocketmq.kv.get(ORDER_CONFIG)
        call.answer(fields=fields, body=b"" if ordered is None else dump({"table": ordered}))

    def unregister(self, call: Call) -> None:
        """UNREGISTER_BROKER."""
        self._check(call)
        self._registry.unregister(call.text("clusterName"), call.text("brokerName"), call.number("brokerId"))
        call.answer()

    def version(self, call: Call) -> None:
        """QUERY_DATA_VERSION: whether the broker's topics are others than those that it registered."""
        found = self._heard(call)
        asked = load(call.request.body)
        is_changed = found is None or found.version != asked
        body = b"" if found is None or not found.version else dump(found.version)
        call.answer(fields={"changed": "true" if is_changed else "false"}, body=body)

    def heartbeat(self, call: Call) -> None:
        """BROKER_HEARTBEAT."""
        self._heard(call)
        call.answer()

    def _heard(self, call: Call) -> RegisteredBroker | None:
        self._check(call)
        name, id = call.text("brokerName"), call.number("brokerId")
        return self._registry.hear(call.text("clusterName"), name, id, self._server.loop.time())

    def _check(self, call: Call) -> None:
        """Raise ResponseError where the broker may not register."""
        settings = self._server.settings
        if not settings.rocketmq_namesrv_registration:
            raise ResponseError(
                Code.NO_PERMISSION,
                "this name server takes no other brokers (rocketmq_namesrv_registration). Register with another one.",
            )
        if call.text("brokerName") == settings.rocketmq_broker_name:
            raise ResponseError(
                Code.NO_PERMISSION,
                f"{settings.rocketmq_broker_name} is this broker's own name (rocketmq_broker_name). Choose another.",
            )
