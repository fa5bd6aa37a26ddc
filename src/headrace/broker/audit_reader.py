"""Reading `__audit` back, the newest entries first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.broker.internal import AUDIT
from headrace.broker.reading import RecordFinder
from headrace.broker.topics import Topics
from headrace.broker.unpacking import Unpacker
from headrace.runtime import Runtime

# Entries that are read at once, and looked at for one page.
STEP_ENTRIES = 256
LOOK_ENTRIES = 10_000
STEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What entries must have. Texts are whole values; `action` may end in `*`."""

    user: str = ""
    action: str = ""
    name: str = ""
    result: str = ""
    since_ms: int = 0
    until_ms: int = 1 << 62

    def fits(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry has that."""
        for wanted, found in ((self.user, "user"), (self.name, "name"), (self.result, "result")):
            if wanted and entry.get(found) != wanted:
                return False
        action = str(entry.get("action", ""))
        if self.action.endswith("*"):
            if not action.startswith(self.action[:-1]):
                return False
        elif self.action and action != self.action:
            return False
        return self.since_ms <= int(entry.get("t", 0)) <= self.until_ms


@dataclass(slots=True)
class Page:
    """Some entries."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    """Each with its `offset`."""
    next: int | None = None
    """Entries before this offset were not looked at; None: there are none."""


class AuditReader:
    """Reads entries."""

    def __init__(self, runtime: Runtime, topics: Topics, unpacking: Unpacker) -> None:
        self._runtime = runtime
        self._topics = topics
        self._unpacking = unpacking

    async def page(self, wanted: Wanted, count: int, before: int | None = None) -> Page:
        """At most so many entries, from an offset back. Raises PartitionOffline."""
        page = Page()
        topic = self._topics.get(AUDIT)
        if topic is None:
            return page
        partition = topic.partitions[0]
        await partition.load()
        end = partition.high_watermark if before is None else min(before, partition.high_watermark)
        lowest = max(partition.start, end - LOOK_ENTRIES)
        finder = RecordFinder(self._runtime, partition, self._unpacking)
        while end > lowest:
            begin = max(lowest, end - STEP_ENTRIES)
            offsets = list(range(begin, end))
            some: list[dict[str, Any]] = []
            while offsets:
                found = await finder.find(offsets, STEP_BYTES)
                some += [{**json.loads(value or b"{}"), "offset": at} for at, _, _, value, _ in found.records]
                offsets = offsets[len(found.records) + len(found.gone) + len(found.broken) :]
            for entry in reversed(some):
                if wanted.fits(entry):
                    page.entries.append(entry)
                    if len(page.entries) == count:
                        page.next = entry["offset"] if entry["offset"] > partition.start else None
                        return page
            if some and int(some[0].get("t", 0)) < wanted.since_ms:
                # What is before that is older still.
                return page
            end = begin
        page.next = lowest if lowest > partition.start else None
        return page
