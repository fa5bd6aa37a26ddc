# cython: boundscheck=False, wraparound=False
"""Pairs of numbers that come out in order: 16 bytes each, no object among them.

A binary heap in two flat arrays. It can be filled with millions of pairs in any order and brought into order
afterwards, some at a time, so that the loop is never held.
"""

from __future__ import annotations

from array import array
from typing import Any

import cython

NEVER: int = (1 << 63) - 1
_never = cython.declare(cython.longlong, 9223372036854775807)


@cython.final
@cython.cclass
class Heap:
    """Pairs of numbers in two flat arrays, 16 bytes each; the pair with the least key comes out first, of those the one
    with the least value. Until `order` has been through, it is only a heap by name."""

    keys: cython.longlong[::1]
    values: cython.longlong[::1]
    count: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    unordered: cython.Py_ssize_t
    """How many of the first pairs are not in order yet, each with those below it."""

    def __init__(self) -> None:
        self.count = 0
        self.capacity = 64
        self.keys = array("q", bytes(512))
        self.values = array("q", bytes(512))
        self.unordered = 0

    def __len__(self) -> int:
        return self.count

    @property
    def top(self) -> int:
        """The least key, or NEVER."""
        return self.keys[0] if self.count else _never

    def add_keys(self, keys: Any, first: cython.longlong) -> None:
        """Add pairs of these keys and consecutive values."""
        index: cython.Py_ssize_t
        given: cython.longlong[::1] = keys
        for index in range(len(keys)):
            self.add(given[index], first + index)

    def move(self, upto: cython.longlong, limit: cython.Py_ssize_t, into: Heap) -> None:
        """Move up to `limit` pairs whose key is at most `upto`, key and value changing places."""
        key: cython.longlong
        while limit > 0 and self.count and self.keys[0] <= upto:
            key = self.keys[0]
            into.add(self.values[0], key)
            self.drop()
            limit -= 1

    def remove(self, value: cython.longlong) -> bool:
        """Take the pair of that value out, wherever it is."""
        index: cython.Py_ssize_t
        for index in range(self.count):
            if self.values[index] == value:
                self.count -= 1
                if index < self.count:
                    self.keys[index] = self.keys[self.count]
                    self.values[index] = self.values[self.count]
                    self.down(index)
                    self.up(index)
                return True
        return False

    def order(self, budget: cython.Py_ssize_t) -> bool:
        """Bring up to `budget` pairs more into order; True once all are."""
        while budget > 0 and self.unordered > 0:
            self.unordered -= 1
            self.down(self.unordered)
            budget -= 1
        return self.unordered == 0

    def unsettle(self) -> None:
        """Take pairs in any order from now on, until `settle`."""
        self.unordered = _never

    def settle(self) -> None:
        """All are there that come in any order: what `order` has to do."""
        self.unordered = self.count // 2

    @cython.ccall
    def add(self, key: cython.longlong, value: cython.longlong) -> cython.void:
        if self.count == self.capacity:
            self.grow()
        self.keys[self.count] = key
        self.values[self.count] = value
        self.count += 1
        self.up(self.count - 1)

    @cython.cfunc
    def grow(self) -> cython.void:
        keys: cython.longlong[::1]
        values: cython.longlong[::1]
        # By half: what is spare of the largest heaps stays a third.
        self.capacity += self.capacity // 2
        keys = array("q", bytes(self.capacity * 8))
        values = array("q", bytes(self.capacity * 8))
        keys[: self.count] = self.keys
        values[: self.count] = self.values
        self.keys = keys
        self.values = values

    @cython.cfunc
    @cython.exceptval(check=False)
    def drop(self) -> cython.void:
        """Take the first pair out."""
        self.count -= 1
        if self.count:
            self.keys[0] = self.keys[self.count]
            self.values[0] = self.values[self.count]
            self.down(0)

    @cython.cfunc
    @cython.exceptval(check=False)
    def up(self, at: cython.Py_ssize_t) -> cython.void:
        key: cython.longlong = self.keys[at]
        value: cython.longlong = self.values[at]
        above: cython.Py_ssize_t
        while at > 0:
            above = (at - 1) // 2
            # What is not in order yet goes down in its own time.
            if (
                above < self.unordered
                or self.keys[above] < key
                or (self.keys[above] == key and self.values[above] <= value)
            ):
                break
            self.keys[at] = self.keys[above]
            self.values[at] = self.values[above]
            at = above
        self.keys[at] = key
        self.values[at] = value

    @cython.cfunc
    @cython.exceptval(check=False)
    def down(self, at: cython.Py_ssize_t) -> cython.void:
        key: cython.longlong = self.keys[at]
        value: cython.longlong = self.values[at]
        below: cython.Py_ssize_t = 2 * at + 1
        while below < self.count:
            if below + 1 < self.count and (
                self.keys[below + 1] < self.keys[below]
                or (self.keys[below + 1] == self.keys[below] and self.values[below + 1] < self.values[below])
            ):
                below += 1
            if key < self.keys[below] or (key == self.keys[below] and value <= self.values[below]):
                break
            self.keys[at] = self.keys[below]
            self.values[at] = self.values[below]
            at = below
            below = 2 * at + 1
        self.keys[at] = key
        self.values[at] = value
