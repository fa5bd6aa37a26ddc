"""The calendar of a simulated machine: the loop's virtual time, counted from a fixed day."""

from __future__ import annotations

import asyncio

# 2027-01-01T00:00:00Z. Any fixed day does; a real one makes traces readable.
DAY_ONE_MS = 1_798_761_600_000


class VirtualClock:
    """Milliseconds since the epoch, moved by the loop alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return DAY_ONE_MS + int(self._loop.time() * 1000)
