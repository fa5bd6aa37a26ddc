"""What real clients do with messages: publish, take, finish, requeue, touch, let time out."""

from __future__ import annotations

import time

import pytest
from tests.clients.nsq.clients import Client
from tests.clients.nsq.conftest import Doors


def numbered(count: int) -> list[str]:
    return [f"message {number}" for number in range(count)]


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("how", ["each", "batch"])
def test_what_is_published_is_delivered(doors: Doors, client: Client, topic: str, how: str) -> None:
    begin = now_ms()
    client.publish(doors.nsq, topic, numbered(50), how)
    found = client.read(topic, "c", 50, nsqd=doors.nsq, in_flight=20)
    assert sorted(each.body for each in found) == sorted(numbered(50))
    assert {each.attempts for each in found} == {1}
    assert len({each.id for each in found}) == 50
    assert {len(each.id) for each in found} == {16}
    for each in found:
        # In nanoseconds, of which whole milliseconds are kept; JavaScript's numbers round them.
        assert begin - 1 <= each.timestamp / 1e6 <= now_ms()
    doors.wait_until_settled(topic, "c")


def test_clients_read_each_other(doors: Doors, client: Client, pynsq: Client, topic: str) -> None:
    with (
        client.consume(topic, "one", nsqd=doors.nsq, count=2) as one,
        pynsq.consume(topic, "other", nsqd=doors.nsq, count=2) as other,
    ):
        doors.wait_for_clients(topic, "one")
        doors.wait_for_clients(topic, "other")
        client.publish(doors.nsq, topic, ["from one"])
        pynsq.publish(doors.nsq, topic, ["from the other"])
        for consuming in (one, other):
            assert {each.body for each in consuming.rest()} == {"from one", "from the other"}


def test_order_is_kept_to_a_single_consumer(doors: Doors, pynsq: Client, topic: str) -> None:
    pynsq.publish(doors.nsq, topic, numbered(200), "batch")
    found = pynsq.read(topic, "c", 200, nsqd=doors.nsq, in_flight=50)
    assert [each.body for each in found] == numbered(200)


def test_a_deferred_message_waits(doors: Doors, client: Client, topic: str) -> None:
    with client.consume(topic, "c", nsqd=doors.nsq, count=1) as consuming:
        doors.wait_for_clients(topic, "c")
        begin = now_ms()
        client.publish(doors.nsq, topic, ["later"], "defer", defer_ms=1500)
        (found,) = consuming.rest()
    assert found.body == "later"
    assert found.attempts == 1
    assert begin + 1500 <= found.at <= begin + 1500 + 20_000


def test_a_requeued_message_comes_again_at_once(doors: Doors, client: Client, topic: str) -> None:
    client.publish(doors.nsq, topic, numbered(3))
    with client.consume(topic, "c", nsqd=doors.nsq, in_flight=3, count=3, first="requeue", delay_ms=0) as consuming:
        found = consuming.rest()
    for body in numbered(3):
        assert [each.attempts for each in found if each.body == body] == [1, 2]
    doors.wait_until_settled(topic, "c")


def test_a_requeued_message_comes_again_after_its_delay(doors: Doors, client: Client, topic: str) -> None:
    client.publish(doors.nsq, topic, ["again"])
    with client.consume(topic, "c", nsqd=doors.nsq, count=1, first="requeue", delay_ms=1200) as consuming:
        first, second = consuming.rest()
    assert [first.attempts, second.attempts] == [1, 2]
    assert first.timestamp == second.timestamp
    assert 1200 <= second.at - first.at <= 1200 + 20_000


def test_touch_keeps_a_message_in_flight(doors: Doors, client: Client, topic: str) -> None:
    if client.name == "gnsq":
        pytest.skip("gnsq cannot ask for a message timeout")
    client.publish(doors.nsq, topic, ["slow"])
    work = {"first": "touch", "hold_ms": 5000, "msg_timeout_ms": 2000}
    with client.consume(topic, "c", nsqd=doors.nsq, count=1, **work) as consuming:
        (found,) = consuming.rest()
    assert found.attempts == 1
    doors.wait_until_settled(topic, "c")
    assert doors.channel(topic, "c")["timeout_count"] == 0


def test_a_message_that_is_not_answered_times_out(doors: Doors, client: Client, topic: str) -> None:
    if client.name == "gnsq":
        pytest.skip("gnsq cannot ask for a message timeout")
    client.publish(doors.nsq, topic, ["forgotten"])
    work = {"first": "hang", "msg_timeout_ms": 2000}
    with client.consume(topic, "c", nsqd=doors.nsq, count=1, in_flight=2, **work) as consuming:
        first, second = consuming.rest()
    assert [first.attempts, second.attempts] == [1, 2]
    assert 1900 <= second.at - first.at <= 20_000
    assert doors.channel(topic, "c")["timeout_count"] == 1


def test_a_client_that_backs_off_gets_everything_in_the_end(doors: Doors, client: Client, topic: str) -> None:
    client.publish(doors.nsq, topic, numbered(5))
    with client.consume(topic, "c", nsqd=doors.nsq, in_flight=5, count=5, first="fail", delay_ms=10) as consuming:
        found = consuming.rest()
    for body in numbered(5):
        assert [each.attempts for each in found if each.body == body] == [1, 2]


def test_a_killed_client_gives_back_what_it_held(doors: Doors, client: Client, topic: str) -> None:
    client.publish(doors.nsq, topic, numbered(5))
    with client.consume(topic, "c", nsqd=doors.nsq, in_flight=5, first="hang") as consuming:
        # Clients begin with a credit of 1 and may wait for an answer before they ask for more.
        assert consuming.take(1)[0].attempts == 1
        doors.wait_for_clients(topic, "c")
    found = client.read(topic, "c", 5, nsqd=doors.nsq, in_flight=5)
    assert sorted(each.body for each in found) == numbered(5)
    assert 2 in {each.attempts for each in found}
