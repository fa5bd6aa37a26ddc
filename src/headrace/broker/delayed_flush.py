"""A flush that follows, after a while, the first of what was gathered for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class DelayedFlush:
    """Calls `flush` so many seconds after the first `request`, one at a time. What arrives during a flush waits for the
    next: `has_more` is asked at the end of each."""

    def __init__(self, seconds: float, flush: Callable[[], Awaitable[None]], has_more: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._flush = flush
        self._has_more = has_more
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Flush in time, if that is not under way. A plain call."""
        if self._timer is None and self._flushing is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._begin)

    async def stop(self) -> None:
        """Flush what is left, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            await self._flushing
        await self._flush()

    def _begin(self) -> None:
        self._timer = None
        self._flushing = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._flush()
        finally:
            self._flushing = None
            if self._has_more():
                self.request()
