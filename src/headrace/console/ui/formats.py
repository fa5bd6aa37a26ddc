"""Numbers, sizes, durations and times as people read them.

Everything that has a unit shows it, three digits are enough for large figures, and a time always comes with the offset
of its zone.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DASH = "–"
_THOUSANDS = ("", "k", "M", "G", "T", "P")
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNITS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def count(value: float | None) -> str:
    """A count: whole below 10,000, then with three digits and k, M, G."""
    if value is None or not math.isfinite(value):
        return DASH
    if abs(value) < 10_000 and float(value).is_integer():
        return f"{int(value):,}"
    return _scaled(value, 1000.0, _THOUSANDS, "")


def size(value: float | None) -> str:
    """Bytes in powers of 1,024."""
    if value is None or not math.isfinite(value):
        return DASH
    return _scaled(value, 1024.0, _BYTES, " ")


def rate(value: float | None) -> str:
    """A number a second."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{_scaled(value, 1000.0, _THOUSANDS, '')}/s"


def byte_rate(value: float | None) -> str:
    return DASH if value is None else f"{size(value)}/s"


def _scaled(value: float, step: float, units: tuple[str, ...], space: str) -> str:
    place, rest = 0, float(value)
    # 999.6 would be shown as 1000.
    while abs(rest) >= step * 0.9995 and place < len(units) - 1:
        rest /= step
        place += 1
    return f"{_three_digits(rest)}{space if units[place] else ''}{units[place]}"


def _three_digits(value: float) -> str:
    value = float(value)
    magnitude = abs(value)
    if magnitude == 0 or magnitude >= 99.95 or value.is_integer():
        return f"{value:.0f}"
    text = f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}" if magnitude >= 0.01 else f"{value:.1g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def duration(seconds: float | None) -> str:
    """The two largest units: 1 d 4 h, 3 min 20 s, 1.5 s, 20 ms."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return "0 s" if seconds == 0 else f"{_three_digits(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    whole = round(seconds)
    for place, (unit, length) in enumerate(_UNITS):
        if whole >= length:
            number, rest = divmod(whole, int(length))
            if place + 1 < len(_UNITS):
                small, small_length = _UNITS[place + 1]
                below = rest // int(small_length)
                return f"{number} {unit} {below} {small}" if below else f"{number} {unit}"
            return f"{number} {unit}"
    return "0 s"


def milliseconds(value: float | None) -> str:
    """A duration that is given in milliseconds."""
    return DASH if value is None else duration(value / 1000)


def percent(fraction: float | None) -> str:
    return DASH if fraction is None or not math.isfinite(fraction) else f"{_three_digits(fraction * 100)}%"


def zone_named(name: str) -> tzinfo:
    """The time zone of a browser; UTC where this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def moment(ms: float | None, zone: tzinfo) -> str:
    """A time with its offset: 2026-11-19 04:05:06.789 +01:00."""
    if not ms or not math.isfinite(ms) or not 0 < ms < 253_402_300_800_000:
        return DASH
    when = datetime.fromtimestamp(ms / 1000, zone)
    return f"{when:%Y-%m-%d %H:%M:%S}.{int(ms) % 1000:03d} {offset(when)}"


def clock(ms: float | None, zone: tzinfo) -> str:
    """The time of day, to the second, with its offset."""
    if not ms:
        return DASH
    when = datetime.fromtimestamp(ms / 1000, zone)
    return f"{when:%H:%M:%S} {offset(when)}"


def offset(when: datetime) -> str:
    """The offset of a time from UTC: +01:00, or UTC."""
    text = when.strftime("%z")
    return "UTC" if text in ("+0000", "") else f"{text[:3]}:{text[3:5]}"


def ago(ms: float | None, now_ms: float) -> str:
    """How long ago a time is, or in how long it comes."""
    if not ms:
        return DASH
    seconds = (now_ms - ms) / 1000
    if abs(seconds) < 1:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def plural(number: int, one: str, many: str = "") -> str:
    """A number with its noun: 1 topic, 2 topics."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def figure(name: str, value: float) -> str:
    """A figure of an alert with its unit, which its name tells."""
    if name.endswith("_seconds"):
        return duration(value)
    if name.endswith("_percent") or name == "throughput_drop":
        return f"{count(round(value, 1))}%"
    return rate(value) if name.endswith(("_rate", "_growth")) else count(value)
