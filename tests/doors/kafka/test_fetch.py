"""Fetch through a socket: every version, limits, long polls, sessions, isolation, files sent without being read."""

from __future__ import annotations

import asyncio
import gc
import struct
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, open_door, produce_fields, values
from tests.log.batches import marker
from tests.waiting import SECONDS, until

from headrace.doors.kafka import fetch, fetch_wire, sessions
from headrace.log.interface import Topic
from headrace.log.segment import Segment
from headrace.log.segments import Segments
from headrace.runtime.disk import SystemFile

VERSIONS = range(fetch_wire.OLDEST, fetch_wire.NEWEST + 1)


def code(reply: Any, topic: int = 0, partition: int = 0) -> ErrorCode:
    return ErrorCode(reply.responses[topic].partitions[partition].error_code)


@pytest.mark.parametrize("durability", ["async", "sync", "memory"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_what_went_in_comes_out_in_every_version(tmp_path: Path, version: int, durability: str) -> None:
    async with open_door(tmp_path, durability=durability) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 2)
        await wire.produce(9, topic, batch_of(b"a", b"b"), index=1)
        await wire.produce(9, topic, batch_of(b"c"), index=1)
        reply = await wire.ask("fetch", version, **fetch_fields((topic, 1, 0)))
        answer = reply.responses[0].partitions[0]
        assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (ErrorCode.none, 3, 3)
        assert getattr(answer, "preferred_read_replica", -1) == -1
        assert answer.aborted_transactions is None
        assert values(reply) == [b"a", b"b", b"c"]
        reply = await wire.ask("fetch", version, **fetch_fields((topic, 1, 2)))
        assert values(reply) == [b"c"]
        reply = await wire.ask("fetch", version, **fetch_fields((topic, 1, 3), (topic, 0, 0)))
        assert values(reply) == []
        assert code(reply) is ErrorCode.none


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_of_a_partition(tmp_path: Path, version: int) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await wire.produce(9, topic, batch_of(b"a"))
        waiting: dict[str, Any] = {"max_wait": 60_000}
        for offset in (2, -1, 1 << 40):
            reply = await wire.ask("fetch", version, **fetch_fields((topic, 0, offset), **waiting))
            assert code(reply) is ErrorCode.offset_out_of_range
        reply = await wire.ask("fetch", version, **fetch_fields((topic, 7, 0), **waiting))
        assert code(reply) is ErrorCode.unknown_topic_or_partition
        if version < fetch_wire.REPLICA_STATE:
            reply = await wire.ask("fetch", version, **fetch_fields((topic, 0, 0), replica_id=3, **waiting))
            assert code(reply) is ErrorCode.not_leader_or_follower
        await door.broker.topics.delete("rain")
        reply = await wire.ask("fetch", version, **fetch_fields((topic, 0, 0), **waiting))
        assert code(reply) is (
            ErrorCode.unknown_topic_id if version >= fetch_wire.TOPIC_IDS else ErrorCode.unknown_topic_or_partition
        )


async def test_leader_epochs(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await wire.produce(9, topic, batch_of(b"a"))
        epoch = topic.partitions[0].epoch
        fields = fetch_fields((topic, 0, 0), max_wait=60_000)
        partition = fields["topics"][0]["partitions"][0]
        for known, expected in (
            (epoch, ErrorCode.none),
            (epoch + 1, ErrorCode.unknown_leader_epoch),
            (epoch - 1, ErrorCode.fenced_leader_epoch if epoch else ErrorCode.none),
        ):
            partition["current_leader_epoch"] = known
            assert code(await wire.ask("fetch", 12, **fields)) is expected
        partition["current_leader_epoch"] = -1
        partition["last_fetched_epoch"] = epoch
        partition["fetch_offset"] = 5
        reply = await wire.ask("fetch", 12, **fields)
        assert reply.responses[0].partitions[0].diverging_epoch.end_offset == 1


async def test_limits(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 2)
        for index in (0, 1):
            for _ in range(3):
                await wire.produce(9, topic, batch_of(bytes(1000)), index=index)
        both = fetch_fields((topic, 0, 0), (topic, 1, 0), max_bytes=10)
        reply = await wire.ask("fetch", 11, **both)
        # The first batch comes whole, however small the limit; nothing of the next partition does.
        assert len(values(reply)) == 1
        assert [len(each.records) for topic in reply.responses for each in topic.partitions][1:] == [0]
        both = fetch_fields((topic, 0, 0), (topic, 1, 0), max_bytes=5000)
        reply = await wire.ask("fetch", 11, **both)
        assert sum(len(each.records) for topic in reply.responses for each in topic.partitions) <= 5000
        small = fetch_fields((topic, 0, 0))
        small["topics"][0]["partitions"][0]["partition_max_bytes"] = 2500
        assert len(values(await wire.ask("fetch", 11, **small))) == 2


async def test_a_long_poll_ends_with_the_next_record(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as producer:
        topic = await door.broker.topics.create("rain", 2)
        for turn in range(5):
            wire.send("fetch", 12, **fetch_fields((topic, 0, 0), (topic, 1, turn), max_wait=60_000))
            await producer.produce(9, topic, batch_of(b"%d" % turn), index=1)
            reply = await asyncio.wait_for(wire.receive("fetch", 12), SECONDS)
            assert values(reply, 0, 1) == [b"%d" % turn]


async def test_a_long_poll_ends_with_its_time(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        loop = asyncio.get_running_loop()
        before = loop.time()
        reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, 0), max_wait=100))
        assert 0.09 <= loop.time() - before < 5
        assert values(reply) == []
        # What is there when the time is over is sent, though it is less than was asked for.
        await wire.produce(9, topic, batch_of(b"a"))
        reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, 0), max_wait=100, min_bytes=10_000))
        assert values(reply) == [b"a"]


