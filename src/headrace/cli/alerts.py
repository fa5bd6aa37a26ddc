"""`headrace alert`: rules, silences and channels. The console judges them and notifies."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.durations import parse_duration
from headrace.cli.options import assignments, extra
from headrace.cli.output import local_time, show
from headrace.cli.over_http import Api, over_http
from headrace.errors import HeadraceError

app = typer.Typer(help="Manages alerts: rules, silences and channels.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID")]
RULES = "/v1/alerts/rules"
SILENCES = "/v1/alerts/silences"


@app.command("list")
@over_http
def list_rules(api: Api) -> None:
    """Lists the rules, built-in ones included."""
    rules = api.get(RULES)["rules"]
    show(
        rules,
        api.as_json,
        {
            "id": "id",
            "severity": "severity",
            "rule": lambda each: f"{each['figure']} {each['compare']} {each['threshold']:g}",
            "for s": lambda each: each["for_ms"] // 1000,
            "scope": lambda each: " ".join(f"{name}={value}" for name, value in each["scope"].items()),
            "enabled": lambda each: "yes" if each["enabled"] else "no",
            "name": "name",
        },
    )


@app.command("set")
@over_http
def set_rule(
    api: Api,
    id: Id,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="name, figure, compare, threshold, for_ms, severity, enabled, runbook; topic, group, queue, owner.",
        ),
    ],
) -> None:
    """Creates a rule, or changes it: what is not given stays."""
    given: dict[str, Any] = assignments(values, "NAME=VALUE")
    rules = {each["id"]: each for each in api.get(RULES)["rules"]}
    kept = rules.get(id, {"name": id})
    known = ("name", "figure", "compare", "threshold", "for_ms", "severity", "enabled", "runbook")
    body = {name: kept[name] for name in (*known, "scope", "channels", "labels", "version") if name in kept}
    scope = dict(kept.get("scope", {}))
    for name, value in given.items():
        if name in ("topic", "group", "queue", "owner"):
            scope[name] = value
        elif name not in known:
            raise HeadraceError(f"a rule has no {name!r}. It has {', '.join(known)}.")
        elif name == "enabled":
            body[name] = value == "true"
        else:
            body[name] = _number(name, value) if name in ("threshold", "for_ms") else value
    body["scope"] = {name: value for name, value in scope.items() if value}
    api.print_answer(api.ask("PUT", f"{RULES}/{quote(id, safe='')}", body))


def _number(name: str, value: str) -> float:
    try:
        return int(value) if name == "for_ms" else float(value)
    except ValueError:
        raise HeadraceError(f"{name} must be a number (got {value!r})") from None


@app.command("delete")
@over_http
def delete_rule(api: Api, id: Id) -> None:
    """Deletes a rule. A built-in rule returns to its original form."""
    api.print_answer(api.ask("DELETE", f"{RULES}/{quote(id, safe='')}"))


@app.command("silences")
@over_http
def list_silences(api: Api) -> None:
    """Lists the silences."""
    show(
        api.get(SILENCES)["silences"],
        api.as_json,
        {
            "id": "id",
            "what": lambda each: " ".join(f"{name}={value}" for name, value in each["matchers"].items()),
            "from": lambda each: local_time(each["starts_ms"]),
            "until": lambda each: local_time(each["ends_ms"]),
            "by": "created_by",
            "comment": "comment",
        },
    )


@app.command()
@over_http
def silence(
    api: Api,
    id: Id,
    matchers: Annotated[
        list[str], typer.Argument(metavar="NAME=PATTERN...", help="By rule, topic, group, queue or owner.")
    ],
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="As in 30m, 2h, 1d.")] = "1h",
    comment: Annotated[str, typer.Option(help="Why.")] = "",
) -> None:
    """Creates a silence: while it lasts, alerts that match send no notices."""
    ends = time.time_ns() // 1_000_000 + parse_duration(duration)
    body = {"matchers": assignments(matchers, "NAME=PATTERN"), "ends_ms": ends, "comment": comment}
    api.print_answer(api.ask("PUT", f"{SILENCES}/{quote(id, safe='')}", body))


@app.command()
@over_http
def unsilence(api: Api, id: Id) -> None:
    """Ends a silence."""
    api.print_answer(api.ask("DELETE", f"{SILENCES}/{quote(id, safe='')}"))


@app.command()
@over_http
def channels(api: Api) -> None:
    """Lists the channels over which people are notified."""
    show(
        api.get("/v1/alerts/channels")["channels"],
        api.as_json,
        {"id": "id", "kind": "kind", "where": lambda each: each["url"] or ", ".join(each["to"]), "enabled": "enabled"},
    )


@app.command("test")
@over_http
def send_test(
    api: Api,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL")],
    smtp: Annotated[str, typer.Option(metavar="HOST:PORT", help="The mail server, for e-mail.")] = "",
) -> None:
    """Sends a test notice to a channel, from this machine."""
    with extra("console"):
        import msgspec

        from headrace.console.alerts.channels import Deliveries, mail_from
        from headrace.console.alerts.watch import test_notice
        from headrace.console.client.models import Channel, ChannelSecret
    known = {each["id"]: each for each in api.get("/v1/alerts/channels")["channels"]}
    if channel not in known:
        raise HeadraceError(f"there is no channel {channel!r}. There are: {', '.join(sorted(known)) or 'none'}.")
    secret = msgspec.convert(api.get(f"/v1/alerts/channels/{quote(channel, safe='')}/secret"), ChannelSecret)
    notice = test_notice(channel, time.time())

    async def send() -> None:
        deliveries = Deliveries(mail_from(smtp))
        try:
            await deliveries.send(msgspec.convert(known[channel], Channel), secret, notice, "headrace")
        finally:
            await deliveries.close()

    asyncio.run(send())
    api.print_answer({"channel": channel, "sent": True})
