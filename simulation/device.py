"""How a machine's disk answers: in its own time, slowly, or not at all for a while."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.loop import SimulatorLoop


# No single operation takes longer, however slow the device is: one that does hangs.
LONGEST_S = 5.0


class Device:
    """What stands between a process and what is stored, from one life to the next."""

    def __init__(self, counts: Counter[str]) -> None:
        self.slowness = 1.0
        """How many times longer everything takes."""
        self._counts = counts
        self.hangs = False
        """Whether it answers nothing now: what is asked of it is to `wait`."""
        self._waiting: list[tuple[SimulatorLoop, Callable[..., object], tuple[Any, ...]]] = []

    def delay(self, rng: random.Random) -> float:
        """Mostly a fraction of a millisecond, sometimes nothing, sometimes a device that takes its time."""
        draw = rng.random()
        if draw < 0.2:
            return 0.0
        delay = rng.expovariate(1 / 0.0003) if draw < 0.95 else rng.expovariate(1 / 0.02)
        return min(delay * self.slowness, LONGEST_S)

    def hang(self) -> None:
        """Answer nothing from now on."""
        self.hangs = True

    def go_on(self) -> None:
        """Answer again, also what was asked in the meantime."""
        self.hangs = False
        waiting, self._waiting = self._waiting, []
        for loop, callback, args in waiting:
            if not loop.is_closed():
                loop.call_soon(callback, *args)

    def wait(self, loop: SimulatorLoop, callback: Callable[..., object], *args: Any) -> None:
        """Call once it no longer hangs."""
        self._counts["operation hung"] += 1
        self._waiting.append((loop, callback, args))
