"""What this process takes of the machine, for figures."""

from __future__ import annotations

import resource
import time


def cpu_seconds() -> float:
    """Processor time since the process began, that of all its threads."""
    return time.process_time()


def memory_bytes() -> int:
    """Resident memory."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        # Where there is no such file: the most that it ever was.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
