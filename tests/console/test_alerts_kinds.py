"""Each figure that a rule can be about: from the broker's rows to an alert that fires, and resolves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from headrace.broker.console.alerts import FIGURES
from headrace.broker.figures.columns import KINDS
from headrace.console.alerts import state
from headrace.console.alerts.defaults import DEFAULTS
from headrace.console.alerts.readings import Readings, away, drop_percent
from headrace.console.alerts.state import CLEAR_SECONDS, Alert, AlertKey, Reading, step
from headrace.console.client.models import FigurePage, Rule, Transaction
from headrace.console.figures.table import FigureTable

STEP = 10.0
GROUP = {"group": "billing", "topic": "orders"}
QUEUE = {"topic": "orders", "queue": "mail"}


class Broker:
    """Rows as the broker gives them, by a clock of its own."""

    def __init__(self) -> None:
        self.table = FigureTable()
        self.readings = Readings()
        self.now = 1_795_000_000.0
        self.rows: dict[str, dict[str, Any]] = {
            "node": {"node": "0", "disk_bytes": 1_000, "disk_free_bytes": 900, "errors": 0, "offline": 0},
            "doors": {"door": "kafka", "refused": 0},
            "queues": {**QUEUE, "depth": 0, "dead": 0, "oldest_ms": None},
            "groups": {**GROUP, "lag": 0, "oldest_ms": None, "committed": 0},
        }

    def change(self, kind: str, **values: Any) -> None:
        self.rows[kind].update(values)

    def read(self, drops: Mapping[Any, float], hanging: list[Transaction]) -> list[Reading]:
        """A sample, ten seconds after the last."""
        self.now += STEP
        columns = {kind: each.columns for kind, each in KINDS.items()}
        page = FigurePage(
            version="1",
            at_ms=round(self.now * 1000),
            columns=columns,
            names={kind: len(each.names) for kind, each in KINDS.items()},
            latency_bounds=[],
            rows={kind: [[row.get(name) for name in columns[kind]]] for kind, row in self.rows.items()},
        )
        self.table.take([page])
        return self.readings.take(self.table, self.now, drops, hanging)

    def ago(self, seconds: float) -> int:
        return round((self.now - seconds) * 1000)


def wrong(figure: str, broker: Broker, turn: int) -> tuple[Mapping[Any, float], list[Transaction]]:
    """Make it so, at this turn."""
    match figure:
        case "group_lag":
            broker.change("groups", lag=500)
        case "group_lag_seconds":
            broker.change("groups", lag=1, oldest_ms=broker.ago(3_600))
        case "group_lag_growth":
            broker.change("groups", lag=1_000 * STEP * turn)
        case "queue_depth":
            broker.change("queues", depth=500)
        case "queue_oldest_seconds":
            broker.change("queues", depth=1, oldest_ms=broker.ago(3_600))
        case "dead_letters_rate":
            broker.change("queues", dead=turn)
        case "error_rate":
            broker.change("node", errors=1_000 * turn)
        case "throughput_drop":
            return {(): drop_percent(1.0, 100.0) or 0.0}, []
        case "disk_used_percent":
            broker.change("node", disk_free_bytes=10)
        case "offline_partitions":
            broker.change("node", offline=1)
        case "connections_refused":
            broker.change("doors", refused=turn)
        case "transactions_hanging_seconds":
            hanging = Transaction(
                transactional_id="t",
                state="Ongoing",
                producer_id=1,
                epoch=0,
                age_ms=600_000,
                timeout_ms=1,
                hanging=True,
            )
            return {}, [hanging]
        case _:
            raise AssertionError(f"no case makes {figure} wrong")
    return {}, []


def rule_of(figure: str) -> Rule:
    """The default rule about a figure, or one of our own where none has it."""
    found = next((each for each in DEFAULTS if each.figure == figure), None)
    return found or Rule(id=figure, name=figure, figure=figure, threshold=100, for_ms=60_000)


@pytest.mark.parametrize("figure", sorted({each.name for each in FIGURES} - {state.AWAY}))
def test_it_fires_and_resolves(figure: str) -> None:
    broker, rule = Broker(), rule_of(figure)
    alerts: dict[AlertKey, Alert] = {}

    def look(turn: int) -> set[str]:
        nonlocal alerts
        drops, hanging = wrong(figure, broker, turn) if turn else ({}, [])
        alerts = step(alerts, [rule], broker.read(drops, hanging), broker.now)
        return {each.state for each in alerts.values()}

    for _ in range(3):
        assert look(0) == set(), "nothing is wrong at first"
    before = {kind: dict(row) for kind, row in broker.rows.items()}
    began = broker.now
    turn = 1
    while look(turn) != {"firing"}:
        assert broker.now - began < rule.for_ms / 1000 + 400, alerts
        turn += 1
    # A growth is known after a minute of it; all else holds from the first sample on.
    assert broker.now - began >= rule.for_ms / 1000
    (alert,) = alerts.values()
    assert alert.figure == figure
    assert alert.value > alert.threshold
    for kind, row in before.items():
        # Counters stay where they are: what is wrong is that they move.
        counters = {name: broker.rows[kind][name] for name in ("errors", "dead", "refused") if name in row}
        broker.rows[kind] = row | counters
    began = broker.now
    while look(0) != {"resolved"}:
        assert broker.now - began < 400, alerts
    assert broker.now - began >= CLEAR_SECONDS
    assert look(0) == set()


def test_a_broker_that_is_away_fires_and_resolves() -> None:
    rule = rule_of(state.AWAY)
    alerts = step({}, [rule], away(1_000.0, 1_020.0), 1_020.0, is_away=True)
    assert not alerts, "not before half a minute"
    alerts = step(alerts, [rule], away(1_000.0, 1_031.0), 1_031.0, is_away=True)
    assert [each.state for each in alerts.values()] == ["firing"]
    for now in (1_040.0, 1_071.0):
        alerts = step(alerts, [rule], [Reading(state.AWAY, (), 0.0)], now)
    assert [each.state for each in alerts.values()] == ["resolved"]


def test_the_console_knows_every_figure_of_the_broker_and_no_other() -> None:
    assert {each.figure for each in DEFAULTS} <= {each.name for each in FIGURES}


@pytest.mark.parametrize(
    ("now", "yesterday", "percent"),
    [
        (20.0, 100.0, 80.0),
        (0.0, 100.0, 100.0),
        (150.0, 100.0, 0.0),
        (1.0, 0.0, None),
        (None, 5.0, None),
        (5.0, None, None),
    ],
)
def test_a_drop_is_against_what_there_was(now: float | None, yesterday: float | None, percent: float | None) -> None:
    assert drop_percent(now, yesterday) == percent


def test_there_are_so_many_alerts_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ALERTS_MAX", 50)
    rule = msgspec.structs.replace(rule_of("queue_depth"), for_ms=0)

    def readings(count: int) -> list[Reading]:
        return [Reading("queue_depth", (("queue", str(number)),), 500.0) for number in range(count)]

    alerts = step({}, [rule], readings(30), 1.0)
    assert len(alerts) == 30
    alerts = step(alerts, [rule], readings(50), 2.0)
    assert len(alerts) == 50, "as many as there is room for"
    alerts = step(alerts, [rule], readings(51), 3.0)
    assert len(alerts) == 50
    assert {each.since for each in alerts.values()} == {1.0, 2.0}, "those that were there stay"
    # Room that a resolved one leaves is taken again.
    for now in (10.0, 45.0, 46.0):
        alerts = step(alerts, [rule], readings(10), now)
    assert len(alerts) == 10
    assert len(step(alerts, [rule], readings(60), 50.0)) == 50
