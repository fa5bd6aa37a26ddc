"""The leader counts every member that etcd may name, whatever becomes of its swaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.maximal_isr import MaximalIsr


def test_an_addition_counts_before_its_swap_is_sent_and_a_removal_until_it_is_confirmed() -> None:
    isr = MaximalIsr(5, "ab")
    isr.propose("abc")
    assert (isr.members, isr.confirmed) == (set("abc"), set("ab"))
    isr.see(6, "abc")
    assert isr.is_settled
    isr.propose("a")
    assert isr.members == set("abc")
    isr.see(7, "a")
    assert isr.members == isr.confirmed == set("a")


def test_the_same_revision_read_again_ends_nothing() -> None:
    isr = MaximalIsr(5, "ab")
    isr.propose("abc")
    isr.see(5, "ab")
    assert isr.members == set("abc")
    assert not isr.is_settled
    # A touch is confirmed: the addition can no longer be carried out.
    isr.propose("ab")
    isr.see(6, "ab")
    assert isr.members == set("ab")


def test_what_was_certainly_not_carried_out_counts_no_more() -> None:
    isr = MaximalIsr(5, "ab")
    isr.propose("abc")
    isr.propose("abc")
    isr.withdraw("abc")
    assert isr.members == set("abc")
    isr.withdraw("abc")
    assert isr.members == set("ab")


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.sampled_from(["sent", "late", "read"]))))
def test_it_holds_whatever_etcd_may_name(steps: list[tuple[set[str], str]]) -> None:
    """Swaps are answered, or are carried out at any later time, or never: etcd takes each only at the revision that it
    expects."""
    revision, stored = 1, frozenset("ab")
    isr = MaximalIsr(revision, stored)
    under_way: list[tuple[int, frozenset[str]]] = []
    for members, kind in steps:
        if kind == "sent":
            under_way.append((isr.revision, frozenset(members)))
            isr.propose(members)
        elif kind == "late" and under_way:
            expected, value = under_way.pop(len(members) % len(under_way))
            if expected == revision:
                revision, stored = revision + 1, value
        else:
            isr.see(revision, stored)
        possible = {stored, *(value for expected, value in under_way if expected == revision)}
        for each in possible:
            assert each <= isr.members


def test_a_swap_that_a_newer_record_has_settled_may_still_be_taken_back() -> None:
    isr = MaximalIsr(1, "ab")
    isr.propose("abc")
    isr.see(2, "ab")
    isr.withdraw("abc")
    assert isr.is_settled
    assert isr.members == frozenset("ab")
