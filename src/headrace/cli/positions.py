"""Places in a topic, as people say them: `earliest`, `latest`, an offset, a time, `-1h`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from headrace.config import INT64_MAX
from headrace.errors import HeadraceError

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
AGO = re.compile(r"-(\d+)(ms|s|m|h|d|w)")
HELP = "earliest, latest, an offset, a time (2026-01-31T12:00, @MILLISECONDS), or how long ago (-1h, -30m, -7d)"


class Kind(Enum):
    """How a position is meant."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every partition of a topic."""

    kind: Kind
    value: int = 0
    """The offset, or the time in milliseconds since the epoch."""


def parse_position(text: str, now_ms: int) -> Position:
    """What `text` means at `now_ms`. A time without a zone is local."""
    if text in ("earliest", "latest"):
        return Position(Kind(text))
    if text.isascii() and text.isdigit():
        return Position(Kind.OFFSET, int(text))
    if text.startswith("@") and text[1:].isascii() and text[1:].isdigit() and int(text[1:]) <= INT64_MAX:
        return Position(Kind.TIME, int(text[1:]))
    if ago := AGO.fullmatch(text):
        return Position(Kind.TIME, max(0, now_ms - int(ago[1]) * UNITS_MS[ago[2]]))
    try:
        return Position(Kind.TIME, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise HeadraceError(f"{text!r} is no position; it can be {HELP}") from None
