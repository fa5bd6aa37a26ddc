"""What a replay reads: ranges of offsets that are fixed once, cut into rounds that follow from them alone.

So the number of the last round that is done is where to go on; there is no other account.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from headrace.pipeline import read_plan
from headrace.pipeline.options import Partition, SourceOptions
from headrace.pipeline.origin import Catalogue, Range

ROUND_ROWS = 2_000_000
# What is read at once where times do not say how far to go.
STRETCH = 10_000


@dataclass(frozen=True)
class Plan:
    """Ranges, and in how many rounds they are read."""

    ranges: tuple[Range, ...]
    rounds: int

    def round(self, number: int) -> list[Range]:
        """What the round with this number reads, from 0 on: as large a part of each range."""
        found = []
        for each in self.ranges:
            length = each.end - each.start
            start, end = (each.start + length * step // self.rounds for step in (number, number + 1))
            if end > start:
                found.append(Range(each.topic, each.partition, start, end))
        return found

    @property
    def offsets(self) -> int:
        return sum(each.end - each.start for each in self.ranges)

    def dump(self) -> str:
        return json.dumps({"ranges": [list(astuple(each)) for each in self.ranges], "rounds": self.rounds})

    @classmethod
    def load(cls, text: str) -> Plan:
        fields = json.loads(text)
        return cls(tuple(Range(*each) for each in fields["ranges"]), fields["rounds"])


async def plan_of(origin: Catalogue, source: SourceOptions, round_rows: int) -> Plan:
    """The ranges that the options name now. Raises DataLost where the first of them are gone."""
    partitions = await read_plan.find_partitions(origin, source)
    start, end = await read_plan.resolve_range(origin, source, partitions, {})
    ranges = tuple(Range(*each, start[each], end[each]) for each in sorted(partitions) if end[each] > start[each])
    total = sum(each.end - each.start for each in ranges)
    return Plan(ranges, max(1, -(-total // round_rows)))


async def find_reached(
    origin: Catalogue, source: SourceOptions, plan: Plan, done: Mapping[Partition, int], time_ms: int
) -> dict[Partition, int]:
    """Of each partition, the offset of the first record of its range that is not older than a time, or its end."""
    partitions = [(each.topic, each.partition) for each in plan.ranges]
    found = await origin.offsets(dict.fromkeys(partitions, time_ms), committed=source.committed)
    ends = {(each.topic, each.partition): each.end for each in plan.ranges}
    upto: dict[Partition, int] = {}
    for each in partitions:
        if found[each] < 0:
            upto[each] = ends[each]
        elif found[each] < done[each]:
            # An older record is of a later time than those that come now: the log cannot say how far to go.
            upto[each] = min(ends[each], done[each] + STRETCH)
        else:
            upto[each] = min(ends[each], found[each])
    return upto
