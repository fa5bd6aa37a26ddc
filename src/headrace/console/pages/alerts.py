"""Alerts: what is firing, rules, silences, channels, and what happened."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from shlex import quote

from headrace.console.alerts.state import Alert
from headrace.console.alerts.store import AlertEvent
from headrace.console.alerts.watch import test_notice
from headrace.console.client import models as m
from headrace.console.client.transport import ApiError
from headrace.console.pages.topic import tabs
from headrace.console.sessions import Role
from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.markup import Html, h
from headrace.console.ui.page import Page, failure
from headrace.errors import ConfigError

TABS = {"": "Now", "rules": "Rules", "silences": "Silences", "channels": "Channels", "history": "History"}
SEVERITY = {"critical": "bad", "warning": "warn", "info": "info"}
HISTORY = 200


async def build(page: Page) -> None:
    page.head("Alerts")
    page.show(tabs(page, "/alerts", TABS))
    if page.entry.alerts.unavailable:
        page.show(h("div", f"Rules are not evaluated: {page.entry.alerts.unavailable}.", class_="note-box warn"))
    tab = page.query.get("tab", "")
    try:
        # What fires is the console's; who may see it is the broker's to say.
        await page.api.rules()
        if tab == "rules":
            await _rules(page)
        elif tab == "silences":
            await _silences(page)
        elif tab == "channels":
            await _channels(page)
        elif tab == "history":
            await _history(page)
        else:
            _now(page)
    except ApiError as error:
        page.show(h("div", failure(error), class_="card"))


def key_words(alert: Alert) -> str:
    """An alert's key as a button's argument."""
    return json.dumps([alert.rule, alert.subject])


def _now(page: Page) -> None:
    async def acknowledge(words: str) -> None:
        rule, subject = json.loads(words)
        key = (rule, tuple((name, value) for name, value in subject))
        await page.entry.alerts.acknowledge(page.broker, key, page.session.user or "someone")
        page.record("acknowledge", alert=rule)
        await page.reload()

    page.on_change("acknowledge", acknowledge)
    page.on_change("silence", lambda words: _silence(page, *_matchers(words)))
    page.live(lambda: _table(page))


def _matchers(words: str) -> tuple[dict[str, str]]:
    rule, subject = json.loads(words)
    return ({"rule": rule, **{name: value for name, value in subject if name in ("topic", "group", "queue")}},)


def _table(page: Page) -> Html:
    watch = page.entry.alerts
    shown = [*watch.firing, *(each for each in watch.alerts.values() if each.state == "pending")]
    if not shown:
        count = len([each for each in watch.rules if each.enabled])
        return h(
            "div",
            tables.empty("Nothing is firing", f"{formats.plural(count, 'rule')} are evaluated with each sample."),
            class_="card",
        )
    now = time.time()
    column = tables.Column[Alert]

    def state(alert: Alert) -> Html:
        if alert.state == "pending":
            return tables.mark("pending", "")
        if alert.acknowledged_by:
            return tables.mark(f"taken by {alert.acknowledged_by}", "info")
        return tables.mark("silenced", "") if watch.is_silenced(alert) else tables.mark("firing", "bad")

    def act(alert: Alert) -> Html | str:
        if alert.state != "firing":
            return ""
        words = key_words(alert)
        return h(
            "span",
            page.button("Take it", "acknowledge", words, "tiny") if not alert.acknowledged_by else None,
            " ",
            page.button("Silence", "silence", words, "tiny"),
        )

    columns = [
        column("", lambda a: tables.mark(a.severity, SEVERITY.get(a.severity, ""))),
        column("Alert", lambda a: a.name, "name"),
        column("What", lambda a: where(page, a), "clip"),
        column(
            "Figure",
            lambda a: f"{formats.figure(a.figure, a.value)}, threshold {formats.figure(a.figure, a.threshold)}",
            "nowrap",
        ),
        column("For", lambda a: formats.duration(now - (a.fired or a.since)), "num"),
        column("State", state),
        column("", act, "act"),
    ]
    return h("div", tables.table(columns, shown, "Alerts"), class_="card")


def where(page: Page, alert: Alert) -> Html:
    """The subject of an alert, as a link."""
    names = dict(alert.subject)
    if "group" in names:
        return h("a", alert.about, href=page.link("/group", name=names["group"]))
    if "queue" in names:
        return h("a", alert.about, href=page.link("/queue", topic=names.get("topic"), name=names["queue"]))
    if "topic" in names:
        return h("a", alert.about, href=page.link("/topic", name=names["topic"]))
    return h("span", alert.about)


async def _rules(page: Page) -> None:
    rules = (await page.api.rules()).rules
    figures = (await page.api.alert_figures()).figures
    channels = (await page.api.channels()).channels
    by_id = {each.id: each for each in rules}
    page.on_change("edit", lambda id: _edit_rule(page, by_id.get(id), figures, channels))
    page.on_change("remove", lambda id: _remove_rule(page, by_id[id]))
    page.show(
        h(
            "div",
            h("span", class_="grow"),
            page.button("New rule", "edit", kind="main-action"),
            class_="section",
            style="margin-top:0",
        )
    )
    units = {each.name: each.unit for each in figures}
    column = tables.Column[m.Rule]
    columns = [
        column("", lambda r: tables.mark(r.severity, SEVERITY.get(r.severity, "")), "nowrap"),
        column("Rule", lambda r: r.name, "name"),
        column("When", lambda r: h("code", f"{r.figure} {r.compare} {r.threshold:g}"), "nowrap"),
        column("Unit", lambda r: units.get(r.figure, "")),
        column("For", lambda r: formats.milliseconds(r.for_ms), "num"),
        column("Of, and who is told", _scope, "clip"),
        column("", lambda r: tables.mark("on", "good") if r.enabled else tables.mark("off", "")),
        column(
            "",
            lambda r: h(
                "span",
                page.button("Edit", "edit", r.id, "tiny", label=f"Edit {r.name}"),
                " ",
                page.button(
                    "Reset" if r.built_in else "Delete", "remove", r.id, "tiny danger", label=f"Remove {r.name}"
                ),
            ),
            "act",
        ),
    ]
    page.show(h("div", tables.table(columns, rules, "Rules"), class_="card"))


def _scope(rule: m.Rule) -> str:
    of = ", ".join(f"{name} {pattern}" for name, pattern in rule.scope.items()) or "everything"
    return f"{of}; tells {', '.join(rule.channels)}" if rule.channels else of


def id_of(name: str) -> str:
    """An id for something that people name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "unnamed"


