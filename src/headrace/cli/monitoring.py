"""`headrace monitoring`: the rules and a dashboard for those who have Prometheus and Grafana."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import Http, extra, parse_path
from headrace.cli.over_http import Api
from headrace.errors import HeadraceError

app = typer.Typer(help="Writes rules for Prometheus and a dashboard for Grafana.", no_args_is_help=True)


@app.callback()
def monitoring() -> None:
    """Writes rules for Prometheus and a dashboard for Grafana."""


@app.command()
def export(
    to: Annotated[Path, typer.Option(parser=parse_path, metavar="DIR", help="Where the files go.")] = Path(),
    http: Http = "",
) -> None:
    """Writes headrace-rules.yml for Prometheus and headrace-dashboard.json for Grafana: with --http the rules of that
    broker, else those that every broker begins with."""
    with extra("console"):
        import msgspec

        from headrace.console.alerts.defaults import DEFAULTS
        from headrace.console.alerts.monitoring import grafana_dashboard, prometheus_rules
        from headrace.console.client.models import Rules
    rules = list(DEFAULTS)
    if http:
        rules = msgspec.convert(Api(http, as_json=False).get("/v1/alerts/rules"), Rules).rules
    files = {
        "headrace-rules.yml": prometheus_rules(rules),
        "headrace-dashboard.json": json.dumps(grafana_dashboard(), indent=2) + "\n",
    }
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (to / name).write_text(text)
            print(to / name)
    except OSError as error:
        raise HeadraceError(f"{to} cannot be written: {error.strerror}") from None
