"""`headrace topic`: create, list, describe, configure and delete topics."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli import browsing
from headrace.cli.connect import connects
from headrace.cli.options import DryRun, Json, Yes, assignments
from headrace.cli.output import confirm, print_json, show
from headrace.cli.over_http import Api, over_http
from headrace.client import EARLIEST, LATEST, Client
from headrace.errors import HeadraceError

app = typer.Typer(help="Creates, shows, changes and deletes topics.", no_args_is_help=True)
for browse in (browsing.messages, browsing.tail, browsing.message):
    app.command()(browse)

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Set = Annotated[list[str], typer.Option("--set", metavar="NAME=VALUE", help="A setting; may be repeated.")]


@app.command()
@connects
async def create(
    client: Client,
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="By default as many as the broker is configured with.")
    ] = None,
    settings: Set = [],  # noqa: B006 - typer copies it
) -> None:
    """Creates a topic."""
    await client.admin.create_topic(name, partitions or -1, assignments(settings, "--set"))


@app.command("list")
@connects
async def list_topics(
    client: Client,
    internal: Annotated[bool, typer.Option("--internal", help="List the broker's own topics too.")] = False,
    as_json: Json = False,
) -> None:
    """Lists the topics."""
    sizes = await client.admin.sizes()
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "bytes": sum(sizes.get((topic.name, each.index), 0) for each in topic.partitions),
            "id": str(topic.id) if topic.id else None,
            "internal": topic.internal,
        }
        for topic in await client.cluster.topics()
        if internal or not topic.internal
    ]
    show(rows, as_json, {"topic": "name", "partitions": "partitions", "bytes": "bytes"})


@app.command()
@connects
async def describe(client: Client, name: Name, as_json: Json = False) -> None:
    """Shows the partitions of a topic, and the settings that differ from the broker's."""
    admin = client.admin
    topic = await client.cluster.topic(name)
    partitions = [(name, each.index) for each in topic.partitions]
    starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
    sizes = await admin.sizes()
    config = {each.name: each.value for each in await admin.topic_config(name) if not each.is_default}
    rows = [
        {
            "partition": each.index,
            "start": starts[name, each.index].offset,
            "end": ends[name, each.index].offset,
            "bytes": sizes.get((name, each.index)),
            "leader": each.leader,
            "epoch": each.leader_epoch,
        }
        for each in topic.partitions
    ]
    if as_json:
        print_json({"name": name, "id": str(topic.id) if topic.id else None, "partitions": rows, "config": config})
        return
    print(f"topic {name}, {len(rows)} partition{'s' * (len(rows) != 1)}, id {topic.id}")
    for key, value in sorted(config.items()):
        print(f"  {key}={value}")
    show(rows, False, list(rows[0]))


@app.command()
@connects
async def config(
    client: Client,
    name: Name,
    settings: Set = [],  # noqa: B006 - typer copies it
    unset: Annotated[
        list[str], typer.Option(metavar="NAME", help="Use the broker's default again; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    partitions: Annotated[int | None, typer.Option(min=1, help="Add partitions, up to this many.")] = None,
    as_json: Json = False,
) -> None:
    """Shows the settings of a topic, or changes them."""
    admin = client.admin
    given = assignments(settings, "--set")
    if both := sorted(set(given) & set(unset)):
        raise HeadraceError(f"{both[0]} is both set and unset. Give --set or --unset.")
    if given or unset:
        await admin.alter_topic_config(name, given, unset)
    if partitions is not None:
        await admin.create_partitions(name, partitions)
    if given or unset or partitions is not None:
        return
    rows = [
        {"name": each.name, "value": each.value, "default": each.is_default, "help": each.documentation}
        for each in await admin.topic_config(name, documentation=True)
    ]
    show(rows, as_json, {"setting": "name", "value": "value", "default": "default", "what it means": "help"})


@app.command()
@connects
async def delete(client: Client, name: Name, yes: Yes = False) -> None:
    """Deletes a topic and all its messages."""
    if not yes:
        confirm(f"Delete topic {name} and all its messages?")
    await client.admin.delete_topic(name)


@app.command()
@over_http
def trim(
    api: Api,
    name: Name,
    before: Annotated[
        list[str], typer.Option(metavar="PARTITION:OFFSET", help="The first offset to keep; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    before_time: Annotated[
        str,
        typer.Option(metavar="TIME", help="Delete what is older: 2026-11-16T12:00:00Z, or milliseconds."),
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="Delete all records.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Deletes the oldest records of a topic."""
    places = [each.partition(":") for each in before]
    if wrong := [":".join((place, offset)) for place, colon, offset in places if not (colon and offset.isdecimal())]:
        raise HeadraceError(f"--before is {wrong[0]!r}. Use PARTITION:OFFSET.")
    body: dict[str, Any] = {"dry_run": dry_run, "all": every}
    if before:
        body["before"] = {place: int(offset) for place, _, offset in places if len(offset) < 19}
    if before_time:
        body["before_ms"] = before_time
    if not yes and not dry_run:
        confirm(f"Delete records of the topic {name}?")
    answer = api.ask("POST", f"/v1/topics/{quote(name, safe='')}/delete-records", body)
    show(answer["partitions"], api.as_json, ["partition", "start_before", "start", "end", "deleted"])
