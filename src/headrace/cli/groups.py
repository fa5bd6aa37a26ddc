"""`headrace group`: list, describe and move consumer groups."""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.connect import connects
from headrace.cli.offsets import offsets_at, partitions_of, require_inactive
from headrace.cli.options import DryRun, Json, Yes
from headrace.cli.output import confirm, print_json, show
from headrace.cli.over_http import Api, over_http
from headrace.cli.positions import HELP, parse_position
from headrace.client import LATEST, Client
from headrace.client.admin import CONSUMER, GroupDescription
from headrace.client.cluster import Partition
from headrace.errors import HeadraceError

app = typer.Typer(help="Shows, resets and deletes consumer groups.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP")]


@app.command("list")
@connects
async def list_groups(client: Client, as_json: Json = False) -> None:
    """Lists the groups."""
    rows = [
        {"group": each.group, "type": each.type, "state": each.state, "protocol_type": each.protocol_type}
        for each in await client.admin.groups()
    ]
    show(rows, as_json, ("group", "type", "state"))


@app.command()
@connects
async def describe(client: Client, name: Name, as_json: Json = False) -> None:
    """Shows the members, the committed offsets and the lag of a group."""
    admin = client.admin
    group = await admin.describe_group(name)
    committed = await admin.committed(name)
    if group.state == "Dead" and not committed:
        raise HeadraceError(f"there is no group {name!r}. `headrace group list` lists the groups.")
    follows_targets = group.type == CONSUMER
    owner = {partition: each.member_id for each in group.members for partition in each.partitions}
    target = {partition: each.member_id for each in group.members for partition in each.target}
    known = {topic.name: len(topic.partitions) for topic in await client.cluster.topics()}
    # A group may have committed on a topic that was deleted since.
    partitions = sorted(each for each in {*committed, *owner, *target} if each[1] < known.get(each[0], 0))
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
    offsets: list[dict[str, Any]] = []
    for each in partitions:
        at = committed[each].offset if each in committed else None
        end = ends[each].offset
        offsets.append(
            {
                "topic": each[0],
                "partition": each[1],
                "committed": at,
                "end": end,
                "lag": None if at is None else max(0, end - at),
                "member": owner.get(each),
                **({"target": target.get(each)} if follows_targets else {}),
            }
        )
    members = [
        {
            "member": each.member_id,
            "instance": each.instance_id,
            "client": each.client_id,
            "host": each.client_host,
            **({"epoch": each.epoch} if follows_targets else {}),
        }
        for each in group.members
    ]
    if as_json:
        epochs = {"epoch": group.epoch, "assignment_epoch": group.assignment_epoch} if follows_targets else {}
        about = {"group": name, "type": group.type, "state": group.state, "protocol": group.protocol}
        print_json({**about, **epochs, "members": members, "offsets": offsets})
        return
    print(", ".join(_summary(group)))
    if members:
        show(members, False, list(members[0]))
    if offsets:
        moves = any(each["member"] != each["target"] for each in offsets) if follows_targets else False
        show(offsets, False, [each for each in offsets[0] if each != "target" or moves])


def _summary(group: GroupDescription) -> list[str]:
    """A group in one line."""
    found = [f"group {group.group}", group.state, f"{len(group.members)} members"]
    if group.protocol:
        found.append(group.protocol)
    if group.epoch is not None:
        found.append(f"epoch {group.epoch}")
        if group.members and group.assignment_epoch != group.epoch:
            found.append(f"targets of epoch {group.assignment_epoch}")
    return found


@app.command()
@connects
async def reset(
    client: Client,
    name: Name,
    topics: Annotated[list[str], typer.Option("--topic", help="A topic; may be repeated.")],
    to: Annotated[str, typer.Option(metavar="POSITION", help=HELP)],
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Moves the committed offsets of a group that has no members."""
    position = parse_position(to, time.time_ns() // 1_000_000)
    admin = client.admin
    wanted: list[Partition] = []
    for topic in dict.fromkeys(topics):
        wanted += await partitions_of(client, topic, partition)
    await require_inactive(admin, name)
    before = await admin.committed(name, wanted)
    target = await offsets_at(admin, wanted, position)
    rows = [
        {
            "topic": each[0],
            "partition": each[1],
            "from": before[each].offset if each in before else None,
            "to": target[each],
        }
        for each in wanted
    ]
    if not dry_run:
        await admin.commit(name, target)
    show(rows, as_json, list(rows[0]))


@app.command()
@over_http
def delete(
    api: Api,
    name: Name,
    topic: Annotated[str, typer.Option(help="Delete only the positions in this topic.")] = "",
    yes: Yes = False,
) -> None:
    """Deletes a group that has no members, with its positions."""
    if not yes:
        confirm(f"Delete the group {name}?" if not topic else f"Delete the positions of {name} in {topic}?")
    path = f"/v1/groups/{quote(name, safe='')}" + (f"/topics/{quote(topic, safe='')}" if topic else "")
    api.print_answer(api.ask("DELETE", path))
