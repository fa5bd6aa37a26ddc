from __future__ import annotations

import asyncio
import json
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from tests import brokers
from tests.broker.conftest import Starting
from tests.broker.queues.stage import consume, publish
from tests.device import Device
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.deliveries import (
    DEAD,
    DELIVERED,
    EMPTIED,
    FINISHED,
    RELEASED,
    REQUEUED,
    TIMED_OUT,
    TOPIC,
    TOUCHED,
    Deliveries,
)
from headrace.broker.internal import is_internal
from headrace.broker.queues.delivery import Claimed, Feed, Rules, claim
from headrace.broker.queues.ledger import Ledger
from headrace.config import Config
from headrace.format import records
from headrace.format.batch import batches_in


class Queue:
    """What is asked of one."""

    def __init__(self, share: float, topic: str, name: str) -> None:
        self.topic = SimpleNamespace(name=topic)
        self.name = name
        self.settings = SimpleNamespace(deliveries=share)


def queue(share: float = 1.0, topic: str = "orders", name: str = "mail") -> Any:
    return Queue(share, topic, name)


def made(broker: Broker, **settings: Any) -> Deliveries:
    return Deliveries(broker.runtime, broker.topics, Config(**{"deliveries_flush_ms": 60_000, **settings}))


async def written(broker: Broker) -> list[dict[str, Any]]:
    """All events in the topic."""
    partition = broker.topics.all[TOPIC].partitions[0]
    while partition.high_watermark < partition.end:
        await asyncio.sleep(0)
    found = []
    chunk = partition.read(0, 1 << 24)
    raw = chunk.read()
    chunk.release()
    for at, header in batches_in(raw):
        for _, time, key, value, _ in records.parse(raw[at : at + header.size], 1 << 24):
            event = json.loads(value or b"")
            assert event["t"] == time
            assert key == f"{event['topic']}/{event['queue']}".encode()
            found.append(event)
    return found


async def by_event(broker: Broker, only: set[str] | None = None) -> dict[tuple[str, str], set[int]]:
    seen: dict[tuple[str, str], set[int]] = {}
    for event in await written(broker):
        if only is None or event["event"] in only:
            seen.setdefault((event["queue"], event["event"]), set()).update(offsets(event["runs"]))
    return seen


def claimed(count: int) -> Claimed:
    """The first deliveries of messages without keys."""
    feed = Feed(1 << 20)
    feed.fill(bytes(records.build([(0, None, b"v", [])] * count)), 0)
    return claim(feed, Ledger(0), Rules("q", [], None, 1), 0, 1, 1_000, count, 1 << 20, False)


def offsets(runs: list[list[int]]) -> set[int]:
    return {offset for first, last in runs for offset in range(first, last + 1)}


async def test_events_are_gathered_and_written_together(broker: Broker):
    deliveries = made(broker)
    deliveries.note(queue(), DELIVERED, 0, [(0, 4), (7, 7)], consumer="c", attempt=1)
    deliveries.note(queue(), REQUEUED, 3, [(9, 9)], consumer="c", attempt=2, delay_ms=0, error="no \N{SNOWMAN}")
    assert TOPIC not in broker.topics.all
    await deliveries.flush()
    first, second = await written(broker)
    assert {**first, "t": 0} == {
        "t": 0,
        "event": "delivered",
        "topic": "orders",
        "queue": "mail",
        "partition": 0,
        "runs": [[0, 4], [7, 7]],
        "consumer": "c",
        "attempt": 1,
    }
    assert second["delay_ms"] == 0
    assert second["error"] == "no \N{SNOWMAN}"
    assert second["partition"] == 3
    assert deliveries.written == 2
    # One append for all of them.
    assert broker.topics.all[TOPIC].partitions[0].end == 2
    await deliveries.flush()
    assert deliveries.written == 2


