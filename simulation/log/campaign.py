"""The log alone: lives that end anywhere, and at the end of each run a flipped bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.log.interface import Durability
from headrace.runtime import Runtime
from simulation.campaign import LivesCampaign
from simulation.faults import FaultSchedule
from simulation.log.damage import BitFlip
from simulation.log.life import LogLife
from simulation.log.model import LogModel
from simulation.world import Ending, World


@dataclass(frozen=True)
class LogCampaign(LivesCampaign[LogModel]):
    """Many seeds of the log."""

    steps: int = 60
    lives: int = 4
    durabilities: tuple[Durability, ...] = tuple(Durability)
    schedule = FaultSchedule(
        kill=0.3, at_points=0.45, at_operation=0.2, exponents=(0, 10), at_time=0.15, sync_errors=0.1
    )

    def prepare(self, world: World) -> LogModel:
        return LogModel()

    def life(self, world: World, known: LogModel, runtime: Runtime, last: bool) -> LogLife:
        return LogLife(world, known, runtime, 3 if last else self.steps, self.durabilities, last=last)

    def on_ended(self, world: World, known: LogModel, ending: Ending) -> None:
        known.end_life(ending, world.machine.disk.sync_failed)

    def inspect(self, world: World, known: LogModel) -> Iterator[str]:
        yield BitFlip(world, known).run()
