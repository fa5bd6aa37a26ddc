from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from crc32c import crc32c
from tests.device import Device
from tests.doors.http.api.conftest import Served, serving
from tests.waiting import until

from headrace.broker import redrive as redriving
from headrace.broker.queues import Queue, parking
from headrace.broker.store import StateTopic
from headrace.format import records
from headrace.log.interface import EARLIEST, LATEST, Appended, Topic, Write

DEAD = "orders.mail.dead"


async def died(served: Served, topic: Topic, name: str = "mail", error: str = "no stamps", **settings: Any) -> Queue:
    """A queue all of whose messages have died."""
    queue = await served.broker.queues.ensure(topic, name, EARLIEST)
    await served.broker.queues.configure(queue, {"max_attempts": 1, **settings})
    count = queue.figures().depth
    consumer, sink = await served.consume(queue, count)
    for lane, (offset, attempt, *_) in sink.messages:
        assert consumer.requeue(lane, offset, attempt, 0, f"{error} {offset}")
    consumer.close()
    await until(lambda: queue.dead == count)
    dead = served.broker.topics.all[queue.dead_letter_topic]
    await served.settled(dead)
    return queue


async def drive(served: Served, **order: Any) -> list[dict[str, Any]]:
    """Redrive to the end; all results."""
    results: list[dict[str, Any]] = []
    place = None
    while True:
        status, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD, **order, "next": place})
        assert status == 200, step
        results += step["results"]
        place = step["next"]
        if place is None:
            return results


async def delivered(
    served: Served, queue: Queue, count: int
) -> list[tuple[bytes | None, bytes | None, dict[str, Any]]]:
    """Key, value and headers of the next messages of a queue, which are then done."""
    consumer, sink = await served.consume(queue, count)
    for lane, (offset, attempt, *_) in sink.messages:
        consumer.finish(lane, offset, attempt)
    consumer.close()
    return [(key, value, dict(headers)) for _, (_, _, _, key, value, headers) in sink.messages]


async def test_the_dead_come_back_once_to_their_queue_alone(served: Served):
    topic = await served.topic("orders", 5)
    other = await served.broker.queues.ensure(topic, "other")
    assert len(await delivered(served, other, 5)) == 5
    queue = await died(served, topic)

    results = await drive(served)
    assert [(each["outcome"], each["offset"], each["sent_to"]) for each in results] == [
        ("redriven", n, 5 + n) for n in range(5)
    ]
    assert results[3]["origin"] == {"topic": "orders", "partition": 0, "offset": 3, "queue": "mail"}
    assert (results[3]["key"], results[3]["error"], results[3]["attempts"]) == ("3", "no stamps 3", 1)
    assert await drive(served) == []

    back = await delivered(served, queue, 5)
    assert [(key, value) for key, value, _ in back] == [(str(n).encode(), str(n).encode()) for n in range(5)]
    assert back[0][2] == {"headrace-for-queue": b"mail", "headrace-redriven": b"1"}
    # The other queue has passed over them.
    await served.consume(other, 0)
    await until(lambda: other.lanes[0].ledger.floor == 10)
    assert other.figures().delivered == 5


async def test_every_queue_if_wished(served: Served):
    topic = await served.topic("orders", 3)
    other = await served.broker.queues.ensure(topic, "other", LATEST)
    await died(served, topic)
    await drive(served, all_queues=True)
    assert [headers for _, _, headers in await delivered(served, other, 3)] == [{"headrace-redriven": b"1"}] * 3


async def test_returns_are_counted(served: Served):
    topic = await served.topic("orders", 1)
    queue = await died(served, topic)
    await drive(served)
    await until(lambda: queue.figures().depth == 1)
    consumer, _ = await served.consume(queue, 1)
    consumer.requeue(0, 1, 1, 0, "again")
    consumer.close()
    await until(lambda: queue.dead == 2)
    await served.settled(served.broker.topics.all[DEAD])
    (result,) = await drive(served)
    assert (result["offset"], result["redriven"], result["origin"]["offset"]) == (1, 1, 1)
    assert (await delivered(served, queue, 1))[0][2]["headrace-redriven"] == b"2"


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        ({"key": "3"}, [3, 13]),
        ({"key_base64": "Mw=="}, [3, 13]),
        ({"error": "stamps 1"}, [1, 10, 11, 12, 13, 14]),
        ({"error_pattern": "no stamps ?"}, list(range(10))),
        ({"error_pattern": "no stamps"}, []),
        ({"queue": "mail", "limit": 2}, [0, 1]),
        ({"queue": "other"}, []),
        ({"origin": "orders", "key": "4", "error": "14"}, [14]),
        ({"origin": "other"}, []),
        ({"since_ms": 0, "until_ms": 1 << 50, "limit": 1}, [0]),
        ({"until_ms": 1_000}, []),
        ({"since_ms": 1 << 50}, []),
    ],
)
async def test_selected(served: Served, order: dict[str, Any], wanted: list[int]):
    topic = await served.topic("orders", 15)
    await died(served, topic)
    status, dry = await served.ask("POST", "/v1/redrive", {"topic": DEAD, **order, "dry_run": True})
    assert status == 200
    assert [(each["outcome"], each["offset"]) for each in dry["results"]] == [("would-be-redriven", n) for n in wanted]
    assert served.broker.queues.get(DEAD, "redrive") is None
    assert topic.partitions[0].end == 15
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD, **order})
    assert [(each["outcome"], each["offset"]) for each in step["results"]] == [("redriven", n) for n in wanted]
    assert topic.partitions[0].end == 15 + len(wanted)
    # The rest is still there to be sent back.
    rest = await drive(served)
    assert [each["offset"] for each in rest] == [n for n in range(15) if n not in wanted]


