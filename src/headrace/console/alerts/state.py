"""What is wrong now: rules over readings, from one moment to the next. Pure: time is an argument.

A rule holds for each subject (a group, a queue, the broker) by itself. It is `pending` while its condition holds and
`for_ms` has not passed, `firing` from then on, and `resolved` once it has not held for half a minute, so that
a figure that swings around its threshold is one alert. While the broker is away nothing resolves but what is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from headrace.console.client.models import Rule, Silence

Subject = tuple[tuple[str, str], ...]
"""What a reading is of: pairs such as (`group`, `billing`), in order. Nothing: the broker."""
AlertKey = tuple[str, Subject]
"""A rule's id, and its subject."""

CLEAR_SECONDS = 30.0
AWAY = "broker_away_seconds"
COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda value, threshold: value > threshold,
    ">=": lambda value, threshold: value >= threshold,
    "<": lambda value, threshold: value < threshold,
    "<=": lambda value, threshold: value <= threshold,
}
ALERTS_MAX = 5_000
"""Of one broker: a rule that fits everything must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure of a subject."""

    figure: str
    subject: Subject
    value: float


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule's condition that holds for a subject, or did until now."""

    rule: str
    name: str
    severity: str
    subject: Subject
    value: float
    threshold: float
    figure: str
    since: float
    """When the condition began to hold."""
    fired: float = 0.0
    """When it had held for long enough; 0: not yet."""
    clear_since: float = 0.0
    """When the condition ceased to hold; 0: it holds."""
    resolved: float = 0.0
    acknowledged_by: str = ""
    acknowledged: float = 0.0
    channels: tuple[str, ...] = ()
    runbook: str = ""

    @property
    def key(self) -> AlertKey:
        return self.rule, self.subject

    @property
    def state(self) -> str:
        return "resolved" if self.resolved else "firing" if self.fired else "pending"

    @property
    def about(self) -> str:
        """The subject in words."""
        return ", ".join(f"{name} {value}" for name, value in self.subject) or "the broker"


Owners = Callable[[Subject], str]


def fits(rule: Rule, subject: Subject, owner: Owners) -> bool:
    """Whether a subject is in the scope of a rule. Patterns have `*` and `?`."""
    names = dict(subject)
    for name, pattern in rule.scope.items():
        if not pattern:
            continue
        if not fnmatchcase(owner(subject) if name == "owner" else names.get(name, ""), pattern):
            return False
    return True


def step(
    alerts: Mapping[AlertKey, Alert],
    rules: Iterable[Rule],
    readings: Sequence[Reading],
    now: float,
    owner: Owners = lambda _: "",
    is_away: bool = False,
) -> dict[AlertKey, Alert]:
    """The alerts after these readings; those that were resolved before are left out."""
    by_figure: dict[str, list[Reading]] = {}
    for reading in readings:
        by_figure.setdefault(reading.figure, []).append(reading)
    found: dict[AlertKey, Alert] = {}
    known = {}
    room = ALERTS_MAX - len(alerts)
    for rule in rules:
        if not rule.enabled:
            continue
        known[rule.id] = rule
        holds = COMPARE.get(rule.compare, COMPARE[">"])
        for reading in by_figure.get(rule.figure, ()):
            if holds(reading.value, rule.threshold) and fits(rule, reading.subject, owner):
                key = (rule.id, reading.subject)
                if key not in alerts:
                    if room <= 0:
                        continue
                    room -= 1
                found[key] = _hold(alerts.get(key), rule, reading, now)
    for key, alert in alerts.items():
        if key in found or alert.resolved:
            continue
        if is_away and key[0] in known and alert.figure != AWAY:
            found[key] = alert
            continue
        clear = alert.clear_since or now
        if not alert.fired:
            continue
        if now - clear >= CLEAR_SECONDS or key[0] not in known:
            found[key] = replace(alert, clear_since=clear, resolved=now)
        else:
            found[key] = replace(alert, clear_since=clear)
    return found


def _hold(alert: Alert | None, rule: Rule, reading: Reading, now: float) -> Alert:
    since = alert.since if alert is not None and not alert.resolved else now
    fired = alert.fired if alert is not None and not alert.resolved else 0.0
    if not fired and now - since >= rule.for_ms / 1000:
        fired = now
    return Alert(
        rule=rule.id,
        name=rule.name,
        severity=rule.severity,
        subject=reading.subject,
        value=reading.value,
        threshold=rule.threshold,
        figure=rule.figure,
        since=since,
        fired=fired,
        acknowledged_by=alert.acknowledged_by if alert is not None and not alert.resolved else "",
        acknowledged=alert.acknowledged if alert is not None and not alert.resolved else 0.0,
        channels=tuple(rule.channels),
        runbook=rule.runbook or "",
    )


def silence_of(alert: Alert, silences: Iterable[Silence], now: float, owner: Owners = lambda _: "") -> Silence | None:
    """The silence that an alert is under, if any."""
    names = {**dict(alert.subject), "rule": alert.rule, "owner": owner(alert.subject)}
    for each in silences:
        fitting = (fnmatchcase(names.get(name, ""), pattern) for name, pattern in each.matchers.items())
        if each.starts_ms <= now * 1000 < each.ends_ms and each.matchers and all(fitting):
            return each
    return None
