"""The offsets that one group has committed.

What is kept here is what is durable: a commit enters when its append has reached the device, so an answer never names
an offset that a power cut could take back. Commits on their way are known by name only, so that whoever deletes a group
leaves none behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from headrace.broker.groups.records import NO_EXPIRY, Committed

Place = tuple[str, int]
"""Topic and partition."""


class GroupOffsets:
    """Committed offsets by topic and partition."""

    __slots__ = ("_sending", "by_topic")

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, Committed]] = {}
        self._sending: Counter[Place] = Counter()

    def __bool__(self) -> bool:
        return bool(self.by_topic or self._sending)

    def __iter__(self) -> Iterator[tuple[Place, Committed]]:
        for topic, partitions in self.by_topic.items():
            for partition, committed in partitions.items():
                yield (topic, partition), committed

    def get(self, topic: str, partition: int) -> Committed | None:
        """The offset that the group has committed there."""
        return self.by_topic.get(topic, {}).get(partition)

    def put(self, topic: str, partition: int, committed: Committed) -> None:
        """A commit is durable."""
        self.by_topic.setdefault(topic, {})[partition] = committed

    def drop(self, topic: str, partition: int) -> None:
        """A tombstone is durable."""
        partitions = self.by_topic.get(topic)
        if partitions is not None and partitions.pop(partition, None) is not None and not partitions:
            del self.by_topic[topic]

    def sending(self, places: Iterable[Place]) -> None:
        """Commits are on their way."""
        for place in places:
            self._sending[place] += 1

    def sent(self, places: Iterable[Place]) -> None:
        """Commits are durable, or have failed."""
        for place in places:
            self._sending[place] -= 1
            if not self._sending[place]:
                del self._sending[place]

    def places(self) -> list[Place]:
        """Everywhere that has an offset or is about to."""
        return list(dict.fromkeys([place for place, _ in self] + list(self._sending)))

    def has(self, topic: str, partition: int) -> bool:
        """Whether there is an offset, or is about to be."""
        return self.get(topic, partition) is not None or self._sending[topic, partition] > 0

    def expired(
        self, now_ms: int, retention_ms: int, since_ms: int | None, spared: Callable[[str], bool]
    ) -> list[Place]:
        """The offsets whose time is over: counted from `since_ms`, or from each commit where that is None. An offset
        that came with a time of its own goes by that. Topics that are `spared` keep theirs."""
        places = []
        for topic, partitions in self.by_topic.items():
            if spared(topic):
                continue
            for partition, committed in partitions.items():
                if self._sending[topic, partition]:
                    continue
                if committed.expire_ms != NO_EXPIRY:
                    over = committed.expire_ms
                else:
                    over = (committed.commit_ms if since_ms is None else since_ms) + retention_ms
                if over <= now_ms:
                    places.append((topic, partition))
        return places
