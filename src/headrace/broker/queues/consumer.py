"""One subscription to a queue: its credit, what it has in flight, and how it settles that.

The credit is a ceiling on what may be in flight, as in NSQ: it is not used up. A delivery is named by lane, offset and
attempt, so an answer that comes too late (the message timed out and went to another consumer) is not taken for a
right one.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Protocol

from headrace.broker.queues.delivery import Claimed
from headrace.broker.security.rights import Operation, Resource, queue_name
from headrace.errors import NotAuthorized

if TYPE_CHECKING:
    from headrace.broker.queues.queue import Queue
    from headrace.broker.security import Security, Session
    from headrace.broker.security.watches import Watch


class Sink(Protocol):
    """What a door gives to a queue: where messages go."""

    def deliver(self, claimed: Claimed) -> None:
        """Take messages, at once. Called on the loop, one or a few times a turn."""
        ...

    def gone(self, reason: str) -> None:
        """The queue is no more, or the right to read it: the subscription is over."""
        ...


# The delay of a message that is not to be delivered again.
REJECTED = -1


class Consumer:
    def __init__(self, queue: Queue, number: int, sink: Sink, label: str, timeout_ms: int | None, sample: int) -> None:
        self.queue = queue
        self.id = number
        self.label = label
        self.sink = sink
        self.sample = sample
        self.timeout_given = timeout_ms
        self.credit = 0
        self.in_flight = 0
        self.held = False
        self.closed = False
        self.delivered = 0
        self.finished = 0
        self.requeued = 0
        self.timed_out = 0
        self._watches: tuple[Watch, ...] = ()
        # Until when a delivery may be touched at most, by lane and offset; only of those that were touched.
        self.touched: dict[tuple[int, int], int] = {}

    def watch(self, session: Session, security: Security) -> None:
        """End the subscription when the session may not read any more. Raises NotAuthorized where it may not now."""
        topic, queue = self.queue.topic.name, queue_name(self.queue.topic.name, self.queue.name)
        rights = ((Resource.TOPIC, topic), (Resource.QUEUE, queue))
        for right in rights:
            security.check(session, Operation.READ, *right)
        self._watches = tuple(security.watch(session, Operation.READ, *right, self._revoke) for right in rights)

    def _revoke(self, error: NotAuthorized) -> None:
        self.queue.unsubscribe(self)
        self.end(str(error))

    @property
    def timeout_ms(self) -> int:
        """How long a delivery may stay unsettled."""
        return self.timeout_given or self.queue.settings.timeout_ms

    @property
    def room(self) -> int:
        """How many more messages it may have in flight."""
        return 0 if self.held or self.closed else self.credit - self.in_flight

    def ready(self, credit: int) -> None:
        """Set the ceiling of what may be in flight (NSQ's RDY)."""
        self.credit = credit
        if credit > self.in_flight:
            self.queue.kick()

    def hold(self) -> None:
        """The connection cannot take more now."""
        self.held = True

    def go_on(self) -> None:
        """The connection can take messages again."""
        self.held = False
        self.queue.kick()

    def finish(self, lane: int, offset: int, attempt: int) -> bool:
        """Settle a message; False if it is not in flight to this consumer as that attempt."""
        return not self.finish_many(array("q", (lane, offset, attempt)))

    def finish_many(self, ids: array[int]) -> list[int]:
        """Settle the messages of (lane, offset, attempt, lane, offset, ...); the places of those that were not in
        flight here."""
        failed = self.queue.finish(self, ids)
        count = len(ids) // 3 - len(failed)
        self.in_flight -= count
        self.finished += count
        return failed

    def requeue(self, lane: int, offset: int, attempt: int, delay_ms: int, error: str = "") -> bool:
        """Give a message back, to be delivered again after a delay; 0: at once, or by the queue's retry ladder;
        `REJECTED`: never, it is dead."""
        if not self.queue.requeue(self, lane, offset, attempt, delay_ms, error):
            return False
        self.in_flight -= 1
        self.requeued += 1
        return True

    def touch(self, lane: int, offset: int, attempt: int) -> bool:
        """Let the message's timeout begin anew."""
        return self.queue.touch(self, lane, offset, attempt)

    def is_anothers(self, lane: int, offset: int) -> bool:
        """Whether a message is in flight to another consumer of the queue."""
        found = self.queue.lanes.get(lane)
        return found is not None and found.ledger.owner_of(offset) not in (0, self.id)

    def close(self) -> None:
        """End the subscription: what is in flight is ready again for others."""
        if not self.closed:
            self._close()
            self.queue.unsubscribe(self)

    def end(self, reason: str) -> None:
        """The queue is no more, or the right to read it is: the client is told."""
        self._close()
        self.sink.gone(reason)

    def _close(self) -> None:
        self.closed = True
        for watch in self._watches:
            watch.end()
