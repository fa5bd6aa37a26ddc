"""Times as log lines have them, a column at a time: ISO 8601 and what looks like it, access logs, syslog, numbers.

A column that is all of one shape is cast in one call. One that is not is taken apart by a regular expression, and a
time that still cannot be read is null: which lines are broken is for the caller to say.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

UTC_US = pa.timestamp("us", tz="UTC")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DAY_US = 86_400_000_000

CLOCK = r"(?P<clock>(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d)"
ZONE = r"(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d|)"
ISO = (
    r"^\s*(?P<day>\d{4}[-/](?:0[1-9]|1[0-2])[-/](?:0[1-9]|[12]\d|3[01]))[T ]" + CLOCK
    + r"(?:[.,](?P<fraction>\d{1,6})\d*)?\s*" + ZONE + r"\s*$"
)  # fmt: skip
ACCESS = r"^(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):" + CLOCK + r"\s*" + ZONE + "$"
SYSLOG = r"^(?P<month>[A-Z][a-z]{2})\s+(?P<day>\d{1,2})\s+" + CLOCK + "$"
NUMBER = r"^\s*\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?\s*$"


def from_text(texts: Any) -> Any:
    """Times in UTC; null where a text is none. One without a zone is UTC."""
    for kind in (UTC_US, pa.timestamp("us")):
        try:
            return texts.cast(kind).cast(UTC_US)
        except pa.ArrowInvalid:
            continue
    found = _assemble(texts, ISO)
    left = pc.and_(pc.is_null(found), pc.is_valid(texts))
    if pc.any(left).as_py():
        numbers = pc.if_else(pc.match_substring_regex(texts, NUMBER), texts, None)
        trimmed = pc.cast(pc.utf8_trim_whitespace(numbers), pa.float64())
        found = pc.coalesce(found, from_numbers(trimmed), _assemble(texts, ACCESS))
    return found


def from_numbers(numbers: Any) -> Any:
    """Times since 1970 in seconds, milliseconds, microseconds or nanoseconds, as large as they are."""
    scale = pc.case_when(
        pc.make_struct(pc.less(numbers, 1e11), pc.less(numbers, 1e14), pc.less(numbers, 1e17)), 1e6, 1e3, 1.0, 1e-3
    )
    micros = pc.round(pc.multiply(pc.cast(numbers, pa.float64()), scale))
    inside = pc.and_(pc.greater_equal(micros, 0.0), pc.less(micros, 9e18))
    return pc.cast(pc.if_else(inside, micros, None), pa.int64()).cast(UTC_US)


def from_access(texts: Any) -> Any:
    """`10/Oct/2024:13:55:36 +0200`."""
    return _assemble(texts, ACCESS)


def from_syslog(texts: Any, recorded: Any) -> Any:
    """`Oct 11 22:14:15`: of the year that brings it closest behind the record's own time."""
    year = pc.year(recorded)
    found = _assemble(texts, SYSLOG, year=pc.cast(year, pa.string()))
    ahead = pc.greater(pc.cast(found, pa.int64()), pc.add(pc.cast(recorded, pa.int64()), DAY_US))
    if not pc.any(ahead).as_py():
        return found
    before = _assemble(texts, SYSLOG, year=pc.cast(pc.subtract(year, 1), pa.string()))
    return pc.if_else(pc.fill_null(ahead, False), before, found)


def unread(reason: Any, texts: Any, found: Any) -> Any:
    """Reasons why lines are broken, and that of those whose time cannot be read."""
    bad = pc.and_(pc.is_valid(texts), pc.is_null(found))
    if not pc.any(bad).as_py():
        return reason
    said = pc.binary_join_element_wise("its time cannot be read: ", pc.utf8_slice_codeunits(texts, 0, 60), "")
    return pc.coalesce(reason, pc.if_else(bad, said, pa.scalar(None, pa.string())))


def _assemble(texts: Any, pattern: str, **given: Any) -> Any:
    parts = pc.extract_regex(texts, pattern=pattern)
    names = [field.name for field in parts.type]
    part = {**{name: pc.struct_field(parts, name) for name in names}, **given}
    if "month" in part:
        month = pc.index_in(part["month"], pa.array(MONTHS))
        number = pc.utf8_lpad(pc.cast(pc.add(month, 1), pa.string()), 2, "0")
        day = pc.utf8_lpad(part["day"], 2, "0")
        day = pc.binary_join_element_wise(part["year"], number, day, "-")
    else:
        day = pc.replace_substring(part["day"], "/", "-")
    base = _seconds(pc.binary_join_element_wise(day, part["clock"], " "))
    if "fraction" in part:
        fraction = pc.utf8_rpad(pc.if_else(pc.equal(part["fraction"], ""), "0", part["fraction"]), 6, "0")
        base = pc.add(base, pc.cast(fraction, pa.int64()))
    if "zone" in part:
        base = pc.subtract(base, _offsets(part["zone"]))
    return base.cast(UTC_US)


def _seconds(texts: Any) -> Any:
    """`2024-01-31 12:00:00` in microseconds; null for a day that the calendar does not have."""
    try:
        return texts.cast(pa.timestamp("us")).cast(pa.int64())
    except pa.ArrowInvalid:
        found = [_one(text) for text in texts.to_pylist()]
        return pa.array(found, pa.int64())


def _one(text: str | None) -> int | None:
    try:
        return None if text is None else int(np.datetime64(text, "us").astype(np.int64))
    except ValueError:
        return None


def _offsets(zones: Any) -> Any:
    """How many microseconds a zone is ahead of UTC."""
    encoded = pc.dictionary_encode(zones)
    known = pa.array([_offset(zone) for zone in encoded.dictionary.to_pylist()], pa.int64())
    return known.take(encoded.indices)


def _offset(zone: str) -> int:
    if zone[:1] not in ("+", "-"):
        return 0
    digits = zone[1:].replace(":", "")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return (minutes if zone[0] == "+" else -minutes) * 60_000_000
