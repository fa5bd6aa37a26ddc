"""What goes wrong in one life of a simulated process, and where it can.

Every operation that changes the disk is a crash point, named by the operation and the kind of file (`write_durably
journal`, `rename checkpoint`). A plan decides at which of them the process ends and how; the points count what was
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


class Crash(SystemExit):
    """The process is gone. `point` names the operation and the kind of file.

    A crash must leave the loop at once, through every callback and task between. asyncio lets only `KeyboardInterrupt`
    and `SystemExit` pass; everything else it turns into the result of a task or a log line.
    """

    def __init__(self, point: str) -> None:
        super().__init__(point)
        self.point = point


class PowerCut(Crash):
    """The machine went dark: what was not synced may be lost."""


class Killed(Crash):
    """The process got SIGKILL: the operating system still has everything that was written."""


@dataclass(slots=True)
class Plan:
    """What goes wrong in one life."""

    crash_at: int | None = None
    """The number of the disk operation at which the process ends, from 1."""
    crash_chance: float = 0.0
    """A chance to end at each operation, divided by how often its point was reached: rare points get their share."""
    crash_after: float | None = None
    """Seconds after which the process ends, wherever it then is."""
    phase: str | None = None
    """Before, in the middle of, or after the operation; None: drawn."""
    kill: bool = False
    """kill -9 instead of a power cut."""
    sync_error_chance: float = 0.0
    sync_errors_at: frozenset[int] = frozenset()
    """Numbers of the disk operations that answer EIO, if they are syncs."""
    ignored: frozenset[str] = frozenset()
    """Points that do nothing: a deliberately broken flush, to see that the checks can fail."""


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """How a campaign draws the plan of each life."""

    kill: float = 0.4
    """The share of kills among crashes; the others are power cuts."""
    at_points: float = 0.35
    """The share of lives that may end at each operation, rare ones first."""
    at_operation: float = 0.25
    """The share that ends at one operation, whose number is 2 to a power in `exponents`."""
    exponents: tuple[int, int] = (0, 9)
    at_time: float = 0.25
    """The share that ends after `seconds` on average. All others stop cleanly."""
    seconds: float = 0.3
    sync_errors: float = 0.0
    """The share of lives in which syncs fail."""

    def draw(self, rng: random.Random, ignored: frozenset[str]) -> Plan:
        plan = Plan(ignored=ignored, kill=rng.random() < self.kill)
        if self.sync_errors and rng.random() < self.sync_errors:
            plan.sync_error_chance = rng.choice((0.003, 0.03))
        draw = rng.random()
        if draw < self.at_points:
            plan.crash_chance = rng.choice((0.02, 0.1, 0.3))
        elif draw < self.at_points + self.at_operation:
            plan.crash_at = int(2 ** rng.uniform(*self.exponents))
        elif draw < self.at_points + self.at_operation + self.at_time:
            plan.crash_after = rng.expovariate(1 / self.seconds)
        return plan


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
