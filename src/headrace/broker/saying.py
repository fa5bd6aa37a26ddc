"""What happens often, said now and then, with how much of it there was since."""

from __future__ import annotations

AGAIN_SECONDS = 10.0


class Saying:
    """One such thing."""

    __slots__ = ("_again", "_last", "_unsaid")

    def __init__(self, again_seconds: float | None = None) -> None:
        self._again = again_seconds
        self._last = float("-inf")
        self._unsaid = 0

    def say(self, now: float, count: int = 1) -> int:
        """How much to say now; 0: nothing yet."""
        self._unsaid += count
        if now - self._last < (AGAIN_SECONDS if self._again is None else self._again):
            return 0
        self._last = now
        said, self._unsaid = self._unsaid, 0
        return said