def rule_body(answer: Mapping[str, str]) -> dict[str, object]:
    """A rule's form as the API has it."""
    try:
        threshold = float(answer.get("threshold", ""))
        seconds = float(answer.get("for", "0") or 0)
    except ValueError:
        raise ConfigError("the threshold and the duration must be numbers") from None
    scope = {name: answer[name] for name in ("topic", "group", "queue", "owner") if answer.get(name)}
    channels = [each.strip() for each in answer.get("channels", "").split(",") if each.strip()]
    body: dict[str, object] = {
        "name": answer.get("name", ""),
        "figure": answer.get("figure", ""),
        "compare": answer.get("compare", ">"),
        "threshold": threshold,
        "for_ms": round(seconds * 1000),
        "severity": answer.get("severity", "warning"),
        "scope": scope,
        "channels": channels,
        "enabled": answer.get("enabled") == "true",
    }
    if answer.get("runbook"):
        body["runbook"] = answer["runbook"]
    return body


def _edit_rule(page: Page, rule: m.Rule | None, figures: list[m.AlertFigure], channels: list[m.Channel]) -> None:
    scope = rule.scope if rule else {}
    fields = [
        Field("name", "Name", rule.name if rule else "", required=True),
        Field(
            "severity",
            "Severity",
            rule.severity if rule else "warning",
            kind="select",
            choices=[(each, each) for each in ("info", "warning", "critical")],
        ),
        Field(
            "figure",
            "Figure",
            rule.figure if rule else "group_lag",
            kind="select",
            choices=[(each.name, f"{each.name} ({each.unit})" if each.unit else each.name) for each in figures],
        ),
        Field(
            "compare",
            "Is",
            rule.compare if rule else ">",
            kind="select",
            choices=[(each, each) for each in (">", ">=", "<", "<=")],
        ),
        Field("threshold", "Threshold", f"{rule.threshold:g}" if rule else "", required=True),
        Field("for", "For at least, in seconds", f"{rule.for_ms / 1000:g}" if rule else "60", kind="number"),
        Field("topic", "Topics", scope.get("topic", ""), placeholder="all, or orders*"),
        Field("group", "Groups", scope.get("group", ""), placeholder="all, or billing*"),
        Field("queue", "Queues", scope.get("queue", ""), placeholder="all"),
        Field("owner", "Owner", scope.get("owner", ""), placeholder="any"),
        Field(
            "channels",
            "Channels",
            ",".join(rule.channels) if rule else "",
            placeholder="all",
            hint=", ".join(each.id for each in channels) or "There are no channels yet.",
        ),
        Field("runbook", "Runbook", rule.runbook or "" if rule else "", placeholder="https://..."),
        Field("enabled", "It is on", "true" if rule is None or rule.enabled else "", kind="check"),
    ]

    async def act(answer: Answer) -> None:
        body = rule_body(answer)
        if rule is not None and rule.version is not None:
            body["version"] = rule.version
        await page.api.put_rule(rule.id if rule else id_of(answer.get("name", "")), body)
        page.entry.alerts.read_again()

    ask(
        page,
        f"Edit {rule.name}" if rule else "New rule",
        "It is evaluated with each sample, within fifteen seconds from now on.",
        act,
        fields,
        verb="Save",
        is_wide=True,
        done="The rule is saved.",
    )


