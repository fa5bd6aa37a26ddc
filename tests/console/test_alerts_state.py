"""Alerts in virtual time: when they fire, when they are over, and who is told how often."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.console.alerts.notices import GROUP_SECONDS, REPEAT_SECONDS, Sent, SentKey, forget, mark_sent, plan
from headrace.console.alerts.state import AWAY, CLEAR_SECONDS, Alert, AlertKey, Reading, silence_of, step
from headrace.console.client.models import Rule, Silence

BILLING = (("group", "billing"), ("topic", "orders"))
MAILER = (("group", "mailer"), ("topic", "orders"))
LAG = Rule(id="lag", name="Lag", figure="group_lag", threshold=100, for_ms=60_000)
GONE = Rule(id="away", name="Away", figure=AWAY, threshold=30)


def lag(value: float, subject: tuple[tuple[str, str], ...] = BILLING) -> list[Reading]:
    return [Reading("group_lag", subject, value), Reading(AWAY, (), 0)]


def test_it_fires_after_its_duration_and_resolves_after_half_a_minute() -> None:
    alerts = step({}, [LAG], lag(500), 0)
    assert alerts["lag", BILLING].state == "pending"
    alerts = step(alerts, [LAG], lag(500), 59)
    assert alerts["lag", BILLING].state == "pending"
    alerts = step(alerts, [LAG], lag(700), 60)
    assert alerts["lag", BILLING].state == "firing"
    assert alerts["lag", BILLING].value == 700
    # It swings below, and back: the same alert.
    alerts = step(alerts, [LAG], lag(1), 70)
    alerts = step(alerts, [LAG], lag(500), 80)
    assert alerts["lag", BILLING].fired == 60
    alerts = step(alerts, [LAG], lag(1), 90)
    assert alerts["lag", BILLING].state == "firing"
    alerts = step(alerts, [LAG], lag(1), 90 + CLEAR_SECONDS)
    assert alerts["lag", BILLING].state == "resolved"
    assert step(alerts, [LAG], lag(1), 200) == {}


def test_what_does_not_hold_for_long_enough_is_forgotten() -> None:
    alerts = step({}, [LAG], lag(500), 0)
    assert step(alerts, [LAG], lag(5), 30) == {}


def test_a_broker_that_is_away_resolves_nothing_but_is_an_alert() -> None:
    alerts = step({}, [replace_for(LAG), GONE], lag(500), 5)
    away = [Reading(AWAY, (), 40)]
    alerts = step(alerts, [replace_for(LAG), GONE], away, 1_000, is_away=True)
    assert alerts["lag", BILLING].state == "firing"
    assert alerts["away", ()].state == "firing"
    alerts = step(alerts, [replace_for(LAG), GONE], lag(500), 1_100)
    alerts = step(alerts, [replace_for(LAG), GONE], lag(500), 1_100 + CLEAR_SECONDS)
    assert alerts["away", ()].state == "resolved"
    assert (alerts["lag", BILLING].state, alerts["lag", BILLING].fired) == ("firing", 5)


def replace_for(rule_: Rule) -> Rule:
    return Rule(id=rule_.id, name=rule_.name, figure=rule_.figure, threshold=rule_.threshold)


def test_a_rule_that_is_gone_or_off_resolves_what_it_fired() -> None:
    alerts = step({}, [replace_for(LAG)], lag(500), 5)
    alerts = step(alerts, [], lag(500), 6)
    assert alerts["lag", BILLING].state == "resolved"


def test_scopes_have_patterns_and_owners() -> None:
    owner = {"billing": "team-money"}.get
    scoped = Rule(id="r", name="R", figure="group_lag", threshold=1, scope={"group": "bill*"})
    owned = Rule(id="o", name="O", figure="group_lag", threshold=1, scope={"owner": "team-money"})
    readings = [*lag(5), *lag(5, MAILER)]
    found = step({}, [scoped, owned], readings, 1, lambda subject: owner(dict(subject)["group"], ""))
    assert set(found) == {("r", BILLING), ("o", BILLING)}


def firing(subject: tuple[tuple[str, str], ...], fired: float, channels: tuple[str, ...] = ()) -> Alert:
    return Alert("lag", "Lag", "warning", subject, 500, 100, "group_lag", fired, fired, channels=channels)


def test_alerts_of_a_rule_are_one_notice_and_silence_acknowledgement_and_repetition_hold() -> None:
    alerts = [firing(BILLING, 100), firing(MAILER, 105)]
    assert plan(alerts, {}, ["hook"], 105) == []
    (notice,) = plan(alerts, {}, ["hook"], 100 + GROUP_SECONDS)
    assert [each.subject for each in notice.firing] == [BILLING, MAILER]
    sent = mark_sent({}, notice, 110)
    assert plan(alerts, sent, ["hook"], 5_000) == []
    assert plan(alerts, sent, ["hook"], 110 + REPEAT_SECONDS)[0].firing == notice.firing
    taken = [replace(each, acknowledged_by="ann", acknowledged=120) for each in alerts]
    assert plan(taken, sent, ["hook"], 110 + REPEAT_SECONDS) == []
    assert plan(alerts, {}, ["hook"], 200, is_silenced=lambda alert: alert.subject == MAILER)[0].firing == (alerts[0],)
    assert plan([firing(BILLING, 1, ("other",))], {}, ["hook"], 200) == []


def test_that_it_is_over_is_told_to_those_who_were_told() -> None:
    alert = firing(BILLING, 100)
    over = replace(alert, resolved=300)
    assert plan([over], {}, ["hook"], 300) == []
    sent: dict[SentKey, Sent] = {("hook", alert.key): Sent(100, 110, firing=True)}
    (notice,) = plan([over], sent, ["hook", "mail"], 300)
    assert (notice.channel, notice.resolved) == ("hook", (over,))
    assert plan([over], mark_sent(sent, notice, 300), ["hook", "mail"], 301) == []
    assert forget(sent, {}) == {}


def test_silences() -> None:
    silence = Silence(id="s", matchers={"group": "bill*", "rule": "lag"}, starts_ms=0, ends_ms=10_000)
    assert silence_of(firing(BILLING, 1), [silence], 5) is silence
    assert silence_of(firing(BILLING, 1), [silence], 10) is None
    assert silence_of(firing(MAILER, 1), [silence], 5) is None
    assert silence_of(firing(BILLING, 1), [Silence(id="all", ends_ms=10_000)], 5) is None


class AnyTime(RuleBasedStateMachine):
    """Whatever figures do: an alert fires once for each time that its condition begins to hold for long enough, each
    channel is told that it fires before it is told that it is over, and of neither twice."""

    @initialize()
    def begin(self) -> None:
        self.now = 1_000.0
        self.value = 0.0
        self.alerts: dict[AlertKey, Alert] = {}
        self.sent: dict[SentKey, Sent] = {}
        self.told: list[tuple[str, float]] = []

    @rule(value=st.sampled_from([0, 50, 101, 10_000]), seconds=st.floats(0.5, 100))
    def sample(self, value: float, seconds: float) -> None:
        self.now += seconds
        self.value = value
        self.alerts = step(self.alerts, [LAG], lag(value), self.now)
        for notice in plan(self.alerts.values(), self.sent, ["hook"], self.now):
            self.told += [("firing", each.fired) for each in notice.firing]
            self.told += [("resolved", each.fired) for each in notice.resolved]
            self.sent = mark_sent(self.sent, notice, self.now)
        self.sent = forget(self.sent, self.alerts)

    @rule(seconds=st.floats(0.5, 500))
    def away(self, seconds: float) -> None:
        self.now += seconds
        before = {key for key, each in self.alerts.items() if each.state == "firing"}
        self.alerts = step(self.alerts, [LAG], [Reading(AWAY, (), seconds)], self.now, is_away=True)
        assert before <= set(self.alerts)

    @invariant()
    def nobody_is_told_twice(self) -> None:
        last: dict[float, str] = {}
        for state, fired in getattr(self, "told", []):
            assert last.get(fired, "") != state
            assert state == "firing" or last.get(fired) == "firing"
            last[fired] = state

    @invariant()
    def what_fires_held_for_long_enough(self) -> None:
        for each in getattr(self, "alerts", {}).values():
            assert not each.fired or each.fired - each.since >= LAG.for_ms / 1000
            assert each.state != "resolved" or each.fired


AnyTime.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyTime = AnyTime.TestCase


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1, 1_000)), max_size=30))
def test_an_alert_has_no_duplicates_whatever_comes(samples: list[tuple[float, float]]) -> None:
    alerts: dict[AlertKey, Alert] = {}
    now = 1.0
    for value, seconds in samples:
        now += seconds
        alerts = step(alerts, [LAG], [*lag(value), *lag(value)], now)
        assert len(alerts) <= 1
