"""Numbers, durations and times as people read them."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.console.ui import formats

BERLIN = ZoneInfo("Europe/Berlin")
SUMMER, WINTER = 1_784_000_000_000, 1_795_061_217_532


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (1, "1"),
        (9_999, "9,999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (999_600, "1M"),
        (None, "–"),
        (0.5, "0.5"),
    ],
)
def test_counts(value: float | None, shown: str) -> None:
    assert formats.count(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0005, "0.5 ms"),
        (0.02, "20 ms"),
        (0.9999, "1 s"),
        (1.5, "1.5 s"),
        (59.97, "1 min"),
        (61, "1 min 1 s"),
        (3_600, "1 h"),
        (7_260, "2 h 1 min"),
        (100_800, "1 d 4 h"),
        (-5, "-5 s"),
        (None, "–"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert formats.duration(seconds) == shown


def test_sizes_and_rates_have_units() -> None:
    assert formats.size(0) == "0 B"
    assert formats.size(123_456) == "121 KiB"
    assert formats.byte_rate(2048) == "2 KiB/s"
    assert formats.rate(1234.5) == "1.23k/s"
    assert formats.percent(0.1234) == "12.3%"


def test_times_show_the_offset_of_the_viewers_zone() -> None:
    assert formats.moment(WINTER, UTC) == "2026-11-19 04:06:57.532 UTC"
    assert formats.moment(WINTER, BERLIN) == "2026-11-19 05:06:57.532 +01:00"
    assert formats.moment(SUMMER, BERLIN).endswith("+02:00")
    assert formats.moment(None, BERLIN) == "–"
    assert formats.clock(WINTER, BERLIN) == "05:06:57 +01:00"
    assert formats.zone_named("Mars/Olympus") is UTC


def test_what_was_and_what_comes() -> None:
    assert formats.ago(1_000, 61_000) == "1 min ago"
    assert formats.ago(61_000, 1_000) == "in 1 min"
    assert formats.plural(1, "topic") == "1 topic"
    assert formats.plural(2, "topic") == "2 topics"


def test_figures_of_alerts_have_the_units_of_their_names() -> None:
    assert formats.figure("group_lag_seconds", 90) == "1 min 30 s"
    assert formats.figure("disk_used_percent", 91.23) == "91.2%"
    assert formats.figure("error_rate", 5) == "5/s"
    assert formats.figure("queue_depth", 12_345) == "12.3k"


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers())
def test_every_number_has_a_short_text(value: float) -> None:
    for form in (formats.count, formats.size, formats.rate, formats.byte_rate, formats.percent, formats.duration):
        if abs(value) < 1e18 or value != value or abs(value) == float("inf"):
            assert 0 < len(form(value)) <= 24