async def test_a_long_poll_waits_for_enough_bytes(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as producer:
        topic = await door.broker.topics.create("rain", 2)
        wire.send("fetch", 12, **fetch_fields((topic, 0, 0), (topic, 1, 0), max_wait=60_000, min_bytes=3000))
        for turn in range(4):
            await producer.produce(9, topic, batch_of(bytes(900)), index=turn % 2)
        reply = await asyncio.wait_for(wire.receive("fetch", 12), SECONDS)
        assert len(values(reply)) + len(values(reply, 0, 1)) == 4


@pytest.mark.parametrize("tail_bytes", [1, 1 << 20], ids=["from a file", "from memory"])
async def test_what_the_limit_leaves_no_room_for_counts_as_there(tmp_path: Path, tail_bytes: int) -> None:
    """A reply of whole batches is below its limit, mostly. A client that waits for as much does not wait in vain."""
    async with open_door(tmp_path, tail_bytes=tail_bytes) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await fill(wire, topic, 20, 9_000)
        fields = fetch_fields((topic, 0, 0), max_wait=60_000, min_bytes=50_000)
        fields["topics"][0]["partitions"][0]["partition_max_bytes"] = 50_000
        reply = await asyncio.wait_for(wire.ask("fetch", 12, **fields), SECONDS)
        assert len(values(reply)) == 5
        assert len(reply.responses[0].partitions[0].records) < 50_000


async def test_a_deleted_topic_ends_a_long_poll(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        wire.send("fetch", 13, **fetch_fields((topic, 0, 0), max_wait=60_000))
        await until(lambda: any(each.fetching for each in door.connections))
        await door.broker.topics.delete("rain")
        assert code(await asyncio.wait_for(wire.receive("fetch", 13), SECONDS)) is ErrorCode.unknown_topic_id


async def test_a_lost_connection_leaves_no_waiter(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        topic = await door.broker.topics.create("rain", 1)
        wire = await Wire.open(door)
        wire.send("fetch", 12, **fetch_fields((topic, 0, 0), max_wait=60_000))
        partition: Any = topic.partitions[0]
        await until(lambda: partition._waiters)
        wire.writer.close()
        await until(lambda: not door.connections)
        assert not partition._waiters


async def test_requests_behind_a_long_poll_wait_their_turn(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as producer:
        topic = await door.broker.topics.create("rain", 1)
        wire.send("fetch", 12, **fetch_fields((topic, 0, 0), max_wait=60_000))
        for _ in range(3):
            wire.send("produce", 9, **produce_fields(topic, batch_of(bytes(100_000))))
        wire.send("api_versions", 0)
        await producer.produce(9, topic, batch_of(b"first"))
        assert values(await asyncio.wait_for(wire.receive("fetch", 12, 1), SECONDS)) == [b"first"]
        for number in (2, 3, 4):
            reply = await asyncio.wait_for(wire.receive("produce", 9, number), SECONDS)
            assert reply.responses[0].partition_responses[0].base_offset == number - 1
        await asyncio.wait_for(wire.receive("api_versions", 0, 5), SECONDS)


# --- sessions ---------------------------------------------------------------------------------------------------------


def told(reply: Any) -> list[tuple[Any, int]]:
    """The partitions that a reply speaks of."""
    return [
        (getattr(topic, "topic", None) or getattr(topic, "topic_id", None), each.partition_index)
        for topic in reply.responses
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
async def test_an_incremental_session_tells_only_what_changed(tmp_path: Path, version: int) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        rain = await door.broker.topics.create("rain", 2)
        snow = await door.broker.topics.create("snow", 1)
        everything = fetch_fields((rain, 0, 0), (rain, 1, 0), (snow, 0, 0))
        first = await wire.ask("fetch", version, **everything | {"session_epoch": 0})
        assert first.session_id > 0
        assert len(told(first)) == 3
        session = {"session_id": first.session_id}
        reply = await wire.ask("fetch", version, **fetch_fields(session_epoch=1, **session))
        assert (reply.session_id, told(reply)) == (first.session_id, [])
        await wire.produce(9, rain, batch_of(b"a"), index=1)
        reply = await wire.ask("fetch", version, **fetch_fields(session_epoch=2, **session))
        assert [index for _, index in told(reply)] == [1]
        assert values(reply) == [b"a"]
        # Read on from there; the new high watermark has been told.
        reply = await wire.ask("fetch", version, **fetch_fields((rain, 1, 1), session_epoch=3, **session))
        assert told(reply) == []
        # An error is told as long as it lasts, and its end is news.
        reply = await wire.ask("fetch", version, **fetch_fields((snow, 0, 9), session_epoch=4, **session))
        assert [code(reply)] == [ErrorCode.offset_out_of_range]
        reply = await wire.ask("fetch", version, **fetch_fields(session_epoch=5, **session))
        assert [code(reply)] == [ErrorCode.offset_out_of_range]
        reply = await wire.ask("fetch", version, **fetch_fields((snow, 0, 0), session_epoch=6, **session))
        assert [code(reply)] == [ErrorCode.none]
        forgotten = [{"topic": "rain", "topic_id": rain.id, "partitions": [0, 1]}]
        reply = await wire.ask(
            "fetch", version, **fetch_fields(session_epoch=7, forgotten_topics_data=forgotten, **session)
        )
        await wire.produce(9, rain, batch_of(b"b"), index=1)
        reply = await wire.ask("fetch", version, **fetch_fields(session_epoch=8, **session))
        assert told(reply) == []
        # A wrong epoch and an unknown session are errors of the whole request.
        reply = await wire.ask("fetch", version, **fetch_fields(session_epoch=3, **session))
        assert (reply.error_code, told(reply)) == (ErrorCode.invalid_fetch_session_epoch, [])
        reply = await wire.ask("fetch", version, **fetch_fields(session_epoch=-1, **session))
        assert (reply.error_code, len(door.sessions)) == (ErrorCode.none, 0)
        reply = await wire.ask("fetch", version, **fetch_fields(session_epoch=9, **session))
        assert reply.error_code is ErrorCode.fetch_session_id_not_found


async def test_a_session_keeps_to_names_or_ids(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        first = await wire.ask("fetch", 12, **fetch_fields((topic, 0, 0), session_epoch=0))
        reply = await wire.ask("fetch", 13, **fetch_fields(session_id=first.session_id, session_epoch=1))
        assert reply.error_code is ErrorCode.fetch_session_topic_id_error


async def test_busy_partitions_do_not_starve_others(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 3)
        for index in range(3):
            for _ in range(10):
                await wire.produce(9, topic, batch_of(bytes(1000)), index=index)
        reads = [(topic, index, 0) for index in range(3)]
        first = await wire.ask("fetch", 12, **fetch_fields(*reads, session_epoch=0, max_bytes=1))
        seen = []
        for epoch in range(1, 7):
            reply = await wire.ask(
                "fetch", 12, **fetch_fields(session_id=first.session_id, session_epoch=epoch, max_bytes=1)
            )
            seen += [
                each.partition_index for group in reply.responses for each in group.partitions if len(each.records)
            ]
        assert sorted(seen) == [0, 0, 1, 1, 2, 2]


async def test_sessions_are_bounded(tmp_path: Path) -> None:
    async with open_door(tmp_path, fetch_sessions_max=2) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        fields = fetch_fields((topic, 0, 0), session_epoch=0)
        opened = [(await wire.ask("fetch", 12, **fields)).session_id for _ in range(4)]
        assert [bool(each) for each in opened] == [True, True, False, False]
        rested: Any = door.sessions._sessions[opened[0]]
        rested.used -= 200
        assert (await wire.ask("fetch", 12, **fields)).session_id
        reply = await wire.ask("fetch", 12, **fetch_fields(session_id=opened[0], session_epoch=1))
        assert reply.error_code is ErrorCode.fetch_session_id_not_found


async def test_partitions_of_all_sessions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PARTITIONS_MAX", 3)
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 5)
        reads = [(topic, index, 0) for index in range(5)]
        first = await wire.ask("fetch", 12, **fetch_fields(*reads[:2], session_epoch=0))
        second = await wire.ask("fetch", 12, **fetch_fields(*reads[:2], session_epoch=0))
        assert [bool(first.session_id), bool(second.session_id), door.sessions.partitions] == [True, False, 2]
        session = {"session_id": first.session_id}
        assert not (await wire.ask("fetch", 12, **fetch_fields(reads[2], session_epoch=1, **session))).error_code
        reply = await wire.ask("fetch", 12, **fetch_fields(reads[3], session_epoch=2, **session))
        assert reply.error_code is ErrorCode.fetch_session_id_not_found
        assert (len(door.sessions), door.sessions.partitions) == (0, 0)


# --- transactions -----------------------------------------------------------------------------------------------------


async def test_committed_readers_stop_at_the_last_stable_offset(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        partition = topic.partitions[0]
        partition.append(bytearray(batch_of(b"plain")))
        writer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "attributes": 0x10}
        partition.append(bytearray(batch_of(b"open", base_sequence=0, **writer)))
        committed = fetch_fields((topic, 0, 0), isolation_level=1)
        reply = await wire.ask("fetch", 11, **committed)
        answer = reply.responses[0].partitions[0]
        assert (answer.high_watermark, answer.last_stable_offset, answer.aborted_transactions) == (2, 1, ())
        assert values(reply) == [b"plain"]
        assert values(await wire.ask("fetch", 11, **fetch_fields((topic, 0, 0)))) == [b"plain", b"open"]
        latest = [{"name": "rain", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        for isolation, expected in ((0, 2), (1, 1)):
            listed = await wire.ask("list_offsets", 4, replica_id=-1, isolation_level=isolation, topics=latest)
            assert listed.topics[0].partitions[0].offset == expected
        partition.append(bytearray(marker(2, 7, 0, False)))
        for version in (5, 11, 12, 16):
            reply = await wire.ask("fetch", version, **committed)
            answer = reply.responses[0].partitions[0]
            assert answer.last_stable_offset == 3
            assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions] == [(7, 1)]


# --- files ------------------------------------------------------------------------------------------------------------


async def fill(wire: Wire, topic: Topic, count: int, size: int) -> None:
    for turn in range(count):
        value = bytes([turn % 251]) * size
        answer = await wire.produce(9, topic, batch_of(value))
        assert answer.error_code is ErrorCode.none


async def read_all(wire: Wire, topic: Topic, count: int, **more: Any) -> None:
    offset = 0
    while offset < count:
        reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, offset), **more))
        found = values(reply)
        assert found
        for value in found:
            assert value is not None
            assert set(value) == {offset % 251}
            offset += 1


def pins() -> int:
    """How many pins all files have."""
    return sum(each._pins for each in gc.get_objects() if isinstance(each, SystemFile))


@pytest.mark.parametrize("size", [10, 5_000, 60_000, 400_000])
async def test_what_has_left_the_tail_comes_from_files(tmp_path: Path, size: int) -> None:
    count = 40
    async with open_door(tmp_path, tail_bytes=1) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1, {"segment.bytes": "2000000"})
        await fill(wire, topic, count, size)
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = door.broker.topics.all["rain"]
        await read_all(wire, topic, count)
        assert pins() == 0


async def test_partitions_whose_places_are_known_and_others_come_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[int] = []
    find_place = Segments._find_place

    def find(self: Segments, segment: Segment, offset: int) -> None:
        looked_up.append(offset)
        find_place(self, segment, offset)

    monkeypatch.setattr(Segments, "_find_place", find)
    async with open_door(tmp_path, tail_bytes=1) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 3, {"segment.bytes": str(1 << 20)})
        for index in range(3):
            for _ in range(30):
                await wire.produce(9, topic, batch_of(bytes(90_000)), index=index)
        at = [0, 0, 0]
        # All three are read in their closed segments, each time with one more that goes on from where it was.
        for count in (1, 2, 3, 3):
            fields = fetch_fields(*((topic, index, at[index]) for index in range(count)))
            for each in fields["topics"]:
                each["partitions"][0]["partition_max_bytes"] = 200_000
            reply = await wire.ask("fetch", 12, **fields)
            for index in range(count):
                assert code(reply, 0, index) is ErrorCode.none
                assert len(values(reply, 0, index)) == 2
                at[index] += 2
        # Each partition is looked up once, where its reading begins. A request that is read again, because one of its
        # partitions was cold, finds the places of the others as they were.
        assert looked_up == [0, 0, 0]
        assert pins() == 0


async def test_ranges_that_are_not_in_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemFile, "resident", lambda *_: False)
    monkeypatch.setattr(SystemFile, "read_now", lambda *_: b"")
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await fill(wire, topic, 20, 300_000)
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = door.broker.topics.all["rain"]
        await read_all(wire, topic, 20)
        assert pins() == 0


