"""Lines of all formats, read by Arrow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from headrace.pipeline.jobs.logs import json_lines, times  # noqa: E402 -- needs pyarrow
from headrace.pipeline.jobs.logs.fields import Names, durations, levels, normalised  # noqa: E402
from headrace.pipeline.jobs.logs.lines import LineFormat  # noqa: E402
from headrace.pipeline.options import InvalidOption  # noqa: E402

NOON = 1_704_110_400_000_000  # 2024-01-01 12:00 UTC

Line = tuple[datetime | None, str, str, str | None, float | None, str | None]


def at(hour: int, minute: int = 0, second: int = 0, micro: int = 0) -> datetime:
    return datetime(2024, 1, 1, hour, minute, second, micro, tzinfo=UTC)


def block_of(values: Sequence[str | bytes | None], recorded: int) -> Any:
    listed = [value.encode() if isinstance(value, str) else value for value in values]
    return pa.record_batch(
        {
            "value": pa.array(listed, pa.binary()),
            "timestamp": pa.array([recorded] * len(listed)).cast(times.UTC_US),
            "topic": pa.array(["the-topic"] * len(listed)),
        }
    )


def read(*values: str | bytes | None, how: LineFormat | None = None) -> list[Line]:
    """What is made of lines, whose records are of noon: time, service, level, message, duration, and the reason."""
    found: Any = (how or LineFormat()).reader().read(block_of(values, NOON))
    columns = (found.time, found.service, found.level, found.message, found.duration, found.reason)
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            '{"timestamp":"2024-01-01T11:59:00.5Z","service":"api","level":"error","message":"boom","duration_ms":12.5}',
            (at(11, 59, 0, 500_000), "api", "ERROR", "boom", 12.5),
        ),
        (
            '{"ts":1704110400.25,"app":"web","level":30,"msg":"ok","duration":"1.5s"}',
            (at(12, 0, 0, 250_000), "web", "INFO", "ok", 1500.0),
        ),
        (
            '{"@timestamp":1704110400123,"log":{"level":"fatal"}}',
            (at(12, 0, 0, 123_000), "the-topic", "FATAL", None, None),
        ),
        ('{"level":"warning","request_time":0.25}', (at(12), "the-topic", "WARN", None, 250.0)),
        (
            '<34>1 2024-01-01T11:14:15.003Z host su 12 ID47 [x@1 a="]b"] failed, took 15 ms',
            (at(11, 14, 15, 3_000), "su", "FATAL", "failed, took 15 ms", 15.0),
        ),
        ("<165>1 - host - - - -", (at(12), "the-topic", "INFO", None, None)),
        ("<11>Jan  1 11:14:15 host su[12]: no", (at(11, 14, 15), "su", "ERROR", "no", None)),
        ("Jan  1 11:14:15 host cron[12]: run", (at(11, 14, 15), "cron", "UNKNOWN", "run", None)),
        (
            '10.0.0.1 - me [01/Jan/2024:12:30:00 +0100] "GET /a HTTP/1.1" 503 23 "http://x" "M \\" 5" 0.25',
            (at(11, 30), "the-topic", "ERROR", "503 GET /a HTTP/1.1", 250.0),
        ),
        ('::1 - - [01/Jan/2024:12:00:00 +0000] "-" 404 -', (at(12), "the-topic", "WARN", "404 -", None)),
        (
            "2024-01-01 11:00:00,123 ERROR billing Could not charge 5 elapsed=17",
            (at(11, 0, 0, 123_000), "billing", "ERROR", "Could not charge 5 elapsed=17", 17.0),
        ),
        ("2024-01-01T12:00:00+02:00 [main] WARN  com.x.Y - slow", (at(10), "com.x.Y", "WARN", "slow", None)),
        ("[2024-01-01 12:00:00] [info] api: two\nlines", (at(12), "api", "INFO", "two\nlines", None)),
        (
            'time=2024-01-01T12:00:00Z level=info service=api msg="a \\"b\\" c" duration=3ms',
            (at(12), "api", "INFO", 'a "b" c', 3.0),
        ),
    ],
)
def test_formats_are_told_apart_and_read(line: str, wanted: tuple[Any, ...]) -> None:
    assert read(line) == [(*wanted, None)]
    # Among others, too.
    assert read("?", line, "level=info", line)[1::2] == [(*wanted, None)] * 2


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "it has no value"),
        (b"", "it is empty"),
        (b"\xff{}", "it is not UTF-8 (byte 0)"),
        (b"hello", "it is of no known format"),
        (b'{"level":', "it is not JSON"),
        (b'{"level":"info"}{"level":"info"}', "it is not JSON"),
        (b'{"level":}', "it is not JSON"),
        (b"2024-13-01 12:00:00 ERROR x y", "its time cannot be read: 2024-13-01 12:00:00"),
        (b"2024-02-30 12:00:00 ERROR x y", "its time cannot be read: 2024-02-30 12:00:00"),
        (b'{"time":"soon"}', "its time cannot be read: soon"),
        (b'{"time":"2024-01-01T13:00:01Z"}', "its time is ahead of its record's"),
        (b'{"time":"1824-01-01T13:00:01Z"}', "its time is before 1970"),
        (b"2024-01-01 12:00:00 nothing else", "it is not a time, a level, a service and a message"),
    ],
)
def test_broken_lines_say_why_and_break_no_others(value: bytes | None, reason: str) -> None:
    fine = '{"time":"2024-01-01T11:00:00Z","service":"a"}'
    found = read(fine, value, fine)
    assert found[0] == found[2] == (at(11), "a", "UNKNOWN", None, None, None)
    assert (found[1][5] or "").startswith(reason)


def test_a_record_with_a_time_that_no_date_has_is_broken() -> None:
    lines = block_of(['{"level":"info"}', '{"time":"2024-01-01T11:00:00Z"}'], NOON * 1_000)
    assert LineFormat().reader().read(lines).reason.to_pylist() == ["its time is behind the year 9999", None]


def test_a_format_that_is_given_is_not_guessed() -> None:
    assert read("level=info", how=LineFormat("json"))[0][5] is not None
    how = LineFormat("regex", r"^(?P<service>\w+)!(?P<level>\w+)!(?P<duration>\d+)$", Names.given({}, "s"))
    assert read("a!E!2", "else", how=how) == [
        (at(12), "a", "ERROR", None, 2000.0, None),
        (at(12), "the-topic", "UNKNOWN", None, None, "it is not like the regular expression"),
    ]
    for name, regex in (("xml", ""), ("regex", ""), ("json", "x"), ("regex", "(?P<level>"), ("regex", "(?P<what>.)")):
        with pytest.raises(InvalidOption):
            LineFormat(name, regex)


def test_fields_can_be_called_otherwise() -> None:
    how = LineFormat(names=Names.given({"service": "k8s.pod", "duration": "cost_us"}, "ms"))
    assert read('{"k8s":{"pod":"x"},"service":"y","cost_us":1500}', '{"k8s.pod":"z"}', "k8s.pod=u", how=how) == [
        (at(12), "x", "UNKNOWN", None, 1.5, None),
        (at(12), "z", "UNKNOWN", None, None, None),
        (at(12), "u", "UNKNOWN", None, None, None),
    ]


VALUES = st.one_of(st.text(max_size=5), st.integers(0, 10**10), st.floats(0, 1e6), st.none(), st.just({"a": 1}))
OBJECTS = st.dictionaries(st.sampled_from(["level", "service", "app", "msg", "message", "other"]), VALUES, max_size=4)


@given(st.lists(OBJECTS, min_size=1, max_size=80))
def test_json_is_read_the_same_in_a_block_as_alone(objects: list[dict[str, Any]]) -> None:
    """Whatever types the fields have, whatever comes before them: what a parser of blocks learns changes nothing."""
    lines = [json.dumps(each) for each in objects]
    found = read(*lines, how=LineFormat("json"))
    names = ("message", "msg")
    for each, line in zip(objects, found, strict=True):
        said = next((each[name] for name in names if each.get(name) is not None), None)
        text = said if isinstance(said, str | None) else json.dumps(said, separators=(",", ":"))
        if not isinstance(said, float | int):
            assert line[3] == text
        else:
            assert line[3] is not None
            assert float(line[3]) == said
        assert line[5] is None


def test_arrow_reads_most_lines_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_second_look(*_: object) -> None:
        raise AssertionError("lines were looked at one by one")

    monkeypatch.setattr(json_lines.JsonLines, "_one_by_one", no_second_look)
    read(*['{"ts":1704110400,"level":"info","took":1}', '{"time":"2024-01-01T11:00:00Z","lvl":"I"}'] * 100)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2024-01-01T12:00:00Z", at(12)),
        ("2024/01/01 12:00:00.1234567 -01:30", at(13, 30, 0, 123_456)),
        ("2024-01-01 12:00:00 UTC", at(12)),
        ("1704110400", at(12)),
        ("1704110400123456789", at(12, 0, 0, 123_457)),
        ("01/Jan/2024:12:00:00 +0000", at(12)),
        ("2024-01-01T24:00:00Z", None),
        ("", None),
    ],
)
def test_times(text: str, wanted: datetime | None) -> None:
    column = pa.array([text, "x", "2024-01-01T12:00:00Z", "2024-01-01 12:00:00,5"])
    assert times.from_text(column).to_pylist() == [wanted, None, at(12), at(12, 0, 0, 500_000)]


def test_a_syslog_time_has_the_year_of_its_record() -> None:
    recorded = pa.array([NOON] * 3).cast(times.UTC_US)
    found = times.from_syslog(pa.array(["Dec 31 23:59:59", "Jan  1 12:00:01", "Foo 1 10:00:00"]), recorded)
    assert found.to_pylist() == [datetime(2023, 12, 31, 23, 59, 59, tzinfo=UTC), at(12, 0, 1), None]


def test_words_are_made_alike() -> None:
    assert levels(pa.array(["info", "[WARNING]", "E", "50", None, "", "audit"])).to_pylist() == [
        "INFO", "WARN", "ERROR", "ERROR", "UNKNOWN", "UNKNOWN", "AUDIT",
    ]  # fmt: skip
    found = durations(pa.array(["12", "1.5ms", "3 s", "2m", "1e3us", "4 apples", "x", None]), 10.0)
    assert found.to_pylist() == [120.0, 1.5, 3000.0, 120_000.0, 1.0, None, None, None]


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("user 17 has 3.5 left", "user <n> has <n> left"),
        ("GET /a/6ba7b810-9dad-11d1-80b4-00c04fd430c8", "GET /a/<id>"),
        ("at 0x7FFE from 10.0.0.7:80", "at <hex> from <address>"),
        ("commit deadbeef12 of  facade", "commit <hex> of facade"),
        ("decade added 12345678", "decade added <n>"),
    ],
)
def test_messages_lose_what_differs_from_call_to_call(message: str, wanted: str) -> None:
    assert normalised(pa.array([message])).to_pylist() == [wanted]
