"""A stage for group tests: a loop whose time stands still until told, and a host that keeps what groups store."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from headrace.broker.groups.classic_state import Stored
from headrace.broker.groups.group import Group
from headrace.broker.groups.group_codec import StoredGroup
from headrace.broker.groups.protocol import Joined, JoinRequest, Leaver, Problem, Synced, SyncRequest

RANGE = (("range", b"r"),)


class Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class StillLoop:
    """The part of a loop that groups use. Futures need a loop to belong to, but none runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self._owner = asyncio.new_event_loop()
        self._owner.close()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(lambda: callback(*args))
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._owner)

    @property
    def armed(self) -> int:
        return sum(timer.callback is not None for _, _, timer in self._timers)

    def turn(self) -> None:
        """The next call that waits, at its time."""
        when, _, timer = heapq.heappop(self._timers)
        self.now = max(self.now, when)
        if timer.callback is not None:
            timer.callback()

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            when, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if timer.callback is not None:
                timer.callback()
        self.now = until


class Stage:
    """A host whose storage answers at once, later (`hold`), or with a problem (`failing`)."""

    def __init__(self, *, max_size: int = 10_000, initial_delay: float = 0.0) -> None:
        self.loop = StillLoop()
        self.max_size = max_size
        self.initial_delay = initial_delay
        self.hold = False
        self.failing = Problem.NONE
        self.waiting: list[Stored] = []
        self.stores: list[tuple[int, dict[str, bytes]]] = []
        self.record: StoredGroup | None = None
        """What a restart would find."""
        self.vacancies = 0
        self._drawn = 0

    def now_ms(self) -> int:
        return int(self.loop.now * 1000)

    def draw_member_id(self, prefix: str) -> str:
        self._drawn += 1
        return f"{prefix}-{self._drawn}"

    def store(self, group_id: str, record: StoredGroup, stored: Stored) -> None:
        self.stores.append((record.generation, {each.member_id: each.assignment for each in record.members}))

        def done(problem: Problem) -> None:
            if problem is Problem.NONE:
                self.record = record
            stored(problem)

        if self.hold:
            self.waiting.append(done)
        else:
            done(self.failing)

    def settle(self) -> None:
        waiting, self.waiting = self.waiting, []
        for stored in waiting:
            stored(self.failing)

    def vacated(self, group: Group) -> None:
        self.vacancies += 1


def join_request(member_id: str = "", **changes: Any) -> JoinRequest:
    values: dict[str, Any] = {
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": RANGE,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "client_id": "c",
    }
    return JoinRequest(**{**values, **changes})


def joined(future: asyncio.Future[Joined]) -> Joined:
    assert future.done(), "the join still waits"
    return future.result()


def synced(future: asyncio.Future[Synced]) -> Synced:
    assert future.done(), "the sync still waits"
    return future.result()


def sync_request(joined: Joined, **assignments: bytes) -> SyncRequest:
    given = {key.replace("_", "-"): value for key, value in assignments.items()}
    return SyncRequest(member_id=joined.member_id, generation=joined.generation, assignments=tuple(given.items()))


def stable(group: Group, count: int = 2, **changes: Any) -> list[Joined]:
    """Bring `count` members in, and the group to rest; the leader first."""
    futures = [group.join(join_request(**changes))]
    known = [joined(futures[0]).member_id]
    for _ in range(count - 1):
        futures.append(group.join(join_request(**changes)))
    if count > 1:
        # Joins of the others made the group rebalance: the leader rejoins.
        futures[0] = group.join(join_request(known[0], **changes))
    answers = [joined(future) for future in futures]
    leader = next(each for each in answers if each.members)
    syncs = [
        group.sync(
            SyncRequest(
                member_id=each.member_id,
                generation=each.generation,
                assignments=tuple((m.member_id, m.member_id.encode()) for m in leader.members),
            )
        )
        for each in sorted(answers, key=lambda each: each is leader)
    ]
    for each in syncs:
        assert synced(each).problem is Problem.NONE
    return sorted(answers, key=lambda each: each is not leader)


def leave(group: Group, *member_ids: str) -> list[Problem]:
    return group.leave([Leaver(member_id) for member_id in member_ids])
