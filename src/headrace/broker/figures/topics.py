"""The look at topics.

Nearly all of many topics are at rest, so a look asks each of them only whether anything has moved: a few comparisons.
What did is looked at whole. What did not is too, some of it in each look: compaction changes the size of a topic, and
nothing else of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.figures.changes import Row
from headrace.broker.figures.columns import TOPICS, place
from headrace.broker.figures.pace import Pace
from headrace.broker.figures.rows import Rows
from headrace.broker.internal import is_internal
from headrace.broker.metrics import TopicMetrics
from headrace.log.interface import Partition, Topic

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# Topics between which no other gets a turn.
CHUNK = 64
# In so many looks each topic at rest is looked at whole once.
TURNS = 16
# What a topic and one of its partitions cost where they are looked at whole; one at rest costs 1.
WHOLE = 8
PARTITION = 3
NO_TRAFFIC = TopicMetrics()
_MESSAGES_IN, _BYTES_IN = place(TOPICS, "messages_in"), place(TOPICS, "bytes_in")

Mark = tuple[object, ...]


class Totals(NamedTuple):
    """Of topics."""

    partitions: int = 0
    offline: int = 0
    bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Seen:
    """A topic as it was when it was last looked at whole."""

    __slots__ = ("mark", "topic", "totals")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.mark: Mark | None = None
        """What a topic with one partition had; None: it has several, and is never at rest."""
        self.totals = Totals()


class TopicFigures:
    """The figures of all topics."""

    def __init__(self, broker: Broker, rows: Rows) -> None:
        self.rates: dict[str, tuple[float, float]] = {}
        """Of topics with traffic: messages and bytes a second that came between the last two looks."""
        self.totals = Totals()
        self.messages_in = 0
        """That came since the first look."""
        self._broker = broker
        self._rows = rows
        self._seen: dict[str, Seen] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._seen)

    async def look(self, pace: Pace, seconds: float) -> None:
        """Look at all of them, so many seconds after the last look."""
        topics, metrics = self._broker.log.topics, self._broker.metrics.topics
        rates: dict[str, tuple[float, float]] = {}
        names = list(topics)
        found = 0
        for number, first in enumerate(range(0, len(names), CHUNK)):
            is_due = number % TURNS == self._turn
            work = 0
            for name in names[first : first + CHUNK]:
                topic = topics.get(name)
                if topic is None or topic.deleted:
                    continue
                found += 1
                seen = self._seen.get(name)
                if seen is None:
                    seen = self._seen[name] = Seen(topic)
                elif seen.topic is not topic:
                    seen.topic, seen.mark = topic, None
                traffic = metrics.get(name, NO_TRAFFIC)
                if len(topic.partitions) == 1:
                    mark = _mark(topic.partitions[0], traffic)
                    if mark == seen.mark and not is_due:
                        work += 1
                        continue
                    seen.mark = mark
                    work += WHOLE
                else:
                    seen.mark = None
                    if pace.add(work + WHOLE):
                        await pace.turn()
                    work = 0
                await self._look_whole(name, seen, traffic, pace, seconds, rates)
            if pace.add(work):
                await pace.turn()
        self._turn = (self._turn + 1) % TURNS
        self.rates = rates
        if found < len(self._seen):
            await self._forget(pace)

    async def _look_whole(
        self,
        name: str,
        seen: Seen,
        traffic: TopicMetrics,
        pace: Pace,
        seconds: float,
        rates: dict[str, tuple[float, float]],
    ) -> None:
        topic = seen.topic
        if seen.mark is not None:
            offline, messages, messages_in, size = self._sum_up(topic.partitions)
        else:
            offline, messages, messages_in, size = await self._sum_up_many(topic, pace)
        row: Row = (
            *(is_internal(name), len(topic.partitions), offline, messages, messages_in, size),
            *(traffic.bytes_in, traffic.bytes_out, traffic.batches_in, traffic.blocked, traffic.rejected),
            *(traffic.dropped, traffic.passed_by, traffic.duplicates),
        )
        before = self._rows.get(TOPICS, (name,))
        if before == row:
            return
        self._rows.put(TOPICS, (name,), row)
        came = _growth(before, row, _MESSAGES_IN)
        self.messages_in += came
        if before is not None and seconds > 0:
            rates[name] = came / seconds, _growth(before, row, _BYTES_IN) / seconds
        totals = Totals(len(topic.partitions), offline, size or 0, traffic.bytes_in, traffic.bytes_out)
        self._add(seen.totals, totals)
        seen.totals = totals

    def _add(self, before: Totals, now: Totals) -> None:
        changed = zip(self.totals, before, now, strict=True)
        self.totals = Totals(*(total - was + is_now for total, was, is_now in changed))

    def _sum_up(self, partitions: Sequence[Partition]) -> tuple[int, int | None, int | None, int | None]:
        """Of partitions: those that are offline, messages that are kept and that ever came, bytes; None while they are
        not known."""
        offline = messages = messages_in = size = 0
        is_known = True
        local = self._broker.log.local
        for partition in partitions:
            if partition.offline is not None:
                offline += 1
            elif partition.loaded:
                end = partition.high_watermark
                messages += end - partition.start
                messages_in += end
                size += local(partition).size()
            else:
                is_known = False
        return (offline, messages, messages_in, size) if is_known else (offline, None, None, None)

    async def _sum_up_many(self, topic: Topic, pace: Pace) -> tuple[int, int | None, int | None, int | None]:
        """The same with turns of the loop between."""
        offline = messages = messages_in = size = 0
        is_known = True
        for first in range(0, len(topic.partitions), CHUNK):
            some = topic.partitions[first : first + CHUNK]
            missing, *sums = self._sum_up(some)
            offline += missing
            if sums[0] is None or sums[1] is None or sums[2] is None:
                is_known = False
            else:
                messages, messages_in, size = messages + sums[0], messages_in + sums[1], size + sums[2]
            if pace.add(len(some) * PARTITION):
                await pace.turn()
        return (offline, messages, messages_in, size) if is_known else (offline, None, None, None)

    async def _forget(self, pace: Pace) -> None:
        """Drop the rows of topics that are no more."""
        for name in list(self._seen):
            topic = self._broker.log.topics.get(name)
            if topic is None or topic.deleted:
                self._rows.drop(TOPICS, (name,))
                self._add(self._seen.pop(name).totals, Totals())
            if pace.add(1):
                await pace.turn()


def _mark(partition: Partition, traffic: TopicMetrics) -> Mark:
    """What tells a topic with one partition that moves from one at rest."""
    return (
        *(partition.high_watermark, partition.start, partition.offline, partition.loaded, traffic.bytes_out),
        *(traffic.blocked, traffic.rejected, traffic.dropped, traffic.passed_by, traffic.duplicates),
    )


def _growth(before: Row | None, row: Row, column: int) -> int:
    """What a counter has grown by; a counter that was not known, or began anew, has not."""
    old, new = None if before is None else before[column], row[column]
    return max(new - old, 0) if isinstance(old, int) and isinstance(new, int) else 0
