"""Rates of what the broker counts anyway, between two looks at it.

A counter that a request looks at is remembered with the time; the next look, a second later or more, gives the rate
since. So what is not looked at costs nothing, and the first look gives 0.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

SECONDS = 60.0
LEAST_SECONDS = 1.0
# Counters that are remembered: the one that was not looked at for longest is forgotten.
COUNTERS_MAX = 10_000


class Rates:
    """The looks of the last minute, by counter."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._looks: OrderedDict[str, deque[tuple[float, int]]] = OrderedDict()

    def look(self, name: str, value: int) -> float:
        """By how much a counter grew per second, over the last minute as far as it was looked at."""
        now = self._time()
        looks = self._looks.setdefault(name, deque())
        self._looks.move_to_end(name)
        if len(self._looks) > COUNTERS_MAX:
            self._looks.popitem(last=False)
        # The oldest of them, or the last one before.
        while len(looks) > 1 and looks[1][0] <= now - SECONDS:
            looks.popleft()
        rate = 0.0
        if looks and now - looks[0][0] >= LEAST_SECONDS:
            rate = max(value - looks[0][1], 0) / (now - looks[0][0])
        if not looks or now - looks[-1][0] >= LEAST_SECONDS:
            looks.append((now, value))
        return rate
