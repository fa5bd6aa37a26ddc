"""Which messages of a queue are watched, when only a share of them is.

The choice rests on a hash: of the id of the message's trace, else of its key, else of its place. So every part of
the broker chooses alike, and a life is watched as a whole: all messages of a trace, or of a key, with their
redeliveries, their dead letters and what is sent back, on whatever topic. A message that was delivered before, or was
sent back from the dead, is watched in any case: something went wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import cython

from headrace.format.partitioning import murmur2

# A run: its first and its last offset, both included.
Run = tuple[int, int]

# A share of all is this number of hashes, one more than the largest.
ALL = 1 << 32

# Declared, so that they are C numbers when compiled: literals of more than 31 bits are not.
MASK = cython.declare(cython.ulonglong, 0xFFFFFFFF)
FACTOR = cython.declare(cython.ulonglong, 0x7FEB352D)
OTHER_FACTOR = cython.declare(cython.ulonglong, 0x846CA68B)
# A hash of a text is not one of the same number as an offset.
TEXT_SALT = cython.declare(cython.ulonglong, 0x9E3779B9)

TRACEPARENT: str = "traceparent"
# As `headrace.broker.dead_letters` has it.
REDRIVEN: str = "headrace-redriven"


def threshold(share: float) -> int:
    """What the hash of an offset must stay below for `share` (0 to 1) of all offsets to do so."""
    return min(ALL, max(0, round(share * ALL)))


def seed_of(topic: str, partition: int) -> int:
    """What tells the offsets of one partition from those of another."""
    return murmur2(f"{topic}/{partition}".encode())


def is_kept(
    offset: int,
    seed: int,
    below: int,
    key: bytes | None = None,
    headers: Iterable[tuple[str, bytes | None]] = (),
) -> bool:
    """Whether a message is watched from its first delivery on. `seed` (32 bits) tells its partition from others."""
    salt: cython.ulonglong = seed & 0xFFFFFFFF
    bound: cython.ulonglong = below
    return chosen(offset, salt, bound, key, headers)


@cython.cfunc
@cython.exceptval(-1, check=False)
def chosen(
    offset: cython.longlong, salt: cython.ulonglong, bound: cython.ulonglong, key: Any, headers: Any
) -> cython.bint:
    trace: Any = None
    for name, value in headers:
        if name == REDRIVEN:
            return bound > 0
        if name == TRACEPARENT and value is not None:
            trace = trace_of(value)
    if trace is not None:
        return mixed(murmur2(trace), TEXT_SALT) < bound
    if key:
        return mixed(murmur2(key), TEXT_SALT) < bound
    return mixed(offset, salt) < bound


@cython.cfunc
def trace_of(value: bytes) -> Any:
    """The id of a trace as W3C writes it, VERSION-TRACE-PARENT-FLAGS; None where a header is none."""
    if len(value) < 55 or value[2] != 45 or value[35] != 45 or value[52] != 45:
        return None
    return value[3:35]


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
