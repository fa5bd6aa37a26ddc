"""Tasks of a receiver beside its deliveries: they write messages to other topics, and retry until that succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

# What is being written when an application stops has so long to be written. The rest goes to other consumers.
FINISH_SECONDS = 10.0


class BackgroundTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float | None = FINISH_SECONDS) -> None:
        """Let them finish for so many seconds, and cancel those that do not; None: until all have."""
        if not self._tasks:
            return
        _, left = await asyncio.wait(list(self._tasks), timeout=seconds)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
