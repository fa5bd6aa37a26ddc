"""Decisions: from prepared to committed or rolled back, once.

A commit is one append to two partitions: the message to its topic, and to `__half` the record of the decision. A crash
leaves both or neither, so a client that asks afterwards finds the message undecided, or committed with the offset that
it got. A roll-back is that record alone. While an append is on its way the message belongs to the call that decides it;
others that come meanwhile wait, and find it decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.broker import move
from headrace.broker.prepared import entries
from headrace.broker.prepared.entries import Decided, Message, State
from headrace.broker.prepared.store import Store
from headrace.broker.prepared.table import Pending
from headrace.errors import HalfDecided, UnknownTopic
from headrace.format.partitioning import partition_of
from headrace.log.interface import Partition, Topic, Write


class Resolver:
    """Commits, rolls back and parks."""

    def __init__(self, store: Store, settled: Callable[[Pending], None]) -> None:
        self._store = store
        self._settled = settled
        """Called with a message about which no producer is to be asked any more."""
        self._turn = 0
        self.committed = 0
        self.rolled_back = 0
        self.given_up = 0

    async def decide(self, number: int, outcome: State, by: str = "") -> Decided:
        """Commit or roll back. Raises UnknownHalf, HalfDecided, UnknownTopic or an AppendRefused; the message is then
        as it was."""
        entry = await self._claim(number)
        if entry is None:
            return self._again(number, outcome)
        writes: list[Write] = []
        decided = Decided(number, outcome, by=by)
        try:
            if outcome is State.COMMITTED:
                writes.append(await self._delivery(entry))
                target = writes[0].partition
                # The next append to a partition gets its end for an offset, and that is this one.
                decided = Decided(number, outcome, target.topic.name, target.index, target.end, by)
            writes.append(self._store.write(entries.write_decided(decided, self._store.now())))
        except BaseException:
            self._release(entry)
            raise

        def then(place: int) -> None:
            table = self._store.table
            table.remove(entry)
            table.remember(replace(decided, place=place))
            self._count(decided)

        await self._append(entry, writes, then)
        return decided

    async def park(self, number: int) -> None:
        """Give a message up, but keep it until a client decides. Raises an AppendRefused."""
        entry = await self._claim(number)
        if entry is None:
            return

        def then(place: int) -> None:
            self._store.table.park(entry)
            self.given_up += 1

        await self._append(entry, [self._store.write(entries.write_parked(number, self._store.now()))], then)

    async def _claim(self, number: int) -> Pending | None:
        """The message, which is the caller's to decide until it is released; None where it is not undecided."""
        while True:
            entry = self._store.table.pending.get(number)
            if entry is None:
                return None
            if entry.deciding is None:
                entry.deciding = asyncio.get_running_loop().create_future()
                return entry
            await asyncio.wait([entry.deciding])

    @staticmethod
    def _release(entry: Pending) -> None:
        turn, entry.deciding = entry.deciding, None
        if turn is not None:
            turn.set_result(None)

    def _again(self, number: int, outcome: State) -> Decided:
        """The answer about a message that is not undecided."""
        known = self._store.outcome(number)
        id = self._store.id_of(number)
        if known.outcome is not outcome:
            where = f" to {known.topic}/{known.partition} at offset {known.offset}" if known.topic else ""
            by = " by the broker, which had asked in vain" if known.by else ""
            wanted = "committed" if outcome is State.COMMITTED else "rolled back"
            done = "committed" if known.outcome is State.COMMITTED else "rolled back"
            raise HalfDecided(f"the half message {id!r} was {done}{where}{by}: it cannot be {wanted} any more")
        return known

    async def _delivery(self, entry: Pending) -> Write:
        """What is appended, to a partition that is ready for it."""
        message = await self._store.message(entry)
        topic = self._store.log.topics.by_id.get(message.topic_id)
        if topic is not None:
            partition = self._target(topic, message)
            await move.load(partition)
        if topic is None or topic.deleted:
            raise UnknownTopic(
                f"the topic {message.topic!r} was deleted since the half message {self._store.id_of(entry.number)!r} "
                "was prepared: it can only be rolled back"
            )
        # The time is that of the commit: with that of the preparation, retention by age could take a message before
        # a reader saw it.
        return move.write(partition, [(self._store.now(), message.key, message.value, list(message.headers))])

    def _target(self, topic: Topic, message: Message) -> Partition:
        partitions = topic.partitions
        if message.partition >= 0:
            return partitions[message.partition]
        if message.key is not None:
            return partitions[partition_of(message.key, len(partitions))]
        self._turn += 1
        usable = [each for each in partitions if each.offline is None] or partitions
        return usable[self._turn % len(usable)]

    async def _append(self, entry: Pending, writes: Sequence[Write], then: Callable[[int], None]) -> None:
        """Append, and let the message go. `then` is called once it is durable, with the offset of the last batch, even
        if the caller does not wait any more."""

        def on_done(error: Exception | None, place: int) -> None:
            if error is None:
                then(place)
                self._settled(entry)
            self._release(entry)

        await self._store.append(writes, on_done)

    def _count(self, decided: Decided) -> None:
        if decided.outcome is State.COMMITTED:
            self.committed += 1
        else:
            self.rolled_back += 1
        if decided.by:
            self.given_up += 1
