"""Durations, as people write and read them: `1500`, `30s`, `5m`."""

from __future__ import annotations

import re
import time

from headrace.cli.positions import NUMBER, UNITS_MS
from headrace.errors import HeadraceError

DURATION = re.compile(rf"{NUMBER}(ms|s|m|h|d|w)?")
# A hundred years: what is longer means for ever, for which settings have values of their own.
LONGEST_MS = 36_525 * UNITS_MS["d"]
HELP = "milliseconds, or with a unit: 500ms, 30s, 5m, 2h, 1d"


def parse_duration(text: str) -> int:
    """Milliseconds."""
    found = DURATION.fullmatch(text.strip())
    if found is None:
        raise HeadraceError(f"{text!r} is not a duration. Use {HELP}.")
    milliseconds = int(found[1]) * UNITS_MS[found[2] or "ms"]
    if milliseconds > LONGEST_MS:
        raise HeadraceError(f"{text!r} is longer than a hundred years. Give a shorter duration.")
    return milliseconds


def format_duration(milliseconds: int) -> str:
    """In the largest unit that is exact: `90s`, `1500ms`."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % UNITS_MS[unit] == 0:
            return f"{milliseconds // UNITS_MS[unit]}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0"


def format_rough(milliseconds: int) -> str:
    """The two largest units of it: `2h 5m`; what is below a second only where there is nothing above."""
    rest = milliseconds
    parts: list[tuple[int, str]] = []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, UNITS_MS[unit])
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count) or format_duration(milliseconds)


def format_age(since_ms: int) -> str:
    """How long ago a time was; empty where it is not known."""
    return format_rough(max(0, time.time_ns() // 1_000_000 - since_ms)) if since_ms >= 0 else ""
