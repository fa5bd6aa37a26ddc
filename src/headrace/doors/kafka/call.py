"""One request on its way through a handler: who asked, in which version, and the broker that answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.doors.kafka.placement import Way

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.security import Operation, Resource, Session
    from headrace.doors.door import DoorContext
    from headrace.doors.kafka.connection import Connection
    from headrace.doors.kafka.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler knows besides the request itself."""

    api_key: int
    version: int
    client_id: str | None
    client_host: str
    context: DoorContext[KafkaSettings]
    connection: Connection
    listener: str
    """The name of the listener by which the client came."""
    listener_host: str
    """The address that replies advertise."""
    listener_port: int

    @property
    def way(self) -> Way:
        """How the client reaches the brokers."""
        return Way(self.listener, self.listener_host, self.listener_port)

    def mutate(self, partitions: int, told_from: int) -> None:
        """Count partitions that are about to be made, added or deleted. Clients of versions from `told_from` on know
        the error that says that it is too much, and QuotaExceeded is raised; the others are held back afterwards."""
        quotas = self.broker.quotas
        if not quotas.is_active:
            return
        meter = quotas.meter(self.connection.session, self.client_id or "")
        if meter is not None:
            count = meter.take_mutate if self.version >= told_from else meter.mutated
            count(partitions, self.connection.door.loop.time())

    @property
    def session(self) -> Session:
        """Who asks."""
        return self.connection.session

    def allows(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the client may do that. A refusal is counted and logged."""
        return self.context.broker.security.allows(self.session, operation, resource, name)

    def check(self, operation: Operation, resource: Resource, name: str) -> None:
        """Raise NotAuthorized unless the client may do that."""
        self.context.broker.security.check(self.session, operation, resource, name)

    @property
    def broker(self) -> Broker:
        """The broker that answers."""
        return self.context.broker
