"""The circuit breaker of an endpoint: while it is open, requests wait.

A message that fails alone is retried and given up in the end. But if everything fails the endpoint is down, and no
message should suffer for it: those in hand wait, nothing more is taken, and from time to time one of them, in turn, is
sent as a probe. The first that succeeds closes the breaker.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

# So many failures without a success between them, if the endpoint itself cannot be reached ...
DOWN_FAILURES = 3
# ... and if it answers with errors: so many, of so many different messages. One message that it cannot digest is no
# reason to wait.
FAILING_FAILURES = 5
FAILING_MESSAGES = 3
PAUSE_FIRST, PAUSE_MAX = 1.0, 60.0
# Several breakers of one endpoint should not all probe at the same moment.
JITTER = 0.2


class Entry(Enum):
    """Whether a message may be sent."""

    FREE = auto()
    PROBE = auto()
    """It is the probe; its sender must report the result."""
    NO = auto()
    """It has waited long enough, or the breaker is stopped."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed."""

    message: str
    """Its id."""
    down: bool
    """The endpoint could not be reached at all, or asks for a pause."""
    pause: float | None = None
    """Seconds that the endpoint asks for."""


class Breaker:
    def __init__(self) -> None:
        self.open_since: float | None = None
        """The loop's time since when nothing is sent but by those that try; None while all goes well."""
        self._failures = 0
        self._down = 0
        self._messages: set[str] = set()
        self._pause = PAUSE_FIRST
        self._until = 0.0
        self._line: deque[asyncio.Future[Entry]] = deque()
        self._probing = False
        self._alarm: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def open(self) -> bool:
        return self.open_since is not None

    @property
    def remaining(self) -> float:
        """Seconds until the next probe."""
        return max(self._until - asyncio.get_running_loop().time(), 0.0) if self.open else 0.0

    async def enter(self, patience: float) -> Entry:
        """Wait until a message may be sent, but no longer than so many seconds."""
        if self._stopped:
            return Entry.NO
        if not self.open:
            return Entry.FREE
        turn: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        self._arm()
        try:
            await asyncio.wait((turn,), timeout=patience)
        except asyncio.CancelledError:
            if turn.done():
                self.abandon(turn.result())
            raise
        finally:
            if turn in self._line:
                self._line.remove(turn)
        # One that is let in as its patience ends is in: there is no other probe until it has reported.
        return turn.result() if turn.done() else Entry.NO

    def record_success(self) -> bool:
        """The endpoint has taken a request; whether that is news."""
        self._failures = self._down = 0
        self._messages.clear()
        if not self.open:
            return False
        self.open_since = None
        self._probing = False
        self._pause = PAUSE_FIRST
        self._disarm()
        self._release(Entry.FREE)
        return True

    def record_failure(self, failure: Failure, entry: Entry) -> bool:
        """A request failed; whether everything waits from now on."""
        self._failures += 1
        self._down += failure.down
        self._messages.add(failure.message)
        if self.open:
            if entry is Entry.PROBE:
                self._probing = False
                self._pause = min(self._pause * 2, PAUSE_MAX)
                self._wait(failure.pause)
            elif failure.pause is not None:
                self._wait(failure.pause)
            return False
        failing = self._failures >= FAILING_FAILURES and len(self._messages) >= FAILING_MESSAGES
        if self._down >= DOWN_FAILURES or failing or failure.pause is not None:
            self.open_since = asyncio.get_running_loop().time()
            self._wait(failure.pause)
            return True
        return False

    def abandon(self, entry: Entry) -> None:
        """The request was not sent, or has no result."""
        if entry is Entry.PROBE and self.open:
            self._probing = False
            self._arm()

    def stop(self) -> None:
        """Release all that wait; nothing is sent any more."""
        self._stopped = True
        self._disarm()
        self._release(Entry.NO)

    def _wait(self, asked: float | None) -> None:
        pause = self._pause * random.uniform(1 - JITTER, 1 + JITTER) if asked is None else asked
        self._until = max(asyncio.get_running_loop().time() + pause, self._until if asked is not None else 0.0)
        self._disarm()
        self._arm()

    def _arm(self) -> None:
        if self._alarm is None and self._line and not self._probing:
            self._alarm = asyncio.get_running_loop().call_at(self._until, self._let_one_try)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _let_one_try(self) -> None:
        self._alarm = None
        if self._line:
            self._probing = True
            self._line.popleft().set_result(Entry.PROBE)

    def _release(self, entry: Entry) -> None:
        while self._line:
            self._line.popleft().set_result(entry)
