"""Campaign, one after the other, and what each of them gave.

A run is one seed: a few lives on one machine, each ended by a clean stop, kill -9 or a power cut that the seed draws,
and a last one that finds what the others left. What the lives are is a campaign's own.
"""

from __future__ import annotations

import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulation.faults import CrashPoints
from simulation.world import World


@dataclass(slots=True)
class Run:
    """What one seed gave."""

    seed: int
    digest: str
    points: CrashPoints
    endings: list[str]
    failure: str | None = None
    trace: list[str] = field(default_factory=list)


class Campaign(ABC):
    """A campaign."""

    __slots__ = ()

    trace_lines: int

    @abstractmethod
    def live(self, world: World) -> Iterator[str]:
        """Go through the lives of one seed; how each ended. Raises where something does not hold."""

    def run(self, seed: int) -> Run:
        """One seed."""
        world = World(seed, self.trace_lines)
        endings: list[str] = []
        failure = None
        # The client library draws its delays from the process's own source.
        drawn = random.getstate()
        random.seed(seed)
        try:
            endings.extend(self.live(world))
        except Exception as error:
            failure = "".join(traceback.format_exception(error))
        finally:
            random.setstate(drawn)
        return Run(seed, world.trace.digest(), world.points, endings, failure, list(world.trace.lines))

    def seeds(self, first: int, last: int) -> Iterator[Run]:
        """A run for each seed."""
        for seed in range(first, last):
            yield self.run(seed)
