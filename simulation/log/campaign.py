"""Many seeds, one after the other: what was reached, and what failed.

A run is one seed: a few lives of a log on one machine, each ended by a clean stop, kill -9 or a power cut at a disk
operation that the seed draws. A failing run is told with the command that replays it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from headrace.log.interface import Durability
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.campaign import Campaign
from simulation.faults import Plan
from simulation.log.damage import BitFlip
from simulation.log.life import LogFactory, LogLife, Shape, small_config
from simulation.log.model import LogModel
from simulation.world import World


@dataclass(frozen=True, slots=True)
class LogCampaign(Campaign):
    """What every run of a campaign shares."""

    shape: Shape = field(default_factory=Shape)
    lives: int = 4
    ignored: frozenset[str] = frozenset()
    """Crash points that do nothing: a deliberately broken flush."""
    sync_errors: bool = True
    damage: bool = True
    """Flip a bit at the end of each run."""
    trace_lines: int = 200
    log: LogFactory = NativeLog

    def live(self, world: World) -> Iterator[str]:
        account = LogModel()
        for _ in range(self.lives):
            yield self._live(world, account)
        yield self._last_look(world, account)
        if self.damage:
            yield self._damage(world, account)

    def _live(self, world: World, account: LogModel) -> str:
        rng = world.stream(f"plan {world.lives}")
        plan = Plan(ignored=self.ignored, kill=rng.random() < 0.3)
        crash_after = None
        draw = rng.random()
        if draw < 0.45:
            plan.crash_chance = rng.choice((0.02, 0.1, 0.3))
        elif draw < 0.65:
            plan.crash_at = int(2 ** rng.uniform(0, 10))
        elif draw < 0.8:
            crash_after = rng.expovariate(1 / 0.3)
        if self.sync_errors and rng.random() < 0.1:
            plan.sync_error_chance = rng.choice((0.003, 0.03))
        return self._life(world, account, plan, crash_after, self.shape)

    def _last_look(self, world: World, account: LogModel) -> str:
        """A last start without faults: whatever the lives before left must be there."""
        return self._life(
            world, account, Plan(ignored=self.ignored), None, replace(self.shape, steps=3, quiet_crashes=False)
        )

    def _damage(self, world: World, account: LogModel) -> str:
        # Nothing may go for another reason than the damage.
        never = 1 << 40
        config = replace(small_config(world.stream("config")), retention_check_ms=never, compaction_check_ms=never)

        def live(runtime: Runtime) -> LogLife:
            return LogLife(world, account, self.shape, runtime, self.log(runtime, config))

        return BitFlip(world, account, live).run()

    def _life(self, world: World, account: LogModel, plan: Plan, crash_after: float | None, shape: Shape) -> str:
        config = small_config(world.stream("config"))
        world.storage.capacity = None

        async def main(runtime: Runtime) -> None:
            life = LogLife(world, account, shape, runtime, self.log(runtime, config))
            await life.run()

        failed_before = sum(world.points.failed.values())
        ending = world.run(main, plan, crash_after=crash_after)
        account.ended(ending, plan.sync_error_chance > 0 and sum(world.points.failed.values()) > failed_before)
        return world.told(ending)


def shape_of(durability: str, steps: int) -> Shape:
    """A shape from the words of the command line."""
    durabilities = tuple(Durability) if durability == "all" else (Durability(durability),)
    return Shape(durabilities, steps)