def _remove_rule(page: Page, rule: m.Rule) -> None:
    async def act(_: Answer) -> None:
        await page.api.delete_rule(rule.id)
        page.entry.alerts.read_again()

    what = "It goes back to how it came." if rule.built_in else "What it fires now is resolved."
    ask(
        page,
        f"{'Reset' if rule.built_in else 'Delete'} {rule.name}",
        what,
        act,
        verb="Reset" if rule.built_in else "Delete",
        is_danger=True,
        done="Done.",
    )


async def _silences(page: Page) -> None:
    silences = (await page.api.silences()).silences
    page.on_change("new", lambda: _silence(page, {}))
    page.on_change("end", lambda id: _end(page, id))
    page.show(
        h(
            "div",
            h("span", class_="grow"),
            page.button("New silence", "new", kind="main-action"),
            class_="section",
            style="margin-top:0",
        )
    )
    if not silences:
        page.show(
            h(
                "div",
                tables.empty(
                    "No silences",
                    "What is silenced fires, and nobody is told.",
                    "headrace alert silence lunch group='billing*' --for 2h",
                ),
                class_="card",
            )
        )
        return
    now = time.time() * 1000
    column = tables.Column[m.Silence]
    columns = [
        column("Of", lambda s: ", ".join(f"{name} {pattern}" for name, pattern in s.matchers.items()), "name"),
        column("Until", lambda s: formats.moment(s.ends_ms, page.zone), "nowrap"),
        column("By", lambda s: s.created_by or "–"),
        column("Why", lambda s: s.comment, "clip"),
        column(
            "", lambda s: tables.mark("active", "info") if s.starts_ms <= now < s.ends_ms else tables.mark("over", "")
        ),
        column("", lambda s: page.button("End", "end", s.id, "tiny"), "act"),
    ]
    page.show(h("div", tables.table(columns, silences, "Silences"), class_="card"))


def _silence(page: Page, matchers: Mapping[str, str]) -> None:
    fields = [
        Field("rule", "Rule", matchers.get("rule", ""), placeholder="any"),
        Field("topic", "Topic", matchers.get("topic", ""), placeholder="any"),
        Field("group", "Group", matchers.get("group", ""), placeholder="any"),
        Field("queue", "Queue", matchers.get("queue", ""), placeholder="any"),
        Field("owner", "Owner", matchers.get("owner", ""), placeholder="any"),
        Field("hours", "For so many hours", "2", kind="number", required=True),
        Field("comment", "Why", required=True),
    ]

    async def act(answer: Answer) -> None:
        chosen = {name: answer[name] for name in ("rule", "topic", "group", "queue", "owner") if answer.get(name)}
        if not chosen:
            raise ConfigError("a silence must name what it is of")
        now = round(time.time() * 1000)
        body: dict[str, object] = {
            "matchers": chosen,
            "starts_ms": now,
            "ends_ms": now + round(float(answer.get("hours") or 1) * 3_600_000),
            "comment": answer.get("comment", ""),
        }
        await page.api.put_silence(f"s{now}", body)
        page.entry.alerts.read_again()

    def words(answer: Answer) -> str:
        of = "".join(
            f" {quote(f'{name}={answer[name]}')}"
            for name in ("rule", "topic", "group", "queue", "owner")
            if answer.get(name)
        )
        why = f" --comment {quote(answer['comment'])}" if answer.get("comment") else ""
        return f"headrace alert silence ID{of} --for {answer.get('hours') or 1}h{why}"

    ask(
        page,
        "Silence",
        "Alerts that fit fire on, and nobody is told. * and ? are wildcards.",
        act,
        fields,
        verb="Silence",
        equivalent=words,
        is_wide=True,
        done="It is silenced.",
    )


async def _end(page: Page, id: str) -> None:
    await page.api.delete_silence(id)
    page.entry.alerts.read_again()
    page.record("end of a silence", silence=id)
    await page.reload()


