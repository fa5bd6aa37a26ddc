"""Leases through the engine: settled from anywhere by handles, for any time, over restarts, within their bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from shutil import copytree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import brokers
from tests.broker.conftest import Starting
from tests.broker.queues.stage import consume, publish, publish_keyed
from tests.longer import examples
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.queues import Handle, Lease, Queue, Wanted
from headrace.broker.queues.leases import EPOCH_MASK
from headrace.errors import InvalidHandle, InvalidQueue, TooManyLeases

LONG = 3_600_000
HALF_DAY = 43_200_000


def want(limit: int = 32, invisible_ms: int = LONG, **how: object) -> Wanted:
    return Wanted(limit, invisible_ms, **how)  # type: ignore[arg-type]


async def receive(queue: Queue, *, wait_ms: int = 0, **how: object) -> list[Lease]:
    return await queue.leases.receive(want(**how), wait_ms)  # type: ignore[arg-type]


def values(leases: list[Lease]) -> list[bytes | None]:
    return [lease.record[3] for lease in leases]


async def make(broker: Broker, *messages: bytes, partitions: int = 1, **settings: object) -> Queue:
    topic = await broker.topics.create("t", partitions)
    queue = await broker.queues.ensure(topic, "q")
    if settings:
        await broker.queues.configure(queue, settings)
    if messages:
        await publish(topic, *messages)
    return queue


async def test_a_message_is_leased_to_no_connection_and_settled_by_its_handle(broker: Broker) -> None:
    queue = await make(broker, b"a", b"b")
    first, second = await receive(queue)
    assert (queue.figures().in_flight, queue.figures().depth, queue.figures().consumers) == (2, 0, 0)
    assert await receive(queue) == []
    handle = Handle.decode(first.handle.encode())
    assert handle == first.handle
    assert queue.leases.finish_many([handle, second.handle, handle]) == [2]
    assert (queue.unsettled, queue.leases.count) == (0, 0)


async def test_receives_wait_and_are_served_in_turn(broker: Broker) -> None:
    queue = await make(broker)
    waiting = [asyncio.ensure_future(receive(queue, wait_ms=40_000, limit=1)) for _ in range(3)]
    await until(lambda: len(queue.leases.receivers) == 3)
    await publish(queue.topic, b"1", b"2")
    assert values(await waiting[0]) + values(await waiting[1]) == [b"1", b"2"]
    assert not waiting[2].done()
    waiting[2].cancel()
    await asyncio.wait(waiting)
    assert not queue.leases.receivers
    assert await receive(queue, wait_ms=10) == []


async def test_a_receive_that_is_given_up_leaves_nothing_leased(broker: Broker) -> None:
    queue = await make(broker)
    waiting = asyncio.ensure_future(receive(queue, wait_ms=40_000))
    await until(lambda: bool(queue.leases.receivers))
    serve = queue.leases.serve

    def serve_and_cancel(most: int) -> bool:
        more = serve(most)
        if queue.leases.count:
            waiting.cancel()
        return more

    queue.leases.serve = serve_and_cancel  # type: ignore[method-assign]
    await publish(queue.topic, b"a")
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    assert queue.leases.count == 0
    assert values(await receive(queue)) == [b"a"]


async def test_a_lease_ends_by_itself_and_its_handle_is_stale_then(broker: Broker) -> None:
    queue = await make(broker, b"a")
    (first,) = await receive(queue, invisible_ms=50)
    assert first.handle.until_ms >= broker.runtime.clock.now_ms() - 50
    (second,) = await receive(queue, wait_ms=40_000)
    assert (second.handle.attempt, queue.figures().timed_out) == (2, 1)
    for settle in (
        lambda: not queue.leases.finish_many([first.handle]),
        lambda: queue.leases.give_back(first.handle),
        lambda: queue.leases.extend(first.handle, 10) is not None,
        lambda: queue.leases.reject(first.handle, "bad"),
    ):
        assert not settle()
    assert queue.leases.finish_many([second.handle]) == []


async def test_a_lease_is_made_longer_and_shorter_and_each_change_has_its_handle(broker: Broker) -> None:
    queue = await make(broker, b"a")
    (lease,) = await receive(queue, invisible_ms=1_000)
    longer = queue.leases.extend(lease.handle, HALF_DAY * 3)
    assert longer is not None
    assert longer.until_ms - broker.runtime.clock.now_ms() > HALF_DAY * 3 - 5_000
    assert queue.leases.finish_many([lease.handle]) == [0]
    shorter = queue.leases.extend(longer, 20)
    assert shorter is not None
    (again,) = await receive(queue, wait_ms=40_000)
    assert again.handle.attempt == 2
    assert queue.leases.give_back(again.handle, error="no")
    (last,) = await receive(queue)
    assert last.handle.attempt == 3
    assert queue.errors[0, 0] == "no"
    assert queue.leases.finish_many([last.handle]) == []
    assert not queue.errors


async def test_a_handle_of_a_renewed_lease_is_good_for_its_attempt(broker: Broker) -> None:
    queue = await make(broker, b"a")
    (lease,) = await receive(queue, is_renewed=True)
    assert queue.leases.extend(lease.handle, 60_000) is not None
    assert queue.leases.extend(lease.handle, 50_000) is not None
    assert queue.leases.give_back(lease.handle)
    (again,) = await receive(queue, is_renewed=True)
    assert queue.leases.finish_many([lease.handle, again.handle]) == [0]


async def test_what_is_not_accepted_is_settled_unseen(broker: Broker) -> None:
    queue = await make(broker, b"a", b"b", b"c")
    found = await receive(queue, accepts=lambda record: record[3] == b"b")
    assert values(found) == [b"b"]
    assert queue.unsettled == 1


async def test_dead_after_its_attempts_and_when_it_is_rejected(broker: Broker) -> None:
    queue = await make(broker, b"a", b"b", max_attempts=2)
    a, b = await receive(queue, invisible_ms=30)
    assert queue.leases.reject(b.handle, "poison")
    (a,) = await receive(queue, wait_ms=40_000, invisible_ms=30)
    assert a.handle.attempt == 2
    await until(lambda: queue.dead == 2)
    assert queue.unsettled == 0


async def test_one_batch_of_a_lane_is_out_where_order_is_asked_for(broker: Broker) -> None:
    queue = await make(broker, *(b"%d" % number for number in range(5)))
    first = await receive(queue, limit=2, in_order=True)
    assert values(first) == [b"0", b"1"]
    assert await receive(queue, limit=2, in_order=True) == []
    # A part of it comes back: before everything that follows.
    assert queue.leases.give_back(first[0].handle)
    assert await receive(queue, in_order=True) == []
    assert queue.leases.finish_many([first[1].handle]) == []
    again = await receive(queue, limit=2, in_order=True)
    assert values(again) == [b"0"]
    assert queue.leases.finish_many([again[0].handle]) == []
    assert values(await receive(queue, in_order=True)) == [b"2", b"3", b"4"]


async def test_a_receive_of_one_lane_gets_its_messages_alone(broker: Broker) -> None:
    queue = await make(broker, partitions=2)
    await publish(queue.topic, b"zero")
    await publish(queue.topic, b"one", partition=1)
    assert await queue.leases.await_message(want(0, lane=1), 0)
    assert values(await receive(queue, lane=1)) == [b"one"]
    assert not await queue.leases.await_message(want(0, lane=1), 0)
    assert values(await receive(queue)) == [b"zero"]
    waiting = asyncio.ensure_future(queue.leases.await_message(want(0, lane=1), 40_000))
    await until(lambda: bool(queue.leases.receivers))
    await publish(queue.topic, b"more", partition=1)
    assert await waiting
    assert queue.figures().depth == 1


async def test_keys_stay_in_order_under_leases_and_after_a_restart(start_broker: Starting) -> None:
    broker = await start_broker()
    queue = await make(broker, order_by_key=True)
    await publish_keyed(queue.topic, [(b"k", b"1"), (b"k", b"2"), (b"j", b"3")])
    first = await receive(queue)
    assert values(first) == [b"1", b"3"]
    broker = await start_broker()
    queue = broker.queues.get("t", "q")
    await broker.queues.open(queue)
    assert await receive(queue) == []
    assert queue.leases.finish_many([first[0].handle]) == []
    assert values(await receive(queue)) == [b"2"]


async def test_leases_and_consumers_share_a_queue(broker: Broker) -> None:
    queue = await make(broker, b"a", b"b")
    (lease,) = await receive(queue, limit=1)
    keeper = consume(queue)
    await until(lambda: keeper.values == [b"b"])
    keeper.consumer.close()
    assert values(await receive(queue)) == [b"b"]
    assert queue.leases.finish_many([lease.handle]) == []


async def test_a_stop_keeps_every_lease(start_broker: Starting) -> None:
    broker = await start_broker(queue_flush_ms=60_000)
    queue = await make(broker, b"a", b"b", b"c")
    a, b = (await receive(queue, limit=2, invisible_ms=HALF_DAY))[:2]
    renewed = await receive(queue, limit=1, is_renewed=True)
    broker = await start_broker()
    queue = broker.queues.get("t", "q")
    await broker.queues.open(queue)
    assert await receive(queue) == []
    assert queue.figures().in_flight == 3
    later = queue.leases.extend(a.handle, 20)
    assert later is not None
    assert queue.leases.finish_many([b.handle, renewed[0].handle]) == []
    (again,) = await receive(queue, wait_ms=40_000)
    assert (again.record[3], again.handle.attempt) == (b"a", 2)


async def test_a_crash_keeps_what_was_flushed_and_a_forgotten_attempt_makes_no_handle_good(tmp_path: Path) -> None:
    async with brokers.running(tmp_path / "before") as broker:
        queue = await make(broker, b"a", b"b")
        (a,) = await receive(queue, limit=1)
        await broker.queues.state_writer.flush()
        broker.queues.state_writer.flush = _nothing  # type: ignore[method-assign]
        (b,) = await receive(queue, limit=1, is_renewed=True)
        copytree(tmp_path / "before", tmp_path / "after")
    async with brokers.running(tmp_path / "after") as broker:
        found = broker.queues.get("t", "q")
        assert found is not None
        await broker.queues.open(found)
        (again,) = await receive(found, is_renewed=True)
        assert (again.record[3], again.handle.attempt, b.handle.attempt) == (b"b", 1, 1)
        assert found.leases.finish_many([b.handle]) == [0]
        assert found.leases.finish_many([a.handle, again.handle]) == []
        assert (again.handle.until_ms ^ b.handle.until_ms) & EPOCH_MASK


async def _nothing() -> None:
    pass


async def test_the_bounds_of_leases_and_of_receives_that_wait(start_broker: Starting) -> None:
    broker = await start_broker(queue_leases_max=2, queue_receives_max=2)
    queue = await make(broker, b"a", b"b", b"c")
    first = await receive(queue)
    assert values(first) == [b"a", b"b"]
    with pytest.raises(TooManyLeases, match="queue_leases_max"):
        await receive(queue)
    assert await queue.leases.await_message(want(0), 0)
    queue.leases.finish_many([first[0].handle])
    assert values(await receive(queue)) == [b"c"]
    queue.leases.finish_many([first[1].handle])
    waiting = [asyncio.ensure_future(receive(queue, wait_ms=40_000)) for _ in range(2)]
    await until(lambda: len(queue.leases.receivers) == 2)
    with pytest.raises(TooManyLeases, match="queue_receives_max"):
        await receive(queue, wait_ms=1)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)


async def test_a_queue_that_goes_or_stands_still_serves_none(broker: Broker) -> None:
    queue = await make(broker, b"a")
    await broker.queues.pause(queue, True)
    assert await receive(queue) == []
    waiting = asyncio.ensure_future(receive(queue, wait_ms=40_000))
    await until(lambda: bool(queue.leases.receivers))
    await broker.queues.pause(queue, False)
    assert values(await waiting) == [b"a"]
    waiting = asyncio.ensure_future(receive(queue, wait_ms=40_000))
    await until(lambda: bool(queue.leases.receivers))
    await broker.queues.delete("t", "q")
    assert await waiting == []
    passing = await broker.queues.ensure(queue.topic, "p#ephemeral")
    with pytest.raises(InvalidQueue):
        await receive(passing)


HANDLES = st.builds(
    Handle,
    st.integers(0, 5),
    st.integers(-1, 3),
    st.integers(-2, 1 << 62),
    st.integers(0, 65_535),
    st.integers(-(1 << 62), 1 << 62),
    st.booleans(),
)


@given(handle=HANDLES)
def test_a_handle_is_the_same_after_its_text(handle: Handle) -> None:
    assert Handle.decode(handle.encode()) == handle


@given(
    text=st.one_of(
        st.text(max_size=80),
        st.binary(max_size=40).map(lambda raw: raw.hex()),
        st.text("Aa_-9", min_size=42, max_size=44),
    )
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    try:
        handle = Handle.decode(text)
    except InvalidHandle:
        return
    assert Handle.decode(handle.encode()) == handle


async def test_no_made_up_handle_settles_anything(broker: Broker) -> None:
    queue = await make(broker, b"a", b"b")
    leases = await receive(queue, limit=1)

    @settings(max_examples=examples(200), suppress_health_check=list(HealthCheck), deadline=None)
    @given(handle=HANDLES)
    def attempt(handle: Handle) -> None:
        if handle == leases[0].handle:
            return
        assert queue.leases.finish_many([handle]) == [0]
        assert not queue.leases.give_back(handle)
        assert queue.leases.extend(handle, 1) is None

    attempt()
    assert queue.leases.finish_many([leases[0].handle]) == []


async def test_the_end_of_a_lease_tells_the_epoch_and_how_often_the_queue_went_back(broker: Broker) -> None:
    queue = await make(broker, b"a")
    lane = queue.lanes[0]
    for times in range(3):
        (lease,) = await receive(queue)
        assert (lease.handle.attempt, lease.handle.until_ms & EPOCH_MASK) == (1, lane.epoch + times & EPOCH_MASK)
        queue.leases.finish_many([lease.handle])
        lane.move_to(0)
