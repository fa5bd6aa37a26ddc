"""Who shall have what: nothing twice, nothing left over, nobody more than a share, and little that moves."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.consumer.assignors import choose_assignor, ranges, readers, uniform
from headrace.broker.groups.consumer.places import Places

TOPICS = [UUID(int=number) for number in range(1, 5)]
MEMBERS = "abcdefgh"

sizes = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in TOPICS})
alike = st.integers(1, len(MEMBERS)).map(lambda count: {member: frozenset(TOPICS) for member in MEMBERS[:count]})
mixed = st.dictionaries(st.sampled_from(MEMBERS), st.frozensets(st.sampled_from(TOPICS)), min_size=1)


def count(places: Places) -> int:
    return sum(map(len, places.values()))


def check(
    members: Mapping[str, frozenset[UUID]], sizes: Mapping[UUID, int], targets: Mapping[str, Places]
) -> list[tuple[UUID, int]]:
    """Each partition that anybody reads is with one of its readers."""
    assert list(targets) == list(members)
    given_out = []
    for member, places in targets.items():
        assert places.keys() <= members[member]
        assert all(places.values())
        given_out += [(topic, index) for topic, indexes in places.items() for index in indexes]
    read = frozenset[UUID]().union(*members.values())
    assert sorted(given_out) == [(topic, index) for topic in sorted(read) for index in range(sizes[topic])]
    return given_out


@given(alike, sizes, alike)
def test_all_that_read_the_same_have_the_same(members, sizes, others) -> None:
    targets = uniform(members, sizes, {})
    check(members, sizes, targets)
    counts = [count(places) for places in targets.values()]
    assert max(counts) - min(counts) <= 1

    after = uniform(others, sizes, targets)
    check(others, sizes, after)
    counts = [count(places) for places in after.values()]
    assert max(counts) - min(counts) <= 1
    # Nobody gets something new that could have stayed: who keeps its share is given nothing from the others' shares.
    total = sum(sizes.values())
    for member, places in after.items():
        before = targets.get(member, {})
        kept = sum(len(indexes & before.get(topic, frozenset())) for topic, indexes in places.items())
        assert kept >= min(count(before), total // len(others))


@given(mixed, sizes, mixed)
def test_those_that_read_different_topics_are_level(members, sizes, others) -> None:
    targets = uniform(members, sizes, {})
    check(members, sizes, targets)
    after = uniform(others, sizes, targets)
    check(others, sizes, after)
    for places in after.values():
        for topic in places:
            for other, topics in others.items():
                if topic in topics:
                    assert count(places) - count(after[other]) <= 1, "somebody with less could have had it"


@given(alike, sizes)
def test_nothing_moves_without_need(members, sizes) -> None:
    targets = uniform(members, sizes, {})
    assert uniform(members, sizes, targets) == targets


@given(mixed, sizes)
def test_ranges_are_of_neighbours(members, sizes) -> None:
    targets = ranges(members, sizes, {})
    check(members, sizes, targets)
    for topic in TOPICS:
        readers = [member for member, topics in members.items() if topic in topics]
        runs = [sorted(targets[member].get(topic, ())) for member in readers]
        assert [index for run in runs for index in run] == (list(range(sizes[topic])) if readers else [])
        assert all(len(run) in (sizes[topic] // len(readers), sizes[topic] // len(readers) + 1) for run in runs)


@given(mixed)
def test_topics_of_the_same_readers_share_them(members) -> None:
    """Or else a thousand members of ten thousand topics would hold the loop for seconds."""
    found = readers(members)
    assert found == {
        topic: [member for member, topics in members.items() if topic in topics]
        for topic in frozenset[UUID]().union(*members.values())
    }
    assert len({id(those) for those in found.values()}) == len({tuple(those) for those in found.values()})


def test_most_members_choose() -> None:
    assert choose_assignor([]) == choose_assignor([None, None]) == "uniform"
    assert choose_assignor([None, "range", "uniform", "range"]) == "range"
