"""One life of the process under test, and the faults that its workload brings about by itself."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine
from typing import Any, ClassVar

from headrace.config import Config
from headrace.runtime import Runtime
from simulation.faults import Killed, PowerCut
from simulation.world import World


def small_config(rng: random.Random) -> Config:
    """Limits so small that every path is met within a few hundred appends."""
    return Config(
        data="simulated",
        journal_bytes=rng.choice((16_384, 65_536)),
        tail_bytes=rng.choice((8_192, 32_768)),
        direct_bytes=rng.choice((2_048, 4_096, 1 << 20)),
        open_files_max=rng.choice((4, 64)),
        checkpoint_ms=rng.choice((20, 200, 2_000)),
        retention_check_ms=rng.choice((50, 500)),
        compaction_check_ms=rng.choice((30, 300)),
        search_index_check_ms=rng.choice((20, 200)),
        search_index_block_bytes=rng.choice((1, 500, 5_000)),
        message_max_bytes=65_536,
    )


class Life(ABC):
    """From a start of the process to its stop, or to where it is stopped."""

    idle_s: ClassVar[float] = 2.0
    """Mean time before a crash of an idle process."""

    def __init__(self, world: World, runtime: Runtime) -> None:
        self.world = world
        self.runtime = runtime
        self.rng = self.stream("life")
        self.disk_fails = world.machine.disk.plan.sync_error_chance > 0
        """Whether syncs fail in this life."""
        self.disk_full = False
        """Whether the disk may refuse writes now."""

    @property
    def disk_refuses(self) -> bool:
        """Whether an error of the disk has an excuse."""
        return self.disk_fails or self.disk_full

    @abstractmethod
    async def run(self) -> None:
        """Start, check what survived, work, stop."""

    def stream(self, purpose: str) -> random.Random:
        """Random numbers for one purpose in this life."""
        return self.world.stream(f"{purpose} {self.world.lives}")

    def now_ms(self) -> int:
        return self.runtime.clock.now_ms()

    async def or_exit(self, step: Awaitable[object]) -> None:
        """A disk that fails at the wrong moment ends the process, as a broker would end."""
        try:
            await step
        except OSError as error:
            if not self.disk_fails:
                raise
            self.world.note(f"exit {error!r}")
            self.world.machine.disk.die(Killed("exit"))

    async def maybe_crash_idle(self) -> None:
        """Now and then crash when nothing comes any more that would make up for what a checkpoint forgot."""
        if self.rng.random() < 0.2:
            await asyncio.sleep(self.rng.expovariate(1 / self.idle_s))
            self.world.machine.disk.die(PowerCut("quiet") if self.rng.random() < 0.7 else Killed("quiet"))

    def limit_disk(self, rng: random.Random, rooms: tuple[int, ...] = (0, 500, 20_000)) -> None:
        """The disk has little room from now on."""
        storage = self.world.machine.storage
        self.disk_full = True
        storage.capacity = storage.used + rng.choice(rooms)
        self.world.note(f"full at {storage.capacity}")

    async def free_disk(self, rng: random.Random, after_s: float) -> None:
        """The disk has room again after a while."""
        await asyncio.sleep(rng.expovariate(1 / after_s))
        self.world.machine.storage.capacity = None
        self.world.note("room again")


async def gather(works: list[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; the first error ends the others. `asyncio.gather` leaves them running."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
