"""The table of figures: deltas, counters that become rates, and percentiles of the last minute."""

from __future__ import annotations

from typing import Any

from headrace.console.client.models import FigurePage
from headrace.console.figures.table import FigureTable, percentile

TOPICS = ["topic", "messages_in", "bytes"]
APIS = ["door", "api", "requests", "buckets"]
BOUNDS = [0.001, 0.01, 0.1]


def page(at_ms: int, rows: list[list[Any]], kind: str = "topics", **more: Any) -> FigurePage:
    columns = {"topics": TOPICS, "apis": APIS}
    return FigurePage(
        version=str(at_ms),
        at_ms=at_ms,
        columns=columns,
        names={"topics": 1, "apis": 2},
        latency_bounds=BOUNDS,
        rows={kind: rows},
        **more,
    )


def test_counters_become_rates_by_the_brokers_clock() -> None:
    table = FigureTable()
    table.take([page(1_000, [["orders", 10, 100]], full=True)])
    assert table.row("topics", "orders")["messages_in_rate"] == 0
    changes = table.take([page(3_000, [["orders", 30, 300]])])
    assert table.row("topics", "orders")["messages_in_rate"] == 10
    assert changes[0].figures["messages_in_rate"] == 10
    # No news: it stands still, and that is news once.
    assert [each.figures["messages_in_rate"] for each in table.take([page(5_000, [])])] == [0]
    assert table.take([page(7_000, [])]) == []
    assert table.row("topics", "orders")["bytes"] == 300


def test_a_broker_that_starts_again_has_no_rate_and_forgets_what_is_gone() -> None:
    table = FigureTable()
    table.take([page(1_000, [["orders", 10, 0], ["old", 1, 0]], full=True)])
    table.take([page(2_000, [["orders", 5, 0]], full=True)])
    assert table.row("topics", "orders")["messages_in_rate"] == 0
    assert table.row("topics", "old") == {}
    table.take([page(3_000, [["orders", 3, 0]])])
    assert table.row("topics", "orders")["messages_in_rate"] == 0


def test_a_full_answer_in_pages_drops_what_none_of_them_has() -> None:
    table = FigureTable()
    table.take([page(1_000, [["a", 1, 0], ["b", 1, 0], ["c", 1, 0]], full=True)])
    table.take([page(2_000, [["a", 1, 0]], full=True, more=True), page(2_000, [["b", 1, 0]])])
    assert set(table.rows("topics")) == {("a",), ("b",)}
    table.take([page(3_000, [], gone={"topics": [["a"]]})])
    assert set(table.rows("topics")) == {("b",)}


def test_sparks_are_kept_of_what_moves() -> None:
    table = FigureTable()
    for step in range(60):
        table.take([page(1_000 * (step + 1), [["orders", 10 * min(step, 10), 0], ["idle", 0, 0]], full=step == 0)])
    assert table.spark("topics", "idle") == []
    # It has stood still for longer than a spark shows.
    assert table.spark("topics", "orders") == []
    table.take([page(61_000, [["orders", 200, 0]])])
    assert table.spark("topics", "orders")[-1] == 100


def test_percentiles_are_of_the_last_minute() -> None:
    table = FigureTable()
    table.take([page(1_000, [["kafka", "produce", 100, [100, 0, 0, 0]]], "apis", full=True)])
    table.take([page(11_000, [["kafka", "produce", 200, [100, 100, 0, 0]]], "apis")])
    row = table.row("apis", "kafka", "produce")
    assert 1 < row["p50_ms"] < row["p99_ms"] <= 10
    table.take([page(200_000, [], "apis")])
    assert table.row("apis", "kafka", "produce")["p99_ms"] is None
    assert percentile([0, 0, 0, 5], BOUNDS, 0.5) == 0.1
    assert percentile([4, 0, 0, 0], BOUNDS, 0.5) == 0.0005


def test_the_pace_of_a_group_is_that_of_half_a_minute() -> None:
    columns = {"groups": ["group", "topic", "committed"]}

    def at(ms: int, committed: int) -> FigurePage:
        rows = {"groups": [["billing", "orders", committed]]}
        return FigurePage(version=str(ms), at_ms=ms, columns=columns, names={"groups": 2}, rows=rows)

    table = FigureTable()
    for second in range(0, 60, 2):
        # It commits every five seconds, and reads ten a second.
        table.take([at(1_000 * (second + 1), 50 * (second // 5))])
        assert second >= 10 or table.pace("billing") is None
    assert 8 <= (table.pace("billing") or 0) <= 12
    assert table.row("groups", "billing", "orders")["committed_rate"] in (0, 25)
    # Its offsets were reset: it has not read backwards.
    table.take([at(62_000, 0)])
    assert table.pace("billing") == 0


def test_ages_go_on_without_news() -> None:
    table = FigureTable()
    table.take([page(1_000, [], full=True)])
    assert table.age_ms({"oldest_ms": 400}) == 600
    assert table.age_ms({"oldest_ms": None}) is None
