"""How long something takes, as people say it and as they read it: `1500`, `30s`, `5m`."""

from __future__ import annotations

import re

from headrace.cli.positions import UNITS_MS
from headrace.errors import HeadraceError

DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w)?")
HELP = "milliseconds, or with a unit: 500ms, 30s, 5m, 2h, 1d"


def parse_duration(text: str) -> int:
    """Milliseconds."""
    found = DURATION.fullmatch(text.strip())
    if found is None or not text.isascii():
        raise HeadraceError(f"{text!r} is no duration; it can be {HELP}")
    return int(found[1]) * UNITS_MS[found[2] or "ms"]


def spoken(milliseconds: int) -> str:
    """The largest unit that says it exactly, or the two largest that there are: `90s`, `2h 5m`."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % UNITS_MS[unit] == 0:
            return f"{milliseconds // UNITS_MS[unit]}{unit}"
    rest, parts = milliseconds, []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0"
