"""Sets of partitions, by the topic's id: what a member has, shall have, or must give back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

Places = Mapping[UUID, frozenset[int]]
"""No topic is there without a partition, so that equal sets are equal mappings."""

NOWHERE: Places = {}


def cut(first: Places, second: Places) -> Places:
    """What is in both."""
    return {topic: common for topic, indexes in first.items() if (common := indexes & second.get(topic, frozenset()))}


def less(first: Places, second: Places) -> Places:
    """What is in the first alone."""
    return {topic: rest for topic, indexes in first.items() if (rest := indexes - second.get(topic, frozenset()))}


def join(first: Places, second: Places) -> Places:
    """What is in either."""
    joined = dict(first)
    for topic, indexes in second.items():
        joined[topic] = joined.get(topic, frozenset()) | indexes
    return joined


def meet(first: Places, second: Places) -> bool:
    """Whether something is in both."""
    return any(not indexes.isdisjoint(second.get(topic, frozenset())) for topic, indexes in first.items())


def within(first: Places, second: Places) -> bool:
    """Whether all of the first is in the second."""
    return all(indexes <= second.get(topic, frozenset()) for topic, indexes in first.items())


def each(places: Places) -> Iterator[tuple[UUID, int]]:
    """Partition by partition."""
    for topic, indexes in places.items():
        for index in indexes:
            yield topic, index
