"""What a load generator in a process of its own does around its load: wait for the word, run, print what it took."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

# Yields once when everything is prepared, and then the result of the run.
Load = Callable[[dict[str, Any]], Iterator[dict[str, Any]]]


def generate(loads: dict[str, Load]) -> None:
    """Run the load that the line on standard input specifies, for `bench.measure`."""
    spec = json.loads(sys.stdin.readline())
    run = loads[spec["kind"]](spec)
    next(run)
    print("ready", flush=True)
    sys.stdin.readline()
    begin, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    result = next(run)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    print(json.dumps({**result, "seconds": time.monotonic() - begin, "generator_cpu": used}), flush=True)
