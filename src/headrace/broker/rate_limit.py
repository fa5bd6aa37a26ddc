"""A limit on how often a recurring event is logged, with the count of what was left out in between."""

from __future__ import annotations

INTERVAL_SECONDS = 10.0


class RateLimit:
    """The limit for one kind of event."""

    __slots__ = ("_interval", "_last", "_unlogged")

    def __init__(self, interval_seconds: float | None = None) -> None:
        self._interval = interval_seconds
        self._last = float("-inf")
        self._unlogged = 0

    def count(self, now: float, events: int = 1) -> int:
        """Count events; how many to log now, 0 while the interval lasts."""
        self._unlogged += events
        if now - self._last < (INTERVAL_SECONDS if self._interval is None else self._interval):
            return 0
        self._last = now
        due, self._unlogged = self._unlogged, 0
        return due
