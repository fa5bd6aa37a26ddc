"""Deadlines that are cheap to move.

A group member's session is put off by every heartbeat, so moving a deadline must cost next to nothing. A deadline that
moves later only remembers its new time: the timer that is already with the loop fires at the old one, sees that it is
early, and arms itself again. Only a move to an earlier time touches the loop's own queue.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """What a loop returns for a scheduled call."""

    def cancel(self) -> None: ...


class Loop(Protocol):
    """The part of an asyncio loop that groups need; tests put one with a clock of their own in its place."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer: ...
    def create_future(self) -> Future[Any]: ...


class Deadline:
    """One call at a time that may move."""

    __slots__ = ("_armed", "_callback", "_due", "_loop", "_timer")

    def __init__(self, loop: Loop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._due = -1.0
        self._armed = -1.0
        self._timer: Timer | None = None

    @property
    def pending(self) -> bool:
        """Whether the call is still to come."""
        return self._due >= 0

    def set(self, delay: float) -> None:
        """Call back `delay` seconds from now instead of at any time set before."""
        due = self._due = self._loop.time() + delay
        if self._timer is not None:
            if self._armed <= due:
                return
            self._timer.cancel()
        self._arm(due)

    def cancel(self) -> None:
        """Do not call back."""
        self._due = -1.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float) -> None:
        self._armed = due
        self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._due < 0:
            return
        if self._due > self._loop.time():
            self._arm(self._due)
            return
        self._due = -1.0
        self._callback()
