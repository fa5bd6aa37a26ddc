"""Which messages of a queue are watched, when only a share of them is.

The choice rests on a hash of the offset, so it is the same each time one asks: of a message that is watched every event
is kept, and of the others none.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython

# A run: its first and its last offset, both included.
Run = tuple[int, int]

# A share of all is this number of hashes, one more than the largest.
ALL = 1 << 32

# Declared, so that they are C numbers when compiled: literals of more than 31 bits are not.
MASK = cython.declare(cython.ulonglong, 0xFFFFFFFF)
FACTOR = cython.declare(cython.ulonglong, 0x7FEB352D)
OTHER_FACTOR = cython.declare(cython.ulonglong, 0x846CA68B)


def threshold(share: float) -> int:
    """What the hash of an offset must stay below for `share` (0 to 1) of all offsets to do so."""
    return min(ALL, max(0, round(share * ALL)))


def kept(runs: Sequence[Run], seed: int, below: int) -> list[Run]:
    """The parts of `runs` whose offsets are watched. `seed` (32 bits) tells one partition from another."""
    found: list = []  # type: ignore[type-arg]
    bound: cython.ulonglong = below
    salt: cython.ulonglong = seed & 0xFFFFFFFF
    offset: cython.longlong
    last: cython.longlong
    begin: cython.longlong
    for run in runs:
        offset = run[0]
        last = run[1]
        begin = -1
        while offset <= last:
            if mixed(offset, salt) < bound:
                if begin < 0:
                    begin = offset
            elif begin >= 0:
                found.append((begin, offset - 1))
                begin = -1
            offset += 1
        if begin >= 0:
            found.append((begin, last))
    return found


@cython.cfunc
@cython.exceptval(check=False)
def mixed(offset: cython.longlong, salt: cython.ulonglong) -> cython.ulonglong:
    """A hash of 32 bits: neighbours lie anywhere."""
    # The masks keep the interpreter's numbers as short as the compiled ones.
    state: cython.ulonglong = (cython.cast(cython.ulonglong, offset) ^ salt) & MASK
    state = ((state ^ (state >> 16)) * FACTOR) & MASK
    state = ((state ^ (state >> 15)) * OTHER_FACTOR) & MASK
    state = (state ^ (state >> 16) ^ (cython.cast(cython.ulonglong, offset) >> 32)) & MASK
    state = ((state ^ (state >> 16)) * FACTOR) & MASK
    return state ^ (state >> 15)
