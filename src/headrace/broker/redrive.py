"""Redrive: dead letters back to the topics that they came from.

What was sent back is known to a queue named `redrive` on the dead-letter topic: a letter is settled there and appended
to its origin in one atomic append, so that neither a crash between the two nor a second run sends one twice. Nothing
consumes from that queue, and its state is as small as any queue's.

The work is done in steps of about a second, each of which reports what became of every letter and where the next one
begins. Nothing is remembered between steps but the settlements: a client that drives them may stop anywhere, go on
later, or be two. The ends of the partitions are fixed by the first step: a letter that dies again while a run goes on
is not picked up by the same run for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from headrace.broker import dead_letters, move, reading
from headrace.broker.dead_letters import DeadLetter, Selection
from headrace.broker.internal import is_protected
from headrace.broker.security import OWN, Operation, Resource, Session
from headrace.broker.turns import Turns
from headrace.errors import (
    AlreadySettled,
    AppendRefused,
    CorruptLog,
    HeadraceError,
    OffsetOutOfRange,
    TopicBlocked,
    UnknownTopic,
)
from headrace.format import records
from headrace.format.records import Record, RecordHeaders
from headrace.log.interface import EARLIEST, Partition, Topic

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.queues import Queue

log = structlog.get_logger("headrace.redrive")

QUEUE = "redrive"
STEP_SECONDS = 1.0
STEP_RESULTS = 1_000
STEP_BYTES = 4_194_304
# How long a step waits for room on an origin that takes no more, and the first one for messages that are just dying.
ROOM_SECONDS = 1.0
BURIAL_SECONDS = 1.0
# Letters that go back in one append.
GROUP_LETTERS = 200
GROUP_BYTES = 256 * 1024
READ_BYTES = 256 * 1024
# Records looked at between two turns of the loop.
TURN_RECORDS = 128

REDRIVEN = "redriven"
WOULD = "would-be-redriven"
SKIPPED = "skipped"
FAILED = "failed"
TAKEN = f"a consumer of the queue {QUEUE!r} has it, or it is just being moved. Try again."


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come: by partition, where to go on and where to end."""

    positions: Mapping[int, int]
    ends: Mapping[int, int]
    """Empty: nothing was looked at yet."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What a letter is sent back as, in the place of what it was: what is not given stays."""

    key: bytes | None = None
    value: bytes | None = None
    headers: RecordHeaders | None = None

    def apply(self, letter: DeadLetter) -> DeadLetter:
        return replace(
            letter,
            key=letter.key if self.key is None else self.key,
            value=letter.value if self.value is None else self.value,
            headers=letter.headers if self.headers is None else self.headers,
        )


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be sent back, and how."""

    topic: str
    """The dead-letter topic."""
    selection: Selection = field(default_factory=Selection)
    limit: int = STEP_RESULTS
    """The most results of this step."""
    rate: float = 0.0
    """Letters a second; 0: as fast as it goes."""
    dry_run: bool = False
    all_queues: bool = False
    """Every queue of the origin sees it again, not only the one on which it died."""
    place: Progress | None = None
    """Where the last step ended."""
    edits: Mapping[tuple[int, int], Edit] = field(default_factory=dict)
    """By partition and offset."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one letter."""

    partition: int
    letter: DeadLetter
    outcome: str
    reason: str = ""
    sent_to: int = -1
    """Its new offset on the partition that it came from."""


@dataclass(slots=True)
class Step:
    """What one step did."""

    results: list[Result] = field(default_factory=list)
    unselected: int = 0
    before: int = 0
    """Letters that were sent back earlier."""
    unreadable: int = 0
    """Offsets in batches that do not parse."""
    left: int = 0
    """Offsets that are still to be looked at."""
    waiting: str = ""
    """Why the step ended early: an origin that makes its producers wait has no room, or letters are being written."""
    next: Progress | None = None
    """Where to go on; None at the end."""


