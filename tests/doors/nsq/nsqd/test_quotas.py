"""Quotas at the NSQ door: who publishes too much is answered, and then not read; who consumes too much gets no more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.doors.nsq.nsqd.wired import OK, Wire, dpub, mpub, open_door, pub
from tests.waiting import until

from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.kinds import Kind

CLIENT = make_entity([("client-id", "billing")])


async def test_a_publisher_is_answered_and_then_not_read(tmp_path: Path) -> None:
    async with open_door(tmp_path, quota_throttle_max_ms=3_600_000) as door:
        quotas = door.broker.quotas
        async with await Wire.open(door, client_id="billing") as wire, await Wire.open(door, client_id="other") as free:
            assert await wire.ask(pub("t", b"before")) == b"OK"
            quotas.apply(CLIENT, {Kind.PRODUCE: 1})
            for command in (pub("t", b"one"), mpub("t", b"two", b"three"), dpub("t", 1, b"four")):
                # Not a PUB, which would be one batch with the PUB before it.
                wire.send(command + mpub("t", b"held"))
                assert await wire.response() == b"OK"
                (connection,) = (each for each in door.connections if each.session.client_id == "billing")
                await until(lambda connection=connection: connection.held)
                assert await free.ask(pub("t", b"free")) == b"OK"
                # Any change lets those go on that wait; this one does not concern them.
                quotas.apply(make_entity([("user", "nobody")]), {Kind.PRODUCE: 1})
                assert await wire.response() == b"OK"
                assert connection.held
                quotas.apply(CLIENT, {})
                quotas.apply(CLIENT, {Kind.PRODUCE: 1})


async def test_what_a_client_sent_before_it_closed_its_side_is_done(tmp_path: Path) -> None:
    async with open_door(tmp_path, quota_throttle_max_ms=50) as door:
        door.broker.quotas.apply(CLIENT, {Kind.PRODUCE: 1})
        async with await Wire.open(door, client_id="billing") as wire:
            wire.send(mpub("t", b"one") + mpub("t", b"two") + mpub("t", b"three"))
            wire.writer.write_eof()
            assert await wire.closed() == OK * 3


async def test_a_consumer_gets_no_more_until_it_may(tmp_path: Path) -> None:
    async with open_door(tmp_path, quota_throttle_max_ms=3_600_000) as door, await Wire.open(door) as wire:
        quotas = door.broker.quotas
        quotas.apply(CLIENT, {Kind.CONSUME: 10})
        async with await Wire.subscribed(door, "t", "c", ready=1, client_id="billing") as consumer:
            await wire.ask(mpub("t", *(b"%d" % number for number in range(5))))
            first = await consumer.message()
            consumer.send(b"FIN " + first.id + b"\n")
            (queue,) = door.broker.queues.all()
            await until(lambda: queue.figures().in_flight == 0)
            # It has room again, and gets nothing: another does.
            async with await Wire.subscribed(door, "t", "c", ready=1, client_id="other") as other:
                await other.message()
            assert quotas.figures[Kind.CONSUME].throttled == 1
            # Neither is it because it has read what was sent.
            (connection,) = (each for each in door.connections if each.session.client_id == "billing")
            connection.pause_writing()
            connection.resume_writing()
            assert connection.consumer is not None
            assert connection.consumer.held
            received = asyncio.ensure_future(consumer.message())
            quotas.apply(CLIENT, {})
            assert (await received).body
