"""Which member gets which partitions.

`uniform` gives each member the same number, give or take one, and moves as little as possible. `range` cuts each topic
into runs of neighbouring partitions, in the same order of members for each, so that partitions of equal number in
topics of equal size are with one member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from operator import attrgetter
from uuid import UUID

from headrace.broker.groups.consumer.places import NOWHERE, Places

Subscribed = Mapping[str, frozenset[UUID]]
"""The topics of each member, members in the order in which they are served."""
Sizes = Mapping[UUID, int]
"""The partitions of each topic."""
Targets = dict[str, Places]
Assignor = Callable[[Subscribed, Sizes, Mapping[str, Places]], Targets]


def uniform(members: Subscribed, sizes: Sizes, before: Mapping[str, Places]) -> Targets:
    """The same number for each, near what they had."""
    shares = _Shares(members, sizes)
    for member, topics in members.items():
        for topic, indexes in before.get(member, NOWHERE).items():
            if topic in topics:
                shares.keep(member, topic, indexes)
    shares.deal()
    shares.level()
    return shares.targets()


def ranges(members: Subscribed, sizes: Sizes, before: Mapping[str, Places]) -> Targets:
    """Neighbouring partitions of each topic together."""
    targets: dict[str, dict[UUID, frozenset[int]]] = {member: {} for member in members}
    for topic, those in readers(members).items():
        share, more = divmod(sizes[topic], len(those))
        first = 0
        for place, member in enumerate(those[: sizes[topic]]):
            end = first + share + (place < more)
            targets[member][topic] = frozenset(range(first, end))
            first = end
    return dict(targets)


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": ranges}
DEFAULT = "uniform"
_BYTES = attrgetter("bytes")


def choose_assignor(wishes: Iterable[str | None]) -> str:
    """The assignor that most members wish for."""
    votes = Counter(wish for wish in wishes if wish is not None)
    return votes.most_common(1)[0][0] if votes else DEFAULT


def readers(members: Subscribed) -> dict[UUID, list[str]]:
    """Who reads each topic, in the order in which members are served. Most members read the same topics, and most
    topics have the same readers: those share one list, as a thousand members of ten thousand topics each must."""
    places: dict[frozenset[UUID], list[tuple[int, str]]] = {}
    for place, (member, topics) in enumerate(members.items()):
        places.setdefault(topics, []).append((place, member))
    subscriptions: dict[UUID, list[frozenset[UUID]]] = {}
    for topics in places:
        for topic in topics:
            subscriptions.setdefault(topic, []).append(topics)
    lists: dict[tuple[int, ...], list[str]] = {}
    found = {}
    for topic, those in subscriptions.items():
        key = tuple(map(id, those))
        if key not in lists:
            lists[key] = [member for _, member in sorted(chain.from_iterable(places[topics] for topics in those))]
        found[topic] = lists[key]
    return found


class _Shares:
    """What each member has, while it is dealt out."""

    def __init__(self, members: Subscribed, sizes: Sizes) -> None:
        self._members = members
        self._sizes = sizes
        self._has: dict[str, dict[UUID, set[int]]] = {member: {} for member in members}
        self._count = dict.fromkeys(members, 0)
        self._readers = readers(members)
        self._free = {topic: set(range(sizes[topic])) for topic in self._readers}
        # Most groups read the same topics in all members, and none need have more than this there.
        self._alike = len(set(members.values())) == 1

    def keep(self, member: str, topic: UUID, indexes: Iterable[int]) -> None:
        """Let a member have what it had, where it is still there and no other member has it."""
        kept = self._free[topic].intersection(indexes)
        if kept:
            self._free[topic] -= kept
            self._has[member][topic] = kept
            self._count[member] += len(kept)

    def deal(self) -> None:
        """Give what no member has to the one with least; topics that few read come first, as they have least choice."""
        if self._alike:
            self._give_back_above_share()
        queues = _Queues(self._count)
        order = sorted(filter(self._free.get, self._free), key=_BYTES)
        order.sort(key=lambda topic: len(self._readers[topic]))
        for topic in order:
            for index in sorted(self._free[topic]):
                self._take(queues.least(self._readers[topic]), topic, index)
            self._free[topic].clear()

    def _give_back_above_share(self) -> None:
        """Where all read the same, each has its share or one more; members with most keep the one more."""
        total = sum(self._sizes[topic] for topic in self._free)
        share, more = divmod(total, len(self._members))
        for member in sorted(self._members, key=lambda member: -self._count[member]):
            allowed = share + (more > 0)
            if self._count[member] >= allowed and more > 0:
                more -= 1
            if self._count[member] > allowed:
                self._give_back(member, self._count[member] - allowed)

    def _give_back(self, member: str, excess: int) -> None:
        """From the topics of which it has most, so that no topic leaves it wholly."""
        has = self._has[member]
        most = [(-len(indexes), topic.bytes, topic, sorted(indexes)) for topic, indexes in has.items()]
        heapify(most)
        for _ in range(excess):
            count, name, topic, indexes = heappop(most)
            given = indexes.pop()
            has[topic].discard(given)
            self._free[topic].add(given)
            if indexes:
                heappush(most, (count + 1, name, topic, indexes))
            else:
                del has[topic]
        self._count[member] -= excess

    def level(self) -> None:
        """Move from members with more to members with less by two or more, where both read the topic."""
        if self._alike:
            return
        moved = True
        while moved:
            moved = False
            least = min(self._count.values())
            # A member that gives is looked at as a taker in the next round.
            queues = _Queues(self._count)
            for giver in sorted(self._members, key=lambda member: -self._count[member]):
                if self._count[giver] - least < 2:
                    break
                for topic in sorted(self._has[giver], key=_BYTES):
                    spare = sorted(self._has[giver][topic])
                    while spare:
                        taker = queues.least(self._readers[topic])
                        if self._count[giver] - self._count[taker] < 2:
                            break
                        self._lose(giver, topic, spare[-1])
                        self._take(taker, topic, spare.pop())
                        moved = True

    def _take(self, member: str, topic: UUID, index: int) -> None:
        self._has[member].setdefault(topic, set()).add(index)
        self._count[member] += 1

    def _lose(self, member: str, topic: UUID, index: int) -> None:
        indexes = self._has[member][topic]
        indexes.discard(index)
        if not indexes:
            del self._has[member][topic]
        self._count[member] -= 1

    def targets(self) -> Targets:
        """What each has now."""
        return {
            member: {topic: frozenset(indexes) for topic, indexes in has.items()} for member, has in self._has.items()
        }


class _Queues:
    """The readers of topics, by what they have; one queue for all topics that share their readers."""

    def __init__(self, count: Mapping[str, int]) -> None:
        self._count = count
        self._queues: dict[int, list[tuple[int, int, str]]] = {}

    def least(self, those: list[str]) -> str:
        """The first member with least. One that has given something away since the queue was made may be
        overlooked."""
        queue = self._queues.get(id(those))
        if queue is None:
            queue = [(self._count[member], place, member) for place, member in enumerate(those)]
            heapify(queue)
            self._queues[id(those)] = queue
        while True:
            count, place, member = queue[0]
            if count == self._count[member]:
                return member
            heapreplace(queue, (self._count[member], place, member))
