"""One request on its way through a handler: who asked, in which version, and the broker that answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.doors.kafka.connection import Connection


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler knows besides the request itself."""

    api_key: int
    version: int
    client_id: str | None
    client_host: str
    broker: Broker
    connection: Connection
    listener_host: str
    """The address that clients are told to come back to."""
    listener_port: int
