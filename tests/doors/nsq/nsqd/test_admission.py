"""What changes between two PUBs of one connection, the second of which would take the fast way, is obeyed by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.doors.nsq.nsqd.wired import Wire, open_door, pub

from headrace.doors.nsq.nsqd.listener import Nsqd
from headrace.log.interface import Topic


async def begin(door: Nsqd, wire: Wire) -> Topic:
    """A topic that the connection publishes to."""
    for _ in range(2):
        assert await wire.ask(pub("t", b"x" * 400)) == b"OK"
    topic = door.topics.get("t")
    assert topic is not None
    return topic


async def guard(door: Nsqd, topic: Topic) -> None:
    config = {"overflow": "reject", "overflow.group": "readers", "overflow.lag": "1"}
    await door.broker.topics.alter_config("t", lambda own: {**own, **config})


async def limit_size(door: Nsqd, topic: Topic) -> None:
    await door.broker.topics.alter_config("t", lambda own: {**own, "max.message.bytes": "300"})


async def turn_off(door: Nsqd, topic: Topic) -> None:
    topic.partitions[0].fail("its disk is gone")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cause", "answer"),
    [
        (guard, "E_PUB_FAILED PUB failed topic 't' is full"),
        (limit_size, "E_BAD_MESSAGE PUB "),
        (turn_off, "E_PUB_FAILED PUB failed t-0 is offline: its disk is gone"),
    ],
)
async def test_what_refuses_a_publish(
    tmp_path: Path, cause: Callable[[Nsqd, Topic], Awaitable[None]], answer: str
) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await begin(door, wire)
        (connection,) = door.connections
        assert connection.target is not None
        admission = connection.target.admission
        await cause(door, topic)
        assert not admission.valid
        assert (await wire.refused(pub("t", b"x" * 400))).startswith(answer)
        assert topic.partitions[0].end == 2


async def test_a_topic_that_was_deleted_and_made_again(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        old = await begin(door, wire)
        await door.broker.topics.delete("t")
        new = await begin(door, wire)
        assert new is not old
        assert (old.partitions[0].end, new.partitions[0].end) == (2, 2)


async def test_a_topic_that_has_grown(tmp_path: Path) -> None:
    """A connection's own partition is among all that there are."""
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        topic = await begin(door, wire)
        await door.broker.topics.grow("t", 5)
        assert await wire.ask(pub("t", b"y")) == b"OK"
        (connection,) = door.connections
        own = connection.session.partition_of(topic)
        assert own is not topic.partitions[0]
        assert own.end == 1
