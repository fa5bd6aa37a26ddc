"""`headrace subscribe`: a queue that is pushed to URLs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from headrace.cli.connect import assignments
from headrace.cli.durations import HELP
from headrace.errors import HeadraceError
from headrace.logs import LEVELS, log_like_a_server

if TYPE_CHECKING:
    from headrace.cli.subscribe_settings import Plan
    from headrace.webhooks.pusher import Webhooks

log = structlog.get_logger("headrace.webhooks")

SECRETS_VARIABLE = "HEADRACE_WEBHOOK_SECRET"
# Every endpoint has said that it is gone.
GONE_CODE = 3


def subscribe(
    topic: Annotated[str, typer.Argument(help="The topic whose messages are pushed; --config may name it.")] = "",
    url: Annotated[list[str] | None, typer.Option(metavar="URL", help="Where to; each URL gets every message.")] = None,
    group: Annotated[str | None, typer.Option(help="The queue, for one URL; else called after the URL's host.")] = None,
    broker: Annotated[
        str | None,
        typer.Option(envvar="HEADRACE_URL", metavar="URL", help="headrace://HOST, kafka://HOST or nsq://HOST."),
    ] = None,
    secret_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Secrets, one on each line; read again when it changes.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(help=f"A secret; others can see it: --secret-file and {SECRETS_VARIABLE} are better."),
    ] = None,
    unsigned: Annotated[bool | None, typer.Option("--unsigned", help="Do not sign.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE")] = None,
    workers: Annotated[int | None, typer.Option(help="Requests at a time (8).")] = None,
    rate: Annotated[float | None, typer.Option(help="Messages a second, at most (no limit).")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help=f"For an answer (15s): {HELP}.")] = None,
    attempts: Annotated[
        int | None, typer.Option(help="Deliveries before a message is given up (10; with --ordered 0, no limit).")
    ] = None,
    ladder: Annotated[
        str | None, typer.Option(metavar="TIME,...", help="Before each further delivery (5s,30s,2m,10m,30m,1h,2h).")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", help="Up to so many messages in a request: CloudEvents' batches.")
    ] = None,
    structured: Annotated[bool | None, typer.Option("--structured", help="CloudEvents' structured mode.")] = None,
    ordered: Annotated[bool | None, typer.Option("--ordered", help="Messages of one key one after the other.")] = None,
    from_now: Annotated[
        bool | None, typer.Option("--from-now", help="A queue that is new begins with what comes from now on.")
    ] = None,
    filter: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Which messages, as of queues: 'region = eu'.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="The events' source (/topics/TOPIC).")] = None,
    type: Annotated[str | None, typer.Option(help="The events' type (headrace.message).")] = None,
    content_type: Annotated[str | None, typer.Option(help="Of values that do not say it (found out).")] = None,
    ca_file: Annotated[str | None, typer.Option(metavar="FILE", help="Authorities to trust (PEM).")] = None,
    cert: Annotated[str | None, typer.Option(metavar="FILE", help="A certificate to show (PEM).")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Believe any certificate.")] = None,
    config: Annotated[str, typer.Option(metavar="FILE", help="All of this in TOML, for many URLs.")] = "",
    name: Annotated[
        str | None, typer.Option(help="Of the application, for `headrace app` (webhooks.TOPIC.GROUP).")
    ] = None,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Answer Prometheus there.")] = None,
    log_level: Annotated[str, typer.Option(help=", ".join(LEVELS) + ".")] = "info",
    log_format: Annotated[str, typer.Option(help="console, json, or auto.")] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, in JSON, and do nothing.")
    ] = False,
) -> None:
    """Push the messages of a topic to URLs: HTTP POST, signed CloudEvents, until told to stop (SIGTERM, SIGINT)."""
    if log_level not in LEVELS:
        raise HeadraceError(f"--log-level {log_level} is none of {', '.join(LEVELS)}")
    try:
        from headrace.cli import subscribe_settings as settings
        from headrace.webhooks.pusher import Webhooks
    except ModuleNotFoundError as error:
        raise HeadraceError(f"`headrace subscribe` needs {error.name}: pip install 'headrace[webhooks]'") from None
    flags: dict[str, Any] = {
        "group": group,
        "secret_file": secret_file,
        "secrets": secret,
        "unsigned": unsigned,
        "headers": assignments(header, "--header") if header else None,
        "workers": workers,
        "rate": rate,
        "timeout": timeout,
        "attempts": attempts,
        "ladder": ladder.split(",") if ladder is not None else None,
        "batch": batch,
        "structured": structured,
        "ordered": ordered,
        "from_now": from_now,
        "filter": filter,
        "source": source,
        "type": type,
        "content_type": content_type,
        "ca_file": ca_file,
        "cert_file": cert,
        "key_file": key,
        "insecure": insecure,
    }
    process = {"topic": topic or None, "broker": broker, "name": name, "metrics": metrics}
    if secret:
        typer.echo("headrace: others can see a secret on a command line: use --secret-file", err=True)
    plan = settings.read(config, url or [], flags, process, os.environ.get(SECRETS_VARIABLE, "").split())
    if dry_run:
        print(json.dumps(settings.shown(plan), indent=2))
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
        loop = asyncio.get_running_loop()

        def told() -> None:
            # The second time, it ends at once.
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(each)
            webhooks.stop()

        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, told)
        try:
            await webhooks.run(lambda: _say(webhooks))
        except (Unsuited, PublishFailed) as error:
            raise HeadraceError(str(error)) from None
    if webhooks.gone:
        raise typer.Exit(GONE_CODE)


def _say(webhooks: Webhooks) -> None:
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
            log.warning("requests are not signed: receivers cannot know who sent them", url=pusher.endpoint.shown)
        if hook.insecure:
            log.warning("any certificate is believed (--insecure)", url=pusher.endpoint.shown)
