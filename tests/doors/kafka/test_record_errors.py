"""Which records of a refused batch are bad: named one by one in the reply, so that nobody gives the good ones up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode
from tests.doors.kafka.wired import Wire, open_door

from headrace.doors.kafka import produce_wire
from headrace.format import faults, records
from headrace.format.batch import HEADER_BYTES

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
BAD = [3, 14, 15, 92]
Headers = list[tuple[str, bytes | None]]
Record = tuple[int, bytes | None, bytes | None, Headers]


def now() -> int:
    return time.time_ns() // 1_000_000


def batch(bad: Callable[[Record], Record], indexes: Iterable[int] = BAD, count: int = 100, codec: int = 0) -> bytes:
    """A batch of good records, but for some of them."""
    wrong = set(indexes)
    good: list[Record] = [(now(), b"key", b"%d" % number, []) for number in range(count)]
    mixed = [bad(record) if number in wrong else record for number, record in enumerate(good)]
    return bytes(records.build(mixed, compression=codec))


def without_key(record: Record) -> Record:
    return record[0], None, *record[2:]


def older(record: Record) -> Record:
    return record[0] - 2 * HOUR, *record[1:]


def newer(record: Record) -> Record:
    return record[0] + 2 * HOUR, *record[1:]


def with_header(name: str, value: bytes) -> Callable[[Record], Record]:
    return lambda record: (*record[:3], [(name, value)])


RULES = {
    "no key": ({"cleanup.policy": "compact"}, without_key, ErrorCode.invalid_record),
    "too old": ({"message.timestamp.before.max.ms": str(HOUR)}, older, ErrorCode.invalid_timestamp),
    "too new": ({}, newer, ErrorCode.invalid_timestamp),
    "no time to deliver": ({"delay": "true"}, with_header("headrace-deliver-at", b"soon"), ErrorCode.invalid_record),
    "delivered too late": (
        {"delay": "true"}, with_header("headrace-deliver-at", b"%d" % (now() + 90 * YEAR)), ErrorCode.invalid_record
    ),
    "no id": ({"deduplication.window.ms": "60000"}, with_header("headrace-dedup-id", b""), ErrorCode.invalid_record),
}  # fmt: skip


@pytest.mark.parametrize("version", [3, 7, 8, 9, 13])
@pytest.mark.parametrize("rule", RULES)
async def test_bad_records_are_named(tmp_path: Path, rule: str, version: int) -> None:
    config, bad, code = RULES[rule]
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1, config)
        for codec in (0, 1):
            answer = await wire.produce(version, topic, batch(bad, codec=codec))
            assert (answer.error_code, answer.base_offset) == (code, -1)
            if version >= produce_wire.ERROR_MESSAGES:
                assert [each.batch_index for each in answer.record_errors] == BAD
                for each in answer.record_errors:
                    assert f"record {each.batch_index} " in each.batch_index_error_message
                assert "4 records of the batch are refused" in answer.error_message
            assert topic.partitions[0].end == 0
        # What is left is good.
        good = [index for index in range(100) if index not in BAD]
        assert (await wire.produce(version, topic, batch(bad, [], len(good)))).error_code is ErrorCode.none
        # One alone speaks for all of them.
        answer = await wire.produce(version, topic, batch(bad, [7]))
        if version >= produce_wire.ERROR_MESSAGES:
            [only] = answer.record_errors
            assert (only.batch_index, only.batch_index_error_message) == (7, answer.error_message)


@pytest.mark.parametrize("config", [{"cleanup.policy": "compact"}, {"delay": "true"}], ids=["compact", "delay"])
async def test_so_are_records_that_cannot_be_read(tmp_path: Path, config: dict[str, str]) -> None:
    good = b"\x10\x00\x00%b\x02k\x02v\x00"
    broken = b"\x10\x00\x00%b\x02k\x7fv\x00"
    body = b"".join((broken if index in (1, 3) else good) % bytes([2 * index]) for index in range(5))
    made = bytearray(records.build([(now(), b"key", b"value", [])] * 5)[:HEADER_BYTES] + body)
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[17:21] = crc32c(made[21:]).to_bytes(4, "big")
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1, config)
        answer = await wire.produce(13, topic, bytes(made))
        assert answer.error_code is ErrorCode.invalid_record
        assert [each.batch_index for each in answer.record_errors] == [1, 3]


async def test_a_reply_names_so_many_and_one_of_each_batch(tmp_path: Path) -> None:
    many = batch(without_key, range(5_000), 5_000)
    few = batch(without_key, range(5_000), 10)
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 2, {"cleanup.policy": "compact"})
        data = [{"index": 0, "records": many}, {"index": 1, "records": few}]
        reply = await wire.ask(
            "produce", 13, transactional_id=None, acks=-1, timeout=1_000,
            topic_data=[{"topic_id": topic.id, "partition_data": data}],
        )  # fmt: skip
        first, second = reply.responses[0].partition_responses
        assert len(first.record_errors) == produce_wire.RECORD_ERRORS_MAX == faults.NAMED_MAX
        assert "5000 records" in first.error_message
        assert [each.batch_index for each in second.record_errors] == [0]


async def test_what_is_wrong_with_a_whole_batch_names_no_record(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1, {"cleanup.policy": "compact"})
        made = bytearray(batch(without_key, []))
        made[-1] ^= 1
        answer = await wire.produce(13, topic, bytes(made))
        assert answer.error_code is ErrorCode.corrupt_message
        assert answer.record_errors == ()


async def test_a_record_of_a_transaction_that_is_for_later_is_named(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1, {"delay": "true"})
        later = with_header("headrace-deliver-at", b"%d" % (now() + HOUR))
        record = (now(), None, b"now", [])
        made = records.build(
            [record, later(record), record, later(record)],
            producer_id=1, producer_epoch=0, base_sequence=0, attributes=0x10,
        )  # fmt: skip
        answer = await wire.produce(13, topic, bytes(made), transactional_id="orders")
        assert answer.error_code is ErrorCode.invalid_record
        assert [each.batch_index for each in answer.record_errors] == [1, 3]
