"""The alerts of one broker, as they go on: rules read from it, readings of each sample, notices to channels.

Rules, silences and channels live at the broker (`/v1/alerts`); what fires lives here, because the broker cannot record
that it is away. Of several consoles the one that holds the broker's lease notifies; while the broker is away that is
the one that held it last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from headrace.console.alerts.channels import Deliveries, DeliveryFailed
from headrace.console.alerts.defaults import DEFAULTS
from headrace.console.alerts.notices import (
    GROUP_SECONDS,
    Notice,
    Sent,
    SentKey,
    assume_sent,
    forget,
    mark_sent,
    plan,
)
from headrace.console.alerts.readings import Readings, away, drop_percent
from headrace.console.alerts.state import Alert, AlertKey, Subject, silence_of, step
from headrace.console.alerts.store import AlertEvent, AlertStore
from headrace.console.client import models as m
from headrace.console.client.transport import ApiError, BrokerAway
from headrace.console.figures.history import History
from headrace.console.figures.sampler import IDLE_SECONDS, Sampler

log = structlog.get_logger("headrace.console")

RULES_SECONDS = 15.0
"""How old what is known of rules, silences and channels may be."""
DROPS_SECONDS = 60.0
DROP_WINDOW = 600
DAY = 86_400
LEASE_MS = 60_000
RETRY_SECONDS = 60.0
TELLING_SECONDS = GROUP_SECONDS + 2 * IDLE_SECONDS
"""From when an alert fires until it is told of: two samples at most, and those that belong to it."""


class AlertWatch:
    """Alerts of one broker."""

    def __init__(
        self,
        store: AlertStore,
        history: History,
        deliveries: Deliveries,
        holder: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.alerts: dict[AlertKey, Alert] = {}
        self.rules: list[m.Rule] = []
        self.silences: list[m.Silence] = []
        self.channels: list[m.Channel] = []
        self.unavailable = ""
        """Why there are no rules, in words."""
        self._store = store
        self._history = history
        self._deliveries = deliveries
        self._holder = holder
        self._clock = clock
        self._sent: dict[SentKey, Sent] = {}
        self._readings = Readings()
        self._owners: dict[tuple[str, str], str] = {}
        self._drops: dict[Subject, float] = {}
        self._hanging: list[m.Transaction] = []
        self._read_at = 0.0
        self._drops_at = 0.0
        self._leads = True
        self._other_led = 0.0
        """When another console was last known to hold the lease."""
        self._secrets: dict[str, m.ChannelSecret] = {}
        self._failed: dict[str, float] = {}
        self._loaded = False
        self._delivering: dict[str, asyncio.Task[None]] = {}
        """By channel: what is under way."""

    @property
    def firing(self) -> list[Alert]:
        """The worst first, then the newest."""
        order = {"critical": 0, "warning": 1}
        found = [each for each in self.alerts.values() if each.state == "firing"]
        return sorted(found, key=lambda each: (order.get(each.severity, 2), -each.fired))

    def owner(self, subject: Subject) -> str:
        """The owner of a topic, a group or a queue, by its registration."""
        names = dict(subject)
        for kind in ("group", "queue", "topic"):
            if kind in names and (kind, names[kind]) in self._owners:
                return self._owners[kind, names[kind]]
        return ""

    def is_silenced(self, alert: Alert) -> bool:
        return silence_of(alert, self.silences, self._clock(), self.owner) is not None

    async def on_sample(self, sampler: Sampler) -> None:
        """Look at what a sampler has read, or at its broker being away."""
        now = self._clock()
        if not self._loaded:
            self.alerts, self._sent = await self._store.load(sampler.broker)
            self._loaded = True
        if sampler.away is not None:
            readings = away(sampler.away.since, now)
        else:
            if now - self._read_at >= RULES_SECONDS:
                await self.read(sampler)
            readings = self._readings.take(sampler.table, now, self._drops, self._hanging)
        before = self.alerts
        self.alerts = step(before, self.rules, readings, now, self.owner, sampler.away is not None)
        events = _events(before, self.alerts, now)
        sent_before = self._sent
        self._sent = forget(self._sent, self.alerts)
        self._notify(sampler.broker, now)
        if events or self._sent != sent_before or before != self.alerts:
            await self._save(sampler.broker, events)

    async def close(self) -> None:
        """Deliver no more."""
        for task in self._delivering.values():
            task.cancel()
        await asyncio.gather(*self._delivering.values(), return_exceptions=True)

    async def _save(self, broker: str, events: list[AlertEvent]) -> None:
        kept = [each for each in self.alerts.values() if each.fired]
        await self._store.save(broker, kept, list(self._sent.items()), events)

    async def read(self, sampler: Sampler) -> None:
        """Read what the broker knows of alerts."""
        now = self._read_at = self._clock()
        api = sampler.api
        try:
            self.rules = (await api.rules()).rules
            self.silences = (await api.silences()).silences
            self.channels = [each for each in (await api.channels()).channels if each.enabled]
            self.unavailable = ""
        except ApiError as error:
            if error.is_missing_route:
                self.rules = list(DEFAULTS)
            self.unavailable = "" if error.is_missing_route else str(error)
        except BrokerAway:
            return
        await self._read_owners(sampler)
        try:
            self._hanging = [each for each in (await api.transactions({"limit": 500})).transactions if each.hanging]
        except (ApiError, BrokerAway):
            self._hanging = []
        await self._read_secrets(sampler)
        self._leads = await self._lease(sampler)
        if now - self._drops_at >= DROPS_SECONDS and any(each.figure == "throughput_drop" for each in self.rules):
            self._drops_at = now
            self._drops = await self._throughput_drops(sampler, int(now))

    async def _read_owners(self, sampler: Sampler) -> None:
        try:
            found = (await sampler.api.registrations({"limit": 1000, "state": "approved"})).registrations
        except (ApiError, BrokerAway):
            return
        owners: dict[tuple[str, str], str] = {}
        for each in found:
            if each.kind == "topic":
                owners["topic", each.topic] = each.owner
            elif each.group:
                owners["group", each.group] = owners["queue", each.group] = each.owner
        self._owners = owners

    async def _read_secrets(self, sampler: Sampler) -> None:
        for each in self.channels:
            if each.kind != "email":
                try:
                    self._secrets[each.id] = await sampler.api.channel_secret(each.id)
                except (ApiError, BrokerAway) as error:
                    log.warning("the secret of a channel cannot be read", channel=each.id, reason=str(error))

    async def _lease(self, sampler: Sampler) -> bool:
        """Whether this console is the one that notifies."""
        try:
            answer = await sampler.api.ask(
                "POST", "/v1/alerts/lease", body={"holder": self._holder, "ttl_ms": LEASE_MS}
            )
        except ApiError:
            # An older broker: each console notifies.
            return True
        except BrokerAway:
            return self._leads
        if not answer.get("held"):
            self._other_led = self._clock()
            return False
        return True

    async def _throughput_drops(self, sampler: Sampler, now: int) -> dict[Subject, float]:
        drops: dict[Subject, float] = {}
        names = [key[0] for key, row in sampler.table.rows("topics").items() if not row.get("internal")][:1000]
        for kind, name, subject in [("node", "", ()), *(("topics", name, (("topic", name),)) for name in names)]:
            figure = "messages_in_rate"
            recent = await self._history.mean(sampler.broker, kind, name, figure, now - DROP_WINDOW, now)
            yesterday = await self._history.mean(
                sampler.broker, kind, name, figure, now - DAY - DROP_WINDOW, now - DAY + DROP_WINDOW
            )
            percent = drop_percent(recent, yesterday)
            if percent is not None:
                drops[subject] = percent
        return drops

    def _notify(self, broker: str, now: float) -> None:
        """Begin to deliver the notices that are due. Nobody waits for a channel that is slow: neither the figures nor
        the other channels."""
        if not self._leads:
            # Who holds the lease lived when it took it; what fired in its last moments may be told of by nobody.
            told_before = self._other_led - LEASE_MS / 1000 - TELLING_SECONDS
            there = [each.id for each in self.channels]
            self._sent = assume_sent(self._sent, self.alerts.values(), there, told_before)
            return
        channels = [
            each.id
            for each in self.channels
            if each.id not in self._delivering and now - self._failed.get(each.id, 0.0) >= RETRY_SECONDS
        ]
        by_channel: dict[str, list[Notice]] = {}
        for notice in plan(self.alerts.values(), self._sent, channels, now, self.is_silenced):
            by_channel.setdefault(notice.channel, []).append(notice)
        for channel, notices in by_channel.items():
            self._delivering[channel] = asyncio.create_task(self._deliver(broker, channel, notices, now))

    async def _deliver(self, broker: str, channel: str, notices: list[Notice], now: float) -> None:
        events: list[AlertEvent] = []
        try:
            for notice in notices:
                try:
                    await self.send(notice, broker)
                except (DeliveryFailed, ApiError, BrokerAway) as error:
                    # The others would meet the same.
                    self._failed[channel] = now
                    log.warning("a notice was not delivered", channel=channel, reason=str(error))
                    events.append(_event(notice, "failed", now, f"{channel}: {error}"))
                    return
                self._sent = mark_sent(self._sent, notice, now)
                events.append(_event(notice, "notified", now, channel))
        finally:
            del self._delivering[channel]
            await self._save(broker, events)

    async def send(self, notice: Notice, broker: str) -> None:
        """Send a notice through its channel. Raises DeliveryFailed."""
        channel = next((each for each in self.channels if each.id == notice.channel), None)
        if channel is None:
            raise DeliveryFailed(f"there is no channel {notice.channel!r} that is enabled")
        await self._deliveries.send(channel, self._secrets.get(channel.id, m.ChannelSecret()), notice, broker)

    async def acknowledge(self, broker: str, key: AlertKey, user: str) -> None:
        """Someone is at it: it is not told of again."""
        alert = self.alerts.get(key)
        if alert is None:
            return
        now = self._clock()
        self.alerts[key] = replace(alert, acknowledged_by=user or "someone", acknowledged=now)
        event = AlertEvent(now, "acknowledged", alert.rule, alert.name, alert.severity, alert.about, alert.value, user)
        await self._store.save(broker, [a for a in self.alerts.values() if a.fired], list(self._sent.items()), [event])

    async def history(self, broker: str, limit: int) -> list[AlertEvent]:
        """What happened, the newest first."""
        return await self._store.history(broker, limit)

    def read_again(self) -> None:
        """Rules, silences or channels were changed here."""
        self._read_at = 0.0


def _events(before: dict[AlertKey, Alert], after: dict[AlertKey, Alert], now: float) -> list[AlertEvent]:
    found = []
    for key, alert in after.items():
        was = before.get(key)
        for kind in ("fired", "resolved"):
            if getattr(alert, kind) and not (was and getattr(was, kind) == getattr(alert, kind)):
                found.append(AlertEvent(now, kind, alert.rule, alert.name, alert.severity, alert.about, alert.value))
    return found


def _event(notice: Notice, kind: str, now: float, detail: str) -> AlertEvent:
    alerts = notice.firing or notice.resolved
    about = ", ".join(each.about for each in alerts[:5])
    return AlertEvent(now, kind, notice.rule, notice.name, notice.severity, about, alerts[0].value, detail)


def test_notice(channel: str, now: float) -> Notice:
    """What `headrace alert test` sends."""
    alert = Alert("test", "A test of this channel", "info", (), 1.0, 0.0, "test", now, now)
    return Notice(channel, "test", alert.name, "info", (alert,), ())
