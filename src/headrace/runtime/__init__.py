"""The runtime: the only layer that touches the operating system.

Everything above takes a `Runtime` (clock, disk, random source, offload) as an argument, so the same broker runs on a
real machine (`real.py`) or inside the seeded simulator (`simulation`).
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.runtime.offload import Offload
from headrace.runtime.random import Random

__all__ = ["Clock", "Disk", "Offload", "Random", "Runtime"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a broker stands on. Timers come from the running asyncio loop, whose time is virtual in the simulator."""

    clock: Clock
    disk: Disk
    random: Random
    offload: Offload
    hostname: str = "localhost"
    """The machine's name, as other machines know it."""
    boot_id: str = ""
    """Another one after each start of the machine, not of the process: what was written and not synced may be lost
    between two of them."""
