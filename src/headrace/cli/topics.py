"""`headrace topic`: make, list, describe, configure and delete topics."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headrace.cli.connect import Json, assignments, confirm, connects, show
from headrace.client import EARLIEST, LATEST, Client
from headrace.errors import HeadraceError

app = typer.Typer(help="Topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Set = Annotated[list[str], typer.Option("--set", metavar="NAME=VALUE", help="A setting; may be repeated.")]


@app.command()
@connects
async def create(
    client: Client,
    name: Name,
    partitions: Annotated[int | None, typer.Option(min=1, help="How many; the broker's default if not given.")] = None,
    settings: Set = [],  # noqa: B006 - typer copies it
) -> None:
    """Make a topic."""
    await client.admin.create_topic(name, partitions or -1, assignments(settings, "--set"))


@app.command("list")
@connects
async def list_topics(
    client: Client,
    internal: Annotated[bool, typer.Option("--internal", help="The broker's own topics too.")] = False,
    as_json: Json = False,
) -> None:
    """List the topics."""
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
    show(rows, as_json, {"name": "topic", "partitions": "partitions", "bytes": "bytes"})


@app.command()
@connects
async def describe(client: Client, name: Name, as_json: Json = False) -> None:
    """Show a topic's partitions and the settings that it does not leave to the broker."""
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
        print(
            json.dumps(
                {"name": name, "id": str(topic.id) if topic.id else None, "partitions": rows, "config": config},
                indent=2,
            )
        )
        return
    print(f"topic {name}, {len(rows)} partition{'s' * (len(rows) != 1)}, id {topic.id}")
    for key, value in sorted(config.items()):
        print(f"  {key}={value}")
    show(rows, False, {each: each for each in rows[0]})


@app.command()
@connects
async def config(
    client: Client,
    name: Name,
    settings: Set = [],  # noqa: B006 - typer copies it
    unset: Annotated[
        list[str], typer.Option(metavar="NAME", help="Back to the broker's default; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    partitions: Annotated[int | None, typer.Option(min=1, help="Grow to this many partitions.")] = None,
    as_json: Json = False,
) -> None:
    """Show a topic's settings, or change them."""
    admin = client.admin
    given = assignments(settings, "--set")
    if both := sorted(set(given) & set(unset)):
        raise HeadraceError(f"{both[0]} is both set and unset")
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
    show(rows, as_json, {"name": "setting", "value": "value", "default": "default", "help": "what it means"})


@app.command()
@connects
async def delete(
    client: Client,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a topic and all its messages."""
    if not yes:
        confirm(f"Delete the topic {name} and all its messages?")
    await client.admin.delete_topic(name)
