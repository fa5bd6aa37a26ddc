"""`headrace search`: messages by what they have, in a range of time."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.output import Columns, local_time, preview, progress, show
from headrace.cli.over_http import PAGE, Api, over_http
from headrace.cli.positions import TIME_HELP, parse_time
from headrace.errors import HeadraceError

COLUMNS: Columns = {
    "id": "id",
    "time": lambda each: local_time(each["timestamp"], "milliseconds") if each["timestamp"] >= 0 else "",
    "key": lambda each: preview(each, "key"),
    "value": lambda each: preview(each, "value"),
}


@over_http
def search(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", show_default=False)] = "",
    everywhere: Annotated[bool, typer.Option("--all", help="Search all topics that you may read.")] = False,
    topics: Annotated[str, typer.Option(metavar="PATTERN", help="With --all: only topics with such names.")] = "",
    key: Annotated[str, typer.Option(help="Messages with this key, or with this word in RocketMQ's KEYS.")] = "",
    id: Annotated[
        str,
        typer.Option(help="The message with this id: TOPIC/PARTITION/OFFSET, RocketMQ's offset id, or a unique key."),
    ] = "",
    unique_key: Annotated[str, typer.Option(help="Messages with this unique key of RocketMQ.")] = "",
    header: Annotated[str, typer.Option(metavar="NAME=VALUE", help="Messages with this header.")] = "",
    trace: Annotated[str, typer.Option(metavar="ID", help="With --all: messages of this trace.")] = "",
    tag: Annotated[str, typer.Option(help="Messages with this tag of RocketMQ.")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help=f"Messages not older than: {TIME_HELP}.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Messages not younger than.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most messages to show.")] = 100,
) -> None:
    """Finds messages that match all that is given: key, id, header, tag. Fast on topics with the setting `index`."""
    wanted = {"key": key, "id": id, "unique_key": unique_key, "header": header, "tag": tag}
    if bool(topic) == everywhere:
        raise HeadraceError("one topic is searched, or all of them. Give TOPIC or --all.")
    if everywhere:
        if id:
            raise HeadraceError("an id names its topic. Use `headrace trace ID`, or --unique-key for RocketMQ's.")
        wanted |= {"topics": topics, "trace": trace}
    elif topics or trace:
        raise HeadraceError("--topics and --trace are for searches of all topics. Give --all instead of TOPIC.")
    if not any(value for name, value in wanted.items() if name != "topics"):
        more = ", --tag or --trace" if everywhere else " or --tag"
        raise HeadraceError(f"nothing is searched for. Give --key, --id, --unique-key, --header{more}.")
    now_ms = time.time_ns() // 1_000_000
    for name, text in (("since", since), ("until", until)):
        wanted[name] = str(parse_time(text, now_ms)) if text else ""
    found, hint = _search_all(api, wanted, limit) if everywhere else _search(api, topic, wanted, limit)
    if found or api.as_json:
        show(found, api.as_json, COLUMNS)
    else:
        print("no message found; delayed ones are not in their topic yet: headrace timer list", file=sys.stderr)
    if hint:
        print(hint, file=sys.stderr)


def _search(api: Api, topic: str, wanted: dict[str, str], limit: int) -> tuple[list[dict[str, Any]], str]:
    found: list[dict[str, Any]] = []
    hint = ""
    with progress() as begin:
        advance, passed = begin("offsets", None), 0
        after = ""
        while after is not None and len(found) < limit:
            path = f"/v1/topics/{quote(topic, safe='')}/search"
            page = api.get(path, limit=min(PAGE, limit - len(found)), after=after, **wanted)
            found += page["messages"]
            hint = page.get("hint", hint)
            advance(max(page["searched"] - passed, 0), page["of"])
            passed, after = page["searched"], page["next"]
    return found, hint


def _search_all(api: Api, wanted: dict[str, str], limit: int) -> tuple[list[dict[str, Any]], str]:
    found: list[dict[str, Any]] = []
    with progress() as begin:
        advance = begin("topics", None)
        after = ""
        while after is not None and len(found) < limit:
            page = api.get("/v1/search", limit=min(PAGE, limit - len(found)), after=after, **wanted)
            found += page["messages"]
            after = page["next"]
            # A topic in which the next page goes on counts there.
            advance(page["topics"] - (after is not None), None)
    return found, ""