async def test_a_client_that_does_not_read_costs_no_memory_and_no_pin(tmp_path: Path) -> None:
    async with open_door(tmp_path, fetch_max_bytes=1 << 30) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await fill(wire, topic, 60, 1_000_000)
        lazy = await Wire.open(door)
        fields = fetch_fields((topic, 0, 0), max_bytes=1 << 30)
        fields["topics"][0]["partitions"][0]["partition_max_bytes"] = 1 << 30
        for _ in range(5):
            lazy.send("fetch", 12, **fields)

        def stuck() -> list[Any]:
            return [each for each in door.connections if each._outbox and each._outbox._waiting]

        await until(stuck)
        await asyncio.sleep(0.05)
        assert stuck()[0].transport.get_write_buffer_size() == 0
        assert pins() == 1
        lazy.writer.transport.abort()
        await until(lambda: len(door.connections) == 1)
        assert pins() == 0
        # And one that reads late gets everything.
        late = await Wire.open(door)
        late.send("fetch", 12, **fields)
        await asyncio.sleep(0.05)
        reply = await asyncio.wait_for(late.receive("fetch", 12), SECONDS)
        assert len(values(reply)) == 60


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0x0000FFFF, 1, -1], ids=["huge", "too far", "too short", "negative"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "growing"])
async def test_a_reader_is_told_of_damage(tmp_path: Path, closed: bool, length: int) -> None:
    """A batch whose length is damaged is not sent: nobody could tell where the reply ends."""
    async with open_door(tmp_path, tail_bytes=1) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1, {"segment.bytes": str(1 << 20)})
        await fill(wire, topic, 40, 50_000)
    segment = sorted((tmp_path / "rain-0").glob("*.log"))[0 if closed else -1]
    contents = bytearray(segment.read_bytes())
    # In the second batch: the first says how long one is.
    size = 12 + struct.unpack_from(">i", contents, 8)[0]
    position = size if length != 0xFFFF else len(contents) - size
    struct.pack_into(">i", contents, position + 8, length)
    segment.write_bytes(contents)
    offset = int(segment.stem) + position // size
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = door.broker.topics.all["rain"]
        if length == 0xFFFF:
            # The end of a segment is looked at when it is loaded.
            reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, offset)))
            assert code(reply) is ErrorCode.kafka_storage_error
            return
        reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, offset)))
        assert code(reply) is ErrorCode.corrupt_message
        reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, 0 if not closed else offset + 20)))
        assert len(values(reply)) > 0
        assert pins() == 0


