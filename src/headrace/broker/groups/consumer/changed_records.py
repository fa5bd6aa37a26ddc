"""The records of a group that have changed and are not written yet.

What a heartbeat changes is marked, and written from the state as it is when the marks are flushed, in one batch; where
writing fails the marks stay, and the next flush writes what is true then.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.broker.groups.consumer.consumer_codec import EPOCH, TARGET_EPOCH, ConsumerKey, write_key
from headrace.broker.groups.deadline import Loop
from headrace.broker.groups.protocol import Problem
from headrace.broker.store import Change


class Storage(Protocol):
    """Where groups are written to."""

    @property
    def loop(self) -> Loop: ...
    def write(self, group_id: str, changes: Sequence[Change], stored: Callable[[Problem], None]) -> None:
        """Write all or none; say when they are durable, or why they will not be. Never raises."""
        ...


class ChangedRecords:
    """Of one group."""

    def __init__(self, group_id: str, storage: Storage, value_of: Callable[[ConsumerKey], bytes | None]) -> None:
        self._group_id = group_id
        self._storage = storage
        # The value of a record as the group is now; None: a tombstone.
        self._value_of = value_of
        self._marks: dict[ConsumerKey, None] = {}
        self._writing: Future[Problem] | None = None

    def __len__(self) -> int:
        return len(self._marks)

    def mark(self, kind: int, member_id: str = "") -> None:
        """A record has changed."""
        self._marks[ConsumerKey(kind, self._group_id, member_id)] = None

    def flush(self) -> None:
        """Write what is marked."""
        if not self._marks:
            return
        marks = list(self._marks)
        # All of it is written together or not at all: of a part, one member could have a partition that another has not
        # given back.
        changes = [(write_key(mark), self._value_of(mark)) for mark in marks]
        answer: Future[Problem] = self._storage.loop.create_future()

        def stored(problem: Problem) -> None:
            if problem:
                self._marks = {**dict.fromkeys(marks), **self._marks}
            answer.set_result(problem)

        self._marks, self._writing = {}, answer
        self._storage.write(self._group_id, changes, stored)

    async def saved(self) -> Problem:
        """Wait until all that has been written is durable; whether anything is not."""
        if self._writing is None:
            return Problem.NONE
        problem = await asyncio.shield(self._writing)
        # Appends to one partition become durable in their order, but an earlier one may have failed.
        return Problem.COORDINATOR_NOT_AVAILABLE if problem is Problem.NONE and self._marks else problem

    def tombstones(self) -> list[Change]:
        """What ends an empty group in the log: also of members whose end could not be written so far."""
        group_id = self._group_id
        ends = {**self._marks, ConsumerKey(TARGET_EPOCH, group_id): None, ConsumerKey(EPOCH, group_id): None}
        return [(write_key(key), None) for key in ends]