async def _channels(page: Page) -> None:
    channels = (await page.api.channels()).channels
    by_id = {each.id: each for each in channels}
    page.on_change("edit", lambda id: _edit_channel(page, by_id.get(id)), Role.ADMIN)
    page.on_change("remove", lambda id: _remove_channel(page, id), Role.ADMIN)
    page.on_change("test", lambda id: _test(page, id))
    page.show(
        h(
            "div",
            h("span", class_="grow"),
            page.button("New channel", "edit", kind="main-action", role=Role.ADMIN),
            class_="section",
            style="margin-top:0",
        )
    )
    if not channels:
        page.show(
            h(
                "div",
                tables.empty(
                    "No channels", "Alerts are shown here. Add a webhook, Slack or e-mail for them to reach people."
                ),
                class_="card",
            )
        )
        return
    column = tables.Column[m.Channel]
    columns = [
        column("Channel", lambda c: c.id, "name"),
        column("Kind", lambda c: tables.mark(c.kind, "plain")),
        column("To", lambda c: h("code", str(c.url or c.to or "kept secret")), "clip"),
        column("Secret", lambda c: "kept" if c.secret_set else "–"),
        column("", lambda c: tables.mark("on", "good") if c.enabled else tables.mark("off", "")),
        column(
            "",
            lambda c: h(
                "span",
                page.button("Test", "test", c.id, "tiny"),
                " ",
                page.button("Edit", "edit", c.id, "tiny", Role.ADMIN),
                " ",
                page.button("Delete", "remove", c.id, "tiny danger", Role.ADMIN),
            ),
            "act",
        ),
    ]
    page.show(h("div", tables.table(columns, channels, "Channels"), class_="card"))


def _edit_channel(page: Page, channel: m.Channel | None) -> None:
    to = (
        ", ".join(map(str, channel.to))
        if channel and isinstance(channel.to, list)
        else str(channel.to or "")
        if channel
        else ""
    )
    fields = [
        Field("id", "Name", channel.id if channel else "", required=True),
        Field(
            "kind",
            "Kind",
            channel.kind if channel else "webhook",
            kind="select",
            choices=[("webhook", "webhook"), ("slack", "Slack or compatible"), ("email", "e-mail")],
        ),
        Field(
            "url",
            "Address",
            channel.url or "" if channel else "",
            placeholder="https://...",
            hint="Of a webhook, or of Slack's incoming webhook.",
        ),
        Field("to", "Recipients", to, hint="Of e-mail, with commas between."),
        Field("secret", "Secret", kind="password", hint="Signs webhooks (Headrace-Signature). Empty: as it is."),
    ]

    async def act(answer: Answer) -> None:
        body: dict[str, object] = {"kind": answer.get("kind", "webhook"), "enabled": True}
        if answer.get("url"):
            body["url"] = answer["url"]
        if answer.get("to"):
            body["to"] = [each.strip() for each in answer["to"].split(",") if each.strip()]
        if answer.get("secret"):
            body["secret"] = answer["secret"]
        await page.api.put_channel(answer.get("id", ""), body)
        page.entry.alerts.read_again()

    ask(
        page,
        "Channel",
        "Rules that name no channel tell all of them.",
        act,
        fields,
        verb="Save",
        done="The channel is saved.",
        is_wide=True,
    )


def _remove_channel(page: Page, id: str) -> None:
    async def act(_: Answer) -> None:
        await page.api.delete_channel(id)
        page.entry.alerts.read_again()

    ask(
        page,
        f"Delete {id}",
        "Nothing is sent to it any more.",
        act,
        verb="Delete",
        is_danger=True,
        done="The channel is deleted.",
    )


async def _test(page: Page, id: str) -> None:
    watch = page.entry.alerts
    await watch.read(page.entry.sampler)
    await watch.send(test_notice(id, time.time()), page.broker)
    page.tell(f"A test notice was sent to {id}.")


async def _history(page: Page) -> None:
    events = await page.entry.alerts.history(page.broker, HISTORY)
    if not events:
        page.show(
            h(
                "div",
                tables.empty("Nothing happened yet", "What fires, who was told and when it was over is listed here."),
                class_="card",
            )
        )
        return
    kinds = {"fired": "bad", "resolved": "good", "notified": "info", "failed": "bad", "acknowledged": "info"}
    column = tables.Column[AlertEvent]
    columns = [
        column("When", lambda e: formats.moment(e.at * 1000, page.zone), "nowrap"),
        column("", lambda e: tables.mark(e.kind, kinds.get(e.kind, ""))),
        column("Alert", lambda e: e.name, "name"),
        column("What", lambda e: e.about, "clip"),
        column("Value", lambda e: formats.count(e.value), "num"),
        column("", lambda e: h("span", e.detail, class_="small muted"), "clip"),
    ]
    page.show(h("div", tables.table(columns, events, "History of alerts"), class_="card"))
