"""A message, as a handler sees it and as it is sent.

Both are structs of msgspec, because one is made for each message: a frozen dataclass takes many times as long. Nothing
in them can lead back to them, so the garbage collector need not look at them.
`msgspec.structs.replace` makes another one of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from headrace.sdk.values import seconds_of

if TYPE_CHECKING:
    from headrace.sdk.leases import Leases

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


handling: ContextVar[Leases | None] = ContextVar("headrace_handling", default=None)
"""Where a handler runs: not in the message, which would then lead back to itself."""


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

    async def extend(self, seconds: float | timedelta) -> bool:
        """Keep the message for at least so long from now: for a handler that knows that it will take more than
        `timeout_max`. False where the system does not allow that, or another consumer has the message by now."""
        return _current_leases().extend(self, seconds_of("seconds", seconds))

    def extend_blocking(self, seconds: float | timedelta) -> bool:
        """The same, for a handler that is not async and runs in a thread."""
        leases, given = _current_leases(), seconds_of("seconds", seconds)

        async def extend() -> bool:
            return leases.extend(self, given)

        return asyncio.run_coroutine_threadsafe(extend(), leases.loop).result()


def _current_leases() -> Leases:
    leases = handling.get()
    if leases is None:
        raise RuntimeError("a message can only be extended by the handler that has it, while it runs")
    return leases


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What is known of a message that was sent. It can be made anew of what was stored: `Receipt(topic, timer=...)`."""

    topic: str
    partition: int = -1
    """-1 where the system does not say: NSQ's wire, a message that is not due yet, one of a transaction."""
    offset: int = -1
    timer: str = ""
    """Of a delayed message on Headrace: by this it can be cancelled (`App.cancel`)."""

    @property
    def id(self) -> str:
        """As `Message.id` where the message is received; empty where it is not known yet."""
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
