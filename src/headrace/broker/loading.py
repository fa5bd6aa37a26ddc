"""Loading once: all callers wait for the same load, and none of them can cancel it for the others. After a failure the
next call tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class SharedLoad:
    """A load that begins with the first call."""

    __slots__ = ("_load", "task")

    def __init__(self, load: Callable[[], Coroutine[object, object, None]]) -> None:
        self._load = load
        self.task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    def begin(self) -> asyncio.Task[None]:
        """Begin, unless it is under way."""
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._load())
            # A failure is raised in those that wait; without any, the next call tries again.
            self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self.task

    async def load(self) -> None:
        """Wait for the load that is under way, or for a new one. Raises what it raises."""
        await asyncio.shield(self.begin())

    def cancel(self) -> None:
        """Load no further."""
        if self.task is not None:
            self.task.cancel()
