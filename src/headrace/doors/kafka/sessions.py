"""Incremental fetch sessions: the partitions that a client reads, remembered between its requests.

A full request (epoch 0) opens a session and lists every partition; each later one names the next epoch and only what
changed, and its reply only the partitions that have something new. Epochs run from 1 to 2^31 - 1 and start again at 1;
-1 asks for no session. A partition that gave records moves to the end of the session's order, so that none starves
behind busy ones.

Sessions are bounded, by number and by the partitions of all of them. A new one takes the place of the least recently
used, if that one rested for two minutes at least; otherwise the client goes on with full requests. (Taking any would
make too many clients throw each other out for ever.) A session that outgrows the bound is forgotten.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from headrace.log.interface import Topic
from headrace.runtime.random import Random

EPOCH_NONE = -1
EPOCH_FULL = 0
EPOCH_MAX = 0x7FFFFFFF
REST_SECONDS = 120.0
# Partitions of all sessions together; each takes about 400 bytes.
PARTITIONS_MAX = 500_000


def next_epoch(epoch: int) -> int:
    """The epoch after this one."""
    if epoch < 0:
        return EPOCH_NONE
    return 1 if epoch == EPOCH_MAX else epoch + 1


class FetchPartition:
    """One partition that a client reads, and what the last reply had of it."""

    __slots__ = (
        "index",
        "key",
        "last_epoch",
        "leader_epoch",
        "max_bytes",
        "offset",
        "sent_high",
        "sent_start",
        "topic",
    )

    def __init__(
        self, key: bytes, index: int, offset: int, max_bytes: int, leader_epoch: int = -1, last_epoch: int = -1
    ) -> None:
        self.key = key
        self.index = index
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_epoch = last_epoch
        self.topic: Topic | None = None
        self.sent_high = -1
        self.sent_start = -1

    def move(self, other: FetchPartition) -> None:
        """Read on from the offset of a request."""
        self.offset = other.offset
        self.max_bytes = other.max_bytes
        self.leader_epoch = other.leader_epoch
        self.last_epoch = other.last_epoch


class Session:
    """The partitions of one client, in the order in which they are read."""

    __slots__ = ("by_id", "epoch", "id", "partitions", "used")

    def __init__(self, id: int, by_id: bool, used: float) -> None:
        self.id = id
        self.by_id = by_id
        self.epoch = 1
        self.used = used
        self.partitions: OrderedDict[tuple[bytes, int], FetchPartition] = OrderedDict()

    def rotate(self, entry: FetchPartition) -> None:
        """The partition gave records: the others come first next time."""
        which = (entry.key, entry.index)
        if which in self.partitions:
            self.partitions.move_to_end(which)


class Sessions:
    """All sessions of the door, the least recently used first."""

    def __init__(self, limit: int, random: Random, loop: asyncio.AbstractEventLoop) -> None:
        self.partitions = 0
        self._limit = limit
        self._random = random
        self._loop = loop
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, id: int) -> Session | None:
        """The session of that number, used now."""
        session = self._sessions.get(id)
        if session is not None:
            session.used = self._loop.time()
            self._sessions.move_to_end(id)
        return session

    def open(self, by_id: bool, entries: list[FetchPartition]) -> Session | None:
        """A new session, or None where there is no room."""
        now = self._loop.time()
        while len(self._sessions) >= self._limit or self.partitions + len(entries) > PARTITIONS_MAX:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.used < REST_SECONDS:
                return None
            self.close(oldest.id)
        id = 0
        while id == 0 or id in self._sessions:
            id = int.from_bytes(self._random.bytes(4), "big") & EPOCH_MAX
        session = self._sessions[id] = Session(id, by_id, now)
        self.update(session, entries, [])
        return session

    def update(self, session: Session, entries: list[FetchPartition], forgotten: list[tuple[bytes, int]]) -> bool:
        """Take a request's changes. False: there is no room for them, and the session is forgotten."""
        before = len(session.partitions)
        for entry in entries:
            known = session.partitions.setdefault((entry.key, entry.index), entry)
            if known is not entry:
                known.move(entry)
        for which in forgotten:
            session.partitions.pop(which, None)
        self.partitions += len(session.partitions) - before
        if self.partitions > PARTITIONS_MAX and len(session.partitions) > before:
            self.close(session.id)
            return False
        return True

    def close(self, id: int) -> None:
        """Forget a session; fine if there is none."""
        session = self._sessions.pop(id, None)
        if session is not None:
            self.partitions -= len(session.partitions)
