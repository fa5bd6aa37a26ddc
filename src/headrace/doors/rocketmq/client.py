"""What a client tells of itself by its heartbeats: who it is, and how it takes part in its groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BROADCASTING = "BROADCASTING"


@dataclass(frozen=True, slots=True)
class Consumption:
    """How a client consumes as a member of a group, in RocketMQ's words."""

    consume_type: str
    """CONSUME_PASSIVELY is a push consumer, CONSUME_ACTIVELY one that pulls."""
    message_model: str
    """CLUSTERING, or BROADCASTING."""
    consume_from: str


@dataclass(frozen=True, slots=True)
class Client:
    """A client, by its last heartbeat."""

    client_id: str
    language: str
    version: int
    consumers: Mapping[str, Consumption]
    """By group."""
