"""One Produce that brings many partitions into a transaction: one append for all, and each one's errors its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.device import Device
from tests.doors.kafka.test_transactions import FIRST, SECOND, TRANSACTIONAL, TransactionalClient, fetched, stage
from tests.doors.kafka.wired import batch_of

from headrace.broker.transactions import Status
from headrace.broker.transactions.store import TOPIC as STATE
from headrace.doors.kafka.door import KafkaDoor
from headrace.errors import StorageFailed
from headrace.log.appending import Appender
from headrace.log.interface import Topic

MANY = 120


async def produce(
    producer: TransactionalClient, topic: Topic, *batches: tuple[int, bytes], version: int = 12
) -> list[Any]:
    """One Produce; what was answered for each partition, in the order of the request."""
    data = [{"index": index, "records": batch} for index, batch in batches]
    reply = await producer.wire.ask(
        "produce",
        version,
        transactional_id=producer.name,
        acks=-1,
        timeout=1000,
        topic_data=[{"name": topic.name, "topic_id": topic.id, "partition_data": data}],
    )
    return list(reply.responses[0].partition_responses)


def codes(answers: list[Any]) -> list[ErrorCode]:
    return [ErrorCode(each.error_code) for each in answers]


async def places(door: KafkaDoor) -> set[int]:
    """The partitions of the open transaction."""
    state = await door.broker.transactions.describe("payments")
    assert state.status is Status.ONGOING
    return {index for _, index in state.places}


def notes(door: KafkaDoor) -> int:
    """How often the state of a transactional id was written."""
    return sum(each.end for each in door.broker.topics.get(STATE).partitions if each.loaded)


@pytest.mark.parametrize("durability", ["sync", "async", "memory"])
async def test_many_partitions_come_in_with_one_note(tmp_path: Path, durability: str) -> None:
    async with stage(tmp_path, MANY, durability=durability) as (door, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        before = notes(door)
        batches = [(index, producer.batch(topic, index, b"%d" % index)) for index in range(MANY)]
        answers = await produce(producer, topic, *batches)
        assert [(each.error_code, each.index, each.base_offset) for each in answers] == [
            (ErrorCode.none, index, 0) for index in range(MANY)
        ]
        assert notes(door) == before + 1
        assert await places(door) == set(range(MANY))
        assert await producer.end(commit=True) is ErrorCode.none
        assert notes(door) == before + 2
        for index in range(0, MANY, 50):
            assert await fetched(wire, topic, index) == ([b"%d" % index], 2)


async def test_the_note_is_there_after_a_restart(tmp_path: Path) -> None:
    async with stage(tmp_path, 20) as (_, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        answers = await produce(producer, topic, *[(n, producer.batch(topic, n, b"a")) for n in range(20)])
        assert codes(answers) == [ErrorCode.none] * 20
    async with stage(tmp_path) as (door, wire, topic):
        await door.broker.transactions.load()
        assert await places(door) == set(range(20))
        assert await TransactionalClient(wire, SECOND).init() is ErrorCode.none
        assert [await fetched(wire, topic, index) for index in range(20)] == [([], 2)] * 20


async def test_first_generation_adds_many_with_one_note(tmp_path: Path) -> None:
    async with stage(tmp_path, MANY) as (door, wire, topic):
        producer = TransactionalClient(wire, FIRST)
        await producer.init()
        before = notes(door)
        assert await producer.add(*[(topic.name, index) for index in range(MANY)]) == [ErrorCode.none] * MANY
        assert notes(door) == before + 1
        answers = await produce(
            producer, topic, *[(n, producer.batch(topic, n, b"a")) for n in range(MANY)], version=11
        )
        assert codes(answers) == [ErrorCode.none] * MANY
        assert notes(door) == before + 1


async def test_what_is_wrong_with_one_partition_is_its_own(tmp_path: Path) -> None:
    async with stage(tmp_path, 12, message_max_bytes=2_000) as (door, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        await producer.write(topic, 3, b"before")
        assert await producer.end(commit=True) is ErrorCode.none
        before = notes(door)
        broken: Any = topic.partitions[5]
        broken.offline = "the disk does not answer"
        corrupt = bytearray(producer.batch(topic, 1, b"corrupt"))
        corrupt[-1] ^= 1
        # A new epoch begins with 0.
        producer.sequences[topic.name, 3] = 7
        stranger = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch - 1, "base_sequence": 0}
        answers = await produce(
            producer,
            topic,
            (0, producer.batch(topic, 0, b"a")),
            (1, bytes(corrupt)),
            (2, producer.batch(topic, 2, b"x" * 3_000)),
            (3, producer.batch(topic, 3, b"out of order")),
            (4, producer.batch(topic, 4, b"b")),
            (5, producer.batch(topic, 5, b"offline")),
            (6, batch_of(b"fenced", attributes=TRANSACTIONAL, **stranger)),
            (99, producer.batch(topic, 99, b"nowhere")),
            (7, b""),
            (8, producer.batch(topic, 8, b"c")),
        )
        assert codes(answers) == [
            ErrorCode.none,
            ErrorCode.corrupt_message,
            ErrorCode.message_too_large,
            ErrorCode.out_of_order_sequence_number,
            ErrorCode.none,
            ErrorCode.kafka_storage_error,
            ErrorCode.invalid_producer_epoch,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.invalid_record,
            ErrorCode.none,
        ]
        assert await places(door) == {0, 4, 8}
        assert notes(door) == before + 1
        # The one that is offline holds nobody up: it is not part of it.
        assert await producer.end(commit=True) is ErrorCode.none
        assert [await fetched(wire, topic, index) for index in (0, 1, 2, 3, 4, 6, 8)] == [
            ([b"a"], 2),
            ([], 0),
            ([], 0),
            ([b"before"], 2),
            ([b"b"], 2),
            ([], 0),
            ([b"c"], 2),
        ]


async def test_a_partition_whose_file_fails_at_that_moment_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only the operating system has of an `async` topic is stored before a transaction's batch can follow it."""
    async with stage(tmp_path, 3) as (door, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        tighten = Appender.tighten

        def fail(appender: Appender) -> None:
            if appender.partition is topic.partitions[1]:
                raise StorageFailed("the disk does not answer")
            tighten(appender)

        monkeypatch.setattr(Appender, "tighten", fail)
        answers = await produce(producer, topic, *[(index, producer.batch(topic, index, b"a")) for index in range(3)])
        assert codes(answers) == [ErrorCode.none, ErrorCode.kafka_storage_error, ErrorCode.none]
        assert await places(door) == {0, 2}


async def test_only_what_is_wrong_leaves_no_note(tmp_path: Path) -> None:
    async with stage(tmp_path) as (door, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        before = notes(door)
        batches = [bytearray(producer.batch(topic, index, b"a")) for index in (0, 1)]
        for batch in batches:
            batch[-1] ^= 1
        answers = await produce(producer, topic, *[(index, bytes(batch)) for index, batch in enumerate(batches)])
        assert codes(answers) == [ErrorCode.corrupt_message] * 2
        assert notes(door) == before
        assert (await door.broker.transactions.describe("payments")).status is Status.EMPTY


async def test_repeated_batches_are_answered_as_the_first_time(tmp_path: Path) -> None:
    async with stage(tmp_path, 6) as (door, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        first = [(index, producer.batch(topic, index, b"a")) for index in (0, 1, 2)]
        assert codes(await produce(producer, topic, *first)) == [ErrorCode.none] * 3
        # Within the transaction, with one that is new.
        again = await produce(producer, topic, *first, (3, producer.batch(topic, 3, b"b")))
        assert [(each.error_code, each.base_offset) for each in again] == [(ErrorCode.none, 0)] * 4
        # An end that gives no new epoch: the batches of before could still be on their way.
        reply = await wire.ask("end_txn", 4, **producer.who, committed=True)
        assert reply.error_code is ErrorCode.none
        late = await produce(
            producer,
            topic,
            (4, producer.batch(topic, 4, b"c")),
            *first,
            (5, producer.batch(topic, 5, b"d")),
            (3, producer.batch(topic, 3, b"e")),
        )
        assert [(each.error_code, each.base_offset) for each in late] == [
            (ErrorCode.none, offset) for offset in (0, 0, 0, 0, 0, 2)
        ]
        assert await places(door) == {3, 4, 5}
        assert await producer.end(commit=True) is ErrorCode.none
        assert [await fetched(wire, topic, index) for index in range(6)] == [
            ([b"a"], 2),
            ([b"a"], 2),
            ([b"a"], 2),
            ([b"b", b"e"], 4),
            ([b"c"], 2),
            ([b"d"], 2),
        ]


async def test_a_partition_that_is_named_twice(tmp_path: Path) -> None:
    async with stage(tmp_path, 3) as (door, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        before = notes(door)
        corrupt = bytearray(producer.batch(topic, 2, b"corrupt"))
        corrupt[-1] ^= 1
        producer.sequences[topic.name, 2] = 0
        answers = await produce(
            producer,
            topic,
            (0, producer.batch(topic, 0, b"a")),
            (0, producer.batch(topic, 0, b"b")),
            (1, producer.batch(topic, 1, b"c")),
            (2, bytes(corrupt)),
            (2, producer.batch(topic, 2, b"d")),
            (0, producer.batch(topic, 0, b"e")),
        )
        assert [(each.error_code, each.index, each.base_offset) for each in answers] == [
            (ErrorCode.none, 0, 0),
            (ErrorCode.none, 0, 1),
            (ErrorCode.none, 1, 0),
            (ErrorCode.corrupt_message, 2, -1),
            (ErrorCode.none, 2, 0),
            (ErrorCode.none, 0, 2),
        ]
        # The second note brings in what only came after a broken one.
        assert notes(door) == before + 2
        assert await producer.end(commit=True) is ErrorCode.none
        assert [await fetched(wire, topic, index) for index in range(3)] == [
            ([b"a", b"b", b"e"], 4),
            ([b"c"], 2),
            ([b"d"], 2),
        ]


@pytest.mark.parametrize("durability", ["sync", "async", "memory"])
async def test_a_flush_that_fails_leaves_nothing_and_all_may_come_again(device: Device, durability: str) -> None:
    async with stage(device, 10, durability=durability) as (door, wire, topic):
        producer = TransactionalClient(wire, SECOND)
        await producer.init()
        batches = [(index, producer.batch(topic, index, b"a")) for index in range(10)]
        with device.fail():
            assert codes(await produce(producer, topic, *batches)) == [ErrorCode.kafka_storage_error] * 10
        assert (await door.broker.transactions.describe("payments")).status is Status.EMPTY
        assert codes(await produce(producer, topic, *batches)) == [ErrorCode.none] * 10
        assert await producer.end(commit=True) is ErrorCode.none
        assert [await fetched(wire, topic, index) for index in range(10)] == [([b"a"], 2)] * 10
