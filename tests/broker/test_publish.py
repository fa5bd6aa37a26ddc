"""The one way in, without a door: what an admission holds and when it ends, and what is asked again after an await."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.durable import durable
from headrace.broker.publish import Message, Place, admission
from headrace.broker.security import Session
from headrace.errors import (
    BatchTooLarge,
    HeadraceError,
    InvalidDelay,
    InvalidRecords,
    InvalidTopic,
    PartitionOffline,
    UnknownPartition,
)
from headrace.format import records
from headrace.format.partitioning import partition_of
from headrace.log.interface import Appended, Done, Topic, Write

SESSION = Session(1)
FULL = {"overflow": "block", "overflow.group": "readers", "overflow.lag": "1"}


def message(value: bytes = b"v", key: bytes | None = None, id: bytes | None = None, **more: Any) -> Message:
    return Message(key, value, [] if id is None else [("headrace-dedup-id", id)], **more)


@contextmanager
def counted_appends(broker: Broker) -> Iterator[list[int]]:
    """How many writes each append to the log had."""
    real, seen = broker.log.append, list[int]()

    def append(writes: Sequence[Write], done: Done | None = None) -> list[Appended]:
        seen.append(len(writes))
        return real(writes, done)

    broker.log.append = append  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        broker.log.append = real  # type: ignore[method-assign]


async def alter(broker: Broker, config: dict[str, str]) -> None:
    await broker.topics.alter_config("t", lambda _: config)


async def full(broker: Broker, more: dict[str, str] | None = None) -> tuple[Topic, asyncio.Task[list[Place]]]:
    """A full topic, and a publish that waits for room in it."""
    topic = await broker.topics.create("t", 1, FULL | (more or {}))
    await broker.publisher.publish(SESSION, "t", [message(id=b"first")])
    waiting = asyncio.create_task(broker.publisher.publish(SESSION, "t", [message(id=b"first")]))
    await until(lambda: broker.metrics.topic("t").blocked)
    return topic, waiting


async def test_messages_go_by_key_by_partition_or_with_their_session(broker: Broker) -> None:
    await broker.topics.create("t", 5)
    given = [message(b"0"), message(b"1", b"k"), message(b"2", partition=4), message(b"3"), message(b"4", b"k")]
    places = await broker.publisher.publish(Session(8), "t", given)
    keyed = partition_of(b"k", 5)
    assert [(each.partition, each.offset) for each in places] == [(3, 0), (keyed, 0), (4, 0), (3, 1), (keyed, 1)]
    assert broker.metrics.topic("t").batches_in == 3
    assert broker.metrics.topic("t").bytes_in > 0


async def test_what_cannot_be_taken_makes_no_topic_and_stores_nothing(broker: Broker) -> None:
    now = broker.runtime.clock.now_ms()
    with pytest.raises(InvalidDelay, match="25 years"):
        await broker.publisher.publish(SESSION, "t", [message(due_ms=now * 10)])
    with pytest.raises(InvalidTopic, match="broker's own"):
        await broker.publisher.publish(SESSION, "__timers", [message()])
    assert not broker.topics.all
    topic = await broker.topics.create("t", 2, {"max.message.bytes": "300"})
    for wrong, error in ((message(partition=2), UnknownPartition), (message(b"x" * 500), BatchTooLarge)):
        with pytest.raises(error):
            await broker.publisher.publish(SESSION, "t", [message(partition=0), wrong])
    assert [partition.end for partition in topic.partitions] == [0, 0]
    assert broker.metrics.topic("t").batches_in == 0


async def test_messages_for_now_and_for_later_with_ids(broker: Broker) -> None:
    due = broker.runtime.clock.now_ms() + 3_600_000
    given = [message(b"a", id=b"1"), message(b"b", id=b"2", due_ms=due), message(b"c")]
    now, later, plain = await broker.publisher.publish(SESSION, "t", given)
    assert (now.offset, plain.offset, later.offset, later.due_ms) == (0, 1, -1, due)
    assert [each.id for each in await broker.timer.list("t")] == [later.timer]
    again = await broker.publisher.publish(SESSION, "t", given)
    assert [each.is_duplicate for each in again] == [True, True, False]
    # Where a duplicate would have been stays empty.
    assert [each.offset for each in again] == [0, -1, 3]


async def test_a_waiting_publish_finds_a_window_that_was_set_meanwhile(broker: Broker) -> None:
    topic, waiting = await full(broker, {"deduplication.window.ms": "0"})
    # The first one's id did not count. It does from now on, and the topic has room.
    await alter(broker, {"deduplication.window.ms": "60000"})
    assert [each.is_duplicate for each in await waiting] == [False]
    (again,) = await broker.publisher.publish(SESSION, "t", [message(id=b"first")])
    assert (again.is_duplicate, again.offset) == (True, 1)
    assert topic.partitions[0].end == 2


async def test_a_waiting_publish_follows_a_topic_that_was_deleted(broker: Broker) -> None:
    _, waiting = await full(broker)
    await broker.topics.delete("t")
    with pytest.raises(HeadraceError, match="deleted"):
        await waiting


async def test_a_topic_that_is_offline_is_said_to_be(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    await broker.publisher.publish(SESSION, "t", [message()])
    topic.partitions[0].fail("somebody pulled the disk")  # type: ignore[attr-defined]
    with pytest.raises(PartitionOffline, match="pulled"):
        await broker.publisher.publish(SESSION, "t", [message()])


@pytest.mark.parametrize("ids", [False, True])
async def test_many_messages_with_delays_are_one_act(broker: Broker, ids: bool) -> None:
    """As MPUB has them: batches for several partitions, with the times in headers."""
    topic = await broker.topics.create("t", 2, {"delay": "true", "deduplication.window.ms": "60000" if ids else "0"})
    admission = await broker.publisher.ready(SESSION, "t", route=lambda _: topic.partitions, timer=True, ids=ids)
    due = b"%d" % (broker.runtime.clock.now_ms() + 3_600_000)
    await broker.deduplication.loader(topic).load()

    def batch(id: bytes, *times: bytes) -> bytearray:
        headers = [[("headrace-deliver-at", time), ("headrace-dedup-id", id + time)] for time in times]
        return records.build(
            [(0, None, b"v", [("headrace-dedup-id", id)]), *((0, None, b"v", each) for each in headers)]
        )

    def append(*parts: bytearray) -> tuple[bool, asyncio.Future[None]]:
        waiter, done = durable(None)
        given = list(zip(topic.partitions, parts, strict=True))
        return broker.publisher.append_all(admission, given, done, ids=ids), waiter

    with pytest.raises(InvalidRecords, match="no time"):
        append(batch(b"a", due), batch(b"b", due, b"soon"))
    assert [partition.end for partition in topic.partitions] == [0, 0]
    assert broker.timer.pending == 0
    with counted_appends(broker) as appends:
        is_durable, waiter = append(
            batch(b"a", due) + batch(b"c") if not ids else batch(b"a", due), batch(b"b", due, due)
        )
    assert (is_durable, len(appends)) == (False, 1)
    await waiter
    assert broker.timer.pending == (3 if not ids else 2)
    assert len(await broker.timer.list("t")) == broker.timer.pending


# --- admissions -------------------------------------------------------------------------------------------------------


async def test_an_admission_is_the_same_until_something_changes(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    admit = broker.publisher.admit
    first = admit(SESSION, topic)
    assert admit(Session(2), topic) is first
    assert first.valid
    assert first.is_plain
    # Another topic's changes are its own.
    other = await broker.topics.create("other", 1)
    kept = admit(SESSION, other)
    await broker.topics.grow("t", 2)
    assert not first.valid
    assert kept.valid
    grown = admit(SESSION, topic)
    await alter(broker, {"delay": "true"})
    assert not grown.valid
    delaying = admit(SESSION, topic)
    assert (delaying.delays, delaying.is_plain, delaying.reads_records) == (True, False, True)
    await broker.topics.delete("t")
    assert not delaying.valid
    assert kept.valid


@pytest.mark.parametrize(
    ("config", "plain", "reads"),
    [
        ({}, True, False),
        ({"overflow": "reject", "overflow.lag": "1"}, False, False),
        ({"delay": "true"}, False, True),
        ({"deduplication.window.ms": "1000"}, False, True),
        ({"deduplication.window.ms": "0"}, True, False),
        ({"cleanup.policy": "compact"}, True, True),
        ({"message.timestamp.after.max.ms": "1000"}, True, True),
    ],
)
async def test_what_an_admission_holds(broker: Broker, config: dict[str, str], plain: bool, reads: bool) -> None:
    found = broker.publisher.admit(SESSION, await broker.topics.create("t", 1, config))
    assert (found.is_plain, found.reads_records, found.is_protected) == (plain, reads, False)


async def test_the_brokers_own_topics_are_never_plain(broker: Broker) -> None:
    topic = await broker.topics.create("__timers", 1, internal=True)
    found = broker.publisher.admit(SESSION, topic)
    assert (found.is_protected, found.is_plain) == (True, False)


async def test_admissions_are_by_user_and_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await broker.topics.create("t", 1)
    monkeypatch.setattr(admission, "USERS_MAX", 2)
    ann, bob = [broker.publisher.admit(Session(user=user), topic) for user in ("ann", "bob")]
    assert ann is not bob
    assert broker.publisher.admit(Session(user="ann"), topic) is ann
    carol = broker.publisher.admit(Session(user="carol"), topic)
    assert (ann.valid, bob.valid, carol.valid) == (False, False, True)
    await broker.topics.grow("t", 2)
    assert not carol.valid


async def test_a_deleted_topic_is_not_kept(broker: Broker) -> None:
    topic = await broker.topics.create("t", 1)
    await broker.topics.delete("t")
    found = broker.publisher.admit(SESSION, topic)
    assert broker.publisher.admit(SESSION, topic) is not found
