"""SUB and what follows it over a socket: credit, settlement, timeouts, closing, channels that come and go."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.doors.nsq.nsqd.test_publish import extended
from tests.doors.nsq.nsqd.wired import Message, Wire, mpub, open_door, pub
from tests.waiting import until

from headrace.broker.queues import Queue
from headrace.doors.nsq.nsqd.listener import Nsqd
from headrace.format.message_id import decode_id, encode_id


async def publish(door: Nsqd, topic: str, *bodies: bytes) -> None:
    async with await Wire.open(door) as wire:
        assert await wire.ask(mpub(topic, *bodies)) == b"OK"


def queue_of(door: Nsqd, topic: str, channel: str) -> Queue:
    queue = door.broker.queues.get(topic, channel)
    assert queue is not None
    return queue


async def quiet(wire: Wire, seconds: float = 0.1) -> bool:
    """Whether nothing comes for a while."""
    try:
        async with asyncio.timeout(seconds):
            await wire.reader.readexactly(1)
    except TimeoutError:
        return True
    return False


def fin(message: Message) -> bytes:
    return b"FIN " + message.id + b"\n"


async def test_messages_come_with_time_attempts_and_id(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c") as wire:
        before = time.time_ns() // 1_000_000
        await publish(door, "t", b"hello", b"world")
        first, second = await wire.message(), await wire.message()
        assert [first.body, second.body] == [b"hello", b"world"]
        assert first.attempts == 1
        assert before <= first.timestamp // 1_000_000 <= time.time_ns() // 1_000_000
        assert decode_id(first.id) == (0, 0, 1)
        assert decode_id(second.id) == (0, 1, 1)


async def test_nothing_comes_before_rdy_and_no_more_than_it_says(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        await publish(door, "t", *[b"%d" % number for number in range(10)])
        assert await wire.ask(b"SUB t c\n") == b"OK"
        assert await quiet(wire)
        wire.send(b"RDY 2\n")
        first, second = await wire.message(), await wire.message()
        # A ceiling on what is in flight, not a countdown.
        assert await quiet(wire)
        wire.send(fin(first))
        third = await wire.message()
        assert third.body == b"2"
        assert await quiet(wire)
        wire.send(b"RDY 0\n" + fin(second) + fin(third))
        assert await quiet(wire)
        wire.send(b"RDY\n")
        assert (await wire.message()).body == b"3"


async def test_every_channel_gets_each_message_and_its_consumers_share_them(tmp_path: Path) -> None:
    async with (
        open_door(tmp_path) as door,
        await Wire.subscribed(door, "t", "a", ready=1) as one,
        await Wire.subscribed(door, "t", "a", ready=1) as two,
        await Wire.subscribed(door, "t", "b", ready=10) as other,
    ):
        await publish(door, "t", b"x", b"y")
        assert {(await one.message()).body, (await two.message()).body} == {b"x", b"y"}
        assert [(await other.message()).body for _ in range(2)] == [b"x", b"y"]


async def test_the_first_channel_gets_what_the_topic_held(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        await publish(door, "t", b"before")
        async with await Wire.subscribed(door, "t", "first") as first:
            assert (await first.message()).body == b"before"
            async with await Wire.subscribed(door, "t", "second") as second:
                assert await quiet(second)
                await publish(door, "t", b"after")
                assert (await second.message()).body == b"after"


async def test_a_run_of_fins(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c", ready=2500) as wire:
        await publish(door, "t", *[b"%d" % number for number in range(2000)])
        messages = [await wire.message() for _ in range(2000)]
        wire.send(b"".join(fin(each) for each in messages))
        queue = queue_of(door, "t", "c")
        await until(lambda: queue.figures().finished == 2000)
        assert queue.figures().in_flight == 0


async def test_settling_what_is_not_in_flight_is_an_error_that_leaves_the_connection(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c") as wire:
        await publish(door, "t", b"x", b"y", b"z")
        x, y, z = [await wire.message() for _ in range(3)]
        for number in (b"zzzzzzzzzzzzzzzz", b"----------------", b"!!!!!!!!!!!!!!!!", encode_id(5, 0, 1)):
            for name, more in ((b"FIN", b""), (b"TOUCH", b""), (b"REQ", b" 0")):
                error = await wire.refused(name + b" " + number + more + b"\n")
                expected = f"{name.decode()} {number.decode()} failed ID not in flight"
                assert error == f"E_{name.decode()}_FAILED {expected}"
        # In a run, the wrong ones are named and the right ones done.
        wire.send(fin(x) + b"FIN " + encode_id(0, 77, 1) + b"\n" + fin(y) + fin(x))
        assert await wire.error() == f"E_FIN_FAILED FIN {encode_id(0, 77, 1).decode()} failed ID not in flight"
        assert await wire.error() == f"E_FIN_FAILED FIN {x.id.decode()} failed ID not in flight"
        assert queue_of(door, "t", "c").figures().finished == 2
        # Another's message is not its own to settle.
        async with await Wire.subscribed(door, "t", "c") as other:
            for name, more in ((b"FIN", b""), (b"TOUCH", b""), (b"REQ", b" 0")):
                error = await other.refused(name + b" " + z.id + more + b"\n")
                expected = f"{name.decode()} {z.id.decode()} failed client does not own message"
                assert error == f"E_{name.decode()}_FAILED {expected}"
        wire.send(fin(z))
        await until(lambda: queue_of(door, "t", "c").figures().finished == 3)


async def test_a_requeued_message_comes_again(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c") as wire:
        await publish(door, "t", b"x")
        message = await wire.message()
        wire.send(b"REQ " + message.id + b" 0\n")
        again = await wire.message()
        assert (again.body, again.attempts) == (b"x", 2)
        assert again.timestamp == message.timestamp
        assert (await wire.refused(fin(message))).startswith("E_FIN_FAILED")
        began = asyncio.get_running_loop().time()
        wire.send(b"REQ " + again.id + b" 150\n")
        assert (await wire.message()).attempts == 3
        assert asyncio.get_running_loop().time() - began > 0.14


async def test_a_message_times_out_and_touch_keeps_it(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        wire = await Wire.subscribed(door, "t", "c", msg_timeout=2000)
        assert wire.told["msg_timeout"] == 2000
        await publish(door, "t", b"kept", b"lost")
        kept, lost = await wire.message(), await wire.message()
        began = asyncio.get_running_loop().time()
        coming = asyncio.ensure_future(wire.message())
        while not coming.done():
            wire.send(b"TOUCH " + kept.id + b"\n")
            await asyncio.wait([coming], timeout=0.1)
        again = await coming
        assert (again.body, again.attempts) == (b"lost", 2)
        assert asyncio.get_running_loop().time() - began > 1.8
        wire.send(fin(kept) + fin(again))
        await until(lambda: queue_of(door, "t", "c").figures().finished == 2)
        assert (await wire.refused(fin(lost))).startswith("E_FIN_FAILED")
        wire.writer.close()


async def test_what_a_lost_client_held_goes_to_others(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        wire = await Wire.subscribed(door, "t", "c")
        await publish(door, "t", b"x")
        await wire.message()
        wire.writer.transport.abort()
        async with await Wire.subscribed(door, "t", "c") as other:
            again = await other.message()
            assert (again.body, again.attempts) == (b"x", 2)


async def test_cls_ends_deliveries_and_lets_settle(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c", ready=1) as wire:
        await publish(door, "t", b"x", b"y")
        message = await wire.message()
        assert await wire.ask(b"CLS\n") == b"CLOSE_WAIT"
        # RDY is ignored from here on, whatever it says.
        wire.send(b"RDY 5\n" + b"RDY what\n" + b"TOUCH " + message.id + b"\n" + fin(message))
        await until(lambda: queue_of(door, "t", "c").figures().finished == 1)
        assert await quiet(wire)
        assert await wire.refused(b"CLS\n") == "E_INVALID cannot CLS in current state"
        assert await wire.closed() == b""


async def test_a_fatal_error_gives_back_what_was_in_flight(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c") as wire:
        await publish(door, "t", b"x")
        await wire.message()
        assert await wire.refused(b"RDY -1\n") == "E_INVALID RDY could not parse count -1"
        assert not queue_of(door, "t", "c").consumers
        assert await wire.closed() == b""
        async with await Wire.subscribed(door, "t", "c") as other:
            assert (await other.message()).body == b"x"


async def test_publishing_on_a_subscribed_connection(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c") as wire:
        wire.send(pub("t", b"to myself"))
        kinds = sorted([await wire.frame() for _ in range(2)])
        assert kinds[0] == (0, b"OK")
        assert Message(kinds[1][1]).body == b"to myself"


async def test_a_client_that_does_not_read_is_not_sent_more(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c", ready=2500) as wire:
        wire.reader._limit = 1  # so that the client's side stops reading too
        body = b"x" * 100_000
        for _ in range(40):
            await publish(door, "t", *[body] * 10)
        queue = queue_of(door, "t", "c")
        await until(lambda: queue.figures().in_flight > 0)
        await asyncio.sleep(0.2)
        assert queue.figures().in_flight < 200
        # Others go on, and what it settles is settled.
        async with await Wire.subscribed(door, "t", "c", ready=1) as other:
            other.send(fin(await other.message()))
            await until(lambda: queue.figures().finished == 1)


async def test_a_client_that_reads_again_gets_the_rest(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c", ready=2500) as wire:
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = b"x" * 100_000
        for _ in range(30):
            await publish(door, "t", *[body] * 10)
        queue = queue_of(door, "t", "c")
        await until(lambda: queue.figures().in_flight > 0)
        await asyncio.sleep(0.1)
        assert queue.figures().depth > 0
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(300):
            assert (await wire.message()).body == body
        assert queue.figures().depth == 0


async def test_sampling(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        wire = await Wire.subscribed(door, "t", "c", ready=2500, sample_rate=20)
        assert wire.told["sample_rate"] == 20
        await publish(door, "t", *[b"%d" % number for number in range(2000)])
        queue = queue_of(door, "t", "c")
        await until(lambda: queue.figures().depth == 0)
        assert 200 < queue.figures().in_flight < 600
        wire.writer.close()


async def test_a_deleted_channel_closes_its_clients(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.subscribed(door, "t", "c") as wire:
        await door.broker.queues.delete("t", "c")
        assert await wire.closed() == b""
        await until(lambda: not door.connections)


async def test_a_deleted_topic_closes_its_subscribers_and_is_born_again(tmp_path: Path) -> None:
    async with (
        open_door(tmp_path) as door,
        await Wire.subscribed(door, "t", "c") as wire,
        await Wire.open(door) as publisher,
    ):
        await publisher.ask(pub("t", b"old"))
        first = door.topics.get("t")
        await door.broker.topics.delete("t")
        assert (await wire.closed()).endswith(b"old")
        assert await publisher.ask(pub("t", b"new")) == b"OK"
        assert door.topics.get("t") not in (None, first)


async def test_an_ephemeral_topic_stays_for_a_channel_that_comes_before_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_door(tmp_path) as door:
        broker = door.broker
        async with await Wire.subscribed(door, "t#ephemeral", "c#ephemeral"):
            topic = broker.topics.all["t.ephemeral"]
            deleting: list[str] = []
            of = broker.queues.of

            def of_a_moment_ago(name: str) -> Any:
                """As it was when the last client left; whoever looks again sees the channel that has come."""
                deleting.append(name)
                return of(name) if len(deleting) > 1 else {}

            monkeypatch.setattr(broker.queues, "of", of_a_moment_ago)
            door.topics.delete_unused(topic)
            await until(lambda: len(deleting) == 2)
            await until(lambda: not door.topics._deleting)
            assert not topic.deleted


async def test_an_ephemeral_channel_goes_with_its_last_client(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        async with await Wire.subscribed(door, "t", "c#ephemeral"):
            assert list(door.broker.queues.of("t")) == ["c#ephemeral"]
        await until(lambda: not door.broker.queues.of("t"))


async def test_a_channel_that_is_made_for_a_client_that_is_being_closed_goes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        ensure, asked, go_on = door.broker.queues.ensure, asyncio.Event(), asyncio.Event()

        async def late(*what: Any, **more: Any) -> Queue:
            asked.set()
            await go_on.wait()
            return await ensure(*what, **more)

        monkeypatch.setattr(door.broker.queues, "ensure", late)
        wire.send(b"SUB t c#ephemeral\n")
        await asked.wait()
        (connection,) = door.connections
        connection.close_when_idle()
        go_on.set()
        assert await wire.closed() == b""
        assert door.broker.queues.of("t") == {}


async def test_an_ephemeral_topic_goes_with_its_last_channel(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        async with await Wire.subscribed(door, "t#ephemeral", "a#ephemeral") as wire:
            async with await Wire.subscribed(door, "t#ephemeral", "b#ephemeral"):
                await publish(door, "t#ephemeral", b"x")
                assert (await wire.message()).body == b"x"
            await until(lambda: len(door.broker.queues.of("t.ephemeral")) == 1)
            assert door.topics.get("t#ephemeral") is not None
        await until(lambda: door.topics.get("t#ephemeral") is None)


async def test_consumers_of_a_channel_have_a_bound(tmp_path: Path) -> None:
    async with open_door(tmp_path, nsq_max_channel_consumers=1) as door, await Wire.subscribed(door, "t", "c"):
        async with await Wire.open(door) as wire:
            error = await wire.refused(b"SUB t c\n")
            assert error == "E_SUB_FAILED SUB failed channel consumers for t:c exceeds limit of 1"
            assert await wire.closed() == b""
        async with await Wire.open(door) as wire:
            assert await wire.ask(b"SUB t other\n") == b"OK"


async def test_all_partitions_of_a_topic(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        await door.broker.topics.create("wide", 3)
        async with await Wire.subscribed(door, "wide", "c") as wire:
            for _ in range(3):
                await publish(door, "wide", b"x", b"y")
            messages = [await wire.message() for _ in range(6)]
            found = [decode_id(each.id) for each in messages]
            assert sorted(each[0] for each in found if each) == [0, 0, 1, 1, 2, 2]
            wire.send(b"".join(fin(each) for each in messages))
            await until(lambda: queue_of(door, "wide", "c").figures().finished == 6)


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_restart_delivers_what_was_not_settled(tmp_path: Path, durability: str) -> None:
    async with open_door(tmp_path, durability=durability) as door, await Wire.subscribed(door, "t", "c") as wire:
        await publish(door, "t", b"done", b"open")
        wire.send(fin(await wire.message()))
        await wire.message()
        await until(lambda: queue_of(door, "t", "c").figures().finished == 1)
    async with open_door(tmp_path, durability=durability) as door, await Wire.subscribed(door, "t", "c") as wire:
        message = await wire.message()
        assert message.body == b"open"
        assert await quiet(wire)


# --- the extension ---


async def test_key_and_headers_come_to_those_who_ask(tmp_path: Path) -> None:
    message = extended(b"key", b"value", (b"name", b"text"), (b"none", None))
    async with open_door(tmp_path) as door:
        async with await Wire.open(door, headrace=1) as publisher:
            await publisher.ask(pub("t", message))
            await publisher.ask(pub("t", extended(None, None)))
        async with await Wire.subscribed(door, "t", "asks", headrace=1) as wire:
            assert [(await wire.message()).body for _ in range(2)] == [message, extended(None, None)]
        topic = door.topics.get("t")
        assert topic is not None
        await door.broker.queues.ensure(topic, "plain", 0)
        async with await Wire.subscribed(door, "t", "plain") as wire:
            assert [(await wire.message()).body for _ in range(2)] == [b"value", b""]


async def test_an_error_text_goes_with_a_requeue(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        async with await Wire.subscribed(door, "t", "c", headrace=1) as wire:
            queue = queue_of(door, "t", "c")
            await door.broker.queues.configure(queue, {"max_attempts": 1})
            async with await Wire.open(door, headrace=1) as publisher:
                await publisher.ask(pub("t", extended(b"k", b"v")))
            message = await wire.message()
            wire.send(b"REQ " + message.id + b" 0\n\0\0\0\x0cno such user" + b"NOP\n")
            await until(lambda: queue.figures().dead == 1)
        async with await Wire.subscribed(door, "t.c.dead", "c", headrace=1) as wire:
            dead = (await wire.message()).body
            assert b"headrace-error\x18no such user" in dead
            assert dead.startswith(b"\x02k\x02v")


async def test_a_message_may_be_rejected_with_attempts_left(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        async with await Wire.subscribed(door, "t", "c", headrace=1) as wire:
            queue = queue_of(door, "t", "c")
            async with await Wire.open(door, headrace=1) as publisher:
                await publisher.ask(pub("t", extended(b"k", b"v")))
            message = await wire.message()
            wire.send(b"REQ " + message.id + b" -1\n\0\0\0\x08hopeless")
            await until(lambda: queue.figures().dead == 1)
            assert queue.figures().in_flight == queue.figures().depth == 0
        async with await Wire.subscribed(door, "t.c.dead", "c", headrace=1) as wire:
            assert b"headrace-error\x10hopeless" in (await wire.message()).body
        # A client that does not speak the extension has no such word.
        async with await Wire.subscribed(door, "t.c.dead", "d") as wire:
            async with await Wire.open(door, headrace=1) as publisher:
                await publisher.ask(pub("t.c.dead", extended(None, b"v")))
            refused = await wire.refused(b"REQ " + (await wire.message()).id + b" -1\n")
            assert refused == "E_INVALID REQ could not parse timeout -1"


async def test_the_largest_message_dies_and_does_not_hold_up_others(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        largest = b"x" * door.broker.config.nsq_max_msg_size
        async with await Wire.subscribed(door, "t", "c") as wire, await Wire.open(door) as other:
            queue = queue_of(door, "t", "c")
            await door.broker.queues.configure(queue, {"max_attempts": 1})
            for body in (largest, b"behind"):
                assert await other.ask(pub("t", body)) == b"OK"
                message = await wire.message()
                assert message.body == body
                wire.send(b"REQ " + message.id + b" 0\n")
            await until(lambda: queue.dead == 2)
            assert queue.unsettled == 0
        async with await Wire.subscribed(door, "t.c.dead", "again") as wire:
            assert [(await wire.message()).body for _ in range(2)] == [largest, b"behind"]
