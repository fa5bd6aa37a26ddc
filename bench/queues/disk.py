"""How long the disk itself takes to make a small write durable, at the pace of the load that it is compared with."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

BLOCK = 4096
FILE_BYTES = 8 << 20


def fdatasync_ms(folder: Path, rate: int, seconds: float) -> list[float]:
    """Milliseconds of each pwrite with its fdatasync, on a file whose blocks were written before."""
    block = os.urandom(BLOCK)
    with tempfile.TemporaryFile(dir=folder) as file:
        number = file.fileno()
        os.pwrite(number, bytes(FILE_BYTES), 0)
        os.fsync(number)
        taken = []
        due = time.monotonic()
        for each in range(int(rate * seconds)):
            due += 1 / rate
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            begin = time.monotonic_ns()
            os.pwrite(number, block, each * BLOCK % FILE_BYTES)
            os.fdatasync(number)
            taken.append((time.monotonic_ns() - begin) / 1e6)
    return taken


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
