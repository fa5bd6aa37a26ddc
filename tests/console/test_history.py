"""The history: what it keeps, what it forgets first, and what it does not know."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.console.figures.history import POINTS_MAX, History, HistoryFile, Sample

T = 1_795_000_000


def node(rate: float) -> Sample:
    return Sample("b", "node", "", {"messages_in_rate": rate})


def topic(name: str, rate: float) -> Sample:
    return Sample("b", "topics", name, {"messages_in_rate": rate, "bytes": 7.0})


def test_a_thing_at_rest_keeps_its_last_figures_while_the_broker_was_there() -> None:
    file = HistoryFile(":memory:")
    file.write(10, T, [node(1), topic("orders", 5)])
    file.write(10, T + 10, [node(2)])
    # The broker was away for one row.
    file.write(10, T + 30, [node(3), topic("orders", 0)])
    assert file.read("b", "topics", "orders", "messages_in_rate", T, T + 30) == [
        (T, 5.0),
        (T + 10, 5.0),
        (T + 20, None),
        (T + 30, 0.0),
    ]
    # What began before the period holds in it.
    assert file.read("b", "topics", "orders", "bytes", T + 10, T + 10) == [(T + 10, 7.0)]
    assert file.read("b", "topics", "payments", "bytes", T, T) == [(T, None)]


def test_a_period_has_at_most_400_points() -> None:
    file = HistoryFile(":memory:")
    for at in range(T - T % 60, T + 86_400, 600):
        file.write(60, at, [node(at % 7)])
    for seconds in (900, 3600, 86_400, 14 * 86_400):
        assert len(file.read("b", "node", "", "messages_in_rate", T + 86_400 - seconds, T + 86_400)) <= POINTS_MAX + 2


def test_what_is_old_goes() -> None:
    file = HistoryFile(":memory:")
    file.write(10, T, [node(1), topic("orders", 1)])
    file.write(60, T, [node(1), topic("orders", 1)])
    file.tidy(T + 2 * 86_400)
    assert file.read("b", "node", "", "messages_in_rate", T, T) == [(T, None)]
    assert file.read("b", "node", "", "messages_in_rate", T - 86_400, T + 2 * 86_400) != []
    file.tidy(T + 15 * 86_400)
    assert file.read("b", "topics", "orders", "bytes", T, T) == [(T, None)]


def test_beyond_the_bound_what_rests_longest_goes_first(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history.db", max_bytes=400_000)
    for step in range(200):
        moving = [topic(f"moving-{number}", step) for number in range(20)]
        resting = [topic(f"resting-{number}", 1) for number in range(100)] if step == 0 else []
        file.write(10, T + 10 * step, [node(1), *moving, *resting])
    assert file.used_bytes <= 400_000
    file.tidy(T + 2000)
    kept = file.used_bytes
    small = HistoryFile(tmp_path / "history.db", max_bytes=kept * 9 // 10)
    small.tidy(T + 2000)
    assert small.used_bytes <= kept * 9 // 10
    assert small.read("b", "topics", "resting-0", "bytes", T + 1990, T + 1990) == [(T + 1990, None)]
    assert small.read("b", "topics", "moving-19", "bytes", T + 1990, T + 1990) == [(T + 1990, 7.0)]
    tiny = HistoryFile(tmp_path / "history.db", max_bytes=1)
    tiny.tidy(T + 2000)
    assert tiny.read("b", "topics", "moving-19", "bytes", T + 1990, T + 1990) == [(T + 1990, None)]


async def test_minutes_are_means_and_survive_a_restart(tmp_path: Path) -> None:
    begin = T - T % 60
    history = History(tmp_path / "history.db")
    await history.open()
    for step in range(13):
        await history.record(begin + 10 * step, [node(float(step))])
    await history.close()
    again = History(tmp_path / "history.db")
    await again.open()
    points = dict(await again.read("b", "node", "", "messages_in_rate", begin - 86_400, begin + 120))
    assert [value for value in points.values() if value is not None]
    assert await again.mean("b", "node", "", "messages_in_rate", begin, begin + 50) == 2.5
    await again.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1e6, width=32)), max_size=30))
def test_what_is_read_is_what_was_written_last(rows: list[tuple[int, float]]) -> None:
    file = HistoryFile(":memory:")
    expected: dict[int, float] = {}
    for step, value in rows:
        file.write(10, T + 10 * step, [node(value)])
        expected[T + 10 * step] = value
    found = file.read("b", "node", "", "messages_in_rate", T, T + 300)
    assert {at: value for at, value in found if value is not None} == expected
