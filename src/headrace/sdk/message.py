"""A message, as a handler sees it and as it is sent.

Both are structs of msgspec, because one is made for each message: a frozen dataclass takes many times as long. Nothing
in them can lead back to them, so the garbage collector need not look at them.
`msgspec.structs.replace` makes another one of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message that was received."""

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
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


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message that is to be sent."""

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    partition: int | None = None
    """None: chosen by the key, as Kafka's own clients choose."""
    delay: float = 0.0
    """Seconds until it may be delivered."""
