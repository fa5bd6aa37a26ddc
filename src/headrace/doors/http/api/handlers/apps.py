"""Applications of the framework over HTTP: who runs where, and live settings with history, change and undo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.console.apps import EXPIRY_MS, App, Change, Place
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import Requires
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.listing import Visible, listing_answer, listing_of, listing_query, page_of
from headrace.doors.http.api.operations import Operation, Refusal
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import LISTED
from headrace.doors.http.api.schemas import (
    Named,
    Shape,
    anything,
    array,
    flag,
    integer,
    mapping,
    object_of,
    text,
)
from headrace.doors.http.server.messages import HttpError, Request
from headrace.errors import PartitionOffline

PATH = "/v1/apps/{app}"
SORTS = ("app", "owner", "instances")
SETTINGS = (
    *("workers", "rate", "credit", "batch", "batch_wait", "attempts", "ladder", "pause", "log_level", "log_sample"),
)
UNKNOWN = Refusal(404, "UnknownApp")
ERRORS = (UNKNOWN, PartitionOffline)


def on_app(*operations: Right) -> tuple[Requires, ...]:
    """Rights on an application."""
    return tuple(Requires(each, Resource.APP, "{app}") for each in operations)


SUMMARY: Mapping[str, Shape] = {
    "app": text(),
    "owner": text(),
    "description": text(),
    "contacts": array(text()),
    "version": text("Of the framework."),
    "instances": integer("That run."),
    "lost": integer("That were not heard of for 30 s."),
    "reads": array(text(), "Topics."),
    "sends": array(text()),
    "settings": integer("Live ones."),
}
LIVE = object_of(
    {"subscription": text("TOPIC/GROUP; empty: all."), "setting": text(), "value": anything(), "by": text()},
    {"at_ms": integer(), "offset": integer()},
)
CHANGE = object_of(
    {
        "offset": integer("What an undo names."),
        "at_ms": integer(),
        "by": text(),
        "subscription": text(),
        "setting": text(),
        "before": anything("Null: the code's value."),
        "after": anything("Null: the code's value."),
    }
)
APP = Named(
    "App",
    object_of(
        {
            **SUMMARY,
            "subscriptions": array(mapping(anything()), "As the code has them."),
            "code_settings": mapping(anything(), "Of the whole application, as the code has them."),
            "live": array(LIVE),
            "revision": integer("The offset of the last change; -1: none."),
            "instance_list": array(
                object_of(
                    {
                        "id": text(),
                        "host": text(),
                        "pid": integer(),
                        "started_ms": integer(),
                        "seen_ms": integer(),
                        "lost": flag(),
                        "follows": flag("It has applied the last change."),
                        "refused": mapping(text(), "By setting, why not."),
                    }
                )
            ),
        }
    ),
)
CHANGED = object_of(
    {
        "app": text(),
        "changed": array(
            object_of({"subscription": text(), "setting": text(), "before": anything(), "after": anything()})
        ),
        "dry_run": flag(),
    }
)


@Operation(
    "GET",
    "/v1/apps",
    "Lists the applications of the framework: searched, sorted, and in pages.",
    rights=LISTED,
    query=listing_query(SORTS),
    answer=listing_answer("apps", Named("AppSummary", object_of(SUMMARY))),
    errors=(PartitionOffline,),
    command="app list",
)
async def list_apps(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    listing = listing_of(fields, SORTS)
    fields.end()
    apps = await broker.apps.read()
    rows = [_summary(broker, app) for app in apps.values()]
    visible = Visible(broker.security, request.session, Resource.APP)
    found = await page_of(rows, listing, lambda row: str(row["app"]), lambda row: row[listing.sort], visible)
    return {"apps": found.items, "total": found.total, "offset": listing.offset}


@Operation(
    "GET",
    PATH,
    "Shows an application with its instances and live settings.",
    rights=on_app(Right.DESCRIBE),
    answer=APP,
    errors=ERRORS,
    command="app show APP",
)
async def show_app(broker: Broker, request: Request, names: Names) -> Answer:
    app = await _find(broker, names["app"])
    now = broker.runtime.clock.now_ms()
    code = app.code or {}
    return {
        **_summary(broker, app),
        "subscriptions": list(code.get("subscriptions", ())),
        "code_settings": dict(code.get("settings", {})),
        "live": [
            {
                "subscription": subscription,
                "setting": setting,
                "value": kept.get("value"),
                "by": str(kept.get("by", "")),
                "at_ms": int(kept.get("at_ms", 0)),
                "offset": offset,
            }
            for (subscription, setting), (offset, kept) in sorted(app.live.items(), key=lambda each: each[0])
        ],
        "revision": app.revision,
        "instance_list": [
            {
                "id": id,
                "host": str(kept.get("host", "")),
                "pid": int(kept.get("pid", 0)),
                "started_ms": int(kept.get("started_ms", 0)),
                "seen_ms": seen,
                "lost": now - seen >= EXPIRY_MS,
                "follows": int(kept.get("applied", 0)) > app.revision,
                "refused": {str(name): str(why) for name, why in kept.get("refused", {}).items()},
            }
            for id, (seen, kept) in sorted(app.instances.items())
        ],
    }


@Operation(
    "PATCH",
    PATH + "/live",
    "Changes live settings of an application, or resets them. Its instances follow at once.",
    rights=on_app(Right.ALTER),
    doc="An instance that cannot take a value keeps the old one and says why: see `refused` of the application.",
    body=object_of(
        {},
        {
            "subscription": text("TOPIC/GROUP; without it, for all."),
            "settings": mapping(anything(), f"Of {', '.join(SETTINGS)}; null: the code's value again."),
            "dry_run": flag("Only show what would change."),
        },
    ),
    answer=CHANGED,
    errors=ERRORS,
    command="app set APP",
)
async def change_live_settings(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    subscription, given, dry_run = fields.text("subscription"), fields.object("settings"), fields.flag("dry_run")
    fields.end()
    if not given:
        raise bad_request(f"settings has nothing: it can have {', '.join(SETTINGS)}")
    for name, value in given.items():
        _check(name, value)
    app = await _find(broker, names["app"])
    known = [f"{each.get('topic')}/{each.get('group')}" for each in (app.code or {}).get("subscriptions", ())]
    if subscription and subscription not in known:
        there = ", ".join(known) or "none"
        raise bad_request(f"there is no subscription {subscription!r}. Known subscriptions: {there}")
    wanted = {(subscription, name): value for name, value in given.items()}
    return await _change(broker, request, app, wanted, dry_run)


@Operation(
    "GET",
    PATH + "/history",
    "Lists the changes of an application's live settings, the newest first, as far as they are kept.",
    rights=on_app(Right.DESCRIBE),
    answer=object_of({"changes": array(CHANGE)}),
    errors=ERRORS,
    command="app history APP",
)
async def list_live_changes(broker: Broker, request: Request, names: Names) -> Answer:
    app = await _find(broker, names["app"])
    return {"changes": [each._asdict() for each in reversed(app.changes)]}


@Operation(
    "POST",
    PATH + "/undo",
    "Undoes a change of a live setting, unless it was changed again since.",
    rights=on_app(Right.ALTER),
    body=object_of({"offset": integer("Of the change, as the history has it.", 0)}, {"dry_run": flag()}),
    answer=CHANGED,
    errors=(*ERRORS, Refusal(409, "ChangedSince")),
    command="app undo APP",
)
async def undo_live_change(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    offset, dry_run = fields.number("offset", -1, -1), fields.flag("dry_run")
    fields.end()
    app = await _find(broker, names["app"])
    change = next((each for each in app.changes if each.offset == offset), None)
    if change is None:
        raise bad_request(f"offset is {offset}: no change of {app.name!r} that is kept has it")
    place = (change.subscription, change.setting)
    if _latest(app, place).offset != offset:
        message = f"{change.setting} was changed again since: undo that first, or set it"
        raise HttpError(409, "ChangedSince", message)
    return await _change(broker, request, app, {place: change.before}, dry_run)


def _latest(app: App, place: Place) -> Change:
    latest: Change = next(each for each in reversed(app.changes) if (each.subscription, each.setting) == place)
    return latest


async def _change(broker: Broker, request: Request, app: App, wanted: Mapping[Place, Any], dry_run: bool) -> Answer:
    before = {place: app.live[place][1].get("value") if place in app.live else None for place in wanted}
    values = {place: value for place, value in wanted.items() if value != before[place]}
    if values and not dry_run:
        await broker.apps.write(app.name, values, request.session.user or request.session.host)
        detail = ", ".join(f"{setting}={value}" for (_, setting), value in values.items())
        broker.audit.record(request.session, "app.set", Resource.APP, app.name, detail=detail)
    return {
        "app": app.name,
        "changed": [
            {"subscription": place[0], "setting": place[1], "before": before[place], "after": value}
            for place, value in values.items()
        ],
        "dry_run": dry_run,
    }


def _check(name: str, value: object) -> None:
    if name not in SETTINGS:
        raise bad_request(f"there is no live setting {name!r}. Use one of {', '.join(SETTINGS)}.")
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if name == "pause":
        fits, wanted = isinstance(value, bool), "true or false"
    elif name == "ladder":
        fits = isinstance(value, list) and len(value) <= 100 and all(isinstance(each, int | float) for each in value)
        wanted = "a list of seconds"
    elif name == "log_level":
        fits, wanted = isinstance(value, str) and len(value) < 20, "the name of a level"
    elif name in ("rate", "batch_wait", "log_sample"):
        fits, wanted = is_number, "a number, 0 or more"
    else:
        fits, wanted = is_number and isinstance(value, int) and value >= 1, "a whole number, 1 or more"
    if not fits:
        raise bad_request(f"{name} must be {wanted} (got {value!r})")


async def _find(broker: Broker, name: str) -> App:
    app = (await broker.apps.read()).get(name)
    if app is None:
        raise HttpError(404, "UnknownApp", f"there is no application {name!r}: it registers itself when it starts")
    return app


def _summary(broker: Broker, app: App) -> dict[str, Any]:
    code = app.code or {}
    now = broker.runtime.clock.now_ms()
    running = sum(now - seen < EXPIRY_MS for seen, _ in app.instances.values())
    return {
        "app": app.name,
        "owner": str(code.get("owner", "")),
        "description": str(code.get("description", "")),
        "contacts": [str(each) for each in code.get("contacts", ())],
        "version": str(code.get("version", "")),
        "instances": running,
        "lost": len(app.instances) - running,
        "reads": sorted({str(each.get("topic", "")) for each in code.get("subscriptions", ())}),
        "sends": sorted({*app.sends, *(str(each.get("name", "")) for each in code.get("topics", ()))}),
        "settings": len(app.live),
    }
