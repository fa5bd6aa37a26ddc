"""Whether a Produce may be appended yet: what the `overflow` of its topics allows, and how long its client can wait.

A client gives a request up after a time of its own, which the request has, counted from when it was sent. So a
request that waits for readers is answered well before that, with an error on which the client tries again. The ones
that the client had sent behind it waited too, unseen: a request that comes up right after another has waited is taken
for as old as the reply that may have made room for it in the client's pipeline.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from headrace.broker.publish import Admission
from headrace.doors.kafka.produce_wire import Request
from headrace.errors import HeadraceError, TopicBlocked

if TYPE_CHECKING:
    from headrace.doors.kafka.connection import Connection

# Of the time that a request allows; the rest is for its way back.
SHARE_OF_TIMEOUT = 2 / 3
# Requests that clients have on the way at once, unless they are configured otherwise.
PIPELINE = 5
# A request that comes up this long after another has waited was not in line behind it. Clients that were asked to try
# again take at least twice as long.
FRESH_SECONDS = 0.05


class Stall:
    """A connection whose requests wait, one after the other."""

    __slots__ = ("answers", "ended", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.ended = since
        self.answers: deque[float] = deque(maxlen=PIPELINE)

    @property
    def sent(self) -> float:
        """When the request that comes up now was sent, at the earliest."""
        return self.answers[0] if len(self.answers) == PIPELINE else self.since

    def answered(self, now: float) -> None:
        """A request that waited is over."""
        self.answers.append(now)
        self.ended = now


class Rooms:
    """What is decided of a request, topic by topic as it names them."""

    __slots__ = ("asked", "refused", "waiting")

    def __init__(self) -> None:
        self.asked: set[bytes] = set()
        self.refused: dict[bytes, HeadraceError] = {}
        self.waiting: dict[bytes, asyncio.Future[None]] = {}


UNGUARDED = Rooms()
"""Of a request whose topics ask for nothing."""


def ask(
    connection: Connection, request: Request, admissions: Sequence[Admission | None], rooms: Rooms = UNGUARDED
) -> Rooms:
    """Ask for the topics of a request, but for those that `rooms` has an answer for. Where there are some that wait,
    `wait` for them."""
    door = connection.door
    for (key, entries), admission in zip(request.topics, admissions, strict=True):
        if admission is None or not admission.is_guarded or key in rooms.asked:
            continue
        if rooms is UNGUARDED:
            rooms = Rooms()
        rooms.asked.add(key)
        topic = admission.topic
        now = door.loop.time()
        stall = connection.stall
        if stall is None or now - stall.ended > FRESH_SECONDS:
            stall = Stall(now)
        # No client waits for the reply of acks=0.
        limit = stall.sent + request.timeout_ms / 1000 * SHARE_OF_TIMEOUT - now if request.acks else inf
        known = len(topic.partitions)
        parts = [(index, end - start) for index, start, end in entries if 0 <= index < known and start >= 0]
        try:
            room = door.broker.overflow.admit(topic, parts, limit)
        except TopicBlocked as error:
            rooms.refused[key] = error
            stall.answered(now)
            connection.stall = stall
        except HeadraceError as error:
            rooms.refused[key] = error
        else:
            if room is not None:
                rooms.waiting[key] = room
                connection.stall = stall
    return rooms


async def wait(connection: Connection, rooms: Rooms) -> bool:
    """Wait for room in all of them; False if the client is gone and nothing is to be done any more."""
    try:
        for key, room in rooms.waiting.items():
            connection.blocked = room
            try:
                await room
            except HeadraceError as error:
                rooms.refused[key] = error
    except asyncio.CancelledError:
        if not connection.lost:
            raise
    finally:
        connection.blocked = None
        for room in rooms.waiting.values():
            room.cancel()
        rooms.waiting.clear()
        if connection.stall is not None:
            connection.stall.answered(connection.door.loop.time())
    return not connection.lost
