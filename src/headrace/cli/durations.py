"""How long something takes, as people say it and as they read it: `1500`, `30s`, `5m`."""

from __future__ import annotations

import re

from headrace.cli.positions import NUMBER, UNITS_MS
from headrace.errors import HeadraceError

DURATION = re.compile(rf"{NUMBER}(ms|s|m|h|d|w)?")
# A hundred years: what is longer means for ever, and that has words of its own.
LONGEST_MS = 36_525 * UNITS_MS["d"]
HELP = "milliseconds, or with a unit: 500ms, 30s, 5m, 2h, 1d"


def parse_duration(text: str) -> int:
    """Milliseconds."""
    found = DURATION.fullmatch(text.strip())
    if found is None:
        raise HeadraceError(f"{text!r} is no duration; it can be {HELP}")
    milliseconds = int(found[1]) * UNITS_MS[found[2] or "ms"]
    if milliseconds > LONGEST_MS:
        raise HeadraceError(f"{text!r} is longer than a hundred years. Give a shorter duration.")
    return milliseconds


def spoken(milliseconds: int) -> str:
    """In the largest unit that says it exactly: `90s`, `1500ms`."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % UNITS_MS[unit] == 0:
            return f"{milliseconds // UNITS_MS[unit]}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0"


def about(milliseconds: int) -> str:
    """The two largest units of it: `2h 5m`; what is below a second only where there is nothing above."""
    rest = milliseconds
    parts: list[tuple[int, str]] = []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, UNITS_MS[unit])
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count) or spoken(milliseconds)
