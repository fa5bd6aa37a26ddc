"""Whether a leader may still believe that it leads.

A process that was stopped, or a machine that slept, goes on where it was, and does not know that others elected a
leader meanwhile. Nothing can be committed by it, but what it answers by itself (appends with acks=1, positions of
groups) may be out of date. So a gap in its own running ends a leadership. If etcd still names the node, it stands
again, and etcd's answer to that says that it was right.
"""

from __future__ import annotations

from headrace.runtime.clock import Clock

# Of a lease: others elect a leader after a whole one.
GAP = 0.5


class Vigil:
    """Of one node."""

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._gap_s = lease_s * GAP
        self._ticked_at = clock.boot_seconds()

    def tick(self) -> None:
        """The process runs. Called several times in a lease."""
        self._ticked_at = self._clock.boot_seconds()

    @property
    def slept_s(self) -> float:
        """For how long the process did not run, if that was too long; otherwise 0."""
        gap = self._clock.boot_seconds() - self._ticked_at
        return gap if gap > self._gap_s else 0.0