async def test_cold_partitions_are_loaded(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 2)
        await wire.produce(9, topic, batch_of(b"a"), index=1)
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = door.broker.topics.all["rain"]
        reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, 0), (topic, 1, 0)))
        assert values(reply, 0, 1) == [b"a"]
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = door.broker.topics.all["rain"]
        wire.send("fetch", 12, **fetch_fields((topic, 1, 1), max_wait=60_000))
        async with await Wire.open(door) as producer:
            await producer.produce(9, topic, batch_of(b"b"), index=1)
        assert values(await asyncio.wait_for(wire.receive("fetch", 12), SECONDS)) == [b"b"]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "growing"])
async def test_a_reply_holds_so_many_ranges_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    monkeypatch.setattr(fetch, "RANGES_MAX", 3)
    looked_up: list[int] = []
    find_place = Segments._find_place

    def find(self: Segments, segment: Any, offset: int) -> None:
        looked_up.append(offset)
        find_place(self, segment, offset)

    monkeypatch.setattr(Segments, "_find_place", find)
    async with open_door(tmp_path, tail_bytes=1) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 8, {"segment.bytes": str(1 << 20)})
        for index in range(8):
            await wire.produce(9, topic, batch_of(b"%d" % index), index=index)
            for _ in range(2 * closed):
                # Fills the segment.
                await wire.produce(9, topic, batch_of(bytes(900_000)), index=index)
    async with open_door(tmp_path, tail_bytes=1) as door, await Wire.open(door) as wire:
        topic = door.broker.topics.all["rain"]
        fields = fetch_fields(*((topic, index, 0) for index in range(8)), session_epoch=0, max_wait=60_000)
        for each in fields["topics"]:
            each["partitions"][0]["partition_max_bytes"] = 1_000
        # More than a reply has room for, and not waited for: there is more.
        fields["min_bytes"] = 1 << 20
        found: dict[int, list[bytes | None]] = {}
        for epoch in range(3):
            reply = await asyncio.wait_for(wire.ask("fetch", 12, **fields), SECONDS)
            read = {each.partition_index: values(reply, 0, at) for at, each in enumerate(reply.responses[0].partitions)}
            full = {index: some for index, some in read.items() if some}
            assert len(full) == (3 if epoch < 2 else 2)
            assert len(looked_up) <= 3 * (epoch + 1)
            found |= full
            ahead = [(topic, index, topic.partitions[index].end) for index in full]
            fields |= fetch_fields(*ahead, session_epoch=epoch + 1, session_id=reply.session_id, max_wait=60_000)
            fields["min_bytes"] = 1
        assert found == {index: [b"%d" % index] for index in range(8)}
        assert pins() == 0


async def test_a_fetch_quota_throttles(tmp_path: Path) -> None:
    async with open_door(tmp_path, quota_fetch_bytes=100_000) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await wire.produce(9, topic, batch_of(bytes(130_000)))
        loop = asyncio.get_running_loop()
        before = loop.time()
        reply = await wire.ask("fetch", 12, **fetch_fields((topic, 0, 0)))
        throttled = reply.throttle_time.total_seconds()
        assert 0.2 < throttled < 0.4
        await wire.ask("fetch", 12, **fetch_fields((topic, 0, 1)))
        assert loop.time() - before >= throttled
