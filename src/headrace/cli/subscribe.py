"""`headrace subscribe`: pushes the messages of a queue to URLs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from headrace.cli.durations import HELP
from headrace.cli.foreground import LogFormat, LogLevel, stop_on_signals
from headrace.cli.options import DryRun, assignments, extra
from headrace.errors import HeadraceError
from headrace.logs import log_like_a_server

if TYPE_CHECKING:
    from headrace.cli.subscribe_settings import Plan
    from headrace.webhooks.pusher import Webhooks

log = structlog.get_logger("headrace.webhooks")

SECRETS_VARIABLE = "HEADRACE_WEBHOOK_SECRET"
# Every endpoint has answered 410 Gone.
GONE_CODE = 3


def subscribe(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic to push; --config may name it.")] = "",
    url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Push to this URL; may be repeated: each gets every message."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="The queue of one URL; by default named after the URL's host.")
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(envvar="HEADRACE_URL", metavar="URL", help="headrace://HOST, kafka://HOST or nsq://HOST."),
    ] = None,
    secret_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Secrets, one per line; reloaded when it changes.")
    ] = None,
    secrets: Annotated[
        list[str] | None,
        typer.Option("--secret", help=f"A secret, visible to others: --secret-file or {SECRETS_VARIABLE} is safer."),
    ] = None,
    unsigned: Annotated[bool | None, typer.Option("--unsigned", help="Do not sign.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="Add this header; may be repeated.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Concurrent requests (8).")] = None,
    rate: Annotated[float | None, typer.Option(help="The most messages per second (no limit).")] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"How long to wait for an answer (15s): {HELP}.")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(help="Deliveries before a message is dead (10; with --ordered 0, no limit).")
    ] = None,
    ladder: Annotated[
        str | None, typer.Option(metavar="TIME,...", help="Back-off before each retry (5s,30s,2m,10m,30m,1h,2h).")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", help="Up to N messages per request, as a CloudEvents batch.")
    ] = None,
    structured: Annotated[
        bool | None, typer.Option("--structured", help="Use the structured mode of CloudEvents.")
    ] = None,
    ordered: Annotated[bool | None, typer.Option("--ordered", help="Push messages of one key in order.")] = None,
    from_now: Annotated[
        bool | None, typer.Option("--from-now", help="A new queue begins with messages sent from now on.")
    ] = None,
    filter: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Only these messages, as in queues: 'region = eu'.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="The events' source (/topics/TOPIC).")] = None,
    type: Annotated[str | None, typer.Option(help="The events' type (headrace.message).")] = None,
    content_type: Annotated[str | None, typer.Option(help="The type of values without one (detected).")] = None,
    ca_file: Annotated[str | None, typer.Option(metavar="FILE", help="Trust these authorities (PEM).")] = None,
    cert_file: Annotated[
        str | None, typer.Option("--cert", metavar="FILE", help="Present this certificate (PEM).")
    ] = None,
    key_file: Annotated[str | None, typer.Option("--key", metavar="FILE", help="The certificate's key (PEM).")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Accept any certificate.")] = None,
    allow_private: Annotated[
        bool | None, typer.Option("--allow-private", help="The URL's name may lead to private addresses.")
    ] = None,
    config: Annotated[str, typer.Option(metavar="FILE", help="These settings in TOML, for several URLs.")] = "",
    name: Annotated[
        str | None, typer.Option(help="The application's name in `headrace app` (webhooks.TOPIC.GROUP).")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus there.")
    ] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
    dry_run: DryRun = False,
) -> None:
    """Pushes the messages of a topic to URLs as signed CloudEvents, by HTTP POST, until SIGTERM or SIGINT."""
    with extra("webhooks"):
        from headrace.cli import subscribe_settings as settings
        from headrace.webhooks.pusher import Webhooks
    flags: dict[str, Any] = {setting: context.params.get(setting) for setting in settings.KINDS}
    flags["secrets"] = secrets or None
    flags["headers"] = assignments(headers, "--header") if headers else None
    flags["ladder"] = ladder.split(",") if ladder is not None else None
    process = {"topic": topic or None, "broker": broker, "name": name, "metrics": metrics}
    if secrets:
        typer.echo("headrace: other users can see a secret on a command line. Use --secret-file.", err=True)
    plan = settings.read(config, url or [], flags, process, os.environ.get(SECRETS_VARIABLE, "").split())
    if dry_run:
        print(json.dumps(settings.describe(plan), indent=2))
        return
    try:
        asyncio.run(_run(plan, Webhooks, log_level, log_format))
    except (OSError, ValueError) as error:
        raise HeadraceError(str(error)) from None


async def _run(plan: Plan, make: type[Webhooks], log_level: str, log_format: str) -> None:
    from headrace.cli.subscribe_line import Line
    from headrace.sdk import PublishFailed, Unsuited

    line = Line() if sys.stderr.isatty() and log_format == "auto" else None
    with line or nullcontext():
        log_like_a_server(log_level, log_format)
        webhooks = make(plan.topic, plan.hooks, plan.broker, name=plan.name, metrics=plan.metrics, log_level=log_level)
        if line is not None:
            line.follow(webhooks)
        stop_on_signals(webhooks.stop)
        try:
            await webhooks.run(lambda: _log_start(webhooks))
        except (Unsuited, PublishFailed) as error:
            raise HeadraceError(str(error)) from None
    if webhooks.gone:
        raise typer.Exit(GONE_CODE)


def _log_start(webhooks: Webhooks) -> None:
    for pusher in webhooks.pushers:
        hook = pusher.hook
        log.info(
            "pushing",
            topic=webhooks.topic,
            url=pusher.endpoint.shown,
            group=hook.group,
            secrets=len(hook.secrets) if hook.secrets is not None else 0,
            metrics=webhooks.metrics_address,
        )
        if hook.secrets is None:
            log.warning("requests are not signed: receivers cannot verify their sender", url=pusher.endpoint.shown)
        if hook.insecure:
            log.warning("any certificate is accepted (--insecure)", url=pusher.endpoint.shown)
