"""One application: its instances, its live settings with who set them, their history, and undoing a change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from shlex import quote
from typing import Any

from headrace.console.client import models as m
from headrace.console.pages.apps import instances_mark
from headrace.console.ui import formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.markup import Html, h
from headrace.console.ui.page import Page
from headrace.errors import ConfigError

SETTINGS = {
    "workers": "handlers that run at a time, in each instance",
    "rate": "messages a second, in each instance; 0: no limit",
    "credit": "messages fetched ahead, in each instance",
    "batch": "messages of one call, for handlers of lists",
    "attempts": "attempts before a message is given up",
    "ladder": "delays between attempts in seconds, with commas between",
    "pause": "true: take nothing",
    "log_level": "of the lines about messages",
}


async def build(page: Page) -> None:
    name = page.query.get("name", "")
    app = await page.api.app(name)
    page.on_change("set", lambda arg: _set(page, app, arg))
    page.on_change("undo", lambda offset: _undo(page, app, history, int(offset)))
    history = (await page.api.app_history(name)).changes
    sub = [
        app.description or None,
        " · " if app.description else None,
        f"owned by {app.owner}" if app.owner else "no owner",
        f" · {', '.join(app.contacts)}" if app.contacts else None,
    ]
    page.head(
        name, sub, page.button("Change a setting", "set", kind="main-action"), h("a", "Apps", href=page.link("/apps"))
    )
    page.show(h("div", h("h2", "Live settings"), class_="section"), _live(page, app))
    page.show(h("div", h("h2", "History"), class_="section"), _history(page, history))
    page.show(h("div", h("h2", "Instances"), instances_mark(app), class_="section"), _instances(page, app))
    page.show(h("div", h("h2", "What it reads"), class_="section"), _subscriptions(page, app))


def _live(page: Page, app: m.AppDetail) -> Html:
    if not app.live:
        return h(
            "div",
            tables.empty(
                "Nothing is set from outside",
                "Every setting has the value of the code. A change reaches all instances in about 50 ms.",
            ),
            class_="card",
        )
    column = tables.Column[m.LiveSetting]
    columns = [
        column("Setting", lambda s: h("code", s.setting), "name"),
        column("Of", lambda s: s.subscription or "all subscriptions"),
        column("Value", lambda s: h("code", written(s.value))),
        column("In the code", lambda s: h("code", written(code_value(app, s.setting, s.subscription)) or "–")),
        column("By", lambda s: s.by or "–"),
        column("Since", lambda s: formats.moment(s.at_ms, page.zone), "nowrap"),
        column("", lambda s: page.button("Change", "set", f"{s.setting}|{s.subscription}", "tiny"), "act"),
    ]
    return h("div", tables.table(columns, app.live, "Live settings"), class_="card")


def _history(page: Page, changes: list[m.LiveChange]) -> Html:
    if not changes:
        return h(
            "div",
            tables.empty("No changes yet", "Each change of a live setting is listed here, with what it was before."),
            class_="card",
        )
    column = tables.Column[m.LiveChange]
    columns = [
        column("When", lambda c: formats.moment(c.at_ms, page.zone), "nowrap"),
        column("By", lambda c: c.by or "–"),
        column(
            "Setting", lambda c: h("code", f"{c.subscription}.{c.setting}" if c.subscription else c.setting), "name"
        ),
        column("Change", lambda c: h("span", h("code", plain(c.before)), " → ", h("code", plain(c.after)))),
        column("", lambda c: page.button("Undo", "undo", str(c.offset), "tiny", label=f"Undo {c.setting}"), "act"),
    ]
    return h("div", tables.table(columns, changes[:50], "History of live settings"), class_="card")


def plain(value: Any) -> str:
    return "the code's" if value is None else written(value)


def _instances(page: Page, app: m.AppDetail) -> Html:
    if not app.instance_list:
        return h("div", tables.empty("No instance runs", "Instances report every ten seconds."), class_="card")
    now = page.sampler.table.at_ms
    column = tables.Column[m.Instance]
    columns = [
        column("Instance", lambda i: h("code", i.id[:12]), "name"),
        column("Host", lambda i: f"{i.host} {i.pid or ''}"),
        column("Runs since", lambda i: formats.moment(i.started_ms, page.zone), "nowrap"),
        column("Seen", lambda i: formats.ago(i.seen_ms, now), "nowrap"),
        column("State", lambda i: tables.mark("lost", "bad") if i.lost else tables.mark("runs", "good")),
        column("Refused", lambda i: str(i.refused) if i.refused else "", "clip"),
    ]
    return h("div", tables.table(columns, app.instance_list, "Instances"), class_="card")


def _subscriptions(page: Page, app: m.AppDetail) -> Html:
    if not app.subscriptions:
        return h("div", tables.empty("It reads nothing", "It may still send."), class_="card")
    column = tables.Column[dict[str, Any]]
    columns = [
        column(
            "Topic", lambda s: h("a", str(s.get("topic")), href=page.link("/topic", name=str(s.get("topic")))), "name"
        ),
        column("Scenario", lambda s: str(s.get("scenario") or "–")),
        column("Group", lambda s: str(s.get("group") or "–")),
        column("Handler", lambda s: h("code", str(s.get("handler") or "–")), "clip"),
        column(
            "In the code",
            lambda s: h("code", ", ".join(f"{k}={v}" for k, v in (s.get("tuning") or {}).items())),
            "clip",
        ),
    ]
    return h("div", tables.table(columns, app.subscriptions, "Subscriptions"), class_="card")


def code_value(app: m.AppDetail, setting: str, subscription: str) -> Any:
    """What the code has; None where it says nothing, or its subscriptions differ."""
    if setting in app.code_settings:
        return app.code_settings[setting]
    values = [
        row["tuning"][setting]
        for row in app.subscriptions
        if setting in row.get("tuning", {}) and subscription in ("", subscription_of(row))
    ]
    return values[0] if values and all(each == values[0] for each in values) else None


def subscription_of(row: Mapping[str, Any]) -> str:
    """The name of a subscription, as live settings have it."""
    return f"{row.get('topic')}/{row.get('group')}"


def current(app: m.AppDetail, setting: str, subscription: str) -> str:
    """The value that counts now: what is set from outside, else the code's."""
    for each in app.live:
        if each.setting == setting and each.subscription == subscription:
            return written(each.value)
    return written(code_value(app, setting, subscription))


