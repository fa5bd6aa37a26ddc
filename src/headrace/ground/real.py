"""The real ground: the machine's clock, a data directory, the kernel's random source, threads and worker processes."""

from __future__ import annotations

import asyncio
import socket

from headrace.ground import Ground
from headrace.ground.clock import SystemClock
from headrace.ground.disk import SystemDisk
from headrace.ground.offload import SystemOffload
from headrace.ground.random import SystemRandom


def real_ground(data: str) -> Ground:
    """A ground over the data directory `data`. Call it inside the running loop that will own the broker."""
    disk = SystemDisk(data)
    offload = SystemOffload(asyncio.get_running_loop(), disk.root)
    return Ground(SystemClock(), disk, SystemRandom(), offload, socket.gethostname())
