"""Queues and transactions: a queue hands out what is committed, and passes over the rest as if it were settled."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.queues.simulated import Stage, Taker, play

from headrace.broker.queues.ledger import DONE
from headrace.broker.redrive import REDRIVEN, Order
from headrace.format import records
from headrace.format.batch import TRANSACTIONAL
from headrace.log.interface import LATEST, Topic


class Transactional:
    """A producer that writes its transactions straight into the log."""

    def __init__(self, stage: Stage, topic: Topic, number: int) -> None:
        self._stage = stage
        self._topic = topic
        self.id = number
        self._sequences: dict[int, int] = {}

    async def send(self, *values: bytes, key: bytes | None = None, partition: int = 0) -> int:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        batch = records.build(
            [(self._stage.now(), key, value, []) for value in values],
            producer_id=self.id,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        return await self._stage.append_batch(self._topic.partitions[partition], batch)

    async def end(self, commit: bool, partition: int = 0) -> int:
        batch = records.control(int(commit), 0, self.id, 0, self._stage.now())
        return await self._stage.append_batch(self._topic.partitions[partition], batch)


@pytest.mark.parametrize("durability", ["sync", "async", "memory"])
def test_nothing_of_an_open_transaction_is_handed_out(durability: str) -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic(durability=durability)
        queue = await stage.queue(topic)
        taker = Taker(queue)
        one, two = Transactional(stage, topic, 1), Transactional(stage, topic, 2)
        await stage.send(topic, b"plain")
        await one.send(b"kept", b"kept too")
        await two.send(b"doomed")
        await stage.send(topic, b"behind")
        await stage.rest()
        assert taker.take() == [b"plain"]
        assert (queue.figures().depth, queue.unsettled) == (0, 1)
        await two.end(False)
        await stage.rest()
        assert taker.take() == []
        await one.end(True)
        await stage.rest()
        assert taker.take() == [b"kept", b"kept too", b"behind"]
        taker.finish()
        lane = queue.lanes[0]
        assert lane.ledger.floor == lane.ledger.cursor == topic.partitions[0].end == 7
        figures = queue.figures()
        assert (figures.depth, figures.lost, figures.delivered, queue.unsettled) == (0, 0, 4, 0)

    play(act)


def test_aborted_messages_are_settled_and_hold_no_key() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, order_by_key=True)
        one, two = Transactional(stage, topic, 1), Transactional(stage, topic, 2)
        await one.send(b"doomed", b"doomed", key=b"a")
        await two.send(b"first", key=b"a")
        await one.send(b"doomed", key=b"a")
        await one.end(False)
        await two.end(True)
        await one.send(b"second", key=b"a")
        await one.end(True)
        taker = Taker(queue)
        await stage.rest()
        assert taker.take() == [b"first"]
        taker.finish()
        await stage.rest()
        assert taker.take() == [b"second"]
        # An order that is asked for later finds the same ones.
        await stage.queues.configure(queue, {"order_by_key": False})
        await stage.queues.configure(queue, {"order_by_key": True})
        assert queue.lanes[0].keys is not None
        assert list(queue.lanes[0].keys.key_of) == [6]
        taker.finish()
        assert queue.lanes[0].ledger.floor == topic.partitions[0].end

    play(act)


def test_a_restart_within_aborted_messages() -> None:
    async def first(stage: Stage) -> None:
        topic = await stage.topic(**{"segment.bytes": "1048576"})
        queue = await stage.queue(topic)
        one = Transactional(stage, topic, 1)
        await one.send(b"a")
        await one.end(True)
        for _ in range(4):
            await one.send(*[b"doomed" * 1_000] * 60)
        await one.end(False)
        await one.send(b"b")
        await one.end(True)
        await one.send(*[b"doomed"] * 3)
        await one.end(False)
        taker = Taker(queue, credit=2)
        await stage.rest(1)
        assert taker.take() == [b"a", b"b"]
        # One that comes back, and one that stays: between them all is done.
        taker.consumer.requeue(0, 0, 1, 5_000)
        assert queue.lanes[0].ledger.state_of(100)[0] == DONE
        taker.consumer.close()
        await one.send(b"open")

    async def second(stage: Stage) -> None:
        topic = stage.broker.topics.all["t"]
        queue = await stage.queue(topic)
        taker = Taker(queue)
        await stage.rest(1)
        assert taker.take() == [b"b"]
        await stage.rest(5)
        assert taker.take() == [b"a"]
        assert queue.figures().lost == 0
        assert topic.partitions[0].last_stable == topic.partitions[0].end - 1
        one = Transactional(stage, topic, 1)
        await one.end(True)
        await stage.rest()
        assert taker.take() == [b"open"]
        taker.finish()
        assert queue.lanes[0].ledger.floor == topic.partitions[0].end
        assert queue.figures().lost == 0

    play(first, second)


def test_what_is_looked_at_and_buried_is_committed() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        queue = await stage.queue(topic, max_attempts=1)
        one = Transactional(stage, topic, 1)
        await one.send(b"doomed")
        await one.end(False)
        await stage.rest(10)
        await one.send(b"kept")
        await one.end(True)
        await stage.rest(1)
        assert [(each.offset, each.value) for each in (await queue.peek(10)).messages] == [(2, b"kept")]
        assert 1_000 <= await queue.age_ms() < 2_000
        taker = Taker(queue)
        await stage.rest()
        assert taker.take() == [b"kept"]
        assert taker.consumer.requeue(0, 2, 1, 0)
        await stage.rest(1)
        assert [value for value, _ in await stage.letters()] == [b"kept"]
        assert queue.lanes[0].ledger.floor == topic.partitions[0].end

    play(act)


def test_a_queue_begins_with_what_is_committed_after_it_was_made() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic()
        one = Transactional(stage, topic, 1)
        await stage.send(topic, b"before")
        await one.send(b"in between")
        late = Taker(await stage.queues.ensure(topic, "late", LATEST))
        emptied = await stage.queue(topic, "emptied")
        emptied.empty()
        other = Taker(emptied)
        await one.end(True)
        await stage.rest()
        assert late.take() == other.take() == [b"in between"]

    play(act)


def test_consumed_messages_go_with_the_aborted_between_them() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic(retention="consumed", **{"segment.bytes": "1048576"})
        queue = await stage.queue(topic)
        one = Transactional(stage, topic, 1)
        taker = Taker(queue)
        for _ in range(3):
            await one.send(*[b"x" * 1_000] * 900)
            await one.end(False)
        await one.send(b"kept")
        await one.end(True)
        await one.send(b"open")
        await stage.rest(1)
        assert taker.take() == [b"kept"]
        partition = topic.partitions[0]
        assert partition.start == 0
        taker.finish()
        await stage.rest(120)
        assert partition.start > 1_800
        assert partition.start <= partition.last_stable
        await one.end(True)
        await stage.rest(1)
        assert taker.take() == [b"open"]

    play(act, consumed_check_ms=1_000, consumed_quiet_ms=10_000, consumed_free_bytes=100_000)


def test_stragglers_among_aborted_messages_are_parked() -> None:
    async def act(stage: Stage) -> None:
        topic = await stage.topic(retention="consumed", **{"segment.bytes": "1048576", "consumed.pinned.segments": "1"})
        queue = await stage.queue(topic)
        one = Transactional(stage, topic, 1)
        taker = Taker(queue)
        await one.send(b"doomed")
        await one.end(False)
        await one.send(b"late")
        await one.end(True)
        await stage.rest()
        assert taker.consumer.requeue(0, 2, 1, 600_000)
        for _ in range(6):
            await one.send(*[b"x" * 1_000] * 900)
            await one.end(False)
        await stage.rest(120)
        assert topic.partitions[0].start > 900
        taker.take()
        await stage.rest(600)
        assert set(taker.take()) == {b"late"}

    play(act, consumed_check_ms=1_000, consumed_quiet_ms=10_000, consumed_free_bytes=100_000)


def test_letters_of_an_aborted_transaction_are_not_sent_back() -> None:
    async def act(stage: Stage) -> None:
        origin = await stage.topic()
        await stage.queue(origin)
        dead = await stage.topic("t.q.dead")
        one = Transactional(stage, dead, 1)
        headers = [
            ("headrace-origin-topic", b"t"),
            ("headrace-origin-partition", b"0"),
            ("headrace-origin-queue", b"q"),
        ]

        async def letter(value: bytes, sequence: int, kind: int) -> None:
            batch = records.build(
                [(stage.now(), None, value, headers)],
                producer_id=1, producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL,
            )  # fmt: skip
            await stage.append_batch(dead.partitions[0], batch)
            await one.end(bool(kind))

        await letter(b"doomed", 0, records.ABORT)
        await letter(b"kept", 1, records.COMMIT)
        step = await stage.broker.redrive.step(Order("t.q.dead"))
        assert [(each.letter.value, each.outcome) for each in step.results] == [(b"kept", REDRIVEN)]
        assert (step.next, origin.partitions[0].end) == (None, 1)
        step = await stage.broker.redrive.step(Order("t.q.dead"))
        assert step.results == []

    play(act)


def test_a_long_backlog_of_small_transactions() -> None:
    """Every second one is aborted, and the log was read from segments."""

    async def first(stage: Stage) -> None:
        topic = await stage.topic(**{"segment.bytes": "1048576"})
        await stage.queue(topic)
        producers = [Transactional(stage, topic, number) for number in range(8)]
        for turn in range(60):
            await asyncio.gather(*(each.send(b"%d" % turn * 500) for each in producers))
            await asyncio.gather(*(each.end((turn + each.id) % 2 == 0) for each in producers))

    async def second(stage: Stage) -> None:
        topic = stage.broker.topics.all["t"]
        queue = await stage.queue(topic)
        taker = Taker(queue)
        for _ in range(20):
            await stage.rest(0.1)
            taker.finish()
        assert sorted(taker.take()) == sorted(b"%d" % turn * 500 for turn in range(60) for _ in range(4))
        assert queue.figures().lost == 0
        assert queue.lanes[0].ledger.floor == topic.partitions[0].end

    play(first, second)
