"""Producer ids: numbers that are never given twice, however the broker stops.

They are taken from a durable counter of the log in blocks, so that one flush serves a thousand producers; what is
left of a block when the broker stops is lost, which does no harm.
"""

from __future__ import annotations

import asyncio

from headrace.log.interface import Log

COUNTER = "producer-ids"
BLOCK = 1_000


class ProducerIds:
    """Hands out producer ids."""

    __slots__ = ("_end", "_log", "_next", "_reserving")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._next = 0
        self._end = 0
        self._reserving = asyncio.Lock()

    async def next(self) -> int:
        """A producer id that was never given."""
        while self._next == self._end:
            async with self._reserving:
                # The holder before may have brought a block for all that waited.
                if self._next == self._end:
                    self._next = await self._log.reserve(COUNTER, BLOCK)
                    self._end = self._next + BLOCK
        given = self._next
        self._next += 1
        return given
