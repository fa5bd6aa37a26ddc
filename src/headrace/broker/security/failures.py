"""Failed authentications, by user and by address: the answer to each is delayed twice as long as to the last one.

Only the answer to a failure waits: clients with the right password are not slowed by an attack on their user. A success
takes no failure back, or an attacker with one account of its own would not be slowed on others.
"""

from __future__ import annotations

from collections import OrderedDict

FIRST_DELAY_MS = 50
# After so long without another one, failures are forgotten.
FORGET_SECONDS = 60.0
DOUBLINGS_MAX = 30


class Failures:
    """The counts, in a table of bounded size."""

    def __init__(self, delay_max_ms: int, entries_max: int) -> None:
        self._delay_max_ms = delay_max_ms
        self._entries_max = entries_max
        # From a user or an address to how many there were, and when the last one was.
        self._counts: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, user: str, host: str, now: float) -> int:
        """Count one; how many milliseconds its answer is to be delayed."""
        most = max(self._add(("user", user), now), self._add(("host", host), now))
        return min(FIRST_DELAY_MS << min(most - 1, DOUBLINGS_MAX), self._delay_max_ms)

    def _add(self, key: tuple[str, str], now: float) -> int:
        count, last = self._counts.pop(key, (0, now))
        if now - last > FORGET_SECONDS:
            count = 0
        self._counts[key] = count + 1, now
        if len(self._counts) > self._entries_max:
            self._counts.popitem(last=False)
        return count + 1
