from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.durations import format_duration, format_rough, parse_duration
from headrace.errors import HeadraceError


def test_as_people_say_it():
    for text, milliseconds in (
        ("1500", 1500),
        ("500ms", 500),
        ("30s", 30_000),
        (" 2h ", 7_200_000),
        ("1w", 604_800_000),
    ):
        assert parse_duration(text) == milliseconds
    for text in ("", "soon", "-1s", "1.5s", "5 m", "\N{ARABIC-INDIC DIGIT ONE}s"):
        with pytest.raises(HeadraceError, match="not a duration"):
            parse_duration(text)
    assert parse_duration("36525d") == 36_525 * 86_400_000
    for text in ("36526d", "9999999999999999999w"):
        with pytest.raises(HeadraceError, match="longer than a hundred years"):
            parse_duration(text)
    with pytest.raises(HeadraceError, match="not a duration"):
        parse_duration("9" * 5_000)


def test_as_people_read_it():
    for milliseconds, text in ((0, "0"), (999, "999ms"), (60_000, "1m"), (90_000, "90s"), (1_500, "1500ms")):
        assert format_duration(milliseconds) == text
    for milliseconds, text in (
        (0, "0"),
        (999, "999ms"),
        (1_999, "1s"),
        (90_500, "1m 30s"),
        (3_600_000, "1h"),
        (90_061_001, "1d 1h"),
    ):
        assert format_rough(milliseconds) == text


@given(st.integers(0, 10**12))
def test_what_is_spoken_is_exact(milliseconds):
    assert parse_duration(format_duration(milliseconds)) == milliseconds
