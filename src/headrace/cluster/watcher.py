"""The keys under a prefix, read again whenever they change.

The watch is a hint, the read is the truth: an event only brings the next read forward, and a read comes every so often
without one, because watches can hang. So events need no order, no numbers and no repair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.cluster.errors import EtcdError
from headrace.cluster.etcd import Etcd, View


class Watcher:
    """Reads a prefix every `poll_seconds` and after each change of it. `on_view` gets what was read, `on_error` why it
    could not be."""

    def __init__(
        self,
        etcd: Etcd,
        prefix: str,
        poll_seconds: float,
        on_view: Callable[[View], None],
        on_error: Callable[[EtcdError], None],
    ) -> None:
        self._etcd = etcd
        self._prefix = prefix
        self._poll_seconds = poll_seconds
        self._on_view = on_view
        self._on_error = on_error
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin, with a read at once."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._watch())]

    async def stop(self) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hurry(self) -> None:
        """Read now."""
        self._changed.set()

    async def _read(self) -> None:
        seen: View | None = None
        while True:
            announced = self._changed.is_set()
            self._changed.clear()
            try:
                view = await self._etcd.read_prefix(self._prefix)
            except EtcdError as error:
                self._on_error(error)
            else:
                if not announced and seen is not None and view.entries != seen.entries:
                    # The watch should have brought this: it hangs.
                    self._tasks[1].cancel()
                    self._tasks[1] = asyncio.get_running_loop().create_task(self._watch())
                seen = view
                self._on_view(view)
            try:
                async with asyncio.timeout(self._poll_seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _watch(self) -> None:
        while True:
            try:
                async for _ in self._etcd.watch(self._prefix):
                    self._changed.set()
            except EtcdError:
                pass  # the next read reports what is wrong
            await asyncio.sleep(self._poll_seconds)
