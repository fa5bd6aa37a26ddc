"""What a process gives back to the operating system, measured in a process of its own: the allocator is all of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 1 << 20

# The first large buffer that is freed is what raises glibc's own threshold. Small objects behind large ones stay.
USE = """
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

{first}
bytearray({size})
before = resident()
large, small = [], []
for _ in range(10):
    large.append(bytearray({size}))
    small += [bytearray(2_000) for _ in range(300)]
most = resident()
del large
print(most - before, resident() - before)
"""


def used(first: str, size: int) -> tuple[int, int]:
    """Bytes that large buffers of this size took, and what is left of that behind them."""
    program = USE.format(first=first, size=size)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    most, left = map(int, done.stdout.split())
    assert most > 10 * size
    return most, left


@pytest.mark.parametrize("size", [2 * MIB, 8 * MIB, 31 * MIB])
def test_large_buffers_go_back_though_small_objects_stay_behind_them(size: int) -> None:
    _, left = used("from headrace.runtime.memory import return_large_buffers; return_large_buffers()", size)
    assert left < 8 * MIB