async def test_steps_go_on_where_the_last_one_ended(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redriving, "STEP_RESULTS", 4)
    topic = await served.topic("orders", 10, 2)
    await died(served, topic)
    place, sizes, seen = None, [], []
    while True:
        _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD, "next": place})
        sizes.append((len(step["results"]), step["left"]))
        seen += [(each["origin"]["partition"], each["origin"]["offset"]) for each in step["results"]]
        place = step["next"]
        if place is None:
            break
    assert sizes == [(4, 16), (4, 12), (4, 8), (4, 4), (4, 0)]
    assert sorted(seen) == [(lane, offset) for lane in range(2) for offset in range(10)]


async def test_a_run_does_not_chase_what_dies_meanwhile(served: Served, monkeypatch: pytest.MonkeyPatch):
    topic = await served.topic("orders", 3)
    queue = await died(served, topic)
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD, "limit": 2})
    consumer, _ = await served.consume(queue, 2)
    for offset in (3, 4):
        consumer.requeue(0, offset, 1, 0, "again")
    consumer.close()
    await until(lambda: queue.dead == 5)
    await served.settled(served.broker.topics.all[DEAD])
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD, "next": step["next"]})
    assert [each["offset"] for each in step["results"]] == [2]
    assert step["next"] is None
    assert [each["offset"] for each in await drive(served)] == [3, 4]


async def test_the_rate_is_kept(served: Served):
    topic = await served.topic("orders", 30)
    await died(served, topic)
    began = time.monotonic()
    assert len(await drive(served, rate=100)) == 30
    assert time.monotonic() - began > 0.25


async def test_two_at_once_send_nothing_twice(served: Served):
    topic = await served.topic("orders", 500)
    await died(served, topic)
    both = await asyncio.gather(drive(served), drive(served))
    assert sorted(each["offset"] for results in both for each in results) == list(range(500))
    assert topic.partitions[0].end == 1000


async def test_what_cannot_go_back_stays_and_says_why(served: Served):
    topic = await served.topic("orders", 2)
    await died(served, topic)
    dead = served.broker.topics.all[DEAD].partitions[0]

    def letter(**said: str) -> tuple[int, bytes, bytes, list[tuple[str, bytes]]]:
        origin = {"topic": "orders", "partition": "0", "offset": "0", "queue": "mail", **said}
        headers = [(f"headrace-origin-{name}", value.encode()) for name, value in origin.items() if value]
        return served.broker.runtime.clock.now_ms(), b"k", b"v", headers

    dead.append(
        records.build(
            [
                letter(topic="gone"),
                letter(partition="7"),
                letter(queue="gone"),
                letter(topic="__queues"),
                letter(topic=""),
            ]
        )
    )
    await served.settled(served.broker.topics.all[DEAD])
    results = await drive(served)
    words = ("", "", "gone", "7", "gone", "__queues", "headers")
    outcomes = ["redriven"] * 2 + ["failed"] * 4 + ["skipped"]
    for result, outcome, word in zip(results, outcomes, words, strict=True):
        assert result["outcome"] == outcome
        assert word in result.get("reason", "")
    # They are tried again, and not lost.
    assert [each["outcome"] for each in await drive(served)] == ["failed"] * 4 + ["skipped"]
    again = await drive(served, all_queues=True, error="", key="k", limit=3)
    assert [each["outcome"] for each in again[:3]] == ["failed", "failed", "redriven"]


async def test_one_that_is_refused_does_not_hold_the_others(served: Served):
    """One that is larger than the topic takes of producers by now is not refused."""
    topic = await served.topic("orders", 3)
    now = served.broker.runtime.clock.now_ms()
    topic.partitions[0].append(records.build([(now, b"k", bytes(100_000), []), (now, None, b"no key", [])]))
    await served.settled(topic)
    await died(served, topic)
    stricter = {"max.message.bytes": "10000", "cleanup.policy": "compact"}
    await served.broker.topics.alter_config("orders", lambda old: {**old, **stricter})
    results = await drive(served)
    assert [each["outcome"] for each in results] == ["redriven"] * 4 + ["failed"]
    assert "key" in results[-1]["reason"]


