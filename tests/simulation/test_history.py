"""The checker of histories: each way to break a promise is seen, and what a durability allows is forgiven."""

from __future__ import annotations

import pytest

from simulation.broker.history import CommitHistory, PartitionHistory, Sent, State, Survived
from simulation.history import Violation


def history(durability: str = "sync", count: int = 4, source: str = "p") -> tuple[PartitionHistory, list[Sent]]:
    partition = PartitionHistory("t-0", durability=durability)
    sent = [Sent(f"{source}-{number}", source, number) for number in range(count)]
    for record in sent:
        partition.send(record)
    return partition, sent


def acknowledged(durability: str = "sync") -> PartitionHistory:
    partition, sent = history(durability)
    for offset, record in enumerate(sent):
        partition.acknowledge(record, offset)
    return partition


WHOLE = [(0, "p-0"), (1, "p-1"), (2, "p-2"), (3, "p-3")]


def test_a_whole_history_passes():
    partition = acknowledged()
    assert partition.read(0, WHOLE, 4) == 4
    partition.check(partition.snapshot(), 0, WHOLE, 4)


@pytest.mark.parametrize(
    ("records", "end", "said"),
    [
        (WHOLE[:3], 3, "the end was 4"),
        ([], 0, "the end was 4"),
        ([*WHOLE[:2], (3, "p-3")], 4, "a hole"),
        ([*WHOLE, (4, "p-3")], 5, "a duplicate"),
        ([(0, "p-1"), (1, "p-0"), *WHOLE[2:]], 4, "where p-0 is"),
        ([*WHOLE, (4, "x")], 5, "never sent"),
        (WHOLE, 5, "the records end at 4"),
    ],
    ids=["lost", "all lost", "hole", "duplicate", "exchanged", "invented", "short"],
)
def test_a_look_that_finds_something_else_fails(records, end, said):
    partition = acknowledged()
    with pytest.raises(Violation, match=said):
        partition.check(partition.snapshot(), 0, records, end)


def test_what_was_read_may_not_go_even_if_it_was_never_acknowledged():
    partition, _ = history()
    partition.read(0, WHOLE[:2], 2)
    partition.end_life(Survived.DEVICE)
    with pytest.raises(Violation, match="the end was 2"):
        partition.check(partition.snapshot(), 0, WHOLE[:1], 1)


def test_the_order_of_one_producer_counts():
    partition, _ = history()
    with pytest.raises(Violation, match="which was sent after it"):
        partition.check(partition.snapshot(), 0, [(0, "p-1"), (1, "p-0")], 2)


def test_a_refused_record_may_not_be_there():
    partition, sent = history()
    partition.refuse(sent[0])
    with pytest.raises(Violation, match="refused"):
        partition.read(0, WHOLE[:1], 1)


def test_two_acknowledgements_of_one_place_fail():
    partition, sent = history()
    partition.acknowledge(sent[0], 0)
    with pytest.raises(Violation, match="where p-0 is"):
        partition.acknowledge(sent[1], 0)


def test_a_reader_sees_nothing_beyond_the_end_it_is_told():
    partition, _ = history()
    with pytest.raises(Violation, match="the high watermark was 1"):
        partition.read(0, WHOLE[:2], 1)


def test_an_unanswered_record_before_an_answered_one_is_there():
    partition, sent = history()
    partition.acknowledge(sent[1], 0)
    partition.settle(sent[0])
    with pytest.raises(Violation, match="acks=0"):
        partition.check(partition.snapshot(), 0, [(0, "p-1")], 1)


@pytest.mark.parametrize(
    ("durability", "survived", "forgiven"),
    [
        ("sync", Survived.DEVICE, False),
        ("async", Survived.DEVICE, True),
        ("async", Survived.CACHE, False),
        ("async", Survived.EVERYTHING, False),
        ("memory", Survived.EVERYTHING, True),
    ],
)
def test_a_crash_takes_what_the_durability_allows(durability, survived, forgiven):
    partition = acknowledged(durability)
    partition.end_life(survived)
    snapshot = partition.snapshot()
    if forgiven:
        partition.check(snapshot, 0, WHOLE[:2], 2)
        assert partition.sent["p-3"].state is State.LOST
        with pytest.raises(Violation, match="came back"):
            partition.read(2, [(2, "p-3")], 3)
    else:
        with pytest.raises(Violation, match="the end was 4"):
            partition.check(snapshot, 0, WHOLE[:2], 2)


def test_what_is_left_after_a_loss_is_what_was_there():
    partition = acknowledged("async")
    partition.end_life(Survived.DEVICE)
    with pytest.raises(Violation, match="where p-0 is"):
        partition.check(partition.snapshot(), 0, [(0, "p-1"), (1, "p-0")], 2)


def test_commits_only_rise():
    group = CommitHistory("g")
    group.observe(-1)
    group.start_commit(3)
    group.commit(3)
    group.start_commit(5)
    group.observe(5)
    with pytest.raises(Violation, match="went back to 3"):
        group.observe(3)
    with pytest.raises(Violation, match="which no client asked for"):
        group.observe(9)