def written(value: Any) -> str:
    """A value as people write it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def parsed(setting: str, words: str) -> object:
    """What was written, as the setting's type; nothing: back to the code's."""
    if not words:
        return None
    if setting == "log_level":
        return words
    try:
        return json.loads(f"[{words.strip('[]')}]" if setting == "ladder" else words)
    except ValueError:
        raise ConfigError(f"{setting} cannot be {words!r}") from None


def _set(page: Page, app: m.AppDetail, arg: str) -> None:
    setting, _, subscription = arg.partition("|")
    setting = setting or "workers"
    names = [subscription_of(each) for each in app.subscriptions]
    now = current(app, setting, subscription)
    fields = [
        Field(
            "setting",
            "Setting",
            setting,
            kind="select",
            choices=[(name, f"{name}: {doc}") for name, doc in SETTINGS.items()],
        ),
        Field(
            "subscription",
            "Of",
            subscription,
            kind="select",
            choices=[("", "all subscriptions"), *((each, each) for each in names)],
        ),
        Field(
            "value", "Value", now, hint=f"Now {now}. Empty: the code's value." if now else "Empty: the code's value."
        ),
    ]

    async def act(answer: Answer) -> None:
        value = answer.get("value", "").strip()
        chosen = answer.get("setting", "")
        if chosen not in SETTINGS:
            raise ConfigError(f"there is no setting {chosen!r}")
        await page.api.change_app(app.app, answer.get("subscription", ""), {chosen: parsed(chosen, value)})

    def words(answer: Answer) -> str:
        of = f" --subscription {quote(answer['subscription'])}" if answer.get("subscription") else ""
        return f"headrace app set {quote(app.app)}{of} {answer.get('setting', '')}={quote(answer.get('value', ''))}"

    ask(
        page,
        f"Change a setting of {app.app}",
        f"{formats.plural(app.instances, 'instance')} follow in about 50 ms, without a restart.",
        act,
        fields,
        verb="Change",
        equivalent=words,
        done="It is changed.",
    )


def _undo(page: Page, app: m.AppDetail, changes: list[m.LiveChange], offset: int) -> None:
    change = next((each for each in changes if each.offset == offset), None)
    if change is None:
        raise ConfigError("this change is not listed any more")

    async def act(_: Answer) -> None:
        await page.api.undo_app(app.app, offset)

    value = written(change.before)
    of = f" --subscription {quote(change.subscription)}" if change.subscription else ""
    ask(
        page,
        f"Undo the change of {change.setting}",
        h("span", h("code", change.setting), " goes back to ", h("code", plain(change.before)), "."),
        act,
        verb="Undo",
        done="It is undone.",
        equivalent=f"headrace app set {quote(app.app)}{of} {change.setting}={quote(value)}",
    )
