"""Work that is done from time to time. What fails is logged, and tried again in the next round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Periodic:
    """Calls `work` every so many seconds; the first time when they have passed."""

    def __init__(
        self, seconds: float, work: Callable[[], Awaitable[None]], what: str, log: FilteringBoundLogger
    ) -> None:
        self._seconds = seconds
        self._work = work
        self._what = what
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether a round that is under way should come to its end."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Begin, unless that is done."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Begin no more rounds, and wait for the one under way."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def cancel(self) -> None:
        """Stop at once, also in the middle of a round."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), self._seconds)
            except TimeoutError:
                try:
                    await self._work()
                except (HeadraceError, OSError) as error:
                    self._log.warning(f"could not {self._what}", error=str(error))
                except Exception:
                    self._log.exception(f"could not {self._what}")
