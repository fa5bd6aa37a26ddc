"""Quotas: how many bytes a second one client id may produce or fetch.

A leaky bucket for each client id: bytes go in, the rate drains it, and a client with more in it than a second's worth
has to wait until it would fit. A reply is never held back: it carries the time, and the connection is muted for that
long.
"""

from __future__ import annotations

CLIENTS_MAX = 10_000
THROTTLE_MAX_SECONDS = 10.0


class Quota:
    """The bytes of every client against one rate."""

    __slots__ = ("_levels", "rate")

    def __init__(self, rate: int) -> None:
        self.rate = rate
        # What a client has in its bucket, and when that was so.
        self._levels: dict[str | None, tuple[float, float]] = {}

    def charge(self, client: str | None, count: int, now: float) -> float:
        """Count bytes that a client has sent or is sent; the seconds that it must wait."""
        level, then = self._levels.get(client, (0.0, now))
        level = max(level - (now - then) * self.rate, 0.0) + count
        if len(self._levels) >= CLIENTS_MAX and client not in self._levels:
            self._forget(now)
        self._levels[client] = (level, now)
        return min(max(level / self.rate - 1.0, 0.0), THROTTLE_MAX_SECONDS)

    def _forget(self, now: float) -> None:
        """Drop the empty buckets, or all of them where clients invent names faster than they drain."""
        kept = {name: entry for name, entry in self._levels.items() if entry[0] > (now - entry[1]) * self.rate}
        self._levels = kept if len(kept) < CLIENTS_MAX else {}
