"""What is read: which partitions, from which offset to which, and in how many pieces.

Ranges are fixed when a read is planned, by offsets that the broker answered then, so a task that is tried again, or run
twice, reads the same records.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from headrace.client import EARLIEST, LATEST, Client
from headrace.pipeline.options import InvalidOption, Partition, Position, SourceOptions

Offsets = dict[Partition, int]


@dataclass(frozen=True)
class Range:
    """Offsets of one partition, the end excluded."""

    topic: str
    partition: int
    start: int
    end: int


def client_of(options: SourceOptions) -> Client:
    """A client as the options have it."""
    tls = None
    if options.ca or options.cert:
        tls = ssl.create_default_context(cafile=options.ca or None)
        if options.cert:
            tls.load_cert_chain(options.cert, options.key or None)
    return Client(options.bootstrap, tls=tls, client_id=options.client_id, timeout=options.timeout)


async def partitions_of(client: Client, options: SourceOptions) -> list[Partition]:
    """The partitions that the options name. Raises InvalidOption where a topic is missing."""
    known = {topic.name: len(topic.partitions) for topic in await client.cluster.topics()}
    if options.pattern:
        wanted = re.compile(options.pattern)
        names = sorted(name for name in known if wanted.fullmatch(name))
    else:
        names = list(options.topics)
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidOption(f"there is no topic {missing[0]!r} on {options.bootstrap}")
    found = []
    for name in names:
        indexes: Sequence[int] = options.partitions.get(name) or range(known[name])
        beyond = [index for index in indexes if index >= known[name]]
        if beyond:
            raise InvalidOption(f"the topic {name!r} has {known[name]} partition(s), so none numbered {beyond[0]}")
        found += [(name, index) for index in indexes]
    return found


async def offsets_at(
    client: Client, options: SourceOptions, position: Position, partitions: Sequence[Partition]
) -> Offsets:
    """The offsets that a position means now."""
    asked: dict[Partition, int] = {}
    found: Offsets = {}
    if position.group:
        committed = await client.admin.committed(position.group, partitions)
        found = {each: entry.offset for each, entry in committed.items() if entry.offset >= 0}
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
    answers = await client.admin.list_offsets(lookups, committed=options.committed) if lookups else {}
    late = [each for each, answer in answers.items() if answer.offset < 0]
    ends = await client.admin.list_offsets(dict.fromkeys(late, LATEST), committed=options.committed) if late else {}
    for each, value in asked.items():
        if each in ends:
            found[each] = ends[each].offset
        else:
            found[each] = answers[each].offset if each in answers else value
    return found


async def bounds(client: Client, options: SourceOptions, partitions: Sequence[Partition]) -> tuple[Offsets, Offsets]:
    """The first offset that each partition still has, and where it ends."""
    first = await client.admin.list_offsets(dict.fromkeys(partitions, EARLIEST), committed=options.committed)
    last = await client.admin.list_offsets(dict.fromkeys(partitions, LATEST), committed=options.committed)
    return ({each: entry.offset for each, entry in first.items()}, {each: entry.offset for each, entry in last.items()})


async def split(client: Client, options: SourceOptions, start: Mapping[Partition, int], end: Offsets) -> list[Range]:
    """Ranges for Spark's tasks: one for each partition, or finer as the options ask."""
    ranges = [
        Range(topic, index, start[topic, index], last)
        for (topic, index), last in sorted(end.items())
        if last > start[topic, index]
    ]
    total = sum(each.end - each.start for each in ranges)
    sizes = await client.admin.sizes() if options.bytes_per_partition and ranges else {}
    kept, _ = await bounds(client, options, [(each.topic, each.partition) for each in ranges]) if sizes else ({}, {})
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
        pieces += _pieces(each, min(count, length))
    return pieces


def _pieces(whole: Range, count: int) -> list[Range]:
    length = whole.end - whole.start
    edges = [whole.start + length * step // count for step in range(count + 1)]
    return [Range(whole.topic, whole.partition, first, last) for first, last in pairwise(edges)]


def limited(start: Mapping[Partition, int], end: Offsets, most: int) -> Offsets:
    """Ends no more than `most` offsets away in all, shared out by how much waits where; each gets on."""
    waiting = {each: max(0, last - start[each]) for each, last in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return end
    return {
        each: start[each] + min(left, max(1 if left else 0, most * left // total)) for each, left in waiting.items()
    }