async def test_runs_of_one_moment_share_a_record(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    deliveries = made(broker)
    now = broker.runtime.clock.now_ms()
    monkeypatch.setattr(broker.runtime.clock, "now_ms", lambda: now)
    for offset in range(0, 10, 2):
        deliveries.note(queue(), FINISHED, 0, [(offset, offset)], consumer="c")
    deliveries.note(queue(), FINISHED, 0, [(1, 1)], consumer="another")
    await deliveries.flush()
    assert [event["runs"] for event in await written(broker)] == [[[0, 0], [2, 2], [4, 4], [6, 6], [8, 8]], [[1, 1]]]


async def test_they_are_written_without_being_asked(broker: Broker):
    deliveries = made(broker, deliveries_flush_ms=1)
    for offset in (0, 1):
        deliveries.note(queue(), FINISHED, 0, [(offset, offset)])
        while deliveries.written <= offset:
            await asyncio.sleep(0.001)
    assert len(await written(broker)) == 2
    await deliveries.stop()


async def test_stop_writes_what_waits(broker: Broker):
    deliveries = made(broker)
    deliveries.note(queue(), FINISHED, 0, [(0, 0)])
    await deliveries.stop()
    assert len(await written(broker)) == 1


async def test_off_sampled_and_all(broker: Broker):
    deliveries = made(broker)
    queues = [queue(0.0), queue(0.1, name="sampled"), queue(1.0, name="all")]
    ids = array("q", [number for offset in range(500) for number in (0, offset, 1)])
    for each in queues:
        deliveries.note_delivered(each, claimed(500), "c")
        deliveries.note_finished(each, 0, ids, [], "c")
    await deliveries.flush()
    seen = await by_event(broker)
    assert set(seen) == {(name, event) for name in ("sampled", "all") for event in ("delivered", "finished")}
    assert seen["sampled", "delivered"] == seen["sampled", "finished"]
    assert 25 < len(seen["sampled", "delivered"]) < 85
    assert seen["all", "finished"] == set(range(500))
    # Nothing is remembered of what is settled.
    assert not any(deliveries._watched[queues[1]].values())


async def test_failures_are_written_of_all_messages_and_what_follows_them(broker: Broker):
    deliveries = made(broker)
    sampled = queue(1e-9)
    deliveries.note_delivered(sampled, claimed(9), "c")
    for offset, event in enumerate((REQUEUED, TIMED_OUT, RELEASED, DEAD, EMPTIED, TOUCHED)):
        deliveries.note(sampled, event, 0, [(offset, offset)], attempt=1)
    deliveries.note(sampled, TOUCHED, 0, [(0, 0)], attempt=2)
    deliveries.note_finished(sampled, 0, array("q", [0, 0, 2, 0, 8, 1]), [], "c")
    deliveries.note(queue(0.0), DEAD, 0, [(0, 0)])
    await deliveries.flush()
    seen = {event: found for (_, event), found in (await by_event(broker)).items()}
    assert seen == {REQUEUED: {0}, TIMED_OUT: {1}, RELEASED: {2}, DEAD: {3}, EMPTIED: {4}, TOUCHED: {0}, FINISHED: {0}}


async def test_what_is_touched_is_written_where_it_is_watched(broker: Broker):
    deliveries = made(broker)
    sampled = queue(0.5)
    deliveries.note_delivered(sampled, claimed(40), "c")
    for offset in range(40):
        deliveries.note(sampled, TOUCHED, 0, [(offset, offset)], attempt=1)
    # Longer than what is watched.
    deliveries.note(sampled, EMPTIED, 0, [(0, 1 << 40)])
    await deliveries.flush()
    [(_, first)] = [(key, found) for key, found in (await by_event(broker, {DELIVERED})).items()]
    [(_, touched)] = [(key, found) for key, found in (await by_event(broker, {TOUCHED})).items()]
    assert first == touched
    assert 0 < len(first) < 40
    assert not deliveries._watched[sampled][0]


async def test_beyond_the_bound_events_are_dropped_and_counted(broker: Broker):
    deliveries = made(broker, deliveries_runs_max=3)
    deliveries.note(queue(), FINISHED, 0, [(0, 0), (2, 2), (4, 4), (6, 9)])
    deliveries.note(queue(), FINISHED, 0, [(20, 29)])
    assert deliveries.dropped == 4 + 10
    await deliveries.flush()
    assert offsets((await written(broker))[0]["runs"]) == {0, 2, 4}
    deliveries.note(queue(), FINISHED, 0, [(30, 30)])
    assert deliveries.dropped == 14


async def test_many_runs_become_several_records(broker: Broker):
    deliveries = made(broker)
    runs = [(offset, offset) for offset in range(0, 10_000, 2)]
    deliveries.note(queue(), FINISHED, 0, runs)
    await deliveries.flush()
    found = await written(broker)
    assert len(found) == 10
    assert [run for event in found for run in event["runs"]] == [list(run) for run in runs]


async def test_reading_events_makes_none(broker: Broker):
    deliveries = made(broker)
    deliveries.note(queue(topic=TOPIC), DELIVERED, 0, [(0, 0)])
    await deliveries.flush()
    assert TOPIC not in broker.topics.all


async def test_a_full_disk_costs_events_and_nothing_else(device: Device):
    async with brokers.running(device, durability="async") as broker:
        deliveries = made(broker)
        deliveries.note(queue(), FINISHED, 0, [(0, 0)])
        await deliveries.flush()
        async with device.full(broker):
            deliveries.note(queue(), FINISHED, 0, [(1, 3)])
            await deliveries.flush()
            assert deliveries.dropped == 3
        deliveries.note(queue(), FINISHED, 0, [(4, 4)])
        await deliveries.flush()
        assert deliveries.written == 2


async def test_the_topic_is_taken_up_after_a_restart(start_broker: Starting):
    for _ in range(2):
        broker = await start_broker()
        deliveries = made(broker)
        deliveries.note(queue(), FINISHED, 0, [(0, 0)])
        await deliveries.stop()
    assert broker.topics.all[TOPIC].partitions[0].end == 2
    assert is_internal(TOPIC)


async def test_what_was_delivered_and_finished_by_attempt(broker: Broker):
    deliveries = made(broker)
    ids = array("q", [0, 5, 1, 0, 6, 1, 1, 7, 1, 0, 7, 2, 0, 8, 1])
    deliveries.note_finished(queue(), 0, ids, [4], "c")
    deliveries.note_finished(queue(0.0), 0, ids, [], "c")
    deliveries.note_finished(queue(topic=TOPIC), 0, ids, [], "c")
    await deliveries.flush()
    found = [(event["event"], event["attempt"], event["runs"], event["consumer"]) for event in await written(broker)]
    assert found == [("finished", 1, [[5, 6]], "c"), ("finished", 2, [[7, 7]], "c")]


async def test_a_queue_that_is_emptied_says_so_of_all_that_it_had_left(broker: Broker):
    topic = await broker.topics.create("orders", 1)
    queue = await broker.queues.ensure(topic, "mail")
    await broker.queues.configure(queue, {"deliveries": 1.0})
    keeper = consume(queue, credit=3)
    await publish(topic, *(b"%d" % number for number in range(5)))
    await until(lambda: len(keeper.got) == 3)
    keeper.finish(b"0", b"2")
    await broker.queues.empty(queue)
    # There is nothing left to say it of.
    await broker.queues.empty(queue)
    await broker.deliveries.flush()
    seen = await by_event(broker)
    assert seen["mail", "delivered"] == {0, 1, 2}
    # As one run from the first that is not settled on, over what was settled behind it.
    assert seen["mail", "emptied"] == {1, 2, 3, 4}
    assert [event["runs"] for event in await written(broker) if event["event"] == EMPTIED] == [[[1, 4]]]
