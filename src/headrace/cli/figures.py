"""`headrace overview` and `headrace figures`: how a broker stands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.output import print_json, show
from headrace.cli.over_http import Api, over_http
from headrace.errors import HeadraceError

KINDS = ("node", "doors", "apis", "topics", "queues", "groups")


@over_http
def overview(api: Api) -> None:
    """Shows a broker in short: totals, rates, and what is wrong now."""
    found = api.get("/v1/overview")
    if api.as_json:
        print_json(found)
        return
    rates = {f"{name}_per_second": rate for name, rate in found["rates"].items()}
    show(
        [{"figure": name, "value": value} for name, value in {**found["node"], **rates}.items()],
        False,
        ["figure", "value"],
    )
    for problem in found["problems"]:
        typer.echo(f"{problem['severity']}: {problem['message']}")
    if not found["problems"]:
        typer.echo("Nothing is wrong.")


@over_http
def figures(
    api: Api,
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")] = "topics",
) -> None:
    """Prints the figures of one kind. Counters start when the broker starts."""
    if kind not in KINDS:
        raise HeadraceError(f"there are no figures of the kind {kind!r}. Use one of {', '.join(KINDS)}.")
    rows: list[dict[str, Any]] = []
    columns: list[str] = []
    since, more = "", True
    while more:
        page = api.get("/v1/figures", kinds=kind, since=since)
        if page["full"]:
            rows.clear()
        columns = page["columns"][kind]
        rows += [dict(zip(columns, row, strict=True)) for row in page["rows"].get(kind, [])]
        since, more = page["version"], page["more"]
    show(rows, api.as_json, columns)
