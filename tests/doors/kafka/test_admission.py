"""The fast way of a Produce, and everything that ends it: each cause comes between two requests of one connection, and
the second request obeys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.wired import Wire, batch_of, open_door, produce_fields
from tests.waiting import until

from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.kinds import Kind
from headrace.broker.security import Identity, Session
from headrace.doors.kafka import produce
from headrace.doors.kafka.door import KafkaDoor
from headrace.format import records
from headrace.log.interface import Topic

NONE = ErrorCode.none
# By name and by id.
VERSIONS = (9, 13)


def headed(name: str, value: bytes, text: bytes = b"a") -> bytearray:
    return records.build([(1_000, None, text, [(name, value)])])


async def send_fast(wire: Wire, version: int, topic: Topic, batch: bytes | bytearray) -> int:
    """Send what must take the fast way; its offset."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(produce, "parse", None)
        answer = await wire.produce(version, topic, batch)
    assert answer.error_code is NONE
    return int(answer.base_offset)


async def alter(door: KafkaDoor, **config: str) -> None:
    await door.broker.topics.alter_config("rain", lambda _: {key.replace("_", "."): config[key] for key in config})


async def limit_size(door: KafkaDoor, topic: Topic) -> None:
    await alter(door, max_message_bytes="300")


async def turn_off(door: KafkaDoor, topic: Topic) -> None:
    topic.partitions[0].fail("its disk is gone")  # type: ignore[attr-defined]


async def guard(door: KafkaDoor, topic: Topic) -> None:
    await alter(door, overflow="reject", overflow_group="readers", overflow_lag="1")


async def delete(door: KafkaDoor, topic: Topic) -> None:
    await door.broker.topics.delete("rain")


Cause = Callable[[KafkaDoor, Topic], Awaitable[None]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("cause", "errors"),
    [
        (limit_size, (ErrorCode.message_too_large,) * 2),
        (turn_off, (ErrorCode.kafka_storage_error,) * 2),
        (guard, (ErrorCode.policy_violation,) * 2),
        (delete, (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)),
    ],
)
async def test_what_ends_it_is_obeyed_by_the_next_request(
    tmp_path: Path, version: int, cause: Cause, errors: tuple[ErrorCode, ErrorCode]
) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as other:
        topic = await door.broker.topics.create("rain", 1)
        batch = batch_of(b"x" * 400)
        for client in (wire, other):
            await client.produce(version, topic, batch)
            await send_fast(client, version, topic, batch)
        await cause(door, topic)
        assert not any(cached.admission.valid for cached in door.produce_cache.values())
        for client in (wire, other, wire):
            assert (await client.produce(version, topic, batch)).error_code is errors[version == 13]
        assert topic.partitions[0].end == 4