async def test_a_full_topic_takes_nothing_back(served: Served):
    topic = await served.topic("orders", 3)
    await died(served, topic)
    # The queue lags behind by what comes back: with a bound of 1, all but the first find no room.
    await served.broker.topics.alter_config("orders", lambda old: {**old, "overflow": "reject", "overflow.lag": "1"})
    results = await drive(served, rate=10)
    assert [each["outcome"] for each in results] == ["redriven", "failed", "failed"]
    assert "full" in results[1]["reason"]


async def test_a_topic_that_makes_producers_wait_makes_redrive_wait(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redriving, "ROOM_SECONDS", 0.05)
    topic = await served.topic("orders", 3)
    queue = await died(served, topic)
    await served.broker.topics.alter_config("orders", lambda old: {**old, "overflow": "block", "overflow.lag": "1"})
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD})
    assert [each["outcome"] for each in step["results"]] == ["redriven"]
    assert "orders" in step["waiting"]
    assert step["left"] == 2
    await delivered(served, queue, 1)
    await until(lambda: queue.unsettled == 0)
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD, "next": step["next"]})
    assert [each["offset"] for each in step["results"]] == [1]


async def test_what_retention_took_is_passed_over(served: Served):
    topic = await served.topic("orders", 5)
    await died(served, topic)
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD, "limit": 1})
    dead = served.broker.topics.all[DEAD]
    await dead.partitions[0].trim(3)
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD, "next": step["next"]})
    assert [each["offset"] for each in step["results"]] == [3, 4]
    assert step["next"] is None


async def test_a_batch_that_cannot_be_read_is_passed_over(served: Served):
    topic = await served.topic("orders", 2)
    await died(served, topic)
    dead = served.broker.topics.all[DEAD]
    broken = records.build([(0, b"k", b"v", [])] * 3)
    broken[70:80] = b"\xff" * 10
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    dead.partitions[0].append(broken)
    dead.partitions[0].append(records.build([(0, b"k", b"v", [])]))
    await served.settled(dead)
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD})
    assert [each["outcome"] for each in step["results"]] == ["redriven", "redriven", "skipped"]
    assert (step["unreadable"], step["next"]) == (3, None)


async def test_a_dead_letter_topic_that_goes_or_grows(served: Served):
    topic = await served.topic("orders", 5)
    await died(served, topic)
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD, "limit": 1})
    await served.broker.topics.grow(DEAD, 3)
    status, again = await served.ask("POST", "/v1/redrive", {"topic": DEAD, "limit": 1})
    assert (status, len(again["results"])) == (200, 1)
    await served.broker.topics.delete(DEAD)
    status, error = await served.ask("POST", "/v1/redrive", {"topic": DEAD, "next": step["next"]})
    assert (status, error["error"]) == (404, "UnknownTopic")


async def test_letters_that_were_moved_to_the_parking_are_found_there(served: Served):
    topic = await served.topic("orders", 6)
    queue = await died(served, topic)
    await drive(served, error="stamps 3")
    redrive = served.broker.queues.get(DEAD, "redrive")
    assert redrive is not None
    # Those before the one that was sent back: they stayed behind.
    assert await served.broker.queues.park_below(redrive, 0, 3) == 3
    await served.broker.topics.all[DEAD].partitions[0].trim(3)
    _, shown = await served.ask("GET", f"/v1/topics/{DEAD}/queues/redrive")
    assert (shown["depth"], shown["parked"], len(shown["partitions"])) == (5, 3, 1)
    _, peeked = await served.ask("GET", f"/v1/topics/{DEAD}/queues/redrive/peek")
    places = [(each["partition"], each["offset"]) for each in peeked["messages"]]
    assert sorted(places) == [(0, offset) for offset in (0, 1, 2, 4, 5)]
    results = await drive(served)
    assert sorted((each["outcome"], each["partition"], each["offset"]) for each in results) == [
        ("redriven", 0, offset) for offset in (0, 1, 2, 4, 5)
    ]
    assert await drive(served) == []
    back = await delivered(served, queue, 6)
    assert sorted(value or b"" for _, value, _ in back) == [b"%d" % n for n in range(6)]
    assert all(set(headers) == {"headrace-for-queue", "headrace-redriven"} for _, _, headers in back)


