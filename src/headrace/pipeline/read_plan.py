"""What is read: which partitions, from which offset to which, and in how many pieces.

Ranges are fixed when a read is planned, by offsets that the broker answered then, so a task that is tried again, or run
twice, reads the same records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil

from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import EARLIEST, LATEST, Partition, Position, SourceOptions
from headrace.pipeline.origin import Catalogue, DataLost, Range

Offsets = dict[Partition, int]

OWN = "__"


async def find_partitions(origin: Catalogue, options: SourceOptions, *, only_there: bool = False) -> list[Partition]:
    """The partitions that the options name. Raises InvalidOption where one is missing, or leaves it out."""
    known = await origin.topics()
    if options.pattern:
        wanted = re.compile(options.pattern)
        # A pattern means a broker's own topics, which Kafka's clients leave out, too, only where it begins like theirs.
        own = options.pattern.startswith(OWN)
        names = sorted(name for name in known if wanted.fullmatch(name) and (own or not name.startswith(OWN)))
    else:
        names = list(options.topics)
    missing = [name for name in names if name not in known]
    if missing and not only_there:
        raise InvalidOption(f"there is no topic {missing[0]!r} on {origin.name}")
    found = []
    for name in names:
        count = known.get(name, 0)
        indexes: Sequence[int] = options.partitions.get(name) or range(count)
        beyond = [index for index in indexes if index >= count]
        if beyond and not only_there:
            raise InvalidOption(f"the topic {name!r} has {count} partition(s), so none numbered {beyond[0]}")
        found += [(name, index) for index in indexes if index < count]
    return found


def check_positions(options: SourceOptions, partitions: Sequence[Partition]) -> None:
    """Raises InvalidOption where an option sets where to begin or to end in a partition that is not read."""
    for position in (options.start, options.end):
        for topic, index in {**position.by_partition, **position.time_by_partition}:
            if (topic, index) not in partitions:
                raise InvalidOption(
                    f"{topic}-{index} has an offset or a time in the options, and is not among the partitions that are "
                    "read: " + ", ".join(f"{name}-{number}" for name, number in partitions[:10])
                )


async def resolve_offsets(
    origin: Catalogue, options: SourceOptions, position: Position, partitions: Sequence[Partition]
) -> Offsets:
    """The offsets that a position means now."""
    asked: dict[Partition, int] = {}
    found: Offsets = {}
    if position.group:
        found = await origin.group(position.group, partitions)
    for each in partitions:
        if each in found:
            continue
        if each in position.time_by_partition:
            asked[each] = position.time_by_partition[each]
        elif position.time is not None:
            asked[each] = position.time
        else:
            asked[each] = position.by_partition.get(each, position.everywhere)
    lookups = {
        each: value
        for each, value in asked.items()
        if value < 0 or position.time is not None or each in position.time_by_partition
    }
    answers = await origin.offsets(lookups, committed=options.committed)
    late = [each for each, offset in answers.items() if offset < 0]
    if late and position.strict:
        topic, index = late[0]
        raise InvalidOption(
            f"{topic}-{index} has no record of {asked[late[0]]} ms or later; startingOffsetsByTimestampStrategy=latest "
            "begins at its end"
        )
    ends = await origin.offsets(dict.fromkeys(late, LATEST), committed=options.committed)
    return {**found, **asked, **answers, **ends}


async def log_bounds(
    origin: Catalogue, options: SourceOptions, partitions: Sequence[Partition]
) -> tuple[Offsets, Offsets]:
    """The first offset that each partition still has, and where it ends."""
    return (
        await origin.offsets(dict.fromkeys(partitions, EARLIEST), committed=options.committed),
        await origin.offsets(dict.fromkeys(partitions, LATEST), committed=options.committed),
    )


async def resolve_range(
    origin: Catalogue, options: SourceOptions, partitions: Sequence[Partition], least: Mapping[Partition, int]
) -> tuple[Offsets, Offsets]:
    """From where to where a batch read goes now, from no less than `least`. Raises DataLost where its first records are
    gone, unless that does not matter."""
    first, last = await log_bounds(origin, options, partitions)
    start = await resolve_offsets(origin, options, options.start, partitions)
    end = await resolve_offsets(origin, options, options.end, partitions)
    for each in partitions:
        start[each] = max(start[each], least.get(each, start[each]))
        if start[each] < first[each] and options.fail_on_data_loss:
            raise DataLost(describe_lost(each, start[each], first[each]))
        start[each], end[each] = max(start[each], first[each]), min(end[each], last[each])
    return start, end


def describe_lost(partition: Partition, wanted: int, first: int) -> str:
    return (
        f"{partition[0]}-{partition[1]}: {wanted} was to be read first, and the log begins at {first}: the records "
        "between are gone (retention, or a topic made anew); failOnDataLoss=false goes on without them"
    )


async def split_ranges(
    origin: Catalogue, options: SourceOptions, start: Mapping[Partition, int], end: Offsets
) -> list[Range]:
    """Ranges for Spark's tasks: one for each partition, or finer as the options ask."""
    ranges = [
        Range(topic, index, start[topic, index], last)
        for (topic, index), last in sorted(end.items())
        if last > start[topic, index]
    ]
    total = sum(each.end - each.start for each in ranges)
    read = [(each.topic, each.partition) for each in ranges]
    sizes = await origin.sizes(read) if options.bytes_per_partition and ranges else {}
    kept, _ = await log_bounds(origin, options, read) if sizes else ({}, {})
    pieces: list[Range] = []
    for each in ranges:
        length = each.end - each.start
        count = 1
        if options.min_partitions > len(ranges):
            count = max(count, round(options.min_partitions * length / total))
        if options.records_per_partition:
            count = max(count, ceil(length / options.records_per_partition))
        if sizes:
            partition = (each.topic, each.partition)
            held = max(1, each.end - kept[partition])
            size = sizes.get(partition, 0) * length / held
            count = max(count, ceil(size / options.bytes_per_partition))
        pieces += _cut(each, min(count, length))
    return pieces


def _cut(whole: Range, count: int) -> list[Range]:
    length = whole.end - whole.start
    edges = [whole.start + length * step // count for step in range(count + 1)]
    return [Range(whole.topic, whole.partition, first, last) for first, last in pairwise(edges)]


def limit_ends(start: Mapping[Partition, int], end: Offsets, most: int) -> Offsets:
    """Ends no more than `most` offsets away in all, shared out by how much waits where; each gets on."""
    waiting = {each: max(0, last - start[each]) for each, last in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return end
    return {
        each: start[each] + min(left, max(1 if left else 0, most * left // total)) for each, left in waiting.items()
    }
