"""The offsets that one group has committed.

What is kept here is what is durable: a commit enters when its append has reached the device, so an answer never names
an offset that a power cut could take back. Of commits on their way only the partition is known, so that the deletion of
a group leaves none behind.

Offsets that were committed within a transaction wait beside them for its end, by producer. They count as pending from
the moment they are appended, because a consumer that goes on from there must not miss them. Whatever was appended after
them and counts already, plain or by another transaction, stays when the transaction commits: the later record wins, as
in a compaction of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import structlog

from headrace.broker.groups.group_codec import NO_EXPIRY, Committed
from headrace.errors import HeadraceError
from headrace.log.interface import Durability, Topic
from headrace.log.local import LocalLog

log = structlog.get_logger("headrace.groups")

TopicPartition = tuple[str, int]
"""Topic and partition."""


class GroupOffsets:
    """Committed offsets by topic and partition."""

    __slots__ = ("_sending", "_turn", "by_topic", "pending")

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, Committed]] = {}
        # Producer id -> place -> the turn of an append, and what the transaction would commit; the newest last. Those
        # before it are there while it is not durable.
        self.pending: dict[int, dict[TopicPartition, list[tuple[int, Committed]]]] = {}
        self._sending: Counter[TopicPartition] = Counter()
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self.by_topic or self._sending or self.pending)

    def __iter__(self) -> Iterator[tuple[TopicPartition, Committed]]:
        for topic, partitions in self.by_topic.items():
            for partition, committed in partitions.items():
                yield (topic, partition), committed

    def get(self, topic: str, partition: int) -> Committed | None:
        """The offset that the group has committed there."""
        return self.by_topic.get(topic, {}).get(partition)

    def put(self, topic: str, partition: int, committed: Committed) -> None:
        """A commit is durable."""
        self.by_topic.setdefault(topic, {})[partition] = committed

    def turn(self) -> int:
        """A number for an append, larger than all before it."""
        self._turn += 1
        return self._turn

    def outdate(self, place: TopicPartition, turn: int) -> None:
        """A commit of that turn counts: what transactions had appended before it no longer does."""
        for places in self.pending.values():
            if place in places:
                places[place] = [each for each in places[place] if each[0] > turn]
                if not places[place]:
                    del places[place]

    def wait(self, producer_id: int, taken: Mapping[TopicPartition, Committed]) -> None:
        """Offsets of a transaction were appended."""
        places = self.pending.setdefault(producer_id, {})
        turn = self.turn()
        for place, committed in taken.items():
            places.setdefault(place, []).append((turn, committed))

    def waits(self, producer_id: int, taken: Mapping[TopicPartition, Committed]) -> None:
        """Offsets of a transaction are durable: those that it had appended before are not gone back to."""
        places = self.pending.get(producer_id, {})
        for place, committed in taken.items():
            for at, (_, each) in enumerate(places.get(place, ())):
                if each is committed:
                    del places[place][:at]
                    break

    def unwait(self, producer_id: int, taken: Mapping[TopicPartition, Committed]) -> None:
        """The append of a transaction's offsets has failed: what it had appended before holds."""
        places = self.pending.get(producer_id, {})
        for place, committed in taken.items():
            if place in places:
                places[place] = [each for each in places[place] if each[1] is not committed]
                if not places[place]:
                    del places[place]
        if not places:
            self.pending.pop(producer_id, None)

    def end(self, producer_id: int, commit: bool) -> None:
        """The transaction has ended, durably."""
        places = self.pending.pop(producer_id, {})
        if commit:
            for place, appended in places.items():
                turn, committed = appended[-1]
                self.outdate(place, turn)
                self.put(*place, committed)

    def resume(self, replayed: GroupOffsets) -> None:
        """Go on with the open transactions that a replay has found, and behind its turns."""
        self.pending = replayed.pending
        self._turn = replayed._turn

    def unstable(self, topic: str, partition: int) -> bool:
        """Whether a transaction that has not ended may change the offset."""
        return any((topic, partition) in places for places in self.pending.values())

    async def current(self, node: LocalLog, group_id: str, name: str, index: int) -> Committed | None:
        """A committed offset that still means something: its topic is the same one, and the log still reaches to it."""
        committed = self.get(name, index)
        if committed is None:
            return None
        topic = node.topics.get(name)
        if not committed.is_of(topic):
            return None
        if committed.written_epoch == node.epoch or topic is None or index >= len(topic.partitions):
            return committed
        # The log has had an unclean start since: what the commit counted as done may have been lost.
        partition = topic.partitions[index]
        where = {"topic": name, "partition": index}
        if not partition.loaded:
            try:
                await partition.load()
            except HeadraceError as error:
                log.warning("could not check a committed offset", **where, error=str(error))
                return committed
        if topic.settings.durability is Durability.MEMORY:
            end = partition.start
        else:
            _, end = partition.epoch_end(committed.written_epoch)
            end = partition.end if end < 0 else end
        checked = replace(committed, offset=min(committed.offset, end), written_epoch=node.epoch)
        if checked.offset != committed.offset:
            cut = {"group": group_id, "committed": committed.offset, "end": end}
            log.warning("a committed offset was cut back to the end of the log", **where, **cut)
        if self.get(name, index) is committed:
            self.put(name, index, checked)
            return checked
        return await self.current(node, group_id, name, index)

    def drop(self, topic: str, partition: int) -> None:
        """A tombstone is durable."""
        partitions = self.by_topic.get(topic)
        if partitions is not None and partitions.pop(partition, None) is not None and not partitions:
            del self.by_topic[topic]

    def sending(self, places: Iterable[TopicPartition]) -> None:
        """Commits are on their way."""
        for place in places:
            self._sending[place] += 1

    def sent(self, places: Iterable[TopicPartition]) -> None:
        """Commits are durable, or have failed."""
        for place in places:
            self._sending[place] -= 1
            if not self._sending[place]:
                del self._sending[place]

    def places(self) -> list[TopicPartition]:
        """Everywhere that has an offset or is about to."""
        return list(dict.fromkeys([place for place, _ in self] + list(self._sending)))

    def has(self, topic: str, partition: int) -> bool:
        """Whether there is an offset, or is about to be."""
        return self.get(topic, partition) is not None or self._sending[topic, partition] > 0

    def changing(self, topic: str, partition: int) -> bool:
        """Whether a commit is on its way, plain or within a transaction: a tombstone would come behind it."""
        return self._sending[topic, partition] > 0 or self.unstable(topic, partition)

    def expired(
        self, now_ms: int, retention_ms: int, since_ms: int | None, spared: Callable[[str], bool]
    ) -> list[TopicPartition]:
        """The offsets whose time is over: counted from `since_ms`, or from each commit where that is None. An offset
        that came with a time of its own goes by that. Topics that are `spared` keep theirs."""
        places = []
        for topic, partitions in self.by_topic.items():
            if spared(topic):
                continue
            for partition, committed in partitions.items():
                if self.changing(topic, partition):
                    continue
                if committed.expire_ms != NO_EXPIRY:
                    over = committed.expire_ms
                else:
                    over = (committed.commit_ms if since_ms is None else since_ms) + retention_ms
                if over <= now_ms:
                    places.append((topic, partition))
        return places

    def orphaned(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """The offsets whose topic is gone."""
        return [
            place
            for place, committed in self
            if not committed.is_of(topics.get(place[0])) and not self.changing(*place)
        ]
