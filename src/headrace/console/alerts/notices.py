"""Who is told of what, and once: from alerts to notices. Pure: time is an argument.

Alerts of one rule that fire within ten seconds are one notice. An alert that goes on is repeated after four hours,
unless it is acknowledged; one that is silenced is not told of. That it is over is told to those who were told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.console.alerts.state import Alert, AlertKey

GROUP_SECONDS = 10.0
REPEAT_SECONDS = 4 * 3600.0
NOTICE_ALERTS_MAX = 50
"""Of one notice; the others are counted."""

SentKey = tuple[str, AlertKey]
"""A channel's id, and an alert."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a channel was told of an alert."""

    fired: float
    """Which time that it fired."""
    at: float
    firing: bool
    """That it fires, not yet that it is over."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What a channel is to be told."""

    channel: str
    rule: str
    name: str
    severity: str
    firing: tuple[Alert, ...]
    resolved: tuple[Alert, ...]

    @property
    def subject(self) -> str:
        """One line."""
        parts = []
        if self.firing:
            parts.append(f"{self.severity}: {self.name}: {_few(self.firing)}")
        if self.resolved:
            parts.append(f"resolved: {self.name}: {_few(self.resolved)}")
        return "; ".join(parts)


def _few(alerts: tuple[Alert, ...]) -> str:
    more = f" and {len(alerts) - 3} more" if len(alerts) > 3 else ""
    return ", ".join(each.about for each in alerts[:3]) + more


def plan(
    alerts: Iterable[Alert],
    sent: Mapping[SentKey, Sent],
    channels: Iterable[str],
    now: float,
    is_silenced: Callable[[Alert], bool] = lambda _: False,
) -> list[Notice]:
    """The notices that are due. `channels` are those that are there and enabled; a rule without channels tells all."""
    there = list(channels)
    due: dict[tuple[str, str], tuple[list[Alert], list[Alert]]] = {}
    oldest: dict[tuple[str, str], float] = {}
    for alert in alerts:
        for channel in alert.channels or there:
            if channel not in there:
                continue
            told = sent.get((channel, alert.key))
            is_told = told is not None and told.fired == alert.fired
            group = (channel, alert.rule)
            if alert.resolved:
                if is_told and told is not None and told.firing:
                    due.setdefault(group, ([], []))[1].append(alert)
                    oldest[group] = 0.0
            elif alert.fired and not is_silenced(alert):
                is_due = not is_told
                if is_told and told is not None and not alert.acknowledged:
                    is_due = now - told.at >= REPEAT_SECONDS
                if is_due:
                    due.setdefault(group, ([], []))[0].append(alert)
                    oldest[group] = min(oldest.get(group, alert.fired), alert.fired)
    notices = []
    for (channel, rule), (firing, resolved) in due.items():
        if not resolved and now - oldest[channel, rule] < GROUP_SECONDS:
            continue
        first = (firing or resolved)[0]
        notices.append(Notice(channel, rule, first.name, first.severity, tuple(firing), tuple(resolved)))
    return notices


def mark_sent(sent: Mapping[SentKey, Sent], notice: Notice, now: float) -> dict[SentKey, Sent]:
    """What channels were told, after a notice went out."""
    made = dict(sent)
    for alert in notice.firing:
        made[notice.channel, alert.key] = Sent(alert.fired, now, firing=True)
    for alert in notice.resolved:
        made[notice.channel, alert.key] = Sent(alert.fired, now, firing=False)
    return made


def assume_sent(
    sent: Mapping[SentKey, Sent], alerts: Iterable[Alert], channels: Iterable[str], before: float
) -> dict[SentKey, Sent]:
    """What another console has told of by now: it led after these alerts had fired. The console that takes over tells
    nothing twice, and tells those whom it told when it is over."""
    there = list(channels)
    made = dict(sent)
    for alert in alerts:
        if not alert.fired or alert.resolved or alert.fired >= before:
            continue
        for channel in alert.channels or there:
            told = made.get((channel, alert.key))
            if told is None or told.fired != alert.fired:
                made[channel, alert.key] = Sent(alert.fired, alert.fired, firing=True)
    return made


def forget(sent: Mapping[SentKey, Sent], alerts: Mapping[AlertKey, Alert]) -> dict[SentKey, Sent]:
    """Without what was said of alerts that are gone."""
    return {key: each for key, each in sent.items() if key[1] in alerts}


def lines(notice: Notice) -> list[str]:
    """The notice in words, one line for each alert."""
    found = []
    for state, alerts in (("firing", notice.firing), ("resolved", notice.resolved)):
        for each in alerts[:NOTICE_ALERTS_MAX]:
            found.append(f"{state}: {each.about}: {each.figure} is {each.value:g} (threshold {each.threshold:g})")
        if len(alerts) > NOTICE_ALERTS_MAX:
            found.append(f"{state}: and {len(alerts) - NOTICE_ALERTS_MAX} more")
    if notice.firing and notice.firing[0].runbook:
        found.append(f"runbook: {notice.firing[0].runbook}")
    return found
