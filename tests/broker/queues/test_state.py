"""What `__queues` holds, read back word by word: a snapshot counts once it is whole, and nonsense is refused."""

from __future__ import annotations

import pytest

from headrace.broker.queues.ledger import DEFERRED, PAGE_CELLS, Ledger
from headrace.broker.queues.state import EPOCH, StoredLane

PAGES = 4


def busy_ledger() -> Ledger:
    """One message of each page is left."""
    ledger = Ledger(0)
    ledger.reach(PAGES * PAGE_CELLS)
    for offset in range(PAGES * PAGE_CELLS):
        if offset % PAGE_CELLS != 7:
            ledger.settle(offset)
    ledger.advance()
    return ledger


def left(stored: StoredLane) -> list[int]:
    assert stored.ledger is not None
    stored.ledger.arrange()
    found = []
    offset = stored.ledger.next_unsettled(0)
    while offset >= 0:
        found.append(offset)
        offset = stored.ledger.next_unsettled(offset + 1)
    return found


def word(written: bytes, epoch: int = 1) -> bytes:
    return EPOCH.pack(epoch) + written


def whole(ledger: Ledger) -> list[bytes]:
    """A snapshot, a page a word."""
    words = [word(ledger.begin())]
    page = 0
    while page >= 0:
        image, page = ledger.images(page, 1)
        words.append(word(image))
    return words


def test_a_snapshot_that_a_crash_cut_short_loses_nothing() -> None:
    ledger = busy_ledger()
    snapshot = whole(ledger)
    assert len(snapshot) == PAGES + 1
    second = whole(ledger)
    for length in range(len(second)):
        stored = StoredLane()
        for each in [*snapshot, *second[:length]]:
            stored.apply(each)
        assert left(stored) == [number * PAGE_CELLS + 7 for number in range(PAGES)]


def test_changes_that_only_an_image_says_hold_without_the_rest_of_its_snapshot() -> None:
    ledger = busy_ledger()
    stored = StoredLane()
    for each in whole(ledger):
        stored.apply(each)
    ledger.drain(1 << 20)
    ledger.condemn(7)
    ledger.defer(PAGES * PAGE_CELLS, 3, 5_000)
    ledger.settle(PAGE_CELLS + 7)
    second = whole(ledger)
    while (drained := ledger.drain(1 << 20)) is not None:
        second.append(word(drained))
    for each in second[:2]:
        stored.apply(each)
    assert left(stored)[0] == 7
    for each in second[2:]:
        stored.apply(each)
    assert left(stored) == [7, 2 * PAGE_CELLS + 7, 3 * PAGE_CELLS + 7, PAGES * PAGE_CELLS]
    assert stored.ledger is not None
    assert stored.ledger.state_of(PAGES * PAGE_CELLS) == (DEFERRED, 3, 5_000)


def test_an_image_that_is_ahead_of_what_is_known_settles_nothing() -> None:
    ledger = busy_ledger()
    stored = StoredLane()
    for each in whole(ledger):
        stored.apply(each)
    ledger.drain(1 << 20)
    ledger.reach((PAGES + 2) * PAGE_CELLS)
    for each in whole(ledger)[:2]:
        stored.apply(each)
    assert left(stored) == [
        *(number * PAGE_CELLS + 7 for number in range(PAGES)),
        *range(PAGES * PAGE_CELLS, (PAGES + 2) * PAGE_CELLS),
    ]


def test_the_beginning_of_a_snapshot_in_a_new_epoch_cuts_what_that_epoch_does_not_know() -> None:
    stored = StoredLane()
    for each in whole(busy_ledger()):
        stored.apply(each)
    cut = busy_ledger()
    cut.cut(100)
    stored.apply(word(cut.begin(), epoch=2))
    assert (stored.epoch, left(stored)) == (2, [7])
    assert stored.ledger is not None
    assert stored.ledger.cursor == 100


@pytest.mark.parametrize("value", [b"", b"\0\0\0\1", b"\0\0\0\1\x09\0\0", b"\0\0\0\1\1\5"])
def test_nonsense_is_refused(value: bytes) -> None:
    stored = StoredLane()
    for each in whole(busy_ledger()):
        stored.apply(each)
    with pytest.raises((ValueError, IndexError)):
        stored.apply(value)
    assert len(left(stored)) == PAGES
