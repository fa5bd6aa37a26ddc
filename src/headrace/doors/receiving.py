"""What the connections of a fast door share: buffers for what is large, and one call a turn for all that is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

log = structlog.get_logger("headrace.doors")

# Buffers of large requests that are kept for the next one.
SPARE_MAX = 4


class Buffers:
    """Buffers of their own for requests that are too large for the door's."""

    def __init__(self, largest: int) -> None:
        self._spare: list[bytearray] = []
        # None above this is kept.
        self._largest = largest

    def take(self, first: int, need: int) -> bytearray:
        """A buffer for a request of `need` bytes: a spare one that holds it all, or a small beginning."""
        for index, spare in enumerate(self._spare):
            if len(spare) >= need:
                return self._spare.pop(index)
        return bytearray(first)

    def grown(self, buffer: bytearray, need: int) -> int:
        """The size of the next buffer: never more than twice what has arrived."""
        return min(need, 2 * len(buffer))

    def grow(self, buffer: bytearray, need: int) -> bytearray:
        """The same bytes with more room."""
        grown = bytearray(self.grown(buffer, need))
        grown[: len(buffer)] = buffer
        return grown

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer for the next large request."""
        if len(self._spare) < SPARE_MAX and len(buffer) <= self._largest:
            self._spare.append(buffer)


class EndOfTurn:
    """Calls at the end of this turn of the loop, all in one."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None]) -> None:
        """Call at the end of this turn, together with all others that asked."""
        self._ready.append(call)
        if len(self._ready) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        ready, self._ready = self._ready, []
        for call in ready:
            try:
                call()
            except Exception:
                log.exception("a reply failed")
