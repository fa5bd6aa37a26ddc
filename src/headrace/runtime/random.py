"""Where identifiers come from. Seeded in the simulator, so that a run replays exactly."""

from __future__ import annotations

import os
from typing import Protocol


class Random(Protocol):
    """A source of random bytes."""

    def bytes(self, count: int) -> bytes:
        """`count` random bytes."""
        ...


class SystemRandom:
    """The kernel's random source."""

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)
