"""When a message is to be delivered, as requests give it: how long from now, or at which time."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import Any

from headrace.doors.http.api.errors import bad_request
from headrace.format.delay import MAX_DELAY_MS

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
DELAY = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)(ms|s|m|h|d|w)?", re.ASCII)
DELAY_HELP = "seconds (30, 0.5), or with a unit: 500ms, 30s, 5m, 2h, 1d"
TIME_HELP = "milliseconds since 1970, or a time with its zone: 2026-11-16T12:00:00Z"


def due_of(delay: Any, deliver_at: Any, now_ms: int) -> int:
    """When a message is due that was given one of these, or neither (0: now)."""
    if delay is not None and deliver_at is not None:
        raise bad_request("delay and deliver_at are both given. Give one of them.")
    if delay is not None:
        milliseconds = _delay_ms(delay)
        if milliseconds > MAX_DELAY_MS:
            raise bad_request(f"delay is {delay!r}: a message can wait for 25 years at most")
        return now_ms + milliseconds if milliseconds else 0
    return 0 if deliver_at is None else time_ms("deliver_at", deliver_at)


def _delay_ms(given: Any) -> int:
    found = None
    if isinstance(given, str):
        found = DELAY.fullmatch(given.strip())
    elif isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < 1e15:
        found = DELAY.fullmatch(f"{given:.6f}")
    if found is None:
        raise bad_request(f"delay must be {DELAY_HELP} (got {given!r})")
    exact = Decimal(found[1]) * UNITS_MS[found[2] or "s"]
    # Never early: what is less than a millisecond counts as one.
    return int(exact) + (exact != int(exact))


def time_ms(name: str, given: Any) -> int:
    """A time, as the field `name` gives it."""
    if isinstance(given, str) and not (given.isascii() and given.isdigit()):
        try:
            moment = datetime.fromisoformat(given)
            if moment.tzinfo is not None:
                return max(-(-round(moment.timestamp() * 1_000_000) // 1_000), 0)
        except (ValueError, OverflowError):
            pass
    elif isinstance(given, str | int) and not isinstance(given, bool) and len(str(given)) <= 18 and int(given) >= 0:
        return int(given)
    raise bad_request(f"{name} must be {TIME_HELP} (got {given!r})")