async def test_what_a_consumer_has_is_left_to_it(served: Served):
    topic = await served.topic("orders", 3)
    await died(served, topic)
    redrive = await served.broker.queues.ensure(served.broker.topics.all[DEAD], "redrive", EARLIEST)
    consumer, _ = await served.consume(redrive, 2, credit=2)
    assert [each["outcome"] for each in await drive(served)] == ["skipped", "skipped", "redriven"]
    assert consumer.finish(0, 0, 1)
    consumer.close()
    assert [(each["outcome"], each["offset"]) for each in await drive(served)] == [("redriven", 1)]


async def test_nobody_takes_a_letter_while_it_is_sent_back(served: Served, monkeypatch: pytest.MonkeyPatch):
    topic = await served.topic("orders", 6)
    await died(served, topic)
    await drive(served, error="stamps 5")
    queues = served.broker.queues
    redrive = queues.get(DEAD, "redrive")
    assert redrive is not None
    submit = StateTopic.submit
    moving: list[asyncio.Task[int]] = []

    async def appended(answer: asyncio.Future[list[Appended]]) -> list[Appended]:
        found = await answer
        # The letters are on their way, and the queue has not heard of it: they must not be moved as well.
        monkeypatch.undo()
        lane = redrive.lanes[0]
        moving.append(asyncio.get_running_loop().create_task(parking.park_below(queues, redrive, lane, 5)))
        await asyncio.wait(moving, timeout=0.2)
        return found

    def watched(store: StateTopic, writes: Sequence[Write]) -> asyncio.Future[list[Appended]]:
        answer = submit(store, writes)
        return asyncio.ensure_future(appended(answer)) if len(writes) > 1 else answer

    monkeypatch.setattr(StateTopic, "submit", watched)
    assert len(await drive(served)) == 5
    assert [await each for each in moving] == [0]
    assert topic.partitions[0].end == 12


async def test_what_was_moved_at_the_last_moment_is_not_sent_as_well(served: Served, monkeypatch: pytest.MonkeyPatch):
    topic = await served.topic("orders", 6)
    await died(served, topic)
    await drive(served, error="stamps 5")
    queues = served.broker.queues
    redrive = queues.get(DEAD, "redrive")
    assert redrive is not None
    prepare = queues.state_writer.prepare

    async def prepared(lane: Any) -> None:
        monkeypatch.undo()
        assert await parking.park_below(queues, redrive, redrive.lanes[0], 2) == 2
        await prepare(lane)

    monkeypatch.setattr(queues.state_writer, "prepare", prepared)
    _, step = await served.ask("POST", "/v1/redrive", {"topic": DEAD})
    results = [(each["outcome"], each["offset"]) for each in step["results"]]
    assert results == [("skipped", 0), ("skipped", 1), ("redriven", 2), ("redriven", 3), ("redriven", 4)]
    assert sorted((each["outcome"], each["offset"]) for each in await drive(served)) == [
        ("redriven", 0),
        ("redriven", 1),
    ]
    assert topic.partitions[0].end == 12


async def test_a_failed_append_leaves_letters_as_they_were(device: Device):
    async with serving(device) as served:
        topic = await served.topic("orders", 4)
        await died(served, topic)
        await drive(served, error="stamps 3")
        async with device.full(served.broker):
            results = await drive(served)
            assert [each["outcome"] for each in results] == ["failed"] * 3
            assert all(each["reason"].startswith("the disk is full") for each in results)
        assert [each["outcome"] for each in await drive(served)] == ["redriven"] * 3


@pytest.mark.parametrize(
    ("order", "status", "word"),
    [
        ({"topic": "nothing"}, 404, "nothing"),
        ({}, 400, "topic"),
        ({"topic": 5}, 400, "topic"),
        ({"topic": "orders", "limit": 0}, 400, "limit"),
        ({"topic": "orders", "rate": -1}, 400, "rate"),
        ({"topic": "orders", "rate": 0.01}, 400, "rate"),
        ({"topic": "orders", "rate": "fast"}, 400, "rate"),
        ({"topic": "orders", "key_base64": "*"}, 400, "key_base64"),
        ({"topic": "orders", "key": 5}, 400, "key"),
        ({"topic": "orders", "dry_run": 1}, 400, "dry_run"),
        ({"topic": "orders", "next": 5}, 400, "next"),
        ({"topic": "orders", "next": {"positions": {"0": 1}}}, 400, "next"),
        ({"topic": "orders", "next": {"positions": {"x": 1}, "ends": {"x": 1}}}, 400, "next"),
        ({"topic": "orders", "next": {"positions": {"0": -1}, "ends": {"0": 1}}}, 400, "0"),
        ({"topic": "orders", "speed": 5}, 400, "speed"),
    ],
)
async def test_what_goes_wrong(served: Served, order: dict[str, Any], status: int, word: str):
    await served.topic("orders", 1)
    answered, error = await served.ask("POST", "/v1/redrive", order)
    assert answered == status
    assert word in error["message"]
