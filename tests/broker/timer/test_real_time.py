"""The timer on a real clock, a real disk and real memory. The bounds are generous: other work shares the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from tests.broker.timer.stage import SESSION, read_records
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.publish import Message, Place
from headrace.broker.scrape import render
from headrace.log.interface import Topic

Starting = Callable[..., Any]
# What the timer may take beside the messages of its near buckets: the stage, batches on their way, and the allocator's
# own ways.
FIXED_BYTES = 48 << 20
EACH_BYTES = 40


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not say how much memory this takes")


async def publish(broker: Broker, topic: Topic, values: list[bytes], due: int) -> list[Place]:
    messages = [Message(None, value, [], due_ms=due) for value in values]
    return await broker.publisher.publish(SESSION, topic.name, messages)


async def schedule_many(broker: Broker, topic: Topic, count: int, due: Callable[[int], int], each: int = 1_000) -> None:
    for first in range(0, count, each):
        await publish(broker, topic, [b"%d" % (first + index) for index in range(each)], due(first))


async def test_exact_to_some_milliseconds(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    await broker.timer.load()
    start = broker.runtime.clock.now_ms() + 2_000
    due = {b"%d" % index: start + index * 7 for index in range(200)}
    # In one act: one by one they take a busy machine longer than the first of them has.
    delayed = [Message(None, value, [], due_ms=at) for value, at in due.items()]
    await broker.publisher.publish(SESSION, topic.name, delayed)
    own = []
    # What could only be scheduled when its time had come is not fired, but there all the same.
    while topic.partitions[0].high_watermark < 200:
        before = perf_counter()
        await asyncio.sleep(0.005)
        own.append((perf_counter() - before) * 1_000 - 5)
    own.sort()
    found = await read_records(broker.runtime, topic.partitions[0])
    late = sorted(timestamp - due[value or b""] for timestamp, _, value, _ in found)
    assert len(late) == 200
    assert late[0] >= 0
    # Beside what the machine is late by itself, which may also have stood still for most of the time.
    assert late[20] <= 50 + 2 * own[len(own) // 2], f"nine of ten messages were more than {late[20]} ms late"
    assert sum(broker.timer.dispatcher.late.counts) == broker.timer.dispatcher.fired


async def test_a_storm_leaves_the_loop_to_others(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    count = 100_000
    due = broker.runtime.clock.now_ms() + 4_000
    await schedule_many(broker, topic, count, lambda first: due + first % 1_000)
    await asyncio.sleep(max(due - broker.runtime.clock.now_ms() - 300, 0) / 1_000)
    held = []
    # What could only be scheduled when its time had come is not fired, but there all the same.
    while not held or topic.partitions[0].high_watermark < count:
        before = perf_counter()
        await asyncio.sleep(0.001)
        held.append(perf_counter() - before)
    held.sort()
    assert held[len(held) // 2] < 0.2, f"the loop was held for {held[len(held) // 2]:.3f} s, half of the time or more"
    found = await read_records(broker.runtime, topic.partitions[0])
    assert sorted(int(value or b"") for _, _, value, _ in found) == list(range(count))


async def memory_of(start_broker: Starting, count: int) -> None:
    broker = await start_broker(tail_bytes=1 << 20)
    topic = await broker.topics.create("t", 1)
    await broker.timer.load()
    await schedule_many(broker, topic, 1_000, lambda first: broker.runtime.clock.now_ms() + 3_600_000)
    before = resident_bytes()
    minute = 60_000
    now = broker.runtime.clock.now_ms()
    # All in one minute, and that the next but one: far.
    due = (now // minute + 3) * minute
    await schedule_many(broker, topic, count, lambda first: due + first % minute)
    far = resident_bytes() - before
    assert broker.timer.pending == count + 1_000
    assert far < FIXED_BYTES, f"{count} far messages take {far >> 20} MiB"
    for number in range(1, 3):
        # And all in the current minute, or at its end in the next: near.
        now = broker.runtime.clock.now_ms()
        await schedule_many(broker, topic, count // 2, lambda first, at=now + number * 14_000: at)  # type: ignore[misc]
    near = resident_bytes() - before
    assert near < FIXED_BYTES + count * EACH_BYTES, f"{count} near messages take {near >> 20} MiB"


async def test_memory_of_100_000(start_broker: Starting) -> None:
    await memory_of(start_broker, 100_000)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_memory_of_a_million(start_broker: Starting) -> None:
    await memory_of(start_broker, 1_000_000)


async def test_metrics(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    now = broker.runtime.clock.now_ms()
    await broker.timer.load()
    _, later, _ = await publish(broker, topic, [b"x"] * 3, now + 3_600_000)
    await publish(broker, topic, [b"x"] * 3, broker.runtime.clock.now_ms() + 50)
    await until(lambda: broker.timer.dispatcher.fired == 3, seconds=30)
    assert await broker.timer.cancel(later.timer)
    lines = (await render(broker)).decode().splitlines()
    for line in (
        "headrace_timer_pending 2.0",
        "headrace_timer_scheduled_total 6.0",
        "headrace_timer_fired_total 3.0",
        "headrace_timer_cancelled_total 1.0",
        "headrace_timer_dropped_total 0.0",
        "headrace_timer_late_seconds_count 3.0",
    ):
        assert line in lines
