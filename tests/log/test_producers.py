from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRecords, OutOfOrderSequence, OwnerFenced, ProducerFenced
from headrace.log.batch import TRANSACTIONAL, BatchHeader, header_at
from headrace.log.producers import SEQUENCE_MAX, ProducerStates, control_type

from .batches import batch, marker


def head(
    base: int, sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7, txn: bool = False
) -> BatchHeader:
    attributes = TRANSACTIONAL if txn else 0
    return header_at(
        batch(base, count, producer=producer, producer_epoch=epoch, sequence=sequence, attributes=attributes)
    )


def append(states: ProducerStates, header: BatchHeader) -> int | None:
    duplicate = states.check(header)
    if duplicate is None:
        states.update(header)
    return duplicate


def test_batches_in_sequence_are_taken_and_repeats_answered() -> None:
    states = ProducerStates()
    for i in range(8):
        assert append(states, head(i * 10, i * 10, 10)) is None
    for i in range(3, 8):
        assert append(states, head(999, i * 10, 10)) == i * 10
    with pytest.raises(OutOfOrderSequence, match="sequence 20"):
        append(states, head(999, 20, 10))  # the sixth from the end is forgotten
    with pytest.raises(OutOfOrderSequence):
        append(states, head(80, 81))
    with pytest.raises(OutOfOrderSequence):
        append(states, head(80, 70, 5))  # the sequence of a batch that was, but not its length


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert append(ProducerStates(), head(0, 1234)) is None


def test_the_sequence_wraps() -> None:
    states = ProducerStates()
    append(states, head(0, SEQUENCE_MAX - 1, 2))
    assert append(states, head(2, 0, 2)) is None
    states = ProducerStates()
    append(states, head(0, SEQUENCE_MAX, 3))  # over the edge inside one batch
    assert append(states, head(3, 2)) is None
    assert append(states, head(9, SEQUENCE_MAX, 3)) == 0


def test_epochs_fence_and_start_at_zero() -> None:
    states = ProducerStates()
    append(states, head(0, 5, epoch=3))
    with pytest.raises(ProducerFenced, match="epoch 2"):
        append(states, head(1, 6, epoch=2))
    with pytest.raises(OutOfOrderSequence, match="epoch 4"):
        append(states, head(1, 6, epoch=4))
    assert append(states, head(1, 0, epoch=4)) is None
    assert append(states, head(9, 0, epoch=4)) == 1
    with pytest.raises(OutOfOrderSequence):
        append(states, head(2, 0, 5, epoch=4))


def test_a_transaction_holds_the_last_stable_offset() -> None:
    states = ProducerStates()
    append(states, head(10, 0, 5, txn=True))
    append(states, head(15, 0, 5, producer=8, txn=True))
    append(states, head(20, 5, 5, txn=True))
    assert states.first_unstable() == 10
    with pytest.raises(InvalidRecords, match="since offset 10"):
        append(states, head(25, 10))
    end = header_at(marker(25, 7, 0, committed=False))
    assert states.check(end, 0) is None
    assert states.end_transaction(end, False, 0) == (7, 10, 25)
    assert states.first_unstable() == 15
    assert states.first_unstable(25) == 10  # the marker is not durable yet
    assert states.first_unstable(26) == 15
    assert states.end_transaction(end, False, 0) is None
    assert states.update(header_at(marker(26, 8, 0, committed=True)), (True, 3)) == (8, 15, 26)
    assert states.first_unstable(26) == 15
    assert states.first_unstable(27) is None
    with pytest.raises(OwnerFenced):
        states.check(header_at(marker(27, 8, 0, committed=True)), 2)
    with pytest.raises(ProducerFenced):
        states.check(header_at(marker(27, 8, -1, committed=True)), 3)
    assert append(states, head(27, 10, txn=True)) is None


def test_a_marker_of_a_new_epoch_makes_it_begin_at_zero() -> None:
    states = ProducerStates()
    append(states, head(0, 0, 5, txn=True))
    assert states.end_transaction(header_at(marker(5, 7, 1, committed=False)), False, 0) == (7, 0, 5)
    with pytest.raises(OutOfOrderSequence):
        append(states, head(6, 5, epoch=1))
    assert append(states, head(6, 0, epoch=1)) is None


@pytest.mark.parametrize("committed", [True, False])
def test_control_type(committed: bool) -> None:
    whole = marker(0, 1, 0, committed, coordinator_epoch=77)
    assert control_type(whole) == (committed, 77)
    for cut in range(61, len(whole) - 2):
        with pytest.raises(InvalidRecords):
            control_type(whole[:cut])
    with pytest.raises(InvalidRecords, match="type 9"):
        control_type(batch(0, [(b"\0\0\0\x09", b"\0\0\0\0\0\0")]))


def test_expiry_spares_open_transactions() -> None:
    states = ProducerStates()
    append(states, head(0, 0))
    append(states, head(1, 0, producer=8, txn=True))
    assert states.expire(1_500, 1_000) == 0
    assert states.expire(2_000, 1_000) == 1
    assert [each.producer_id for each in states.active()] == [8]


def test_truncate() -> None:
    states = ProducerStates()
    append(states, head(0, 0, 5))
    append(states, head(5, 5, 5))
    append(states, head(10, 0, producer=8, txn=True))
    states.truncate(7)
    assert states.first_unstable() is None
    assert [(each.producer_id, each.last_sequence) for each in states.active()] == [(7, 4)]
    assert append(states, head(5, 5, 5)) is None


appends = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20), st.booleans(), st.booleans()), max_size=40)


@given(appends)
def test_the_snapshot_round_trips(steps: list[tuple[int, int, bool, bool]]) -> None:
    states = ProducerStates()
    sequences: dict[int, int] = {}
    offset = 0
    for producer, count, txn, committed in steps:
        if any(each.producer_id == producer and each.transaction_start >= 0 for each in states.active()) and not txn:
            states.end_transaction(header_at(marker(offset, producer, 0, committed)), committed, 5)
            offset += 1
            continue
        sequence = sequences.get(producer, 0)
        append(states, head(offset, sequence, count, producer=producer, txn=txn))
        sequences[producer] = sequence + count
        offset += count
    loaded = ProducerStates.load(states.dump())
    assert loaded.active() == states.active()
    assert loaded.first_unstable() == states.first_unstable()
    assert loaded.dump() == states.dump()
    assert {key: list(each.batches) for key, each in loaded._producers.items()} == {
        key: list(each.batches) for key, each in states._producers.items()
    }


def test_a_broken_snapshot_is_refused() -> None:
    states = ProducerStates()
    append(states, head(0, 0))
    good = states.dump()
    assert ProducerStates.load(good).active() == states.active()
    for position in range(len(good)):
        flipped = bytearray(good)
        flipped[position] ^= 1
        with pytest.raises(ValueError, match="snapshot"):
            ProducerStates.load(bytes(flipped))
        with pytest.raises(ValueError, match="snapshot"):
            ProducerStates.load(good[:position])
