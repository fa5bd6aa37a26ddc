"""Positions in a topic, as people write them: `earliest`, `latest`, an offset, a time, `-1h`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from headrace.errors import HeadraceError
from headrace.settings import INT64_MAX

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
# As many digits as a 64-bit number can have.
NUMBER = r"([0-9]{1,19})"
AGO = re.compile(rf"-{NUMBER}(ms|s|m|h|d|w)")
OFFSET, MILLISECONDS = re.compile(NUMBER), re.compile(f"@{NUMBER}")
TIME_HELP = "a time as 2026-01-31T12:00 or @MILLISECONDS, or how long ago (-1h, -30m, -7d)"
HELP = f"earliest, latest, an offset, {TIME_HELP}"


class Kind(Enum):
    """What a position names."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """A position in every partition of a topic."""

    kind: Kind
    value: int = 0
    """The offset, or the time in milliseconds since the epoch."""


def parse_position(text: str, now_ms: int) -> Position:
    """What `text` means at `now_ms`. A time without a zone is local."""
    if text in ("earliest", "latest"):
        return Position(Kind(text))
    if (offset := OFFSET.fullmatch(text)) and int(offset[1]) <= INT64_MAX:
        return Position(Kind.OFFSET, int(offset[1]))
    if (time := MILLISECONDS.fullmatch(text)) and int(time[1]) <= INT64_MAX:
        return Position(Kind.TIME, int(time[1]))
    if ago := AGO.fullmatch(text):
        return Position(Kind.TIME, max(0, now_ms - int(ago[1]) * UNITS_MS[ago[2]]))
    try:
        # Nothing is older than 1970, and Kafka means something else by times that are.
        return Position(Kind.TIME, max(0, int(datetime.fromisoformat(text).timestamp() * 1000)))
    except (ValueError, OverflowError, OSError):
        raise HeadraceError(f"{text!r} is not a position. Use {HELP}.") from None


def parse_time(text: str, now_ms: int) -> int:
    """The time, in milliseconds since the epoch, that `text` means at `now_ms`."""
    position = parse_position(text, now_ms)
    if position.kind is not Kind.TIME:
        raise HeadraceError(f"{text!r} is not a time. Use {TIME_HELP}.")
    return position.value
