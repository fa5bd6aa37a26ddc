"""What names and patterns mean, as topics come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.consumer import subscriptions as module
from headrace.broker.groups.consumer.consumer_member import Traits
from headrace.broker.groups.consumer.subscriptions import Subscriptions
from headrace.broker.groups.consumer.viewer import HeldViewer, UserViewer


class Catalogue(dict[str, Any]):
    """Topics by name."""

    turn = 0

    def make(self, name: str, partitions: int = 1) -> UUID:
        self.turn += 1
        self[name] = SimpleNamespace(id=UUID(int=self.turn), partitions=range(partitions))
        return UUID(int=self.turn)

    def drop(self, name: str) -> None:
        self.turn += 1
        self.pop(name, None)


NAMES = st.sampled_from(["a", "a1", "b"])
WISHES = st.tuples(st.sets(NAMES).map(lambda names: tuple(sorted(names))), st.sampled_from(["", "a.*", "[ab]"]))
STEPS = st.one_of(
    st.tuples(st.just("make"), NAMES, st.integers(1, 2)),
    st.tuples(st.just("drop"), NAMES),
    st.tuples(st.just("put"), st.sampled_from("xyz"), WISHES),
    st.tuples(st.just("go"), st.sampled_from("xyz")),
)


@given(st.lists(st.tuples(STEPS, st.booleans())))
def test_any_order_of_changes_means_the_same(steps) -> None:
    catalogue, wishes, known = Catalogue(), {}, Subscriptions()
    for (what, *told), looks in [*steps, (("go", "nobody"), True)]:
        if what == "make":
            catalogue.make(*told)
        elif what == "drop":
            catalogue.drop(*told)
        elif what == "put":
            wishes[told[0]] = Traits(topics=told[1][0], pattern=told[1][1])
            known.put(told[0], wishes[told[0]])
        else:
            wishes.pop(told[0], None)
            known.drop(told[0])
        if not looks:
            continue
        known.renew(catalogue.turn, catalogue)
        fresh = Subscriptions()
        for member, traits in wishes.items():
            fresh.put(member, traits)
        fresh.renew(catalogue.turn, catalogue)
        assert (known.names, known.sizes, known.fingerprint) == (fresh.names, fresh.sizes, fresh.fingerprint)
        assert {member: known.of(member) for member in wishes} == {member: fresh.of(member) for member in wishes}


def test_a_pattern_is_tried_once_on_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, str]] = []
    quick = module.compile_pattern

    def counted(pattern: str) -> Any:
        matcher = quick(pattern)

        def fullmatch(name: str) -> Any:
            tried.append((pattern, name))
            return matcher.fullmatch(name)

        return SimpleNamespace(fullmatch=fullmatch)

    monkeypatch.setattr(module, "compile_pattern", counted)
    catalogue, known = Catalogue(), Subscriptions()
    for step, name in enumerate(("a1", "a2", "b")):
        catalogue.make(name)
        known.put("x", Traits(pattern="a.*"))
        known.put(f"y{step}", Traits(topics=(name,), pattern="b"))
        known.renew(catalogue.turn, catalogue)
    assert sorted(tried) == [(pattern, name) for pattern in ("a.*", "b") for name in ("a1", "a2", "b")]


def test_names_beside_a_pattern_cost_no_more_than_names() -> None:
    """Ten thousand topics that a pattern matches are not gone through for each member that names one of them."""
    catalogue, known = Catalogue(), Subscriptions()
    for name in ("a1", "a2"):
        catalogue.make(name)
    known.put("x", Traits(pattern="a.*"))
    known.put("y", Traits(topics=("a1", "nowhere"), pattern="a.*"))
    known.renew(catalogue.turn, catalogue)
    assert known.of("x") is known.of("y")
    assert known.names == {"a1", "a2", "nowhere"}


def test_names_alone_keep_no_catalogue() -> None:
    """A thousand groups would keep it a thousand times."""
    catalogue, known = Catalogue(), Subscriptions()
    for name in ("a", "b"):
        catalogue.make(name)
    known.put("x", Traits(topics=("a",)))
    known.put("y", Traits(pattern="[ab]"))
    known.renew(catalogue.turn, catalogue)
    assert known._tried == {"a", "b"}
    known.drop("y")
    known.renew(catalogue.turn, catalogue)
    assert known._tried == frozenset()
    known.put("y", Traits(pattern="[ab]"))
    known.renew(catalogue.turn, catalogue)
    assert known.of("y") == {topic.id for topic in catalogue.values()}


def test_a_topic_goes_before_the_turn_rises() -> None:
    catalogue, known = Catalogue(), Subscriptions()
    catalogue.make("a")
    known.put("x", Traits(pattern="a"))
    known.renew(catalogue.turn, catalogue)
    del catalogue["a"]
    known.put("y", Traits(pattern="a.*"))
    known.renew(catalogue.turn, catalogue)
    assert known.of("x") == known.of("y") == frozenset()


def test_a_topic_made_anew_is_another() -> None:
    catalogue, known = Catalogue(), Subscriptions()
    old = catalogue.make("a")
    known.put("x", Traits(pattern="a"))
    known.renew(catalogue.turn, catalogue)
    before = known.fingerprint
    assert known.of("x") == {old}
    catalogue.drop("a")
    new = catalogue.make("a")
    known.renew(catalogue.turn, catalogue)
    assert known.of("x") == {new} == known.sizes.keys()
    assert known.fingerprint != before


def sees(*names: str, subject: str = "ann") -> UserViewer:
    return UserViewer(subject, lambda asked: [each for each in asked if each in names])


def test_a_pattern_means_what_the_member_may_see() -> None:
    catalogue, known = Catalogue(), Subscriptions()
    a, a1 = catalogue.make("a"), catalogue.make("a1")
    for member in "xyz":
        known.put(member, Traits(pattern="a.*"))
    known.view("x", sees("a"))
    known.view("y", sees("a", "a1", subject="bob"))
    known.renew(catalogue.turn, catalogue)
    assert [known.of(each) for each in "xyz"] == [{a}, {a, a1}, {a, a1}]
    # What only the hidden one's topics would have been is not the group's.
    known.drop("y")
    known.drop("z")
    known.renew(catalogue.turn, catalogue)
    assert (known.names, known.sizes) == ({"a"}, {a: 1})
    # Names are checked with the heartbeat that has them.
    known.put("z", Traits(topics=("a1",)))
    known.view("z", sees())
    known.renew(catalogue.turn, catalogue)
    assert known.of("z") == {a1}
    assert known.names == {"a", "a1"}


def test_rights_that_change_are_seen_where_the_groups_topics_stay_the_same() -> None:
    catalogue, known = Catalogue(), Subscriptions()
    a, a1 = catalogue.make("a"), catalogue.make("a1")
    names = ["a"]
    viewer = UserViewer("ann", lambda asked: [each for each in asked if each in names])
    for member in "xy":
        known.put(member, Traits(pattern="a.*"))
    known.view("x", viewer)
    known.view("y", sees("a", "a1", subject="bob"))
    known.renew(catalogue.turn, catalogue)
    fingerprint = known.fingerprint
    assert not known.has_shifted
    names.append("a1")
    catalogue.turn += 1
    known.renew(catalogue.turn, catalogue)
    assert (known.fingerprint, known.has_shifted, known.of("x")) == (fingerprint, True, {a, a1})
    known.has_shifted = False
    # Another user who sees the same; then one who does not.
    known.view("x", sees("a", "a1", subject="cid"))
    known.renew(catalogue.turn, catalogue)
    assert not known.has_shifted
    known.view("x", sees("a1", subject="dan"))
    known.renew(catalogue.turn, catalogue)
    assert (known.has_shifted, known.of("x")) == (True, {a1})


def test_a_restored_member_keeps_what_it_had_until_it_is_heard_of() -> None:
    catalogue, known = Catalogue(), Subscriptions()
    a = catalogue.make("a")
    known.put("x", Traits(pattern="a.*"))
    known.view("x", HeldViewer(frozenset({a})))
    a1 = catalogue.make("a1")
    known.renew(catalogue.turn, catalogue)
    assert known.of("x") == {a}
    known.view("x", None)
    known.renew(catalogue.turn, catalogue)
    assert (known.of("x"), known.has_shifted) == ({a, a1}, True)
