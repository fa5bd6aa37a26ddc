"""Messages with deduplication ids through the NSQ door: over TCP by the extension, over HTTP by header or parameter."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients.nsq.raw import extended
from tests.doors.nsq.nsqd.test_http import Site
from tests.doors.nsq.nsqd.wired import Wire, dpub, mpub, open_door, pub
from tests.waiting import SECONDS, until

from headrace.broker.reading import bytes_now
from headrace.doors.nsq.nsqd.listener import Nsqd
from headrace.errors import StorageFailed
from headrace.format import records
from headrace.format.batch import batches_in
from headrace.format.partitioning import partition_of
from headrace.log.interface import Topic

NAME = "headrace-dedup-id"


def message(value: bytes, id: bytes | None, key: bytes | None = None) -> bytes:
    return extended(key, value, [("a", b"1"), (NAME, id)] if id is not None else [("a", b"1")])


def stored(topic: Topic | None, partition: int = 0) -> list[tuple[bytes | None, bytes | None, Any]]:
    """Key, value and headers of what a partition holds, some of whose offsets may be empty."""
    assert topic is not None
    place = topic.partitions[partition]
    found = []
    position = place.start
    while position < place.high_watermark:
        raw = bytes_now(place.read(position, 1 << 25))
        assert raw is not None
        for at, header in batches_in(raw):
            if header.last_offset >= position:
                found += [record[2:] for record in records.parse(raw[at : at + header.size], 1 << 24)]
                position = header.last_offset + 1
    return found


def values(door: Nsqd, topic: str = "t") -> list[bytes | None]:
    """Everything that the topic holds, by partition."""
    found = door.broker.topics.get(topic)
    return [each[1] for partition in found.partitions for each in stored(found, partition.index)] if found else []


@pytest.mark.parametrize("durability", ["sync", "async", "memory"])
async def test_a_pub_that_is_sent_again(tmp_path: Path, durability: str):
    async with open_door(tmp_path, durability=durability) as door, await Wire.open(door, headrace=1) as wire:
        for _ in range(3):
            assert await wire.ask(pub("t", message(b"one", b"1"))) == b"OK"
        # One behind the other: the kernel makes one batch of them.
        wire.send(b"".join(pub("t", message(b"%d" % (number % 4), b"id %d" % (number % 4))) for number in range(40)))
        for _ in range(40):
            assert await wire.response() == b"OK"
        assert await wire.ask(pub("t", message(b"plain", None))) == b"OK"
        await until(lambda: b"plain" in values(door))
        assert values(door) == [b"one", b"0", b"1", b"2", b"3", b"plain"]
        topic = door.broker.topics.get("t")
        assert topic is not None
        assert topic.config["deduplication.window.ms"] == "600000"
        assert door.broker.metrics.topic("t").duplicates == 38


async def test_another_connection_and_a_plain_one(tmp_path: Path):
    async with open_door(tmp_path, num_partitions=4) as door:
        for _ in range(5):
            async with await Wire.open(door, headrace=1) as wire:
                assert await wire.ask(pub("t", message(b"one", b"1"))) == b"OK"
        async with await Wire.open(door) as wire:
            # To a client without the extension the same bytes are only bytes.
            for _ in range(2):
                assert await wire.ask(pub("t", message(b"one", b"1"))) == b"OK"
        await until(lambda: len(values(door)) == 3)


async def test_mpub(tmp_path: Path):
    async with open_door(tmp_path, num_partitions=3) as door, await Wire.open(door, headrace=1) as wire:
        keys = [b"%d" % number for number in range(20)]
        for _ in range(2):
            assert await wire.ask(mpub("t", *(message(key, b"id" + key, key) for key in keys))) == b"OK"
        await until(lambda: len(values(door)) == 20)
        topic = door.broker.topics.get("t")
        assert topic is not None
        for partition in range(3):
            assert all(partition_of(key, 3) == partition for key, _, _ in stored(topic, partition) if key)
        assert await wire.ask(mpub("t", message(b"new", b"x"), message(b"again", b"id1"), message(b"", None))) == b"OK"
        await until(lambda: len(values(door)) == 22)


async def test_a_mpub_of_several_batches(tmp_path: Path):
    async with open_door(tmp_path) as door, await Wire.open(door, headrace=1) as wire:
        await wire.ask(pub("t", message(b"first", b"f")))
        await door.broker.topics.alter_config("t", lambda given: {**given, "max.message.bytes": "1000"})
        bodies = [message(b"%d" % number + b"x" * 300, b"%d" % number) for number in range(20)]
        for _ in range(2):
            assert await wire.ask(mpub("t", *bodies)) == b"OK"
        await until(lambda: len(values(door)) == 21)
        # Nothing of one whose last message is too large.
        refused = await wire.refused(mpub("t", message(b"lost", b"lost"), message(b"x" * 2_000, b"large")))
        assert refused.startswith("E_BAD_MESSAGE")
        async with await Wire.open(door, headrace=1) as other:
            assert await other.ask(pub("t", message(b"fence", None))) == b"OK"
            assert b"lost" not in values(door)
            assert await other.ask(pub("t", message(b"lost", b"lost"))) == b"OK"
        await until(lambda: values(door)[-1] == b"lost")


@pytest.mark.parametrize("id", [b"", b"x" * 1025])
@pytest.mark.parametrize("command", [pub, mpub, lambda topic, body: dpub(topic, 100, body)])
async def test_what_is_no_id(tmp_path: Path, command: object, id: bytes):
    async with open_door(tmp_path) as door, await Wire.open(door, headrace=1) as wire:
        assert callable(command)
        refused = await wire.refused(command("t", message(b"x", id)))
        assert refused.startswith("E_BAD_MESSAGE")
        assert "headrace-dedup-id" in refused
        assert values(door) == []


async def test_a_topic_without_a_window(tmp_path: Path):
    """`0` says never: the id is a header like any other, whatever it is."""
    async with open_door(tmp_path) as door, await Wire.open(door, headrace=1) as wire:
        await door.broker.topics.create("t", 1, {"deduplication.window.ms": "0"})
        for id in (b"1", b"1", b""):
            assert await wire.ask(pub("t", message(b"one", id))) == b"OK"
        await until(lambda: values(door) == [b"one"] * 3)


async def test_a_broker_that_sets_no_window(tmp_path: Path):
    async with open_door(tmp_path, deduplication_window_ms=0) as door, await Wire.open(door, headrace=1) as wire:
        for _ in range(2):
            assert await wire.ask(pub("t", message(b"one", b"1"))) == b"OK"
        await until(lambda: values(door) == [b"one"] * 2)


async def test_dpub(tmp_path: Path):
    async with open_door(tmp_path, num_partitions=2) as door, await Wire.open(door, headrace=1) as wire:
        for key in (None, b"k"):
            for _ in range(2):
                assert await wire.ask(dpub("t", 2_000, message(b"later", key or b"none", key))) == b"OK"
        assert door.broker.timer.pending == 2
        assert await wire.ask(pub("t", message(b"again", b"k"))) == b"OK"
        assert await wire.ask(dpub("t", 0, message(b"again", b"k"))) == b"OK"
        await until(lambda: len(values(door)) == 2)
        await asyncio.sleep(0.05)
        assert values(door) == [b"later"] * 2


async def test_a_topic_that_delays(tmp_path: Path):
    async with open_door(tmp_path) as door, await Wire.open(door, headrace=1) as wire:
        await door.broker.topics.create("t", 1, {"delay": "true"})
        due = str(door.broker.runtime.clock.now_ms() + 2_000).encode()
        later = extended(None, b"later", [("headrace-deliver-at", due), (NAME, b"1")])
        for _ in range(2):
            assert await wire.ask(mpub("t", message(b"now", b"2"), later)) == b"OK"
        assert values(door) == [b"now"]
        await until(lambda: values(door) == [b"now", b"later"])


async def test_after_a_restart(tmp_path: Path):
    for life in range(3):
        async with open_door(tmp_path) as door, await Wire.open(door, headrace=1) as wire:
            for id in (b"1", b"%d" % life):
                assert await wire.ask(pub("t", message(b"of life %d" % life, id))) == b"OK"
    async with open_door(tmp_path) as door:
        topic = door.broker.topics.get("t")
        assert topic is not None
        await topic.partitions[0].load()
        assert values(door) == [b"of life 0", b"of life 0", b"of life 2"]


async def test_ids_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with open_door(tmp_path) as door, await Wire.open(door, headrace=1) as wire:

        async def fail(*_: object) -> None:
            raise StorageFailed("no disk")

        monkeypatch.setattr(door.broker.deduplication._ids, "partition_of", fail)
        assert (await wire.refused(pub("t", message(b"x", b"1")))).startswith("E_PUB_FAILED PUB failed no disk")


# --- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.server.start()
    yield site
    await site.server.stop()


async def post(site: Site, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    def blocking() -> tuple[int, bytes]:
        asked = urllib.request.Request(f"http://{site.server.addresses['nsq-http']}{path}", body, headers)
        try:
            with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    return await asyncio.to_thread(blocking)


async def test_pub_over_http(site: Site):
    once = {"Headrace-Dedup-Id": "order 7"}
    for _ in range(2):
        assert await post(site, "/pub?topic=t", b"one", **once) == (200, b"OK")
    assert await post(site, "/pub?topic=t&dedup_id=order+7", b"one") == (200, b"OK")
    assert await post(site, "/pub?topic=t&dedup_id=other", b"two", **once) == (200, b"OK")
    for _ in range(2):
        assert await post(site, "/pub?topic=t", b"plain") == (200, b"OK")
    door = site.server
    topic = door.broker.topics.get("t")
    assert topic is not None
    found = stored(topic)
    assert [value for _, value, _ in found] == [b"one", b"two", b"plain", b"plain"]
    assert found[0][2] == [(NAME, b"order 7")]
    assert found[2][2] == []


async def test_deferred_over_http(site: Site):
    for _ in range(2):
        assert await post(site, "/pub?topic=t&defer=2000&dedup_id=1", b"later") == (200, b"OK")
    assert site.server.broker.timer.pending == 1
    await until(lambda: bool(stored(site.server.broker.topics.get("t"))))
    assert await post(site, "/pub?topic=t&dedup_id=1", b"later") == (200, b"OK")
    assert len(stored(site.server.broker.topics.get("t"))) == 1


@pytest.mark.parametrize("id", ["", "x" * 1025])
async def test_what_is_no_id_over_http(site: Site, id: str):
    status, body = await post(site, f"/pub?topic=t&dedup_id={id}", b"x")
    assert status == 400
    assert b"INVALID_DEDUP_ID" in body
