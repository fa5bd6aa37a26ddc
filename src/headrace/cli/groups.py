"""`headrace group`: list, describe and move consumer groups."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from headrace.cli.connect import Json, connects, show
from headrace.cli.positions import HELP, Kind, Position, parse_position
from headrace.client.admin import EARLIEST, LATEST, Admin, Partition
from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError

app = typer.Typer(help="Consumer groups.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP")]

# The states of a group without members, whose offsets may be moved.
INACTIVE = ("Empty", "Dead", "")


@app.command("list")
@connects
async def list_groups(cluster: Cluster, as_json: Json = False) -> None:
    """List the groups."""
    rows = [
        {"group": each.group, "state": each.state, "protocol_type": each.protocol_type}
        for each in await Admin(cluster).groups()
    ]
    show(rows, as_json, {"group": "group", "state": "state"})


@app.command()
@connects
async def describe(cluster: Cluster, name: Name, as_json: Json = False) -> None:
    """Show a group's members, and how far it has come."""
    admin = Admin(cluster)
    group = await admin.describe_group(name)
    committed = await admin.committed(name)
    if group.state == "Dead" and not committed:
        raise HeadraceError(f"there is no group {name!r}; `headrace group list` shows those that there are")
    owner = {partition: each.member_id for each in group.members for partition in each.partitions}
    known = {topic.name: len(topic.partitions) for topic in await cluster.topics()}
    # A group may have committed on a topic that was deleted since.
    partitions = sorted(each for each in {*committed, *owner} if each[1] < known.get(each[0], 0))
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
            }
        )
    members = [
        {"member": each.member_id, "instance": each.instance_id, "client": each.client_id, "host": each.client_host}
        for each in group.members
    ]
    if as_json:
        print(
            json.dumps(
                {
                    "group": name,
                    "state": group.state,
                    "protocol": group.protocol,
                    "members": members,
                    "offsets": offsets,
                },
                indent=2,
            )
        )
        return
    print(f"group {name}, {group.state}, {len(members)} members" + (f", {group.protocol}" if group.protocol else ""))
    if members:
        show(members, False, {each: each for each in members[0]})
    if offsets:
        show(offsets, False, {each: each for each in offsets[0]})


@app.command()
@connects
async def reset(
    cluster: Cluster,
    name: Name,
    topics: Annotated[list[str], typer.Option("--topic", help="A topic; may be repeated.")],
    to: Annotated[str, typer.Option(metavar="POSITION", help=HELP)],
    partition: Annotated[int, typer.Option(min=0, help="Only this partition.")] = -1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Move a group that has no members to another place in its topics."""
    position = parse_position(to, time.time_ns() // 1_000_000)
    admin = Admin(cluster)
    wanted: list[Partition] = []
    for topic in dict.fromkeys(topics):
        count = len((await cluster.topic(topic)).partitions)
        if partition >= count:
            raise HeadraceError(f"the topic {topic} has no partition {partition}, only 0 to {count - 1}")
        wanted += [(topic, partition)] if partition >= 0 else [(topic, index) for index in range(count)]
    group = await admin.describe_group(name)
    if group.state not in INACTIVE:
        raise HeadraceError(
            f"the group {name} is active ({group.state}, {len(group.members)} members): stop its consumers first, "
            "or they would overwrite the new offsets"
        )
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
    show(rows, as_json, {each: each for each in rows[0]})


async def offsets_at(admin: Admin, partitions: list[Partition], position: Position) -> dict[Partition, int]:
    """The offset of a position in each partition; one outside of the log is moved to its nearest end."""
    starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
    if position.kind is Kind.EARLIEST:
        return {each: starts[each].offset for each in partitions}
    if position.kind is Kind.LATEST:
        return {each: ends[each].offset for each in partitions}
    if position.kind is Kind.OFFSET:
        return {each: min(max(position.value, starts[each].offset), ends[each].offset) for each in partitions}
    found = await admin.list_offsets(dict.fromkeys(partitions, position.value))
    # Nothing is as new as that: the next message will be.
    return {each: found[each].offset if found[each].offset >= 0 else ends[each].offset for each in partitions}
