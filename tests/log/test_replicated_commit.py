"""What a leader's log calls when: the local flush for `acks=1`, the commit for everything else."""

from __future__ import annotations

import asyncio

from tests.waiting import until

from headrace.errors import NotLeading
from headrace.log.frames import Kind
from headrace.log.replicated_commit import ReplicatedCommitter


class Group:
    """A committer whose frames are numbered from 1, and what it has called."""

    def __init__(self) -> None:
        self.sent = 0
        self.flushed = 0
        self.heard: list[tuple[str, Exception | None]] = []
        self.committer = ReplicatedCommitter(lambda _: None, lambda: None)
        self.committer.lead(self.submit, 0)

    def submit(self, payload: bytes, entries: int) -> int:
        self.sent += 1
        return self.sent

    def add(self, name: str) -> None:
        """Something to journal, of which both are to be heard."""
        note = self.committer.add_note(Kind.CATALOGUE, bytes(16), 0, 0, name.encode())
        note.add_done_callback(lambda done: self.heard.append((f"{name} committed", done.exception())))
        self.when_flushed(name)

    def when_flushed(self, name: str) -> bool:
        return self.committer.when_flushed(lambda e: self.heard.append((f"{name} flushed", e)), self.flushed)

    def flush(self, sequence: int) -> None:
        self.flushed = sequence
        self.committer.note_flushed(sequence)


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_local_flush_is_heard_before_the_commit() -> None:
    group = Group()
    group.add("a")
    await until(lambda: group.sent == 1)
    group.add("b")
    await until(lambda: group.sent == 2)
    assert not group.heard
    group.flush(1)
    assert group.heard == [("a flushed", None)]
    group.committer.complete(1)
    await turn()
    assert group.heard == [("a flushed", None), ("a committed", None)]
    # Nothing gathers, and what was sent is not flushed yet.
    assert not group.when_flushed("again")
    group.flush(2)
    assert group.heard[2:] == [("b flushed", None), ("again flushed", None)]
    assert group.when_flushed("late"), "everything is flushed, and the callback is not called"


async def test_a_leader_that_is_deposed_does_not_know_what_was_flushed() -> None:
    group = Group()
    group.add("a")
    await until(lambda: group.sent == 1)
    group.flush(1)
    group.add("b")
    await until(lambda: group.sent == 2)
    group.add("c")
    group.heard.clear()
    group.committer.end(NotLeading("another leads"))
    await turn()
    assert {name for name, _ in group.heard} == {"a committed", "b flushed", "b committed", "c flushed", "c committed"}
    assert all(isinstance(error, NotLeading) for _, error in group.heard)
    group.flush(2)
    await turn()
    assert len(group.heard) == 5, "each is called once"
