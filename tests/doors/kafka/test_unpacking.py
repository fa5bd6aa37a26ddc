"""Batches that unpack to far more than they take: nothing above a bound is unpacked on the loop, whoever reads them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.broker.queues.stage import consume
from tests.doors.kafka.wired import Wire, open_door, produce_fields
from tests.waiting import SECONDS, until

from headrace.broker.unpacking import INLINE_BYTES, Unpacker, packed_of
from headrace.format import compression, records
from headrace.log.interface import Topic
from headrace.runtime.offload import SystemOffload

CODECS = [compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD]
LARGE = 8 * INLINE_BYTES


class Unpacked:
    """What was unpacked on the loop, and off it, in bytes."""

    def __init__(self) -> None:
        self.loop = threading.get_ident()
        self.inline: list[int] = []
        self.off: list[int] = []

    def note(self, body: bytes) -> bytes:
        (self.inline if threading.get_ident() == self.loop else self.off).append(len(body))
        return body


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Unpacked]:
    seen = Unpacked()
    for name in ("unpack", "unsnap"):
        real = getattr(compression, name)
        monkeypatch.setattr(compression, name, lambda *given, real=real: seen.note(real(*given)))
    yield seen
    assert max(seen.inline, default=0) <= INLINE_BYTES
    assert not compression.AHEAD


def packed(codec: int, size: int = LARGE, key: bytes = b"k") -> bytes:
    return bytes(records.build([(5, key, bytes(size), [])], compression=codec))


async def produce(wire: Wire, topic: Topic, batch: bytes) -> ErrorCode:
    reply = await wire.ask("produce", 13, **produce_fields(topic, batch))
    return ErrorCode(reply.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "config", [{"cleanup.policy": "compact"}, {"delay": "true"}, {"deduplication.window.ms": "60000"}]
)
async def test_what_a_topic_must_look_into(
    tmp_path: Path, unpacked: Unpacked, config: dict[str, str], codec: int
) -> None:
    async with open_door(tmp_path, decompressed_max_bytes=LARGE + 100) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("t", 1, config)
        assert await produce(wire, topic, packed(codec, 100)) is ErrorCode.none
        assert not unpacked.off, "a hand-over costs more than a small batch"
        for _ in range(3):
            assert await produce(wire, topic, packed(codec)) is ErrorCode.none
        assert len(unpacked.off) == 3
        assert await produce(wire, topic, packed(codec, LARGE + 200)) is ErrorCode.invalid_record
        damaged = bytearray(packed(codec))
        damaged[-20:] = bytes(20)
        assert await produce(wire, topic, bytes(damaged)) is ErrorCode.corrupt_message
        assert topic.partitions[0].end == 4


async def test_the_batches_of_one_request_are_as_large_together_as_one_may_be(
    tmp_path: Path, unpacked: Unpacked
) -> None:
    async with open_door(tmp_path, decompressed_max_bytes=2 * LARGE + 200) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("t", 3, {"cleanup.policy": "compact"})
        fields = produce_fields(topic, None)
        batches = [packed(compression.ZSTD, key=b"%d" % index) for index in range(3)]
        fields["topic_data"][0]["partition_data"] = [
            {"index": index, "records": batch} for index, batch in enumerate(batches)
        ]
        reply = await wire.ask("produce", 13, **fields)
        codes = [each.error_code for each in reply.responses[0].partition_responses]
        assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.invalid_record]


@pytest.mark.parametrize("codec", CODECS)
async def test_what_a_queue_hands_out(tmp_path: Path, unpacked: Unpacked, codec: int) -> None:
    async with open_door(tmp_path, decompressed_max_bytes=LARGE + 100) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("t", 2)
        good = [100, LARGE, LARGE - 1, 101, LARGE - 2, 102]
        for size in [*good[:5], LARGE + 200, *good[5:]]:
            assert await produce(wire, topic, packed(codec, size)) is ErrorCode.none
        queue = await door.broker.queues.ensure(topic, "q", -2)
        assert [len(each.value or b"") for each in (await queue.peek(10)).messages] == good
        keeper = consume(queue)
        async with asyncio.timeout(SECONDS):
            await until(lambda: len(keeper.got) == 6)
        assert [len(value or b"") for value in keeper.values] == good
        assert queue.figures().poisoned == 1
        keeper.requeue(*(value for value in keeper.values if value is not None))
        async with asyncio.timeout(SECONDS):
            await until(lambda: len(keeper.got) == 12)
        assert sorted(len(value or b"") for value in keeper.values[6:]) == sorted(good)


async def test_a_request_discards_nothing_that_others_have_unpacked(tmp_path: Path, unpacked: Unpacked) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("t", 1, {"cleanup.policy": "compact"})
        others = packed_of(packed(compression.ZSTD))
        assert others is not None
        async with door.broker.unpacking.ahead([others]):
            # The same bytes, bytes of its own, and a second reader of large ones.
            for batch in (packed(compression.ZSTD), packed(compression.ZSTD, 100)):
                assert await produce(wire, topic, batch) is ErrorCode.none
            async with Unpacker(door.broker.runtime.offload, 2 * LARGE).ahead([(0, b"plain")]):
                assert list(compression.AHEAD) == [others, (0, b"plain")]
            assert list(compression.AHEAD) == [others]
        assert len(unpacked.off) == 1


async def test_a_look_up_by_time(tmp_path: Path, unpacked: Unpacked) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("t", 1)
        assert await produce(wire, topic, packed(compression.ZSTD)) is ErrorCode.none
        asked: dict[str, Any] = {"replica_id": -1, "isolation_level": 0}
        place = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 3}
        reply = await wire.ask("list_offsets", 7, topics=[{"name": "t", "partitions": [place]}], **asked)
        assert reply.topics[0].partitions[0].offset == 0
        assert len(unpacked.off) == 1


@pytest.mark.parametrize("codec", CODECS)
async def test_a_small_batch_is_unpacked_once(unpacked: Unpacked, codec: int) -> None:
    unpacker = Unpacker(SystemOffload(asyncio.get_running_loop(), "."), 1 << 20)
    ((_, _, key, value, _),) = await unpacker.read(records.parse, packed(codec, 1_000))
    assert (key, value) == (b"k", bytes(1_000))
    assert len(unpacked.inline) == 1
