"""A queue or a group of the memory broker: the state of each message, and which receiver gets the next.

Messages come in the order of their partition; redeliveries take turns with new ones. With order by key a message waits
behind the unsettled one of its key. A queue delivers any message to any receiver that has room; a group of Kafka's kind
divides the partitions among its members, and has no visibility timeout.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.format.headers import DEAD_AT
from headrace.sdk.dead_letter import letter
from headrace.sdk.message import Message
from headrace.sdk.transport import ConsumerConfig

if TYPE_CHECKING:
    from headrace.sdk.memory import MemoryBroker, MemoryReceiver


@dataclass(slots=True, eq=False)
class Entry:
    """What a group knows of a message that is not settled."""

    partition: int
    offset: int
    attempt: int = 0
    """Deliveries so far."""
    owner: MemoryReceiver | None = None
    deadline: float = 0.0
    """When its delivery times out."""
    held_until: float = 0.0
    """Its handler runs: until then its lease is extended."""

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


class Group:
    def __init__(self, broker: MemoryBroker, config: ConsumerConfig, *, divided: bool) -> None:
        self.config = config
        self.cursors: list[int] = []
        """The next new message of each partition."""
        self.receivers: list[MemoryReceiver] = []
        self.flying: dict[tuple[int, int], Entry] = {}
        self._broker = broker
        self._divided = divided
        # What comes again, and what its key held back.
        self._ready: deque[Entry] = deque()
        self._deferred: list[tuple[float, int, Entry]] = []
        # What is no longer the deadline of its entry is passed over.
        self._deadlines: list[tuple[float, int, Entry]] = []
        # Key -> what waits behind the unsettled message of it.
        self._lines: dict[bytes, deque[Entry]] = {}
        self._numbers = itertools.count()
        self._again_first = False
        self._first = 0

    def message(self, entry: Entry) -> Message:
        """The message of an entry, as it is delivered."""
        return msgspec.structs.replace(self._original(entry), attempt=entry.attempt)

    def _original(self, entry: Entry) -> Message:
        return self._broker.topics[self.config.topic][entry.partition][entry.offset]

    # --- settling ---

    def holds(self, entry: Entry, owner: MemoryReceiver, attempt: int) -> bool:
        """Whether that delivery is still in flight."""
        return self.flying.get(entry.place) is entry and entry.owner is owner and entry.attempt == attempt

    def finish(self, entry: Entry) -> None:
        """Done, or dead: the next message of its key has its turn."""
        self._land(entry)
        key = self._key(entry)
        if key is not None and key in self._lines:
            line = self._lines[key]
            if line:
                self._ready.append(line.popleft())
            else:
                del self._lines[key]

    def give_back(self, entry: Entry, after: float | None, reason: str) -> None:
        """Redeliver it: after so long or by the retry schedule; dead if it has had its attempts."""
        tuning = self.config.tuning
        if tuning.is_spent(entry.attempt):
            self.bury(entry, reason)
            return
        if after is None:
            after = tuning.backoff(entry.attempt)
        self._land(entry)
        if after > 0:
            heapq.heappush(self._deferred, (self._broker.clock() + after, next(self._numbers), entry))
        else:
            self._ready.append(entry)

    def bury(self, entry: Entry, reason: str) -> None:
        """To the dead letters, unless it was for one instance alone."""
        if not self.config.tuning.private:
            dead = letter(self.message(entry), self.config.topic, self.config.group, reason)
            headers = {**dead.headers, DEAD_AT: b"%d" % (self._broker.clock() * 1_000)}
            self._broker.append(msgspec.structs.replace(dead, headers=headers))
        self.finish(entry)

    def touch(self, entry: Entry) -> None:
        """Restart a delivery's visibility timeout."""
        if self.config.tuning.timeout and not self._divided:
            entry.deadline = self._broker.clock() + self.config.tuning.timeout
            heapq.heappush(self._deadlines, (entry.deadline, next(self._numbers), entry))

    def release(self, receiver: MemoryReceiver) -> None:
        """A receiver has gone: what it had is ready at once."""
        for entry in [each for each in self.flying.values() if each.owner is receiver]:
            if self.config.tuning.is_spent(entry.attempt):
                self.bury(entry, _unsettled(entry))
            else:
                self._land(entry)
                self._ready.append(entry)

    def _land(self, entry: Entry) -> None:
        if self.flying.pop(entry.place, None) is not None and entry.owner is not None:
            entry.owner.unsettled -= 1
        entry.owner = None
        entry.held_until = 0.0

    def _key(self, entry: Entry) -> bytes | None:
        return self._original(entry).key if self.config.tuning.ordered else None

    # --- handing out ---

    def next_due(self) -> float | None:
        """When something comes back by itself."""
        while self._deadlines and not self._holds_until(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        moments = [self._deferred[0][0]] if self._deferred else []
        moments += [self._deadlines[0][0]] if self._deadlines else []
        return min(moments, default=None) if self.receivers else None

    def _holds_until(self, deadline: float, _: int, entry: Entry) -> bool:
        return entry.owner is not None and entry.deadline == deadline

    def turn(self, now: float) -> bool:
        """Do what is due and deliver what there is; whether anything moved."""
        moved = False
        for receiver in [each for each in self.receivers if not each.alive]:
            self.receivers.remove(receiver)
            self.release(receiver)
        while self._deferred and self._deferred[0][0] <= now:
            self._ready.append(heapq.heappop(self._deferred)[2])
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, entry = found = heapq.heappop(self._deadlines)
            if self._holds_until(*found) and entry.held_until > now:
                self.touch(entry)
            elif self._holds_until(*found):
                self.give_back(entry, None, _unsettled(entry))
                moved = True
        handed: dict[MemoryReceiver, list[Entry]] = {}
        while given := self._round():
            for receiver, entry in given:
                handed.setdefault(receiver, []).append(entry)
        for receiver, entries in handed.items():
            receiver.hand(entries)
        return moved or bool(handed)

    def _round(self) -> list[tuple[MemoryReceiver, Entry]]:
        """A message for each receiver that has room for one."""
        given = []
        count = len(self.receivers)
        for turn in range(count):
            receiver = self.receivers[(self._first + turn) % count]
            entry = self._next(receiver) if receiver.unsettled < receiver.credit else None
            if entry is None:
                continue
            receiver.unsettled += 1
            entry.attempt += 1
            entry.owner = receiver
            self.flying[entry.place] = entry
            self.touch(entry)
            given.append((receiver, entry))
        self._first = (self._first + 1) % count if count else 0
        return given

    def _next(self, receiver: MemoryReceiver) -> Entry | None:
        """What comes again takes turns with what is new."""
        self._again_first = not self._again_first
        ways = (self._next_again, self._next_new) if self._again_first else (self._next_new, self._next_again)
        return ways[0](receiver) or ways[1](receiver)

    def _next_again(self, receiver: MemoryReceiver) -> Entry | None:
        chosen = receiver.config.tuning.partitions
        for entry in self._ready:
            if not chosen or entry.partition in chosen:
                self._ready.remove(entry)
                return entry
        return None

    def _next_new(self, receiver: MemoryReceiver) -> Entry | None:
        log = self._broker.topics[self.config.topic]
        mine: Sequence[int] = range(len(log))
        if receiver.config.tuning.partitions:
            mine = receiver.config.tuning.partitions
        elif self._divided:
            members = [each for each in self.receivers if not each.config.tuning.partitions]
            mine = range(members.index(receiver), len(log), len(members))
        for index in mine:
            while self.cursors[index] < len(log[index]):
                entry = Entry(index, self.cursors[index])
                self.cursors[index] += 1
                key = self._key(entry)
                if key is None:
                    return entry
                if key not in self._lines:
                    self._lines[key] = deque()
                    return entry
                self._lines[key].append(entry)
        return None


def _unsettled(entry: Entry) -> str:
    return f"not settled after {entry.attempt} attempts"
