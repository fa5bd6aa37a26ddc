"""`headrace app`: the applications that are registered, how they are set, and who follows."""

from __future__ import annotations

import asyncio
import getpass
import json
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import assignments, confirm, connects
from headrace.cli.connect import show as show_rows
from headrace.cli.over_http import Format, FormatOption, JsonOption, Yes
from headrace.client import Client
from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.sdk.registry import Directory, Instance, Registration, Registry, SubscriptionEntry

app = typer.Typer(help="Applications of the framework: who is there, and how they are set.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="APP", help="The application's name.")]
# Whoever waits looks this often for instances that died meanwhile.
LOOK_SECONDS = 1.0


def _registry() -> ModuleType:
    """The framework is an extra."""
    try:
        from headrace.sdk import registry
    except ModuleNotFoundError as error:
        raise ConfigError(f"the framework needs {error.name}: pip install 'headrace[sdk]'") from None
    return registry


async def _read(client: Client) -> Registry:
    registry: Registry = _registry().Registry(client)
    await registry.open(create=False)
    return registry


def _known(directory: Directory, name: str) -> Registration:
    found = directory.apps.get(name)
    if found is None:
        there = ", ".join(sorted(directory.apps)) or "none"
        raise HeadraceError(f"no application {name!r} is registered; there is {there}")
    return found


@app.command("list")
@connects
async def list_apps(
    client: Client,
    topic: Annotated[str, typer.Option(help="Only those that read this topic, or send to it.")] = "",
    output: FormatOption = Format.TABLE,
    output_json: JsonOption = False,
) -> None:
    """List the applications."""
    registry = await _read(client)
    rows = [_row(registry.directory, each) for _, each in sorted(registry.directory.apps.items())]
    await registry.close()
    if topic:
        rows = [row for row in rows if topic in row["reads"] or topic in row["sends"]]
    if output_json or output is Format.JSON:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for row in rows:
        row |= {name: ", ".join(row[name]) for name in ("reads", "sends")}
    columns = ("app", "owner", "instances", "lost", "reads", "sends", "settings", "description")
    show_rows(rows, False, {each: each for each in columns})


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
    """Those that were heard of lately, and the others."""
    now_ms = time.time_ns() // 1_000_000
    every = sorted(directory.instances.get(name, {}).values(), key=lambda each: each.started_ms)
    return [each for each in every if each.alive(now_ms)], [each for each in every if not each.alive(now_ms)]


@app.command()
@connects
async def show(
    client: Client, name: Name, output: FormatOption = Format.TABLE, output_json: JsonOption = False
) -> None:
    """Show an application: what its code says, what was set, and which instances follow."""
    registry = await _read(client)
    await registry.close()
    directory = registry.directory
    shown = _shown(directory, _known(directory, name))
    if output_json or output is Format.JSON:
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        _print(shown)


def _shown(directory: Directory, registered: Registration) -> dict[str, Any]:
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
    """What the code says, each with what was set for the subscription, or for all of them."""
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


def _print(shown: Mapping[str, Any]) -> None:
    for name in ("app", "owner", "description"):
        if shown[name]:
            print(f"{name}: {shown[name]}")
    if shown["contacts"]:
        print(f"contacts: {', '.join(shown['contacts'])}")
    print(f"registered: {_moment(shown['registered_ms'])}, headrace {shown['version']}")
    _print_values(shown["settings"])
    for each in shown["subscriptions"]:
        print(f"\nsubscription {each['subscription']}: {each['scenario']} by {each['wire']}, handler {each['handler']}")
        if each["description"]:
            print(each["description"])
        _print_values(each["settings"])
    if shown["topics"]:
        print("\nsends to")
        rows = [{**each, "contacts": ", ".join(each["contacts"]) or None} for each in shown["topics"]]
        show_rows(rows, False, {each: each for each in ("topic", "owner", "contacts", "description")})
    print()
    _print_instances(shown["instances"])


def _print_values(settings: Mapping[str, Mapping[str, Any]]) -> None:
    from headrace.sdk.settings import shown

    rows = [
        {
            "setting": name,
            "code": shown(each["code"]),
            "live": shown(each["live"]) if "live" in each else None,
            "by": f"{each['by']}, {_moment(each['at_ms'])}" if "live" in each else None,
        }
        for name, each in settings.items()
    ]
    show_rows(rows, False, {each: each for each in ("setting", "code", "live", "by")})


def _print_instances(instances: Sequence[Mapping[str, Any]]) -> None:
    if not instances:
        print("no instance runs")
        return
    rows = [
        {
            **each,
            "started": _moment(each["started_ms"]),
            "seen": f"{max(time.time() - each['seen_ms'] / 1_000, 0.0):.0f} s ago",
            "follows": "yes" if each["follows"] else "no",
            "refused": "; ".join(f"{what}: {why}" for what, why in each["refused"].items()) or None,
        }
        for each in instances
    ]
    columns = ("instance", "host", "pid", "state", "started", "seen", "follows", "refused")
    show_rows(rows, False, {each: each for each in columns})


def _moment(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1_000))