async def test_a_topic_that_has_grown(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await wire.produce(9, topic, batch_of(b"a"))
        [old] = door.produce_cache.values()
        await door.broker.topics.grow("rain", 2)
        assert not old.admission.valid
        for expected in (0, 1):
            answer = await wire.produce(9, topic, batch_of(b"b"), index=1)
            assert (answer.error_code, answer.base_offset) == (NONE, expected)
        assert (await wire.produce(9, topic, batch_of(b"c"))).base_offset == 1
        assert await send_fast(wire, 9, topic, batch_of(b"d")) == 2


async def test_a_topic_that_was_deleted_and_made_again(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        old = await door.broker.topics.create("rain", 1)
        await wire.produce(9, old, batch_of(b"a"))
        assert await send_fast(wire, 9, old, batch_of(b"b")) == 1
        await door.broker.topics.delete("rain")
        new = await door.broker.topics.create("rain", 1)
        assert (await wire.produce(9, new, batch_of(b"c"))).base_offset == 0
        assert await send_fast(wire, 9, new, batch_of(b"d")) == 1
        assert (old.partitions[0].end, new.partitions[0].end) == (2, 2)


async def test_a_window_that_was_set(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        batch = headed("headrace-dedup-id", b"1")
        for expected in (0, 1, 2):
            assert (await wire.produce(9, topic, bytearray(batch))).base_offset == expected
        await alter(door, deduplication_window_ms="60000")
        for _ in range(2):
            assert (await wire.produce(9, topic, bytearray(batch))).base_offset == 3
        # And off again.
        await alter(door, deduplication_window_ms="0")
        for expected in (4, 5):
            assert (await wire.produce(9, topic, bytearray(batch))).base_offset == expected


async def test_delays_that_were_turned_on(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        due = b"%d" % (door.broker.runtime.clock.now_ms() + 3_600_000)
        batch = headed("headrace-deliver-at", due)
        for _ in range(2):
            await wire.produce(9, topic, bytearray(batch))
        assert not await door.broker.timer.list("rain")
        await alter(door, delay="true")
        assert (await wire.produce(9, topic, bytearray(batch))).error_code is NONE
        assert len(await door.broker.timer.list("rain")) == 1


async def test_records_that_are_to_be_read(tmp_path: Path) -> None:
    """A compacted topic takes the fast way too, but refuses what has no key."""
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        for _ in range(2):
            await wire.produce(9, topic, batch_of(b"a"))
        await alter(door, cleanup_policy="compact")
        for _ in range(2):
            assert (await wire.produce(9, topic, batch_of(b"a"))).error_code is ErrorCode.invalid_record


@pytest.mark.parametrize("version", [3, *VERSIONS])
async def test_a_quota_is_charged_on_the_fast_way(tmp_path: Path, version: int) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        await wire.produce(version, topic, batch_of(b"a"))
        door.broker.quotas.apply(make_entity([("client-id", "test")]), {Kind.PRODUCE: 100_000})
        # The change has taken the admission away.
        await wire.produce(version, topic, batch_of(b"a"))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(produce, "parse", None)
            began = asyncio.get_running_loop().time()
            reply = await wire.ask("produce", version, **produce_fields(topic, batch_of(bytes(50_000))))
            assert not reply.throttle_time
            reply = await wire.ask("produce", version, **produce_fields(topic, batch_of(bytes(80_000))))
            throttled = reply.throttle_time.total_seconds()
            assert 0 < throttled < 0.4
            assert reply.responses[0].partition_responses[0].base_offset == 3
            # The next one waits for it.
            assert await send_fast(wire, version, topic, batch_of(b"b")) == 4
            assert asyncio.get_running_loop().time() - began >= throttled
        assert door.broker.metrics.topic("rain").batches_in == 5


async def test_a_quota_charges_each_request_once(tmp_path: Path) -> None:
    """One that the fast way leaves to the general one, too. What is in the bucket shows in how long it holds back."""
    rate = 1_000_000
    async with open_door(tmp_path, quota_produce_bytes=rate) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        sizes = []
        began = asyncio.get_running_loop().time()
        for text in (b"a" * 200_000, b"b" * 200_000, b"c" * 2_000_000):
            fields = produce_fields(topic, batch_of(text))
            sizes.append(len(wire.frame("produce", 9, **fields)))
            reply = await wire.ask("produce", 9, **fields)
        drained = (asyncio.get_running_loop().time() - began) * rate
        held_back = reply.throttle_time.total_seconds() * rate
        beyond = sum(sizes) - rate
        assert beyond - drained - rate / 1_000 <= held_back <= beyond


async def give_leader(door: KafkaDoor) -> None:
    """As a log does whose partition has another leader epoch."""
    partition = door.broker.topics.all["rain"].partitions[0]
    for call in door.broker.log.on_partition_changed:
        call(partition)


async def change_rights(door: KafkaDoor) -> None:
    door.broker.publisher.admissions.clear()


async def authenticate_again(door: KafkaDoor) -> None:
    first, *_ = door.connections
    door.broker.security.login(first.session, Identity("", "password"))


@pytest.mark.parametrize("cause", [give_leader, change_rights, authenticate_again])
async def test_what_changes_for_a_leader_or_a_user_is_asked_again(
    tmp_path: Path, cause: Callable[[KafkaDoor], Awaitable[None]]
) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as other:
        topic = await door.broker.topics.create("rain", 1)
        for client in (wire, other):
            await client.produce(9, topic, batch_of(b"a"))
            await send_fast(client, 9, topic, batch_of(b"a"))
        old = [cached.admission for cached in door.produce_cache.values()]
        await cause(door)
        assert not any(admission.valid for admission in old)
        for client in (wire, other):
            assert (await client.produce(9, topic, batch_of(b"b"))).error_code is NONE
            await send_fast(client, 9, topic, batch_of(b"c"))
        assert all(cached.admission.valid for cached in door.produce_cache.values())
        assert topic.partitions[0].end == 8


async def test_a_session_that_gets_another_user(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as other:
        topic = await door.broker.topics.create("rain", 1)
        _, connection = door.connections
        door.broker.security.login(connection.session, Identity("ann", "password"))
        for client in (wire, other):
            await client.produce(9, topic, batch_of(b"a"))
        kept = door.broker.publisher.admit(Session(), topic)
        door.broker.security.login(connection.session, Identity("bob", "password"))
        assert kept.valid
        await other.produce(9, topic, batch_of(b"b"))
        assert {user: cached.admission.valid for (user, _, _), cached in door.produce_cache.items()} == {
            "": True,
            "ann": False,
            "bob": True,
        }


async def test_a_session_that_closes_takes_nothing_from_the_others(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await door.broker.topics.create("rain", 1)
        async with await Wire.open(door) as other:
            for client in (wire, other):
                await client.produce(9, topic, batch_of(b"a"))
            _, closing = door.connections
        await until(lambda: len(door.connections) == 1)
        assert closing.cached is None
        await send_fast(wire, 9, topic, batch_of(b"b"))


async def test_what_is_remembered_is_by_user(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as other:
        topic = await door.broker.topics.create("rain", 2)
        for index in (0, 1):
            await wire.produce(9, topic, batch_of(b"a"), index=index)
        await other.produce(9, topic, batch_of(b"a"))
        _, connection = door.connections
        door.broker.security.login(connection.session, Identity("ann", "password"))
        # The next partition of the same topic is found among what all connections have sent, but for other users.
        await other.produce(9, topic, batch_of(b"a"), index=1)
        assert sorted(user for user, _, _ in door.produce_cache) == ["", "", "ann"]


async def test_a_change_while_a_request_waits_is_obeyed(tmp_path: Path) -> None:
    """It waits for room; meanwhile a window is set, and the ids of the topic must be loaded before it is appended."""
    async with open_door(tmp_path) as door, await Wire.open(door) as wire, await Wire.open(door) as other:
        config = {"overflow": "block", "overflow.group": "readers", "overflow.lag": "1"}
        topic = await door.broker.topics.create("rain", 1, config)
        batch = headed("headrace-dedup-id", b"1")
        assert (await wire.produce(9, topic, bytearray(batch))).base_offset == 0
        waiting = asyncio.create_task(wire.produce(9, topic, bytearray(batch)))
        await until(lambda: door.broker.metrics.topic("rain").blocked)
        await alter(door, deduplication_window_ms="60000")
        answer = await waiting
        assert (answer.error_code, answer.base_offset) == (NONE, 1)
        assert (await other.produce(9, topic, bytearray(batch))).base_offset == 1
