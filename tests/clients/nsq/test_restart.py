"""What outlives a broker: deferred messages, positions, and consumers that come back. And a client that hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.clients.nsq.clients import Client
from tests.clients.nsq.conftest import Doors, NsqServing, nsq_serving
from tests.clients.nsq.raw import NOWHERE, Raw
from tests.clients.nsq.test_messages import now_ms, numbered

FLUSH_MS = 50


def end(served: NsqServing, crash: bool) -> None:
    if crash:
        served.serving.kill()
    else:
        served.serving.stop()


def flushed() -> None:
    """Wait until what queues know is on the disk. Nothing tells when it is, and a busy machine takes its time."""
    time.sleep(FLUSH_MS / 1000 + 1.2)


def serve(folder: Path) -> NsqServing:
    return nsq_serving(folder / "data", "--queue-flush-ms", str(FLUSH_MS))


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_a_deferred_message_outlives_the_broker(tmp_path: Path, client: Client, crash: bool) -> None:
    served = serve(tmp_path)
    with served.serving:
        begin = now_ms()
        client.publish(served.doors.nsq, "t", ["later"], "defer", defer_ms=4000)
        client.publish(served.doors.nsq, "t", ["while it is down"], "defer", defer_ms=1)
        client.publish(served.doors.nsq, "t", ["now"])
        end(served, crash)
        served.serving.start()
        found = {each.body: each for each in client.read("t", "c", 3, nsqd=served.doors.nsq)}
        assert set(found) == {"now", "while it is down", "later"}
        assert found["later"].at >= begin + 4000
        served.serving.stop()


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_a_requeued_delay_and_its_attempts_outlive_the_broker(tmp_path: Path, crash: bool) -> None:
    served = serve(tmp_path)
    with served.serving:
        raw = Raw(served.doors.nsq)
        raw.mpub("t", [b"patience"])
        raw.subscribe("t", "c", 1)
        assert raw.delivery().attempts == 1
        raw.close()
        raw = Raw(served.doors.nsq)
        raw.subscribe("t", "c", 1)
        second = raw.delivery()
        assert second.attempts == 2
        begin = now_ms()
        raw.send("REQ", second.id.decode(), 8000)
        raw.send_raw(NOWHERE)
        raw.frame()
        # Behind the fence, and a flush later, the broker has it for good.
        flushed()
        raw.close()
        end(served, crash)
        served.serving.start()
        assert served.doors.channel("t", "c")["deferred_count"] == 1
        raw = Raw(served.doors.nsq)
        raw.subscribe("t", "c", 1)
        third = raw.delivery()
        # What was delivered within the last flush interval may be counted once less, but this was not.
        assert third.attempts == 3
        assert begin + 8000 <= now_ms()
        raw.close()
        served.serving.stop()


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_consumers_find_a_restarted_broker(tmp_path: Path, client: Client, crash: bool) -> None:
    if client.name == "pynsq" and not crash:
        pytest.skip("pynsq lets ten seconds pass before it connects again: once is enough")
    served = serve(tmp_path)
    with served.serving:
        client.publish(served.doors.nsq, "t", ["before"])
        with client.consume("t", "c", lookup=served.doors.lookup_http, in_flight=5) as consuming:
            assert consuming.take(1)[0].body == "before"
            served.doors.wait_until_settled("t", "c")
            flushed()
            end(served, crash)
            served.serving.start()
            client.publish(served.doors.nsq, "t", numbered(10))
            assert {each.body for each in consuming.take(10)} == set(numbered(10))
            served.doors.wait_until_settled("t", "c")
        served.serving.stop()


def test_what_was_finished_stays_finished_over_restarts(tmp_path: Path) -> None:
    served = serve(tmp_path)
    bodies = [body.encode() for body in numbered(100)]
    with served.serving:
        Raw(served.doors.nsq).mpub("t", bodies)
        for number in range(4):
            raw = Raw(served.doors.nsq)
            raw.subscribe("t", "c", 1)
            for body in bodies[25 * number : 25 * number + 25]:
                each = raw.delivery()
                # Only the one after the last FIN of a life was on its way when that ended.
                assert each.body == body
                raw.send("FIN", each.id.decode())
            flushed()
            end(served, crash=bool(number % 2))
            raw.close()
            served.serving.start()
        served.doors.wait_until_settled("t", "c")


def test_a_client_that_hangs_is_let_go(doors: Doors, topic: str) -> None:
    """Two heartbeats without an answer, and what it held comes to others, long before a message timeout."""
    deaf = Raw(doors.nsq, heartbeat_interval=1000, msg_timeout=600_000)
    deaf.mpub(topic, [b"held"])
    deaf.subscribe(topic, "c", 1)
    assert deaf.delivery().attempts == 1
    alive = Raw(doors.nsq, heartbeat_interval=1000)
    alive.subscribe(topic, "c", 1)
    again = alive.delivery()
    assert (again.body, again.attempts) == (b"held", 2)
    alive.send("FIN", again.id.decode())
    doors.wait_for_clients(topic, "c", 1)
    doors.wait_until_settled(topic, "c")
    deaf.close()
    alive.close()


def test_an_idle_client_that_answers_stays(doors: Doors, topic: str) -> None:
    raw = Raw(doors.nsq, heartbeat_interval=1000)
    assert raw.ask("SUB", topic, "c") == b"OK"
    begin = time.monotonic()
    for _ in range(3):
        raw.answer_heartbeat()
    assert 2 <= time.monotonic() - begin < 10
    raw.send("RDY", 1)
    Raw(doors.nsq).mpub(topic, [b"still there"])
    assert raw.delivery().body == b"still there"
    raw.close()
