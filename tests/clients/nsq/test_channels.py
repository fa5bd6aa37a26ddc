"""Topics and channels as real clients see them."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request

import pytest
from tests.clients.nsq.clients import Client
from tests.clients.nsq.conftest import Doors
from tests.clients.nsq.test_messages import numbered
from tests.waiting import SECONDS, wait_until


def test_every_channel_gets_every_message(doors: Doors, client: Client, topic: str) -> None:
    with (
        client.consume(topic, "one", nsqd=doors.nsq, in_flight=10, count=20) as one,
        client.consume(topic, "two", nsqd=doors.nsq, in_flight=10, count=20) as two,
    ):
        doors.wait_for_clients(topic, "one")
        doors.wait_for_clients(topic, "two")
        client.publish(doors.nsq, topic, numbered(20), "batch")
        for consuming in (one, two):
            assert {each.body for each in consuming.rest()} == set(numbered(20))


def test_consumers_of_a_channel_share_it(doors: Doors, client: Client, topic: str) -> None:
    with (
        client.consume(topic, "c", nsqd=doors.nsq, in_flight=2) as one,
        client.consume(topic, "c", nsqd=doors.nsq, in_flight=2) as two,
    ):
        doors.wait_for_clients(topic, "c", 2)
        client.publish(doors.nsq, topic, numbered(300), "batch")
        wait_until(lambda: doors.channel(topic, "c")["depth"] + doors.channel(topic, "c")["in_flight_count"] == 0)
        shares = [[each.body for each in consuming.drain()] for consuming in (one, two)]
    assert sorted(shares[0] + shares[1]) == sorted(numbered(300))
    assert all(shares), "one consumer got nothing"


def test_many_messages_come_once_each(doors: Doors, client: Client, topic: str) -> None:
    """As long as nobody fails, at least once is once."""
    bodies = [str(number) for number in range(5_000)]
    running = [client.consume(topic, "c", nsqd=doors.nsq, in_flight=200) for _ in range(3)]
    try:
        doors.wait_for_clients(topic, "c", 3)
        for begin in range(0, len(bodies), 1_000):
            client.publish(doors.nsq, topic, bodies[begin : begin + 1_000], "batch")
        doors.wait_until_settled(topic, "c")
        found = [each for consuming in running for each in consuming.drain()]
    finally:
        for consuming in running:
            consuming.kill()
    assert sorted(int(each.body) for each in found) == list(range(5_000))
    assert {each.attempts for each in found} == {1}


def test_the_first_channel_gets_what_the_topic_held(doors: Doors, client: Client, topic: str) -> None:
    client.publish(doors.nsq, topic, ["before all channels"])
    assert [each.body for each in client.read(topic, "first", 1, nsqd=doors.nsq)] == ["before all channels"]
    with client.consume(topic, "second", nsqd=doors.nsq, count=1) as late:
        doors.wait_for_clients(topic, "second")
        client.publish(doors.nsq, topic, ["after the second"])
        assert [each.body for each in late.rest()] == ["after the second"]


def test_an_ephemeral_channel_goes_with_its_last_consumer(doors: Doors, client: Client, topic: str) -> None:
    client.publish(doors.nsq, topic, ["kept by the log, not by the channel"])
    # It waits for a second message: or it could be gone before it is looked at.
    with client.consume(topic, "c#ephemeral", nsqd=doors.nsq, count=2) as consuming:
        doors.wait_for_clients(topic, "c#ephemeral")
        client.publish(doors.nsq, topic, ["the last one"])
        consuming.rest()
    wait_until(lambda: not doors.channel(topic, "c#ephemeral"))


def test_an_ephemeral_topic(doors: Doors, client: Client, topic: str) -> None:
    name = f"{topic[-50:]}#ephemeral"
    with client.consume(name, "c#ephemeral", nsqd=doors.nsq, count=3, in_flight=3) as consuming:
        doors.wait_for_clients(name, "c#ephemeral")
        client.publish(doors.nsq, name, numbered(3))
        assert {each.body for each in consuming.rest()} == set(numbered(3))


def test_consumers_find_the_broker_by_its_lookup(doors: Doors, client: Client, topic: str) -> None:
    client.publish(doors.nsq, topic, numbered(3))
    found = client.read(topic, "c", 3, lookup=doors.lookup_http, in_flight=3)
    assert {each.body for each in found} == set(numbered(3))


def test_a_consumer_finds_a_topic_that_comes_later(doors: Doors, client: Client, topic: str) -> None:
    with client.consume(topic, "c", lookup=doors.lookup_http, in_flight=3, count=3) as consuming:
        assert consuming.silent(0.5)
        client.publish(doors.nsq, topic, numbered(3))
        assert {each.body for each in consuming.rest()} == set(numbered(3))


def test_a_paused_channel_delivers_nothing(doors: Doors, client: Client, topic: str) -> None:
    with client.consume(topic, "c", nsqd=doors.nsq, count=2) as consuming:
        doors.wait_for_clients(topic, "c")
        client.publish(doors.nsq, topic, ["before"])
        assert consuming.take(1)[0].body == "before"
        doors.ask(f"/channel/pause?topic={topic}&channel=c")
        client.publish(doors.nsq, topic, ["while paused"])
        assert consuming.silent(0.5)
        assert doors.channel(topic, "c")["paused"] is True
        doors.ask(f"/channel/unpause?topic={topic}&channel=c")
        assert [each.body for each in consuming.rest()] == ["while paused"]


def test_the_stats_that_a_nsqadmin_reads(doors: Doors, client: Client, topic: str) -> None:
    with client.consume(topic, "c", nsqd=doors.nsq, in_flight=5) as consuming:
        doors.wait_for_clients(topic, "c")
        client.publish(doors.nsq, topic, numbered(4))
        consuming.take(4)
        doors.wait_until_settled(topic, "c")
        found = doors.channel(topic, "c")
        assert found["message_count"] == 4
        assert found["client_count"] == 1
        (told,) = found["clients"]
        assert told["finish_count"] == 4
        assert told["message_count"] == 4
        assert told["in_flight_count"] == 0
        assert told["user_agent"].startswith({"pynsq": "pynsq/", "gnsq": "gnsq/"}.get(client.name, client.name))
    doors.wait_for_clients(topic, "c", 0)


@pytest.mark.parametrize("bad", ["has space", "x" * 65, "slash/ed"])
def test_bad_names_are_refused_over_http(doors: Doors, bad: str) -> None:
    asked = f"http://{doors.http}/topic/create?topic={urllib.parse.quote(bad)}"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(asked, method="POST"), timeout=SECONDS)
    assert refused.value.code == 400
    assert b"INVALID_TOPIC" in refused.value.read()
