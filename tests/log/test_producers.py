from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRecords, OutOfOrderSequence, OwnerFenced, ProducerFenced
from headrace.format.batch import TRANSACTIONAL, BatchHeader, header_at
from headrace.format.markers import control_type
from headrace.log.producers import SEQUENCE_MAX, ProducerStates

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
        states.remember(header.producer_id, header.base_offset, 0)
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


def test_a_marker_is_remembered_until_nothing_can_take_it_back() -> None:
    states = ProducerStates()
    append(states, head(10, 0, 5, txn=True))
    states.end_transaction(header_at(marker(25, 7, 0, committed=True)), True, 0)
    assert states.first_unstable(26) is None
    # Whoever goes by an earlier point asks later.
    assert states.first_unstable(20) == 10
    states.settle(25)
    assert states.first_unstable(25) == 10
    states.settle(26)
    assert states.first_unstable(25) is None


def test_what_began_before_an_offset_has_ended() -> None:
    states = ProducerStates()
    append(states, head(10, 0, 5, txn=True))
    append(states, head(15, 0, 5, producer=8, txn=True))
    states.end_before(15)
    assert states.first_unstable() == 15
    assert [each.transaction_start for each in states.active()] == [-1, 15]
    # The next transaction begins where it begins.
    append(states, head(20, 5, 5, txn=True))
    assert states.end_transaction(header_at(marker(25, 7, 0, committed=False)), False, 0) == (7, 20, 25)


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
    states.truncate(5)
    assert states.first_unstable() is None
    assert [(each.producer_id, each.last_sequence) for each in states.active()] == [(7, 4)]
    assert append(states, head(5, 5, 5)) is None


def test_a_marker_that_is_taken_back_leaves_its_transaction_open() -> None:
    states = ProducerStates()
    append(states, head(0, 0, 5, producer=8, txn=True))
    append(states, head(5, 0, 5, txn=True))
    before = states.dump()
    for producer, base, epoch in ((8, 10, 0), (7, 11, 1)):
        end = header_at(marker(base, producer, epoch, committed=False, coordinator_epoch=3, timestamp=9_000))
        states.remember(producer, base, 10)
        states.end_transaction(end, False, 3)
    states.remember(7, 12, 10)
    states.update(head(12, 0, 2, epoch=1, txn=True))
    assert (states.first_unstable(), states.first_unstable(10)) == (12, 0)
    states.truncate(10)
    assert states.first_unstable(10) == states.first_unstable(20) == 0
    assert states.dump() == before
    # The one that began later has ended: the other is still the oldest.
    states.remember(7, 10, 10)
    assert states.end_transaction(header_at(marker(10, 7, 1, committed=True)), True, 4) == (7, 5, 10)
    assert states.first_unstable(11) == 0
    with pytest.raises(ProducerFenced):
        states.check(head(11, 5, txn=True))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(1, 3), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("marker"), st.integers(1, 3), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("durable"), st.just(0), st.just(0), st.just(False)),
        st.tuples(st.just("back"), st.just(0), st.just(0), st.just(False)),
        st.tuples(st.just("epoch"), st.integers(1, 3), st.just(0), st.just(False)),
    ),
    max_size=60,
)


@given(steps)
def test_going_back_is_as_if_it_had_never_been(steps: list[tuple[str, int, int, bool]]) -> None:
    """After a truncation the state is that of folding what is left."""

    def take(states: ProducerStates, whole: bytes) -> None:
        header = header_at(whole)
        states.update(header, control_type(whole) if header.is_control else None)

    states = ProducerStates()
    written: list[bytes] = []
    end = durable = 0

    def write(whole: bytes) -> None:
        nonlocal end
        header = header_at(whole)
        assert states.check(header) is None
        states.remember(header.producer_id, end, durable)
        take(states, whole)
        written.append(whole)
        end = header.last_offset + 1

    for step, producer, number, flag in steps:
        known = {each.producer_id: each for each in states.active()}.get(producer)
        epoch = known.producer_epoch if known else 0
        following = known.last_sequence + 1 if known else 0
        if step == "batch":
            txn = flag or (known is not None and known.transaction_start >= 0)
            attributes = TRANSACTIONAL if txn else 0
            write(
                batch(
                    end, number, producer=producer, producer_epoch=epoch, sequence=following, attributes=attributes,
                    timestamp=end,
                )
            )  # fmt: skip
        elif step == "epoch":
            txn = TRANSACTIONAL if known is not None and known.transaction_start >= 0 else 0
            write(batch(end, producer=producer, producer_epoch=epoch + 1, sequence=0, attributes=txn, timestamp=end))
        elif step == "marker":
            write(marker(end, producer, epoch + number, flag, coordinator_epoch=end, timestamp=end))
        elif step == "durable":
            durable = end
        else:
            states.truncate(durable)
            written = [each for each in written if header_at(each).base_offset < durable]
            end = durable
        folded = ProducerStates()
        for each in written:
            take(folded, each)
        assert states.dump() == folded.dump()
        assert states.first_unstable() == folded.first_unstable()
        stable = ProducerStates()
        for each in written:
            if header_at(each).base_offset < durable:
                take(stable, each)
        unstable = states.first_unstable(durable)
        expected = stable.first_unstable()
        assert (durable if unstable is None else min(unstable, durable)) == (durable if expected is None else expected)


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
