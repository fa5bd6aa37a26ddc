"""`headrace dead`: dead letters looked at. `headrace redrive` sends them back."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from headrace.cli.output import local_time, preview, show
from headrace.cli.over_http import Api, over_http

app = typer.Typer(help="Shows dead letters. To send them back: headrace redrive.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="DEAD_LETTER_TOPIC")]
Origin = Annotated[str, typer.Option(help="Only those of this topic.")]
Error = Annotated[str, typer.Option(help="Only those whose error has this text.")]


@app.command("list")
@over_http
def list_topics(api: Api) -> None:
    """Lists the dead-letter topics, with the queues whose messages die there."""
    show(
        api.get("/v1/dead-letters")["topics"],
        api.as_json,
        {
            "topic": "topic",
            "messages": "messages",
            "waiting": "waiting",
            "queues": lambda each: ", ".join(f"{queue['topic']}/{queue['queue']}" for queue in each["queues"]),
        },
    )


@app.command()
@over_http
def count(api: Api, topic: Topic, origin: Origin = "", error: Error = "") -> None:
    """Counts the newest dead letters by error and origin."""
    answer = api.get(f"/v1/dead-letters/{quote(topic, safe='')}", origin=origin, error=error)
    show(
        answer["kinds"],
        api.as_json,
        {
            "count": "count",
            "topic": "topic",
            "queue": "queue",
            "last": lambda each: local_time(each["last_ms"]),
            "error": "error",
        },
    )


@app.command("show")
@over_http
def show_letters(
    api: Api,
    topic: Topic,
    origin: Origin = "",
    error: Error = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="The most to show.")] = 50,
) -> None:
    """Shows dead letters, the newest first."""
    answer = api.get(f"/v1/dead-letters/{quote(topic, safe='')}/messages", origin=origin, error=error, limit=limit)
    show(
        answer["messages"],
        api.as_json,
        {
            "partition": "partition",
            "offset": "offset",
            "died": lambda each: local_time(each["dead_at_ms"]),
            "origin": lambda each: "{topic}/{partition}/{offset}".format(**each["origin"]),
            "attempts": "attempts",
            "back": lambda each: "yes" if each["sent_back"] else "",
            "key": lambda each: preview(each, "key"),
            "error": "error",
        },
    )
