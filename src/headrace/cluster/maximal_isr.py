"""Every member that etcd may name as in sync, while swaps of the group's record have outcomes that are unknown.

A commit waits for all of them. An addition counts before its swap is sent, a removal stops counting after its swap is
confirmed, and a swap that was not answered counts both ways: it may have been carried out, or may still be. It can no
longer be once the record has another revision than it expected. Reading the same revision again proves nothing: the
swap may be on its way. A touch of the record settles that.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress


class MaximalIsr:
    """As the leader counts it."""

    def __init__(self, revision: int, isr: Iterable[str]) -> None:
        self.revision = revision
        """Of the group's record, as last seen."""
        self.confirmed = frozenset(isr)
        """The ISR of that record: `min_isr` is judged by it, never by the maximal one."""
        self._proposed: list[frozenset[str]] = []

    @property
    def members(self) -> frozenset[str]:
        """Those that a commit waits for."""
        return self.confirmed.union(*self._proposed)

    @property
    def is_settled(self) -> bool:
        """Whether no swap is under way and none has an unknown outcome."""
        return not self._proposed

    def propose(self, isr: Iterable[str]) -> None:
        """Call this before a swap of the record, as last seen, is sent."""
        self._proposed.append(frozenset(isr))

    def withdraw(self, isr: Iterable[str]) -> None:
        """The swap was certainly not sent, or was refused for good: it will never be carried out."""
        with suppress(ValueError):  # a newer record was seen meanwhile
            self._proposed.remove(frozenset(isr))

    def see(self, revision: int, isr: Iterable[str]) -> None:
        """The record was read, or a swap was answered. An answer that comes late, with an older record, means
        nothing."""
        if revision > self.revision:
            self.revision = revision
            self.confirmed = frozenset(isr)
            # All of them expected an older revision.
            self._proposed.clear()
