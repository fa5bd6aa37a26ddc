"""A message, as a handler sees it and as it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was received."""

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=lambda: NO_HEADERS)
    partition: int = -1
    """-1 where the system does not say."""
    offset: int = -1
    timestamp_ms: int = -1
    attempt: int = 1
    """1 for the first delivery."""

    @property
    def id(self) -> str:
        """The same for every delivery of the message, where the system has coordinates; empty where it has none."""
        return f"{self.topic}/{self.partition}/{self.offset}" if self.offset >= 0 else ""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that is to be sent."""

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=lambda: NO_HEADERS)
    partition: int | None = None
    """None: chosen by the key, as Kafka's own clients choose."""
    delay: float = 0.0
    """Seconds until it may be delivered."""