class Redrive:
    """Sends dead letters back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Steps on one topic take turns: each must see what the other settled.
        self._turns = Turns()

    async def step(self, order: Order, session: Session = OWN) -> Step:
        """Send some back, to where the session may write. Raises UnknownTopic."""
        async with self._turns.of(order.topic):
            topic = self._broker.topics.get(order.topic)
            if topic is None:
                raise UnknownTopic(f"there is no dead-letter topic {order.topic!r}")
            for partition in topic.partitions:
                await partition.load()
            queue = self._broker.queues.get(topic.name, QUEUE)
            if not order.dry_run:
                queue = await self._broker.queues.ensure(topic, QUEUE, EARLIEST)
            elif queue is not None:
                await self._broker.queues.open(queue)
            if order.place is None or not order.place.ends:
                dying = await self._broker.queues.await_burials(topic.name, BURIAL_SECONDS)
                if dying:
                    return Step(
                        waiting=f"{dying} messages are just being written to {topic.name}", next=Progress({}, {})
                    )
            step = await _Run(self._broker, session, order, topic, queue).step()
            sent = sum(each.outcome == REDRIVEN for each in step.results)
            if sent:
                self._broker.audit.record(session, "redrive", Resource.TOPIC, order.topic, detail=f"{sent} messages")
            return step


class _Run:
    """One step under way."""

    def __init__(self, broker: Broker, session: Session, order: Order, topic: Topic, queue: Queue | None) -> None:
        self._broker = broker
        self._session = session
        self._order = order
        self._topic = topic
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + STEP_SECONDS
        self._limit = min(order.limit, STEP_RESULTS)
        self._group_letters = GROUP_LETTERS
        if order.rate > 0:
            # Ten groups a second, or the slow would come in bursts.
            self._group_letters = max(1, min(GROUP_LETTERS, int(order.rate / 10)))
        self._step = Step()
        self._group: list[tuple[DeadLetter, Partition]] = []
        self._group_bytes = 0
        # Of the letters of this step, which are held until it is over.
        self._bytes = 0

    async def step(self) -> Step:
        # By the queue's lanes: its parking is one of them, and a partition that the topic has just got is not yet.
        if self._queue is None:
            partitions = dict(enumerate(self._topic.partitions))
        else:
            partitions = {number: lane.partition for number, lane in self._queue.lanes.items()}
        place = self._order.place
        if place is None or not place.ends:
            positions = {index: each.start for index, each in partitions.items()}
            ends = {index: each.last_stable for index, each in partitions.items()}
        else:
            positions = {index: at for index, at in place.positions.items() if index in partitions}
            ends = {index: min(place.ends.get(index, 0), partitions[index].last_stable) for index in positions}
        for index in positions:
            positions[index] = await self._walk(index, partitions[index], positions[index], ends[index])
        self._step.results.sort(key=lambda result: (result.partition, result.letter.offset))
        self._step.left = sum(max(0, ends[index] - at) for index, at in positions.items())
        if self._step.left:
            self._step.next = Progress(positions, ends)
        return self._step

    @property
    def _spent(self) -> bool:
        """No more may be begun in this step."""
        taken = len(self._step.results) + len(self._group)
        full = taken >= self._limit or self._bytes >= STEP_BYTES
        return full or self._loop.time() >= self._deadline or bool(self._step.waiting)

    async def _walk(self, lane: int, partition: Partition, position: int, end: int) -> int:
        """Take the letters of a lane from `position` on; where to go on."""
        while (position := max(position, partition.start)) < end and not self._spent:
            if self._queue is not None:
                unsettled = min(end, self._queue.next_unsettled(lane, position))
                self._step.before += unsettled - position
                position = unsettled
                if position >= end:
                    break
            before = position
            async for some, after in self._read(partition, position, end):
                for record in some:
                    if self._spent or not await self._take(lane, record):
                        break
                    position = record[0] + 1
                else:
                    position = after
                    continue
                break
            await self._send(lane)
            if position == before and not self._spent:
                raise CorruptLog(
                    f"{partition.topic.name} partition {partition.index} has no whole batch at offset {position}"
                )
        return position

    async def _read(self, partition: Partition, position: int, end: int) -> AsyncIterator[tuple[list[Record], int]]:
        """Records of one chunk from `position` on, a few at a time, each with the offset behind them."""
        try:
            found = await reading.batches(self._broker.runtime, partition, position, READ_BYTES)
        except OffsetOutOfRange:
            # Retention was faster.
            yield [], max(position, min(partition.start, end))
            return
        for header, batch in found:
            if header.last_offset < position:
                continue
            if batch is None or not header.record_count:
                yield [], min(header.last_offset + 1, end)
                continue
            reached = max(position, header.base_offset)
            last = min(header.last_offset + 1, end)
            try:
                # Unpacked once, however many records it has.
                picker = await self._broker.unpacking.read(records.Picker, batch)
                while reached < last:
                    wanted = list(range(reached, min(reached + TURN_RECORDS, last)))
                    some = picker.pick(wanted, READ_BYTES, reading.SKIPPED_RECORDS, True)
                    if picker.after <= wanted[-1]:
                        # So far it is too much for one step, or the batch breaks here, which this raises.
                        some += picker.pick(wanted, READ_BYTES, reading.SKIPPED_RECORDS, False)
                    reached = max(reached, picker.after)
                    yield some, max(position, min(reached, end))
                    await asyncio.sleep(0)
            except AppendRefused as error:
                log.warning("skipped a batch", topic=self._topic.name, offset=header.base_offset, why=str(error))
                self._step.unreadable += last - reached
                yield [], max(position, last)

    async def _take(self, lane: int, record: Record) -> bool:
        """Look at one letter; False if it has to wait."""
        if self._queue is not None and self._queue.settled(lane, record[0]):
            self._step.before += 1
            return True
        letter = dead_letters.read(record)
        if (edit := self._order.edits.get((lane, record[0]))) is not None:
            letter = edit.apply(letter)
        size = len(letter.key or b"") + len(letter.value or b"")
        if not self._order.selection.selects(letter):
            self._step.unselected += 1
            return True
        self._bytes += size
        if not self._free(lane, letter):
            self._report(lane, letter, SKIPPED, TAKEN)
            return True
        if not letter.has_origin:
            self._report(lane, letter, SKIPPED, "its headers do not say where it came from")
            return True
        try:
            partition = await self._target(letter)
            guarded = not self._order.dry_run and await self._admit(partition, size)
        except TopicBlocked as blocked:
            self._step.waiting = str(blocked)
            return False
        except HeadraceError as error:
            self._report(lane, letter, FAILED, str(error))
            return True
        self._group.append((letter, partition))
        self._group_bytes += size
        # Where room is counted, the next one is judged with this one in its place.
        if guarded or len(self._group) >= self._group_letters or self._group_bytes >= GROUP_BYTES:
            await self._send(lane)
        return True

    async def _admit(self, partition: Partition, size: int) -> bool:
        """Wait for room on an origin that bounds what it takes; whether it does. Raises TopicFull."""
        overflow = self._broker.overflow
        if not overflow.guards(partition.topic):
            return False
        room = overflow.admit(partition.topic, [(partition.index, size)], ROOM_SECONDS)
        if room is not None:
            await room
        return True

    async def _send(self, lane: int) -> None:
        """Send back what has gathered, and keep to the rate."""
        group, self._group, self._group_bytes = self._group, [], 0
        if not group:
            return
        began = self._loop.time()
        if self._order.dry_run:
            for letter, _ in group:
                self._report(lane, letter, WOULD)
            return
        await self._settle(lane, group)
        if self._order.rate > 0:
            await asyncio.sleep(max(0.0, began + len(group) / self._order.rate - self._loop.time()))

    def _free(self, lane: int, letter: DeadLetter) -> bool:
        return self._queue is None or self._queue.is_ready(lane, letter.offset)

    async def _settle(self, lane: int, group: Sequence[tuple[DeadLetter, Partition]]) -> None:
        able = [each for each in group if self._free(lane, each[0])]
        for letter, _ in group:
            if not self._free(lane, letter):
                self._report(lane, letter, SKIPPED, TAKEN)
        if not able:
            return
        for (letter, _), error in await move.move_each(able, partial(self._append, lane)):
            if isinstance(error, AlreadySettled):
                self._report(lane, letter, SKIPPED, TAKEN)
            else:
                self._report(lane, letter, FAILED, str(error))

    async def _append(self, lane: int, able: Sequence[tuple[DeadLetter, Partition]]) -> None:
        """Append letters to their origins and settle them, all or none."""
        assert self._queue is not None
        now = self._broker.runtime.clock.now_ms()
        by_partition: dict[Partition, list[DeadLetter]] = {}
        for letter, partition in able:
            by_partition.setdefault(partition, []).append(letter)
        writes = [
            move.write(partition, [self._restored(letter, now) for letter in letters])
            for partition, letters in by_partition.items()
        ]
        settling = self._queue.settle_with(lane, [letter.offset for letter, _ in able], writes)
        # Once it is appended the queue must hear of it, even if no caller waits for this step any more.
        appended = await asyncio.shield(self._loop.create_task(settling))
        for where, letters in zip(appended, by_partition.values(), strict=True):
            for number, letter in enumerate(letters):
                self._report(lane, letter, REDRIVEN, sent_to=where.base_offset + number)

    def _restored(self, letter: DeadLetter, now: int) -> move.Row:
        # The time is that of its return: retention by age could otherwise take it before a reader has seen it.
        only = "" if self._order.all_queues else letter.queue
        return now, letter.key, letter.value, dead_letters.restore_headers(letter, only)

    async def _target(self, letter: DeadLetter) -> Partition:
        """Where a letter came from. Raises a HeadraceError with the reason why it cannot go back."""
        broker = self._broker
        broker.security.check(self._session, Operation.WRITE, Resource.TOPIC, letter.topic)
        topic = broker.topics.get(letter.topic)
        if topic is None or is_protected(letter.topic):
            raise UnknownTopic(f"there is no topic {letter.topic!r} to send it back to")
        if letter.partition >= len(topic.partitions):
            raise UnknownTopic(f"the topic {letter.topic!r} has no partition {letter.partition} any more")
        if not self._order.all_queues and broker.queues.get(letter.topic, letter.queue) is None:
            raise UnknownTopic(
                f"the topic {letter.topic!r} has no queue {letter.queue!r} any more: make it again, or let every queue "
                "have it (all_queues)"
            )
        partition = topic.partitions[letter.partition]
        await move.load(partition)
        return partition

    def _report(self, lane: int, letter: DeadLetter, outcome: str, reason: str = "", sent_to: int = -1) -> None:
        self._step.results.append(Result(lane, letter, outcome, reason, sent_to))
