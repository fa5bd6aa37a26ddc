from __future__ import annotations

import pytest

from headrace.cli.positions import Kind, Position, parse_position
from headrace.errors import HeadraceError

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position(Kind.EARLIEST)),
        ("latest", Position(Kind.LATEST)),
        ("0", Position(Kind.OFFSET, 0)),
        ("123", Position(Kind.OFFSET, 123)),
        ("@1700000000000", Position(Kind.TIME, 1_700_000_000_000)),
        ("@9223372036854775807", Position(Kind.TIME, (1 << 63) - 1)),
        ("-1h", Position(Kind.TIME, NOW - 3_600_000)),
        ("-250ms", Position(Kind.TIME, NOW - 250)),
        ("-99999w", Position(Kind.TIME, 0)),
        ("2026-01-31T12:00:00+00:00", Position(Kind.TIME, 1_769_860_800_000)),
        # Kafka means something else by -1 and -2.
        ("1969-12-31T23:59:59.999Z", Position(Kind.TIME, 0)),
        ("2026-01-31T12:00:00.250Z", Position(Kind.TIME, 1_769_860_800_250)),
    ],
)
def test_what_people_say(text, position):
    assert parse_position(text, NOW) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "-1",
        "-1y",
        "--1h",
        "1h",
        "@",
        "@x",
        "yesterday",
        "٣",
        "@9223372036854775808",
        "9" * 5000,
        "-" + "9" * 5000 + "s",
        "9223372036854775808",
    ],
)
def test_what_is_no_position(text):
    with pytest.raises(HeadraceError, match="is not a position"):
        parse_position(text, NOW)
