"""Campaigns: many seeds, one after the other, and what each of them gave.

A run is one seed. Most are a few lives on one machine (`LivesCampaign`), each ended by a clean stop, kill -9 or a power
cut that the seed draws, and a last one, without faults, that finds what the others left. What a life does and what must
hold is a campaign's own.
"""

from __future__ import annotations

import math
import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from headrace.runtime import Runtime
from simulation.faults import CrashPoints, FaultSchedule, Plan
from simulation.life import Life
from simulation.world import Ending, World

Known = TypeVar("Known")

# So many seeds must show what there are floors for.
FLOOR_SEEDS = 50


@dataclass(slots=True)
class Run:
    """What one seed gave."""

    seed: int
    digest: str
    points: CrashPoints
    endings: list[str]
    failure: str | None = None
    trace: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Campaign(ABC):
    """What every run of a campaign shares."""

    ignored: frozenset[str] = frozenset()
    """Crash points that do nothing: a deliberately broken flush, to see that the checks can fail."""
    trace_lines: int = 200
    machines: ClassVar[tuple[str, ...]] = ("localhost",)
    floors: ClassVar[Mapping[str, float]] = {}
    """What must have happened in many seeds, for each of them: a fault that never came proves nothing."""

    def missed(self, counts: Mapping[str, int], seeds: int) -> dict[str, str]:
        """What has happened less often than it must; nothing where the seeds are so few that chance decides."""
        if seeds < FLOOR_SEEDS:
            return {}
        floors = {name: math.ceil(floor * seeds) for name, floor in self.floors.items()}
        return {
            name: f"{counts.get(name, 0)} < {floor}" for name, floor in floors.items() if counts.get(name, 0) < floor
        }

    @abstractmethod
    def live(self, world: World) -> Iterator[str]:
        """Go through one seed; what has happened. Raises where something does not hold."""

    def run(self, seed: int) -> Run:
        """One seed."""
        world = World(seed, self.trace_lines, self.machines)
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


@dataclass(frozen=True, kw_only=True)
class LivesCampaign(Campaign, Generic[Known]):
    """Lives of one machine. `Known` is what clients and checks know from the first life to the last."""

    steps: int
    """Of each task in a life."""
    lives: int
    """Before the last one."""
    schedule: ClassVar[FaultSchedule] = FaultSchedule()

    @abstractmethod
    def prepare(self, world: World) -> Known:
        """What is known before the first life."""

    @abstractmethod
    def life(self, world: World, known: Known, runtime: Runtime, last: bool) -> Life:
        """The next life."""

    def on_ended(self, world: World, known: Known, ending: Ending) -> None:
        """Record how a life ended. Raises where something does not hold."""

    def live(self, world: World) -> Iterator[str]:
        """Go through the lives of one seed; how each ended. Raises where something does not hold."""
        known = self.prepare(world)
        for _ in range(self.lives):
            yield self._live(world, known, self.schedule.draw(world.stream(f"plan {world.lives}"), self.ignored))
        yield self._live(world, known, None)
        yield from self.inspect(world, known)

    def inspect(self, world: World, known: Known) -> Iterator[str]:
        """What else is done once all lives are over."""
        return iter(())

    def _live(self, world: World, known: Known, plan: Plan | None) -> str:
        world.machine.storage.capacity = None

        async def main(runtime: Runtime) -> None:
            await self.life(world, known, runtime, last=plan is None).run()

        ending = world.run(main, plan or Plan(ignored=self.ignored))
        self.on_ended(world, known, ending)
        return ending.value if ending is Ending.DONE else f"{ending.value} at {world.machine.crash_point}"
