"""What time it is. Timers are the asyncio loop's; this is the calendar that goes into records and retention."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """The calendar."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as records carry them."""
        ...

    def boot_seconds(self) -> float:
        """Seconds since the machine was started, those in which it slept too; it never jumps."""
        ...


class SystemClock:
    """The machine's own clock."""

    def __init__(self) -> None:
        self.boot_seconds = partial(time.clock_gettime, time.CLOCK_BOOTTIME)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
