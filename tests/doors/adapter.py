"""How the conformance suite speaks to a door: what an adapter implements of its protocol's clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class DoorRefused(Exception):
    """The door refused a message: its own code and words."""


@dataclass(frozen=True)
class Delivery:
    """A message that a consumer has, and has not settled."""

    value: bytes
    attempt: int
    handle: Any


class Client:
    """A publisher that speaks the door's protocol. It may be used after a refusal and after a restart."""

    def __init__(self, address: str) -> None:
        self.address = address

    def publish(self, topic: str, value: bytes, *, delay_ms: int = 0, id: str | None = None) -> None:
        """Publish, and return once it is acknowledged. Raises Refused or OSError. `id` is for deduplication."""
        raise NotImplementedError

    def publish_all(self, topic: str, values: Sequence[bytes]) -> None:
        """Publish several messages by one request, likewise."""
        raise NotImplementedError

    def publish_to(self, topic: str, values: Mapping[int, bytes]) -> dict[int, str]:
        """Publish one message to each partition by one request; the errors by partition."""
        raise NotImplementedError

    def close(self) -> None:
        """Called from any thread; what waits for an acknowledgement raises OSError."""


class Consumer:
    """One consumer of a queue, which has one message at a time."""

    def __init__(self, address: str, topic: str, queue: str) -> None:
        raise NotImplementedError

    def take(self) -> Delivery:
        raise NotImplementedError

    def finish(self, delivery: Delivery) -> None:
        raise NotImplementedError

    def requeue(self, delivery: Delivery) -> None:
        """Send it back, to be delivered again at once."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
