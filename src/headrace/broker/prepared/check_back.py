"""Check-back: asking producers what became of their local transactions.

A *round* is due when a message has been undecided for its timeout, and again each interval. In a round one listener of
the producer group is asked, the next one in turn; where none listens, or all have enough unanswered, the first that can
take it is. Rounds count whether a listener was there or not: otherwise a group that never comes back would keep its
messages for ever. After the last round the message is given up.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from headrace.broker.prepared import entries
from headrace.broker.prepared.entries import Message
from headrace.broker.prepared.store import Store
from headrace.broker.prepared.table import Pending
from headrace.broker.settings import BrokerSettings
from headrace.errors import HeadraceError

log = structlog.get_logger("headrace.prepared")

# Unanswered questions that a listener holds where it does not say.
ASKED_MAX = 100
# Messages of one poll: the next is asked about the others.
POLL_BYTES = 1_048_576
# Messages whose round comes in one turn of the loop, and questions between two turns.
ROUND_MESSAGES = 500
TURN_QUESTIONS = 16
# How long a poll that has got something waits for what comes with it: longer than the rounds rest.
GATHER_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class Check:
    """A question: was the local transaction of this message committed?"""

    id: str
    message: Message
    checks: int
    """The number of the round, from 1."""


class Listener:
    """A member of a producer group that can be asked."""

    __slots__ = ("_call", "_check_back", "asked", "closed", "group", "limit")

    def __init__(self, check_back: CheckBack, group: str, call: Callable[[Check], None], limit: int) -> None:
        self._check_back = check_back
        self._call = call
        self.group = group
        self.limit = limit
        self.asked = 0
        """Questions of this round that are unanswered."""
        self.closed = False

    def close(self) -> None:
        """Ask no more here. What it was asked may still be answered, by any client; if not, another is asked in the
        next round."""
        if not self.closed:
            self.closed = True
            self._check_back.left(self)

    def ask(self, check: Check) -> None:
        try:
            self._call(check)
        except Exception:
            # One door's mishap must not keep all others from being asked.
            log.exception("a listener could not be asked", group=self.group, id=check.id)


class CheckBack:
    """Rounds, and the listeners of all groups."""

    def __init__(self, store: Store, config: BrokerSettings, changed: Callable[[], None]) -> None:
        self._store = store
        self._config = config
        self._changed = changed
        """Called when there is something to ask, or a listener more."""
        self._listeners: dict[str, deque[Listener]] = {}
        # By group, the numbers of the messages that are to be asked about.
        self._unasked: dict[str, OrderedDict[int, None]] = {}
        self._polls: dict[asyncio.Event, None] = {}
        self._stopped = False
        self.asked = 0

    # --- listeners ----------------------------------------------------------------------------------------------------

    def listen(self, group: str, call: Callable[[Check], None], limit: int = ASKED_MAX) -> Listener:
        """Have `call` asked about undecided messages of a group, on the loop, until the listener is closed. It must not
        block; the answer is a commit or a rollback, at any time, from anywhere. At most `limit` questions stay
        unanswered."""
        listener = Listener(self, group, call, limit)
        self._listeners.setdefault(group, deque()).append(listener)
        if group in self._unasked:
            self._changed()
        return listener

    def left(self, listener: Listener) -> None:
        others = self._listeners[listener.group]
        others.remove(listener)
        if not others:
            del self._listeners[listener.group]

    async def poll(self, group: str, seconds: float, limit: int) -> list[Check]:
        """Listen until there is something to be asked, `seconds` at most; up to `limit` questions, and no more once
        their messages have `POLL_BYTES`."""
        found: list[Check] = []
        size = 0
        come = asyncio.Event()

        def take(check: Check) -> None:
            nonlocal size
            found.append(check)
            size += check.message.size
            if size >= POLL_BYTES:
                listener.close()
            come.set()

        if self._stopped:
            return []
        self._polls[come] = None
        listener = self.listen(group, take, limit)
        try:
            async with asyncio.timeout(seconds):
                await come.wait()
                if len(found) < limit and not self._stopped:
                    await asyncio.sleep(GATHER_SECONDS)
        except TimeoutError:
            pass
        finally:
            listener.close()
            del self._polls[come]
        return found

    def end_polls(self) -> None:
        """Let every poll return now, and each that comes."""
        self._stopped = True
        for come in self._polls:
            come.set()

    # --- rounds -------------------------------------------------------------------------------------------------------

    def rounds(self, now: int) -> list[Pending]:
        """Begin the rounds that are due, some of them; the messages that have had all theirs."""
        table = self._store.table
        over: list[Pending] = []
        counted: list[tuple[int, int]] = []
        for entry in table.due(now, ROUND_MESSAGES):
            self.forget(entry)
            table.check_at(entry, now + self._config.half_check_interval_ms)
            if entry.deciding is not None:
                continue
            if entry.checks >= self._config.half_checks_max:
                over.append(entry)
                continue
            entry.checks += 1
            counted.append((entry.number, entry.checks))
            self._unasked.setdefault(entry.group, OrderedDict())[entry.number] = None
        if counted:
            self._write(counted, now)
        return over

    def forget(self, entry: Pending) -> None:
        """A message is decided, or its round is over: no listener owes an answer any more."""
        unasked = self._unasked.get(entry.group)
        if unasked is not None and entry.number in unasked:
            del unasked[entry.number]
            if not unasked:
                del self._unasked[entry.group]
        if entry.asked is not None:
            entry.asked.asked -= 1
            entry.asked = None
            if unasked:
                self._changed()

    def _write(self, counted: list[tuple[int, int]], now: int) -> None:
        """Not waited for: a crash that takes it back repeats a round."""

        def on_durable(error: Exception | None) -> None:
            if error is not None:
                log.warning("rounds of checks could not be written down", messages=len(counted), error=str(error))

        try:
            self._store.state.append([self._store.write(entries.write_checked(counted, now))], on_durable)
        except (HeadraceError, OSError) as error:
            on_durable(error)

    # --- asking -------------------------------------------------------------------------------------------------------

    async def ask(self) -> None:
        """Ask listeners that have room about what is to be asked."""
        questions = 0
        for group in list(self._unasked):
            while (entry := self._first(group)) is not None and self._has_room(group):
                await self._ask(entry)
                questions += 1
                if questions % TURN_QUESTIONS == 0:
                    await asyncio.sleep(0)

    async def _ask(self, entry: Pending) -> None:
        try:
            message = await self._store.message(entry)
        except (HeadraceError, OSError) as error:
            log.warning("a half message cannot be read", id=self._store.id_of(entry.number), error=str(error))
            self.forget(entry)
            return
        # The reading may have taken its time.
        if entry.number not in self._unasked.get(entry.group, ()):
            return
        listener = self._next(entry.group)
        if listener is None:
            return
        self.forget(entry)
        entry.asked = listener
        listener.asked += 1
        self.asked += 1
        listener.ask(Check(self._store.id_of(entry.number), message, entry.checks))

    def _first(self, group: str) -> Pending | None:
        """The message of a group that has waited longest to be asked about."""
        for number in self._unasked.get(group, ()):
            return self._store.table.pending[number]
        return None

    def _has_room(self, group: str) -> bool:
        return any(listener.asked < listener.limit for listener in self._listeners.get(group, ()))

    def _next(self, group: str) -> Listener | None:
        """Whose turn it is in a group, of those that have room; the turn is taken."""
        listeners = self._listeners.get(group, ())
        for listener in listeners:
            if listener.asked < listener.limit:
                self._listeners[group].remove(listener)
                self._listeners[group].append(listener)
                return listener
        return None
