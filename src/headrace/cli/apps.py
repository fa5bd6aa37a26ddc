"""`headrace app`: the registered applications, their settings, and the instances that apply them."""

from __future__ import annotations

import asyncio
import getpass
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.connect import connects
from headrace.cli.options import Yes, assignments, extra, formats
from headrace.cli.output import confirm, print_json
from headrace.cli.output import show as show_rows
from headrace.cli.over_http import Api, over_http
from headrace.client import Client
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.sdk.registry import Directory, Instance, Registration, Registry, SubscriptionEntry

app = typer.Typer(help="Shows applications of the framework, and changes their settings.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="APP", help="The application's name.")]
# How often a waiting command looks for instances that died meanwhile.
LOOK_SECONDS = 1.0


def _registry() -> ModuleType:
    with extra("sdk"):
        from headrace.sdk import registry
    return registry


async def _read(client: Client) -> Registry:
    registry: Registry = _registry().Registry(client)
    await registry.open(create=False)
    return registry


def _find_app(directory: Directory, name: str) -> Registration:
    found = directory.apps.get(name)
    if found is None:
        there = ", ".join(sorted(directory.apps)) or "none"
        raise HeadraceError(f"no application {name!r} is registered. Registered: {there}.")
    return found


@app.command("list")
@connects
@formats
async def list_apps(
    client: Client,
    as_json: bool,
    topic: Annotated[str, typer.Option(help="Only applications that read this topic, or send to it.")] = "",
) -> None:
    """Lists the applications."""
    registry = await _read(client)
    rows = [_row(registry.directory, each) for _, each in sorted(registry.directory.apps.items())]
    await registry.close()
    if topic:
        rows = [row for row in rows if topic in row["reads"] or topic in row["sends"]]
    columns = {
        **{each: each for each in ("app", "owner", "instances", "lost")},
        "reads": lambda row: ", ".join(row["reads"]),
        "sends": lambda row: ", ".join(row["sends"]),
        **{each: each for each in ("settings", "description")},
    }
    show_rows(rows, as_json, columns)


def _row(directory: Directory, registered: Registration) -> dict[str, Any]:
    name = registered.app
    alive, lost = _instances(directory, name)
    return {
        "app": name,
        "owner": registered.owner,
        "instances": len(alive),
        "lost": len(lost),
        "reads": sorted({each.topic for each in registered.subscriptions}),
        "sends": sorted({each.name for each in registered.topics} | directory.sends.get(name, set())),
        "settings": len(directory.settings.get(name, {})),
        "description": registered.description,
        "contacts": list(registered.contacts),
    }


def _instances(directory: Directory, name: str) -> tuple[list[Instance], list[Instance]]:
    """The running instances, and those whose heartbeats are overdue."""
    now_ms = time.time_ns() // 1_000_000
    every = sorted(directory.instances.get(name, {}).values(), key=lambda each: each.started_ms)
    return [each for each in every if each.alive(now_ms)], [each for each in every if not each.alive(now_ms)]


@app.command()
@connects
@formats
async def show(client: Client, as_json: bool, name: Name) -> None:
    """Shows an application: its settings in code, its live settings, and its instances."""
    registry = await _read(client)
    await registry.close()
    directory = registry.directory
    found = _describe(directory, _find_app(directory, name))
    if as_json:
        print_json(found)
    else:
        _print(found)


def _describe(directory: Directory, registered: Registration) -> dict[str, Any]:
    name = registered.app
    alive, lost = _instances(directory, name)
    revision = directory.revisions.get(name, -1)
    declared = {each.name: each for each in registered.topics}
    topics = [
        {
            "topic": each,
            "owner": declared[each].owner or registered.owner if each in declared else None,
            "description": declared[each].description if each in declared else None,
            "contacts": list(declared[each].contacts or registered.contacts) if each in declared else [],
            "sent": each in directory.sends.get(name, set()),
        }
        for each in sorted(declared.keys() | directory.sends.get(name, set()))
    ]
    return {
        "app": name,
        "owner": registered.owner,
        "description": registered.description,
        "contacts": list(registered.contacts),
        "version": registered.version,
        "registered_ms": registered.at_ms,
        "settings": _values(directory, name, "", registered.settings),
        "subscriptions": [
            {
                "subscription": each.name,
                "topic": each.topic,
                "group": each.group,
                "scenario": each.scenario,
                "wire": each.wire,
                "handler": each.handler,
                "ordered_by": each.ordered_by,
                "description": each.description,
                "settings": _values(directory, name, each.name, {**asdict(each.tuning), "pause": False}),
            }
            for each in registered.subscriptions
        ],
        "topics": topics,
        "instances": [
            _instance(each, state, each.applied > revision)
            for state, instances in (("running", alive), ("lost", lost))
            for each in instances
        ],
    }


def _values(directory: Directory, name: str, subscription: str, code: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in code, each with the live setting of the subscription, or of all subscriptions."""
    live = directory.settings.get(name, {})
    found = {}
    for setting, value in code.items():
        over = live.get((subscription, setting)) or live.get(("", setting))
        found[setting] = {"code": value}
        if over is not None:
            found[setting] |= {"live": over.value, "by": over.by, "at_ms": over.at_ms}
    return found


def _instance(each: Instance, state: str, follows: bool) -> dict[str, Any]:
    return {
        "instance": each.id,
        "host": each.host,
        "pid": each.pid,
        "state": state,
        "started_ms": each.started_ms,
        "seen_ms": each.seen_ms,
        "follows": follows and state == "running",
        "refused": dict(each.refused),
    }


def _print(found: Mapping[str, Any]) -> None:
    for name in ("app", "owner", "description"):
        if found[name]:
            print(f"{name}: {found[name]}")
    if found["contacts"]:
        print(f"contacts: {', '.join(found['contacts'])}")
    print(f"registered: {_moment(found['registered_ms'])}, headrace {found['version']}")
    _print_values(found["settings"])
    for each in found["subscriptions"]:
        print(f"\nsubscription {each['subscription']}: {each['scenario']} by {each['wire']}, handler {each['handler']}")
        if each["description"]:
            print(each["description"])
        _print_values(each["settings"])
    if found["topics"]:
        print("\nsends to")
        rows = [{**each, "contacts": ", ".join(each["contacts"]) or None} for each in found["topics"]]
        show_rows(rows, False, ("topic", "owner", "contacts", "description"))
    print()
    _print_instances(found["instances"])


def _print_values(settings: Mapping[str, Mapping[str, Any]]) -> None:
    from headrace.sdk.settings import format_value

    rows = [
        {
            "setting": name,
            "code": format_value(each["code"]),
            "live": format_value(each["live"]) if "live" in each else None,
            "by": f"{each['by']}, {_moment(each['at_ms'])}" if "live" in each else None,
        }
        for name, each in settings.items()
    ]
    show_rows(rows, False, ("setting", "code", "live", "by"))


def _print_instances(instances: Sequence[Mapping[str, Any]]) -> None:
    if not instances:
        print("no instance runs")
        return
    columns = {
        **{each: each for each in ("instance", "host", "pid", "state")},
        "started": lambda each: _moment(each["started_ms"]),
        "seen": lambda each: f"{max(time.time() - each['seen_ms'] / 1_000, 0.0):.0f} s ago",
        "follows": lambda each: "yes" if each["follows"] else "no",
        "refused": lambda each: "; ".join(f"{what}: {why}" for what, why in each["refused"].items()) or None,
    }
    show_rows(instances, False, columns)


def _moment(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1_000))


# --- setting ----------------------------------------------------------------------------------------------------------


@app.command("set")
@connects
@formats
async def set_settings(
    client: Client,
    as_json: bool,
    name: Name,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="An empty value restores the setting in code.")
    ] = None,
    subscription: Annotated[
        str, typer.Option(metavar="TOPIC/GROUP", help="Only for this subscription; GROUP is optional.")
    ] = "",
    reset: Annotated[bool, typer.Option("--reset", help="Restore the settings in code, except those given.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until every running instance applies the settings.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait.")] = 15.0,
) -> None:
    """Changes settings of a running application: workers, rate, pause, attempts, ladder, credit, log_level, ..."""
    registry = await _read(client)
    directory = registry.directory
    registered = _find_app(directory, name)
    scope = _scope(registered.subscriptions, subscription) if subscription else ""
    wanted = _parse_settings(assignments(settings or (), "setting"), scope)
    there = directory.settings.get(name, {})
    if reset:
        wanted = {place: None for place in there if not scope or place[0] == scope} | wanted
    elif not wanted:
        raise HeadraceError(f"no setting is given. Use NAME=VALUE with {_names()}; or --reset.")
    live = _registry().LIVE
    values: dict[tuple[str, ...], Any] = {
        (live, name, *place): value for place, value in wanted.items() if value is not None or place in there
    }
    began = time.monotonic()
    offset = await registry.write(values) if values else directory.revisions.get(name, -1)
    followed = True
    if wait:
        followed = await _all_follow(registry, name, offset, timeout)
    await registry.close()
    alive, _ = _instances(directory, name)
    instances = [_instance(each, "running", each.applied > offset) for each in alive]
    if as_json:
        changed = [
            {"subscription": scope, "setting": each, "value": value and value.value}
            for (scope, each), value in wanted.items()
        ]
        print_json({"app": name, "revision": offset, "changed": changed, "instances": instances})
    elif not instances:
        print("no instance runs. Instances that start will apply it.")
    elif not wait:
        print(f"written; {len(instances)} instances run")
    else:
        count = sum(each["follows"] for each in instances)
        print(f"{count} of {len(instances)} instances follow, after {time.monotonic() - began:.2f} s")
        _print_instances(instances)
    if not followed:
        late = ", ".join(each["instance"] for each in instances if not each["follows"])
        raise HeadraceError(f"instances of {name} did not apply the settings within {timeout:g} s: {late}")
    if wait:
        _check_refused(name, instances, wanted)


def _names() -> str:
    from headrace.sdk.settings import MEANINGS

    return ", ".join(MEANINGS)


def _scope(subscriptions: Iterable[SubscriptionEntry], wanted: str) -> str:
    names = [each.name for each in subscriptions]
    found = [wanted] if wanted in names else [each.name for each in subscriptions if each.topic == wanted]
    if len(found) != 1:
        which = "there are" if not found else "it could be"
        raise HeadraceError(f"--subscription {wanted!r}: {which} {', '.join(found or names) or 'none'}")
    return found[0]


def _parse_settings(texts: Mapping[str, str], scope: str) -> dict[tuple[str, str], Any]:
    """The records to write, by subscription and setting; None deletes one."""
    from headrace.sdk.registry import Setting
    from headrace.sdk.settings import MEANINGS, WHOLE, BadSetting, parse

    by = f"{getpass.getuser()}@{socket.gethostname()}"
    now_ms = time.time_ns() // 1_000_000
    found: dict[tuple[str, str], Any] = {}
    for name, text in texts.items():
        if name not in MEANINGS:
            meanings = "".join(f"\n  {each}: {meaning}" for each, meaning in MEANINGS.items())
            raise HeadraceError(f"there is no setting {name!r}. The settings are:{meanings}")
        if scope and name in WHOLE:
            raise HeadraceError(f"{name} is a setting of the whole application. Set it without --subscription.")
        try:
            found[scope, name] = Setting(parse(name, text), by, now_ms) if text else None
        except BadSetting as error:
            raise HeadraceError(str(error)) from None
    return found


async def _all_follow(registry: Registry, name: str, offset: int, seconds: float) -> bool:
    """Wait until every running instance has applied the record at this offset; false on a timeout."""
    end = time.monotonic() + seconds
    while True:
        alive, _ = _instances(registry.directory, name)
        if all(each.applied > offset for each in alive):
            return True
        left = end - time.monotonic()
        if left <= 0:
            return False
        try:
            async with asyncio.timeout(min(left, LOOK_SECONDS)):
                await registry.next()
        except TimeoutError:
            pass


def _check_refused(name: str, instances: Iterable[Mapping[str, Any]], wanted: Mapping[tuple[str, str], Any]) -> None:
    places = {f"{scope or '*'} {setting}" for scope, setting in wanted}
    refused = {
        each["instance"]: each["refused"][place] for each in instances for place in places & each["refused"].keys()
    }
    if refused:
        reasons = "; ".join(f"{instance}: {why}" for instance, why in refused.items())
        raise HeadraceError(f"instances of {name} keep their old values: {reasons}")


@app.command()
@connects
async def forget(client: Client, name: Name, yes: Yes = False) -> None:
    """Deletes an application and its live settings from the registry. No instance may run."""
    registry = await _read(client)
    directory = registry.directory
    keys = list(directory.keys(name))
    if not keys:
        _find_app(directory, name)
    alive, _ = _instances(directory, name)
    if alive:
        where = ", ".join(f"{each.host}:{each.pid}" for each in alive)
        raise HeadraceError(f"{name} runs at {where}. Stop it first: it would register again.")
    if not yes:
        confirm(f"Forget {name}: {len(keys)} records?")
    await registry.write(dict.fromkeys(keys))
    await registry.close()


@app.command()
@over_http
def history(api: Api, name: Name) -> None:
    """Lists the changes of an application's live settings, the newest first."""
    show_rows(
        api.get(f"/v1/apps/{quote(name, safe='')}/history")["changes"],
        api.as_json,
        {
            "offset": "offset",
            "at": lambda each: _moment(each["at_ms"]),
            **{name: name for name in ("by", "subscription", "setting", "before", "after")},
        },
    )


@app.command()
@over_http
def undo(
    api: Api,
    name: Name,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="As `app history` shows it.")],
) -> None:
    """Undoes a change of a live setting, unless it was changed again since."""
    api.print_answer(api.ask("POST", f"/v1/apps/{quote(name, safe='')}/undo", {"offset": offset}))
