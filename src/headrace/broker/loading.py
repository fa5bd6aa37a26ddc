"""Loading once: whoever comes while something is being read waits for the same reading, and none of them can cancel it
for the others. After a failure the next who comes tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class Loading:
    """A reading that is begun when first asked for."""

    __slots__ = ("_load", "task")

    def __init__(self, load: Callable[[], Coroutine[object, object, None]]) -> None:
        self._load = load
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Begin, unless it is under way; nobody need wait."""
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._load())
            # Who waits is told; if nobody does, the next who comes tries again.
            self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self.task

    async def wait(self) -> None:
        """Wait for the reading that is under way, or for a new one. Raises what it raises."""
        await asyncio.shield(self.begin())

    def cancel(self) -> None:
        """Read no further."""
        if self.task is not None:
            self.task.cancel()
