"""The look at groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.broker.figures.columns import GROUPS
from headrace.broker.figures.pace import Pace
from headrace.broker.figures.rows import Names, Rows
from headrace.broker.figures.unread import UnreadSince
from headrace.broker.groups.group_codec import Committed
from headrace.broker.groups.protocol import GroupError
from headrace.log.interface import Topic

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# Positions between which no other gets a turn.
CHUNK = 64
# What a group costs, and each of its topics where it is at rest; a position that is looked at, and one whose record has
# to be read.
GROUP, REST, POSITION, READ = 4, 4, 3, 64

Mark = tuple[object, ...]
State = tuple[str, str, int]
"""The group's protocol, its state, and how many members it has."""


class Seen:
    """A group in a topic as it was when it was last looked at whole."""

    __slots__ = ("lag", "mark", "oldest_ms")

    def __init__(self) -> None:
        self.mark: Mark | None = None
        """None: there are many positions, or the record of one is not read yet. It is not at rest."""
        self.lag = 0
        self.oldest_ms: int | None = None


class GroupFigures:
    """The figures of all groups. As of topics, what is at rest is only asked whether it is."""

    def __init__(self, broker: Broker, rows: Rows) -> None:
        self.lags: dict[str, tuple[int, int]] = {}
        """In all topics of a group: messages, and for how long the oldest of them has waited."""
        self.lag = 0
        self._broker = broker
        self._rows = rows
        self._unread = UnreadSince(broker.runtime)
        self._seen: dict[Names, Seen] = {}
        self._by_topic: dict[str, list[str]] = {}

    def of_topic(self, topic: str) -> list[str]:
        """The groups that have a position in a topic."""
        return sorted(self._by_topic.get(topic, ()))

    async def look(self, pace: Pace) -> None:
        """Look at all of them; where they are being read still, or the broker stops, what is known of them stays."""
        before = self._seen
        there: dict[Names, Seen] = {}
        by_topic: dict[str, list[str]] = {}
        lags: dict[str, tuple[int, int]] = {}
        total = 0
        self._unread.begin_round()
        now_ms = self._broker.runtime.clock.now_ms()
        try:
            async for group in self._broker.groups.each():
                name = group.group_id
                behind, oldest = 0, now_ms
                state = (group.family, group.state.value, group.member_count)
                for topic_name, positions in list(group.offsets.by_topic.items()):
                    topic = self._broker.log.topics.get(topic_name)
                    if topic is None:
                        continue
                    names: Names = (name, topic_name)
                    seen = there[names] = before.get(names) or Seen()
                    by_topic.setdefault(topic_name, []).append(name)
                    mark = _mark(state, topic, positions)
                    if mark is None or mark != seen.mark:
                        await self._look_whole(names, seen, mark, state, topic, list(positions.items()), pace)
                    behind += seen.lag
                    oldest = oldest if seen.oldest_ms is None else min(oldest, seen.oldest_ms)
                    if pace.add(REST):
                        await pace.turn()
                if not group.offsets.by_topic:
                    there[name, ""] = Seen()
                    self._rows.put(GROUPS, (name, ""), (*state, 0, 0, None))
                lags[name] = behind, now_ms - oldest
                total += behind
                if pace.add(GROUP):
                    await pace.turn()
        except GroupError:
            return
        for gone in before:
            if gone not in there:
                self._rows.drop(GROUPS, gone)
            if pace.add(1):
                await pace.turn()
        self._seen, self._by_topic, self.lags, self.lag = there, by_topic, lags, total

    async def _look_whole(
        self,
        names: Names,
        seen: Seen,
        mark: Mark | None,
        state: State,
        topic: Topic,
        positions: Sequence[tuple[int, Committed]],
        pace: Pace,
    ) -> None:
        """Add up the positions and what is not read, and find the time of the oldest of that."""
        committed = lag = 0
        oldest: int | None = None
        group, partitions = names[0], topic.partitions
        for first in range(0, len(positions), CHUNK):
            some = positions[first : first + CHUNK]
            if pace.add(POSITION * len(some)):
                await pace.turn()
            for index, each in some:
                if not each.is_of(topic):
                    continue
                committed += each.offset
                if index >= len(partitions):
                    continue
                partition = partitions[index]
                position = max(each.offset, partition.start)
                unread = partition.high_watermark - position
                if unread <= 0 or not partition.loaded or partition.offline:
                    continue
                lag += unread
                since = self._unread.known(group, partition, position)
                if since is None:
                    if self._unread.may_read and pace.add(READ):
                        await pace.turn()
                    since = await self._unread.find(group, partition, position)
                if since is None:
                    mark = None
                else:
                    oldest = since if oldest is None else min(oldest, since)
        seen.mark, seen.lag, seen.oldest_ms = mark, lag, oldest
        self._rows.put(GROUPS, names, (*state, committed, lag, oldest))


def _mark(state: State, topic: Topic, positions: Mapping[int, Committed]) -> Mark | None:
    """What tells a group that moves in a topic, or whose topic does, from one at rest."""
    partitions = topic.partitions
    if len(positions) > CHUNK or max(positions, default=0) >= len(partitions):
        return None
    read = [partitions[index] for index in positions]
    return (
        *(state, topic, *positions.values(), *[each.high_watermark for each in read]),
        *([each.start for each in read], [each.offline for each in read]),
    )
