"""At most so many bytes a second."""

from __future__ import annotations

import asyncio

# How much may go at once after a pause.
BURST_S = 0.1


class RateLimit:
    """What all copies of one leader share."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        # When all that was taken so far has had its time.
        self._until = 0.0

    async def take(self, count: int) -> None:
        """Wait until `count` more bytes may go."""
        now = asyncio.get_running_loop().time()
        self._until = max(self._until, now - BURST_S) + count / self._rate
        if self._until > now:
            await asyncio.sleep(self._until - now)
