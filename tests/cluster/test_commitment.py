"""What is committed, and what the two sets of replicas are for."""

from __future__ import annotations

from headrace.cluster.commitment import Commitment
from headrace.cluster.maximal_isr import MaximalIsr


def commitment(isr: str = "abc", min_isr: int = 2, begin: int = 10) -> Commitment:
    return Commitment("a", begin, min_isr, MaximalIsr(1, isr))


def test_a_frame_is_committed_once_every_in_sync_replica_has_it() -> None:
    group = commitment()
    group.acknowledge("b", 12)
    assert group.reach(14) == 0
    group.acknowledge("c", 11)
    assert group.reach(14) == 11
    group.acknowledge("c", 20)
    assert group.reach(14) == 12
    group.acknowledge("b", 20)
    assert group.reach(14) == 14


def test_nothing_is_committed_before_the_leaders_own_first_frame_is_everywhere() -> None:
    group = commitment()
    for replica in "bc":
        group.acknowledge(replica, 9)
    assert group.reach(9) == group.reach(20) == 0
    for replica in "bc":
        group.acknowledge(replica, 10)
    assert group.reach(20) == 10


def test_a_replica_that_may_be_named_counts_and_guards_nothing_yet() -> None:
    group = commitment("a")
    group.isr.propose("ab")
    group.acknowledge("b", 20)
    assert group.reach(20) == 0
    group.isr.see(2, "ab")
    assert group.reach(20) == 20
    group.isr.propose("abc")
    assert group.reach(20) == 0


def test_a_session_that_ends_takes_its_word_with_it() -> None:
    group = commitment("ab")
    group.acknowledge("b", 20)
    group.forget("b")
    assert group.reach(20) == 0


def test_an_acknowledgement_never_goes_back() -> None:
    group = commitment("ab")
    group.acknowledge("b", 20)
    group.acknowledge("b", 12)
    assert group.reach(20) == 20
