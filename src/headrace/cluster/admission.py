"""When a follower that was removed from the ISR may join it again.

A follower that is slow now and then would join and lag again and again, and each time everyone waits for it. So each
removal for lag doubles the time until the next admission. One that stays in sync for long is forgiven.
"""

from __future__ import annotations

FIRST_S = 1.0
# So many times its last wait in sync, and a replica begins anew.
FORGIVEN_AFTER = 10


class Admissions:
    """The waits of all followers."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._waits: dict[str, tuple[float, float]] = {}
        """By directory: when it was removed, and for how long it then waits."""

    def removed(self, replica: str, now: float) -> None:
        """A replica lagged, and is in sync no more."""
        at, wait = self._waits.get(replica, (0.0, 0.0))
        is_new = not wait or now - at > wait * (1 + FORGIVEN_AFTER)
        self._waits[replica] = now, min(FIRST_S if is_new else wait * 2, self._longest_s)

    def allows(self, replica: str, now: float) -> bool:
        """Whether it may join."""
        at, wait = self._waits.get(replica, (0.0, 0.0))
        return not wait or now - at >= wait
