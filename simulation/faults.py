"""What goes wrong in one life of a simulated process, and where it can.

Every operation that changes the disk is a crash point, named by the operation and the kind of file (`write_durably
journal`, `rename checkpoint`). A plan says at which of them the process ends and how; the points count what was
reached, so that a campaign can show what it has never tried.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

BEFORE, MIDDLE, AFTER = "before", "middle", "after"
PHASES = (BEFORE, MIDDLE, AFTER)

_NUMBERS = re.compile(r"[0-9a-f]{8,}|[0-9]+")
_KINDS = {"log": "segment", "index": "offset index", "timeindex": "time index", "txnindex": "transaction index"}


@lru_cache(maxsize=8192)
def kind_of(path: str) -> str:
    """The kind of a file: its name without the numbers; for a segment's files, the extension's meaning."""
    name = path.rpartition("/")[2].removesuffix(".tmp")
    if not name:
        return "root"
    parts = [part for part in _NUMBERS.sub("", name).split(".") if part.strip("-_")]
    if not parts:
        return "folder"
    parts[0] = _KINDS.get(parts[0], parts[0])
    return ".".join(parts).strip("-_")


@dataclass(slots=True)
class Plan:
    """What goes wrong in one life."""

    crash_at: int | None = None
    """The number of the disk operation at which the process ends, from 1."""
    crash_chance: float = 0.0
    """A chance to end at each operation, divided by how often its point was reached: rare points get their share."""
    phase: str | None = None
    """Before, in the middle of, or after the operation; None: drawn."""
    kill: bool = False
    """kill -9 instead of a power cut."""
    sync_error_chance: float = 0.0
    sync_errors_at: frozenset[int] = frozenset()
    """Numbers of the disk operations that answer EIO, if they are syncs."""
    ignored: frozenset[str] = frozenset()
    """Points that do nothing: a deliberately broken flush, to see that the checks can fail."""


@dataclass(slots=True)
class CrashPoints:
    """How often each point was reached, and how often a life ended there."""

    reached: Counter[str] = field(default_factory=Counter)
    crashed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Operations that answered with an error of the disk."""

    def merge(self, other: CrashPoints) -> None:
        self.reached.update(other.reached)
        self.crashed.update(other.crashed)
        self.failed.update(other.failed)

    def should_crash(self, plan: Plan, operation: int, point: str, rng: random.Random) -> bool:
        if plan.crash_at is not None:
            return operation == plan.crash_at
        return plan.crash_chance > 0 and rng.random() < plan.crash_chance / self.reached[point]
