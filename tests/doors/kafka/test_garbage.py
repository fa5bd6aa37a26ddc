"""No byte sequence may kill the door, leak, or make a handler raise: random and mutated frames of every API."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, frame, open_door, produce_fields
from tests.waiting import until

from headrace.doors.kafka.connection import Connection
from headrace.doors.kafka.door import KafkaDoor
from headrace.doors.kafka.registry import APIS

EDGES = [
    (api.key, version)
    for api in APIS.values()
    for version in sorted({api.oldest, api.flexible - 1, api.flexible, api.newest})
    if api.oldest <= version <= api.newest
]


def mutated(chance: random.Random, raw: bytes) -> bytes:
    """The same frame with a few bytes changed, cut or repeated, of the right length."""
    body = bytearray(raw[4:])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(10, len(body)) if len(body) > 10 else len(body) - 1
        match chance.randrange(4):
            case 0:
                body[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
            case 1:
                body[at : at + 4] = chance.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x80\0\0\0"])
            case 2:
                del body[at : at + chance.randint(1, 8)]
            case _:
                body[at:at] = body[at : at + chance.randint(1, 8)]
    return len(body).to_bytes(4, "big") + bytes(body)


@pytest.fixture(autouse=True)
def only_what_is_new() -> Iterator[None]:
    """A leak is among what a test made itself; to look through all that was there before takes most of its time."""
    gc.freeze()
    yield
    gc.unfreeze()


async def throw(door: KafkaDoor, frames: list[bytes]) -> None:
    """Send each on a connection of its own, and take whatever comes."""
    for raw in frames:
        wire = await Wire.open(door)
        wire.writer.write(raw)
        try:
            async with asyncio.timeout(0.02):
                await wire.reader.read(65_536)
        except (TimeoutError, ConnectionError):
            pass
        wire.writer.transport.abort()


def alive(door: KafkaDoor) -> list[Connection]:
    """The connections that somebody holds. Of this door alone: the report of a test that failed elsewhere may hold
    others."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Connection) and each.door is door]


async def check(door: KafkaDoor, logs: list[Any], problems: list[Any]) -> None:
    await until(lambda: not door.connections)
    async with await Wire.open(door) as wire:
        await wire.ask("api_versions", 0)
    await until(lambda: not door.connections)
    # A request of a connection that is gone may still be under way.
    await until(lambda: not alive(door))
    assert [each for each in logs if each["log_level"] in ("error", "critical")] == []
    assert problems == []


@pytest.mark.parametrize(("key", "version"), EDGES)
async def test_every_api_survives_garbage(tmp_path: Path, key: int, version: int) -> None:
    chance = random.Random(key * 100 + version)
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    with capture_logs() as logs:
        async with open_door(tmp_path, offsets_partitions=1) as door:
            await door.broker.topics.create("rain", 1)
            frames = [frame(key, version, 1, b"")]
            frames += [frame(key, version, 1, bytes(count)) for count in (1, 8, 40)]
            frames += [frame(key, version, 1, b"\xff" * count) for count in (1, 8, 40)]
            frames += [frame(key, version, 1, chance.randbytes(chance.randint(1, 60))) for _ in range(12)]
            frames += [
                frame(key, version, 1, bytes(chance.choice([0, 0, 0, 1, 2, 4]) for _ in range(chance.randint(1, 60))))
                for _ in range(12)
            ]
            await throw(door, frames)
            await check(door, logs, problems)


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
async def test_mutated_produce_requests(tmp_path: Path, version: int) -> None:
    await _throw_mutated(tmp_path, "produce", version)


@pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 18])
async def test_mutated_fetch_requests(tmp_path: Path, version: int) -> None:
    await _throw_mutated(tmp_path, "fetch", version)


async def _throw_mutated(tmp_path: Path, api: str, version: int) -> None:
    chance = random.Random(version)
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    with capture_logs() as logs:
        async with open_door(tmp_path) as door:
            topic = await door.broker.topics.create("rain", 2)
            async with await Wire.open(door) as wire:
                if api == "produce":
                    whole = wire.frame(api, version, **produce_fields(topic, batch_of(b"a" * 20)))
                else:
                    whole = wire.frame(api, version, **fetch_fields((topic, 0, 0), (topic, 1, 0), session_epoch=0))
            # The fast way must be as hard to fool as the general one: some frames follow a good one.
            frames = [mutated(chance, whole) for _ in range(60)]
            frames += [whole + mutated(chance, whole) for _ in range(60)]
            await throw(door, frames)
            await check(door, logs, problems)
