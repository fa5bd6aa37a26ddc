"""Rows in the order in which they changed: pages, deltas, marks of what is gone, and how the order is kept short."""

from __future__ import annotations

import pytest

from headrace.broker.figures import changes as module
from headrace.broker.figures.changes import START, Changes, Key, Place, Row


def all_after(changes: Changes, place: Place, limit: int) -> tuple[dict[Key, Row | None], Place]:
    """What a reader knows that pages through everything."""
    known: dict[Key, Row | None] = {}
    more = True
    while more:
        page = changes.after(place, limit)
        if page.full:
            known.clear()
        known.update(page.rows)
        place, more = page.place, page.more
    return known, place


def test_a_reader_gets_what_changed_since():
    changes = Changes()
    for at in range(10):
        changes.put(("t", str(at)), (at,))
    known, place = all_after(changes, START, 3)
    assert known == {("t", str(at)): (at,) for at in range(10)}
    assert changes.after(place, 10).rows == []
    changes.put(("t", "3"), (3,))
    assert changes.after(place, 10).rows == [], "the same row is no change"
    changes.put(("t", "3"), (33,))
    changes.drop(("t", "5"))
    assert changes.after(place, 10).rows == [(("t", "3"), (33,)), (("t", "5"), None)]


def test_only_what_is_wanted_counts():
    changes = Changes()
    changes.put(("a", "1"), (1,))
    changes.put(("b", "1"), (1,))
    page = changes.after(START, 1, lambda key: key[0] == "b")
    assert page.rows == [(("b", "1"), (1,))]
    assert not page.more


def test_a_page_looks_at_a_bounded_number_of_entries(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STEP_ENTRIES", 4)
    changes = Changes()
    for at in range(10):
        changes.put(("a", str(at)), (at,))
    page = changes.after(START, 100, lambda key: False)
    assert (page.rows, page.place.number, page.more) == ([], 4, True)


def test_an_unknown_place_starts_anew():
    changes = Changes()
    changes.put(("a", "1"), (1,))
    assert changes.after(Place(99, 0), 10).full
    assert not changes.after(Place(1, 0), 10).full


async def test_the_order_is_kept_short_and_readers_go_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SLACK", 4)
    monkeypatch.setattr(module, "STEP_ENTRIES", 8)
    changes = Changes()
    for at in range(20):
        changes.put(("t", str(at)), (at,))
    _, place = all_after(changes, START, 100)
    for turn in range(50):
        changes.put(("t", "7"), (turn, "new"))
        await changes.compact()
        assert len(changes._order) <= 2 * 20 + 4
    assert changes.after(place, 100).rows == [(("t", "7"), (49, "new"))]


async def test_a_reader_that_missed_what_went_starts_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SLACK", 0)
    changes = Changes()
    for at in range(20):
        changes.put(("t", str(at)), (at,))
    _, place = all_after(changes, START, 100)
    for at in range(15):
        changes.drop(("t", str(at)))
    assert len(changes.after(place, 100).rows) == 15
    await changes.compact()
    assert changes.after(place, 100).full
    known, _ = all_after(changes, place, 2)
    assert set(known) == {("t", str(at)) for at in range(15, 20)}
