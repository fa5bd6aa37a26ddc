"""The real runtime: the machine's clock, a data directory, the kernel's random source, threads and worker processes."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from headrace.runtime import Runtime
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import SystemDisk
from headrace.runtime.offload import SystemOffload
from headrace.runtime.random import SystemRandom

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def real_runtime(data: str) -> Runtime:
    """A runtime over the data directory `data`. Call it inside the running loop that will own the broker."""
    disk = SystemDisk(data)
    offload = SystemOffload(asyncio.get_running_loop(), disk.root)
    return Runtime(SystemClock(), disk, SystemRandom(), offload, socket.gethostname(), BOOT_ID.read_text().strip())
