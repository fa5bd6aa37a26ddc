"""Doing something from time to time, until told to stop; what fails is said, and tried again in the next round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Rounds:
    """Calls `look` every so many seconds."""

    def __init__(
        self, seconds: float, look: Callable[[], Awaitable[None]], what: str, log: FilteringBoundLogger
    ) -> None:
        self._seconds = seconds
        self._look = look
        self._what = what
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether a round that is under way should come to its end."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more; a round under way is waited for."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), self._seconds)
            except TimeoutError:
                try:
                    await self._look()
                except Exception:
                    self._log.exception(f"looking for what is {self._what} failed")
