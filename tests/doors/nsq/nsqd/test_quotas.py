"""Quotas at the NSQ door: who publishes too much is answered, and then not read; who consumes too much gets no more."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from pathlib import Path

from tests.doors.nsq.nsqd.wired import OK, Wire, dpub, mpub, open_door, pub
from tests.waiting import until

import headrace
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


async def test_who_takes_too_much_of_the_loop_is_answered_and_then_not_read(tmp_path: Path) -> None:
    """Commands and what they wait for are counted."""
    nobody = make_entity([("user", "nobody")])
    async with open_door(tmp_path, quota_throttle_max_ms=3_600_000) as door, await Wire.open(door) as other:
        quotas = door.broker.quotas
        await other.ask(pub("t", b"before"))
        # So little that a microsecond of the loop is more than the burst.
        quotas.apply(CLIENT, {Kind.REQUEST: 0.00001})
        async with await Wire.open(door, client_id="billing") as wire:
            (connection,) = (each for each in door.connections if each.session.client_id == "billing")
            for command in (pub("t", b"one"), mpub("t", b"two", b"three"), pub("new", b"made")):
                # Any change lets those go on that wait.
                quotas.apply(nobody, {Kind.PRODUCE: 1})
                wire.send(command)
                assert await wire.response() == b"OK"
                await until(lambda connection=connection: connection.held)
                wire.send(mpub("t", b"held"))
                assert await other.ask(pub("t", b"free")) == b"OK"
                assert connection.held
                quotas.apply(nobody, {Kind.PRODUCE: 1})
                assert await wire.response() == b"OK"
                await until(lambda connection=connection: connection.held)
            assert quotas.figures[Kind.REQUEST].throttled >= 6
            quotas.apply(CLIENT, {})
            assert await wire.ask(pub("t", b"after")) == b"OK"
            await until(lambda: not connection.held)


async def test_what_deliveries_take_of_the_loop_ends_them(tmp_path: Path) -> None:
    async with open_door(tmp_path, quota_throttle_max_ms=3_600_000) as door, await Wire.open(door) as other:
        quotas = door.broker.quotas
        async with await Wire.subscribed(door, "t", "c", ready=1, client_id="billing") as consumer:
            (connection,) = (each for each in door.connections if each.session.client_id == "billing")
            await until(lambda: connection.ready == 1)
            quotas.apply(CLIENT, {Kind.REQUEST: 0.00001})
            assert not connection.held
            await other.ask(pub("t", b"one"))
            await consumer.message()
            assert connection.consumer is not None
            assert connection.consumer.held
            assert connection.held
            quotas.apply(CLIENT, {})
            assert not connection.consumer.held
            assert not connection.held


async def test_nsqds_http_api_refuses_by_loop_time(tmp_path: Path) -> None:
    any_port = "127.0.0.1:0"
    with headrace.Broker(str(tmp_path), durability="async", nsq=any_port, nsq_http=any_port, http=any_port) as broker:

        def get(path: str) -> tuple[int, str, bytes]:
            try:
                answer = urllib.request.urlopen(f"http://{broker.nsq_http}{path}")
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                return answer.status, answer.headers.get("Retry-After", ""), answer.read()

        def look() -> None:
            set_anonymous_quota(broker, request_percentage=0.001)
            found = [get("/stats?format=json") for _ in range(20)]
            assert found[0][0] == 200
            status, after, body = found[-1]
            assert (status, int(after) > 0) == (429, True)
            assert b"request_percentage" in body
            assert get("/ping")[0] == 200
            set_anonymous_quota(broker, request_percentage=None)
            assert get("/stats?format=json")[0] == 200

        await asyncio.to_thread(look)


def set_anonymous_quota(broker: headrace.Broker, **quotas: float | None) -> None:
    body = json.dumps({"entity": {"user": "ANONYMOUS"}, "quotas": quotas}).encode()
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"http://{broker.http}/v1/quotas", body, headers, method="PUT")
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 200
