from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.dead_letters import ADDED, DeadLetter, Selection, read, restore_headers

HEADERS: list[tuple[str, bytes | None]] = [
    ("trace", b"1"),
    ("headrace-origin-topic", b"orders"),
    ("headrace-origin-partition", b"2"),
    ("headrace-origin-offset", b"17"),
    ("headrace-origin-queue", b"mail"),
    ("headrace-attempts", b"5"),
    ("headrace-error", "timeout \N{SNOWMAN}".encode()),
    ("headrace-dead-at", b"1000"),
    ("empty", None),
]


def letter(**changes: Any) -> DeadLetter:
    headers = [(name, changes.pop(name, content)) for name, content in HEADERS]
    return read((3, 900, changes.pop("key", b"k"), b"v", [(name, content) for name, content in headers]))


def test_a_letter_is_read_and_given_back_as_it_was():
    found = letter()
    assert (found.offset, found.key, found.value) == (3, b"k", b"v")
    assert (found.topic, found.partition, found.origin_offset, found.queue) == ("orders", 2, 17, "mail")
    assert (found.attempts, found.error, found.dead_at, found.redriven) == (5, "timeout \N{SNOWMAN}", 1000, 0)
    assert found.has_origin
    assert restore_headers(found, "") == [("trace", b"1"), ("empty", None), ("headrace-redriven", b"1")]


def test_the_queue_stands_first_and_returns_are_counted():
    back = restore_headers(letter(), "mail")
    assert back[0] == ("headrace-for-queue", b"mail")
    died_again = read((9, 0, b"k", b"v", [*back, *HEADERS[1:-1]]))
    assert died_again.redriven == 1
    assert restore_headers(died_again, "mail") == [
        ("headrace-for-queue", b"mail"),
        ("trace", b"1"),
        ("empty", None),
        ("headrace-redriven", b"2"),
    ]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("headrace-origin-topic", b"orders")],
        [("headrace-origin-topic", b"orders"), ("headrace-origin-queue", b"mail")],
        [("headrace-origin-topic", None), ("headrace-origin-queue", b"mail"), ("headrace-origin-partition", b"0")],
        [("headrace-origin-topic", b"o"), ("headrace-origin-queue", b"q"), ("headrace-origin-partition", b"-1")],
        [("headrace-origin-topic", b"o"), ("headrace-origin-queue", b"q"), ("headrace-origin-partition", b"9" * 30)],
    ],
)
def test_what_does_not_say_where_it_came_from(headers):
    assert not read((0, 5, None, None, headers)).has_origin
    assert read((0, 5, None, None, headers)).dead_at == 5


@given(st.lists(st.tuples(st.sampled_from([*sorted(ADDED), "own"]), st.none() | st.binary(max_size=30))))
def test_anything_in_the_headers_is_read(headers):
    found = read((0, 0, None, None, headers))
    assert [name for name, _ in restore_headers(found, "q")].count("own") == [name for name, _ in headers].count("own")


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        (Selection(), True),
        (Selection(topic="orders", queue="mail", key=b"k", error="time"), True),
        (Selection(topic="other"), False),
        (Selection(queue="other"), False),
        (Selection(key=b""), False),
        (Selection(since_ms=1000), True),
        (Selection(since_ms=1001), False),
        (Selection(until_ms=1001), True),
        (Selection(until_ms=1000), False),
        (Selection(error="Time"), False),
        (Selection(error_pattern="time*"), True),
        (Selection(error_pattern="time"), False),
        (Selection(error_pattern="*o?t *"), True),
    ],
)
def test_selection(selection, wanted):
    assert selection.selects(letter()) is wanted


def test_no_key_is_not_the_empty_key():
    assert Selection(key=b"").selects(letter(key=b""))
    assert not Selection(key=b"").selects(letter(key=None))
