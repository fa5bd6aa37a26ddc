"""What can be set, and to what."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.sdk.settings import MEANINGS, BadSetting, check, format_value, parse


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("workers", "16", 16),
        ("rate", "500", 500.0),
        ("rate", "0", 0.0),
        ("ladder", "1,5,30", (1.0, 5.0, 30.0)),
        ("pause", "true", True),
        ("pause", "Off", False),
        ("attempts", "0", 0),
        ("log_level", "DEBUG", "debug"),
        ("log_sample", "0.25", 0.25),
    ],
)
def test_values_as_they_are_typed(name: str, text: str, value: Any) -> None:
    assert parse(name, text) == value
    assert check(name, list(value) if isinstance(value, tuple) else value) == value
    assert parse(name, format_value(value)) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("workers", "0"),
        ("workers", "1.5"),
        ("workers", "many"),
        ("rate", "-1"),
        ("rate", "nan"),
        ("rate", "inf"),
        ("ladder", "1,x"),
        ("ladder", "1,-5"),
        ("pause", "maybe"),
        ("log_level", "loud"),
        ("log_sample", "2"),
        ("timeout", "5"),
        ("speed", "5"),
    ],
)
def test_values_that_cannot_be(name: str, text: str) -> None:
    with pytest.raises(BadSetting, match=f"{name}|there is no setting"):
        parse(name, text)


@pytest.mark.parametrize("value", [None, "x", True, [1], -1, {}, float("nan")])
@pytest.mark.parametrize("name", MEANINGS)
def test_whatever_stands_in_a_record_is_understood_or_refused(name: str, value: Any) -> None:
    try:
        check(name, value)
    except BadSetting:
        return
    assert (name, value) in [("pause", True), ("ladder", [1])]
