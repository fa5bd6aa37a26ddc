"""What clients ask for, by the names of the service's methods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from headrace.doors.door import DoorContext
from headrace.doors.rocketmq.group_queues import GroupQueues
from headrace.doors.rocketmq.grpc.access import Access
from headrace.doors.rocketmq.grpc.clients import Clients
from headrace.doors.rocketmq.grpc.methods import Streaming, Unary
from headrace.doors.rocketmq.grpc.receive import ReceiveHandlers
from headrace.doors.rocketmq.grpc.renewals import Renewals
from headrace.doors.rocketmq.grpc.routes import RouteHandlers
from headrace.doors.rocketmq.grpc.send import SendHandlers
from headrace.doors.rocketmq.grpc.telemetry import TelemetryHandlers
from headrace.doors.rocketmq.grpc.transactions import TransactionHandlers
from headrace.doors.rocketmq.messages import Host
from headrace.doors.rocketmq.settings import RocketMqSettings
from headrace.doors.rocketmq.topics import RocketMqTopics


class Handlers:
    """The handlers of all methods."""

    def __init__(
        self,
        context: DoorContext[RocketMqSettings],
        topics: RocketMqTopics,
        clients: Clients,
        store_host: Callable[[], Host],
        access: Access,
    ) -> None:
        broker, settings = context.broker, context.settings
        transactions = TransactionHandlers(broker)
        routes = RouteHandlers(broker, settings, topics, clients)
        send = SendHandlers(broker, settings, topics, clients, transactions)
        queues = GroupQueues(broker)
        self._renewals = Renewals(clients, broker.runtime.clock)
        self._telemetry = TelemetryHandlers(settings, clients, transactions, queues, access)
        receive = self._receive = ReceiveHandlers(broker, topics, clients, queues, self._renewals, store_host)
        self.unary: Mapping[str, Unary] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": self._telemetry.heartbeat,
            "NotifyClientTermination": self._telemetry.notify_termination,
            "SendMessage": send.send,
            "RecallMessage": send.recall,
            "EndTransaction": transactions.end_transaction,
            "AckMessage": receive.acknowledge,
            "ChangeInvisibleDuration": receive.change_invisible,
            "ForwardMessageToDeadLetterQueue": receive.forward,
        }
        self.streaming: Mapping[str, Streaming] = {"ReceiveMessage": receive.receive}

    async def telemetry(self, commands: AsyncIterator[bytes], context: Any) -> None:
        """A client's stream."""
        await self._telemetry.telemetry(commands, context)

    def stop(self) -> None:
        """End what waits."""
        self._renewals.stop()
        self._receive.stop()