# --- setting ----------------------------------------------------------------------------------------------------------


@app.command("set")
@connects
async def set_settings(
    client: Client,
    name: Name,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="No value: what the code says holds again.")
    ] = None,
    subscription: Annotated[
        str, typer.Option(metavar="TOPIC/GROUP", help="Only for this subscription; the group may be left out.")
    ] = "",
    reset: Annotated[
        bool, typer.Option("--reset", help="What the code says holds again, for all that was set.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until every running instance follows.")] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait.")] = 15.0,
    output: FormatOption = Format.TABLE,
    output_json: JsonOption = False,
) -> None:
    """Change how an application works while it runs: workers, rate, pause, attempts, ladder, credit, log_level, ..."""
    registry = await _read(client)
    directory = registry.directory
    registered = _known(directory, name)
    scope = _scope(registered.subscriptions, subscription) if subscription else ""
    wanted = _wanted(assignments(settings or (), "setting"), scope)
    there = directory.settings.get(name, {})
    if reset:
        wanted = {place: None for place in there if not scope or place[0] == scope} | wanted
    elif not wanted:
        raise HeadraceError(f"nothing to set: give NAME=VALUE, of {_names()}; or --reset")
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
    if output_json or output is Format.JSON:
        changed = [
            {"subscription": scope, "setting": each, "value": _plain(value)} for (scope, each), value in wanted.items()
        ]
        print(json.dumps({"app": name, "revision": offset, "changed": changed, "instances": instances}, indent=2))
    elif not instances:
        print("no instance runs; it holds for those that start")
    elif not wait:
        print(f"written; {len(instances)} instances run")
    else:
        count = sum(each["follows"] for each in instances)
        print(f"{count} of {len(instances)} instances follow, after {time.monotonic() - began:.2f} s")
        _print_instances(instances)
    if not followed:
        late = ", ".join(each["instance"] for each in instances if not each["follows"])
        raise HeadraceError(f"within {timeout:g} s these instances of {name} do not follow: {late}")
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


def _wanted(texts: Mapping[str, str], scope: str) -> dict[tuple[str, str], Any]:
    """What is to be written, by subscription and setting; None takes it out."""
    from headrace.sdk.registry import Setting
    from headrace.sdk.settings import MEANINGS, WHOLE, BadSetting, parse

    by = f"{getpass.getuser()}@{socket.gethostname()}"
    now_ms = time.time_ns() // 1_000_000
    found: dict[tuple[str, str], Any] = {}
    for name, text in texts.items():
        if name not in MEANINGS:
            meanings = "".join(f"\n  {each}: {meaning}" for each, meaning in MEANINGS.items())
            raise HeadraceError(f"there is no setting {name!r}; there are:{meanings}")
        if scope and name in WHOLE:
            raise HeadraceError(f"{name} is the whole application's: set it without --subscription")
        try:
            found[scope, name] = Setting(parse(name, text), by, now_ms) if text else None
        except BadSetting as error:
            raise HeadraceError(str(error)) from None
    return found


def _plain(setting: Any) -> Any:
    return None if setting is None else setting.value


async def _all_follow(registry: Registry, name: str, offset: int, seconds: float) -> bool:
    """Wait until every instance that runs has done what was written; false where that takes too long."""
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
        said = "; ".join(f"{instance}: {why}" for instance, why in refused.items())
        raise HeadraceError(f"instances of {name} keep their old values: {said}")


@app.command()
@connects
async def forget(client: Client, name: Name, yes: Yes = False) -> None:
    """Take an application out of the registry, with all that was set for it. None of it may run."""
    registry = await _read(client)
    directory = registry.directory
    keys = list(directory.keys(name))
    if not keys:
        _known(directory, name)
    alive, _ = _instances(directory, name)
    if alive:
        where = ", ".join(f"{each.host}:{each.pid}" for each in alive)
        raise HeadraceError(f"{name} runs at {where}: stop it first, or it would register again")
    if not yes:
        confirm(f"Forget {name}: {len(keys)} records?")
    await registry.write(dict.fromkeys(keys))
    await registry.close()
