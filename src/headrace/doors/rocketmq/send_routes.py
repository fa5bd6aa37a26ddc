"""What is kept of a client that sends: where the messages of its topics go, and what they carry of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.broker.publish import Admission
from headrace.log.interface import Partition


@dataclass(frozen=True, slots=True)
class Route:
    """Where messages of a topic go."""

    admission: Admission
    partitions: Sequence[Partition]


@dataclass(slots=True)
class Producer:
    """A client that sends."""

    born_host: bytes
    """The header that its messages get."""
    store_host: bytes
    """What the offset ids of its messages have in common, in hexadecimal digits."""
    routes: dict[bytes, Route] = field(default_factory=dict)
