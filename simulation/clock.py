"""The clocks of a simulated machine: one that only goes forward, and a calendar that may jump.

The world has one time. A machine's own time runs beside it, a little faster or slower if it drifts; timers follow that.
The calendar is the machine's time counted from a fixed day, and whatever an administrator or NTP has put it to.
"""

from __future__ import annotations

import asyncio

# 2027-01-01T00:00:00Z. Any fixed day does; a real one makes traces readable.
DAY_ONE_MS = 1_798_761_600_000


class MachineClock:
    """The machine's own time, over all lives of its processes."""

    def __init__(self) -> None:
        self.jumped = 0.0
        """Seconds by which the calendar was put forward, or back."""
        self.drifts = False
        """Whether the machine's time differs from the world's, or ever did."""
        self._rate = 1.0
        # Where the rate last changed, in both times.
        self._world = self._local = 0.0

    def local(self, time: float) -> float:
        """The machine's time at a time of the world."""
        return self._local + (time - self._world) * self._rate

    def world(self, local: float) -> float:
        """The time of the world at which the machine's own is `local`."""
        return self._world + (local - self._local) / self._rate

    def drift(self, time: float, rate: float) -> None:
        """Go on at another rate: 1.01 gains a second in a hundred."""
        self._local, self._world = self.local(time), time
        self._rate = rate
        self.drifts = True


class Calendar:
    """The `Clock` of a simulated runtime."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: MachineClock) -> None:
        self._loop = loop
        self._clock = clock

    def now_ms(self) -> int:
        return DAY_ONE_MS + int((self._loop.time() + self._clock.jumped) * 1000)

    def boot_seconds(self) -> float:
        return self._loop.time()
