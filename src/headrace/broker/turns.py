"""Taking turns: changes of one name wait for those before them, and for no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Turns:
    """A lock for each name, kept only while it is held or waited for."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._locks

    @asynccontextmanager
    async def of(self, name: Hashable) -> AsyncIterator[None]:
        """Hold the turn of a name."""
        lock, holders = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = (lock, holders + 1)
        try:
            async with lock:
                yield
        finally:
            lock, holders = self._locks[name]
            if holders == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, holders - 1)
