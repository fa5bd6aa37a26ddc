"""Which of the messages that a queue hands out or settles are watched: `sampling.py`'s choice, over whole claims."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import cython

if cython.compiled:
    from cython.cimports.headrace.broker.queues.delivery import Claimed
    from cython.cimports.headrace.format.sampling import chosen
else:
    from headrace.broker.queues.delivery import Claimed
    from headrace.format.sampling import chosen
from headrace.format.sampling import ALL

# A run of one attempt: first, last, attempt.
Attempt = tuple[int, int, int]

# Numbers for each message of a `Claimed`; see there.
STRIDE = cython.declare(cython.Py_ssize_t, 11)


def kept_of_claimed(claimed: Claimed, seed: int, below: int) -> list[Attempt]:
    """What is watched of messages that were just handed out."""
    found: list = []  # type: ignore[type-arg]
    bound: cython.ulonglong = below
    salt: cython.ulonglong = seed & 0xFFFFFFFF
    everything: cython.bint = below >= ALL
    number: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    offset: cython.longlong
    attempt: cython.longlong
    key: Any
    headers: Any
    first: cython.longlong = -1
    last: cython.longlong = -1
    attempts: cython.longlong = -1
    while number < claimed.count:
        at = number * STRIDE
        offset = claimed.cells[at]
        attempt = claimed.cells[at + 1]
        if not everything and attempt <= 1:
            key = claimed.key_of(number) if claimed.cells[at + 4] > 0 else None
            headers = claimed.headers_of(number) if claimed.cells[at + 8] > 0 else ()
            if not chosen(offset, salt, bound, key, headers):
                number += 1
                continue
        number += 1
        if offset != last + 1 or attempt != attempts:
            if first >= 0:
                found.append((first, last, attempts))
            first = offset
            attempts = attempt
        last = offset
    if first >= 0:
        found.append((first, last, attempts))
    return found


def kept_of_ids(ids: array[int], lane: int, missed: Sequence[int], watched: set[int] | None) -> list[Attempt]:
    """What is watched of messages named by (lane, offset, attempt, lane, ...): those of one lane, without the ones at
    the places (0, 1, .., in rising order) in `missed`. `watched` has the offsets of first deliveries that are; None:
    all are."""
    found: list = []  # type: ignore[type-arg]
    triples = cython.declare(cython.longlong[::1], ids)
    skipped: list = list(missed)  # type: ignore[type-arg]
    wanted: cython.longlong = lane
    count: cython.Py_ssize_t = len(ids) // 3
    at: cython.Py_ssize_t = 0
    passed: cython.Py_ssize_t = 0
    misses: cython.Py_ssize_t = len(skipped)
    next_miss: cython.Py_ssize_t = skipped[0] if misses else -1
    offset: cython.longlong
    attempt: cython.longlong
    first: cython.longlong = -1
    last: cython.longlong = -1
    attempts: cython.longlong = -1
    while at < count:
        if at == next_miss:
            passed += 1
            next_miss = skipped[passed] if passed < misses else -1
            at += 1
            continue
        offset = triples[at * 3 + 1]
        attempt = triples[at * 3 + 2]
        at += 1
        if triples[at * 3 - 3] != wanted or (watched is not None and attempt <= 1 and offset not in watched):
            continue
        if offset != last + 1 or attempt != attempts:
            if first >= 0:
                found.append((first, last, attempts))
            first = offset
            attempts = attempt
        last = offset
    if first >= 0:
        found.append((first, last, attempts))
    return found
