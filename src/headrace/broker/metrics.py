"""What the broker counts. Filled in by the doors on the hot path, so counters are plain numbers on slotted objects."""

from __future__ import annotations


class Metrics:
    """The broker's own counters."""

    __slots__ = ("connections",)

    def __init__(self) -> None:
        self.connections = 0
