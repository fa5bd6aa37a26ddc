"""What a record costs in the kernels: nanoseconds, compiled against interpreted, over batches of small records.

Run `python bench/kernels.py`. It prints a table and asserts nothing.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headrace import format as kernels
from headrace.format import records as installed

MAX_BYTES = 1 << 27
RECORDS = 1_000


def interpreted(module: ModuleType) -> ModuleType:
    """The same kernel loaded from its source, whatever else is there."""
    path = str(module.__file__).split(".cpython")[0].removesuffix(".py") + ".py"
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_interpreted", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def nanoseconds(call: Callable[[], Any], seconds: float) -> float:
    """The best of several runs, per record."""
    best = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        begin = time.perf_counter_ns()
        call()
        best = min(best, time.perf_counter_ns() - begin)
    return best / RECORDS


def work(module: ModuleType, compression: int, headers: int) -> dict[str, Callable[[], Any]]:
    record_headers = [(f"header-{number}", b"x" * 16) for number in range(headers)]
    given = [(1_700_000_000_000 + number, b"key-%d" % number, bytes(100), record_headers) for number in range(RECORDS)]
    batch = installed.build(given, compression=compression)
    keep = bytes(number % 2 for number in range(RECORDS))
    return {
        "build": lambda: module.build(given, compression=compression),
        "parse": lambda: module.parse(batch, MAX_BYTES),
        "check": lambda: module.check(batch, True, MAX_BYTES),
        "keys": lambda: module.keys(batch, MAX_BYTES),
        "latest": lambda: module.latest(batch, MAX_BYTES),
        "retain half": lambda: module.retain(batch, keep, MAX_BYTES, None),
    }


def main() -> None:
    slow = interpreted(installed)
    print(
        f"kernels are {'compiled' if kernels.compiled() else 'interpreted'}; ns a record, batches of {RECORDS} x 100 B"
    )
    print(f"{'':34}{'installed':>12}{'interpreted':>12}{'ratio':>8}")
    for codec, headers in ((0, 0), (0, 3), (3, 0), (4, 0)):
        for name, call in work(installed, codec, headers).items():
            fast = nanoseconds(call, 0.2)
            plain = nanoseconds(work(slow, codec, headers)[name], 0.2)
            row = f"{name}, {('none', 'gzip', 'snappy', 'lz4', 'zstd')[codec]}, {headers} headers"
            print(f"{row:34}{fast:12.1f}{plain:12.1f}{plain / fast:8.1f}")


if __name__ == "__main__":
    main()
