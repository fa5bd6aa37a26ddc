"""The look at queues."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from headrace.broker.figures.columns import QUEUE_FIGURES, QUEUES
from headrace.broker.figures.pace import Pace
from headrace.broker.figures.rows import Names, Rows
from headrace.broker.queues import Queue

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# Ages are read from the log: those of so many in a look.
AGES_A_LOOK = 100
# What a queue costs at rest, and looked at whole with each of its lanes; what an age does.
REST, WHOLE, LANE, AGE = 3, 6, 3, 64
_figures_of = attrgetter(*QUEUE_FIGURES)

Mark = tuple[object, ...]


class Seen:
    """A queue as it was when it was last looked at whole."""

    __slots__ = ("dead", "depth", "floors", "is_behind", "mark", "oldest_ms")

    def __init__(self) -> None:
        self.mark: Mark | None = None
        """What a queue with one lane had; None: it has several, and is never at rest."""
        self.floors: list[int] = []
        """By lane, when the age was read: all before is settled."""
        self.oldest_ms: int | None = None
        """The time of the oldest unsettled message."""
        self.is_behind = False
        self.depth = self.dead = 0


class QueueFigures:
    """The figures of all queues. As of topics, what is at rest is only asked whether it is."""

    def __init__(self, broker: Broker, rows: Rows) -> None:
        self.ready = 0
        self.dead = 0
        self._broker = broker
        self._rows = rows
        self._seen: dict[Names, Seen] = {}
        self._next_age = 0

    async def look(self, pace: Pace) -> None:
        """Look at all of them."""
        before = self._seen
        there: dict[Names, Seen] = {}
        ready = dead = behind = 0
        for queue in self._broker.queues.all():
            if pace.add(REST):
                await pace.turn()
            if queue.gone:
                continue
            names: Names = (queue.topic.name, queue.name)
            seen = there[names] = before.get(names) or Seen()
            if not _is_loaded(queue):
                continue
            mark = _mark(queue)
            if mark is None or mark != seen.mark:
                seen.mark = mark
                is_turn = self._next_age <= behind < self._next_age + AGES_A_LOOK
                await self._look_whole(queue, names, seen, is_turn, pace)
            behind += seen.is_behind
            ready += seen.depth
            dead += seen.dead
        self._next_age += AGES_A_LOOK
        if self._next_age >= behind:
            self._next_age = 0
        for gone in before:
            if gone not in there:
                self._rows.drop(QUEUES, gone)
            if pace.add(1):
                await pace.turn()
        self._seen, self.ready, self.dead = there, ready, dead

    async def _look_whole(self, queue: Queue, names: Names, seen: Seen, is_turn: bool, pace: Pace) -> None:
        if pace.add(WHOLE + LANE * len(queue.lanes)):
            await pace.turn()
        figures = queue.figures()
        seen.depth, seen.dead = figures.depth, figures.dead
        waiting = figures.depth + figures.in_flight + figures.deferred + figures.blocked
        seen.is_behind = waiting + figures.condemned + figures.stuck > 0
        await self._find_oldest(queue, seen, is_turn, pace)
        self._rows.put(QUEUES, names, (queue.paused, *_figures_of(figures), seen.oldest_ms))

    async def _find_oldest(self, queue: Queue, seen: Seen, is_turn: bool, pace: Pace) -> None:
        """The time of the oldest unsettled message. It is read where none is known, and where another may be by now
        in turn: the ages of some are read in a look."""
        floors = [lane.ledger.floor for lane in queue.lanes.values()]
        if not seen.is_behind:
            seen.oldest_ms = None
        elif seen.oldest_ms is None or (is_turn and seen.floors != floors):
            if pace.add(AGE):
                await pace.turn()
            age = await queue.age_ms()
            seen.floors, seen.oldest_ms = floors, self._broker.runtime.clock.now_ms() - age if age else None
        elif seen.floors != floors:
            # Not at rest: its turn comes.
            seen.mark = None


def _mark(queue: Queue) -> Mark | None:
    """What tells a queue with one lane that moves from one at rest."""
    if len(queue.lanes) != 1:
        return None
    (lane,) = queue.lanes.values()
    ledger = lane.ledger
    return (
        *(queue.paused, lane.partition.last_stable, ledger.floor, ledger.cursor, ledger.ready, ledger.in_flight),
        *(ledger.leased, ledger.deferred, ledger.blocked, ledger.condemned, ledger.stuck, len(queue.consumers)),
        *(queue.delivered, queue.finished, queue.requeued, queue.timed_out, queue.dead, lane.lost, lane.poisoned),
    )


def _is_loaded(queue: Queue) -> bool:
    # A comprehension in `all` would take longer than the one lane that most have.
    for lane in queue.lanes.values():  # noqa: SIM110
        if not lane.partition.loaded:
            return False
    return True
