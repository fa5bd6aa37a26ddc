"""The partitions and offsets that the options of a command mean: what `consume` and `group reset` look up first."""

from __future__ import annotations

from headrace.cli.positions import Kind, Position
from headrace.client import EARLIEST, LATEST, Admin, Client
from headrace.client.cluster import Partition
from headrace.errors import HeadraceError

# The states of a group without members, whose offsets may be moved from outside.
INACTIVE = ("Empty", "Dead", "")


async def partitions_of(client: Client, topic: str, partition: int | None) -> list[Partition]:
    """One partition of a topic, or (None) all."""
    count = len((await client.cluster.topic(topic)).partitions)
    if partition is None:
        return [(topic, index) for index in range(count)]
    if partition >= count:
        raise HeadraceError(f"topic {topic} has no partition {partition}, only 0 to {count - 1}")
    return [(topic, partition)]


async def require_inactive(admin: Admin, group: str) -> None:
    """Raise if the group has members: their commits would overwrite those of the command."""
    found = await admin.describe_group(group)
    if found.state not in INACTIVE:
        raise HeadraceError(
            f"group {group} is active ({found.state}, {len(found.members)} members). Stop its consumers first: "
            "they would overwrite its offsets."
        )


async def offsets_at(
    admin: Admin, partitions: list[Partition], position: Position, *, committed: bool = False
) -> dict[Partition, int]:
    """The offset of a position in each partition; one outside of the log is moved to its nearest end.

    With `committed`, the end is the last stable offset.
    """
    starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST), committed=committed)
    if position.kind is Kind.EARLIEST:
        return {each: starts[each].offset for each in partitions}
    if position.kind is Kind.LATEST:
        return {each: ends[each].offset for each in partitions}
    if position.kind is Kind.OFFSET:
        return {each: min(max(position.value, starts[each].offset), ends[each].offset) for each in partitions}
    found = await admin.list_offsets(dict.fromkeys(partitions, position.value), committed=committed)
    # No record is as new as that: the next one will be.
    return {each: found[each].offset if found[each].offset >= 0 else ends[each].offset for each in partitions}
