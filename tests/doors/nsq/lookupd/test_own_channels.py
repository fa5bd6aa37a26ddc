"""Channels that were made in a broker's own look-up before their topic: whichever door the topic comes by, none of
them misses its first message."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

import kafka
import pytest
from kafka.admin import KafkaAdminClient, NewTopic
from tests.clients.nsq.raw import Raw
from tests.doors.nsq.lookupd.test_two_brokers import ANY, ask
from tests.waiting import SECONDS, wait_until

import headrace

BODY = b"first"


def by_pub(broker: headrace.Broker) -> None:
    raw = Raw(broker.nsq)
    raw.mpub("t", [BODY])
    raw.close()


def by_sub(broker: headrace.Broker) -> None:
    raw = Raw(broker.nsq)
    raw.subscribe("t", "another", 0)
    raw.close()
    by_pub(broker)


def by_nsq_http(broker: headrace.Broker) -> None:
    ask(broker.nsq_http, "/pub?topic=t", BODY)


def by_nsq_create(broker: headrace.Broker) -> None:
    ask(broker.nsq_http, "/topic/create?topic=t", b"")
    by_pub(broker)


def by_http(broker: headrace.Broker) -> None:
    urllib.request.urlopen(f"http://{broker.http}/topics/t", BODY, timeout=SECONDS).close()


def by_kafka(broker: headrace.Broker) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.kafka)
    producer.send("t", BODY).get(20)
    producer.close()


def by_kafka_create(broker: headrace.Broker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
    admin.create_topics([NewTopic("t", 3, 1)])
    admin.close()
    by_kafka(broker)


@pytest.mark.parametrize(
    "birth",
    [by_pub, by_sub, by_nsq_http, by_nsq_create, by_http, by_kafka, by_kafka_create],
    ids=lambda by: by.__name__,
)
def test_no_channel_misses_the_first_message(birth: Callable[[headrace.Broker], None]) -> None:
    with headrace.Broker(nsq=ANY, nsq_http=ANY, http=ANY, lookup=ANY, lookup_http=ANY, durability="async") as broker:
        for channel in ("one", "two"):
            ask(broker.lookup_http, f"/channel/create?topic=t&channel={channel}", b"")
        birth(broker)
        for channel in ("one", "two"):
            raw = Raw(broker.nsq)
            raw.subscribe("t", channel, 1)
            assert raw.delivery().body == BODY
            raw.close()


def test_a_channel_that_another_producer_registered_is_known_too() -> None:
    with (
        headrace.Broker(nsq=ANY, nsq_http=ANY, lookup=ANY, lookup_http=ANY, durability="async") as broker,
        headrace.Broker(nsq=ANY, nsq_http=ANY, lookupd_tcp=broker.lookup, durability="async") as other,
    ):
        ask(other.nsq_http, "/topic/create?topic=t", b"")
        ask(other.nsq_http, "/channel/create?topic=t&channel=c", b"")
        wait_until(lambda: ask(broker.lookup_http, "/channels?topic=t")["channels"] == ["c"])
        by_nsq_http(broker)
        (topic,) = ask(broker.nsq_http, "/stats?format=json")["topics"]
        assert [(each["channel_name"], each["depth"]) for each in topic["channels"]] == [("c", 1)]


def test_a_channel_that_was_deleted_from_the_look_up_is_not_made() -> None:
    with headrace.Broker(nsq=ANY, nsq_http=ANY, lookup_http=ANY, durability="async") as broker:
        for channel in ("one", "two"):
            ask(broker.lookup_http, f"/channel/create?topic=t&channel={channel}", b"")
        ask(broker.lookup_http, "/channel/delete?topic=t&channel=two", b"")
        by_nsq_http(broker)
        (topic,) = ask(broker.nsq_http, "/stats?format=json")["topics"]
        assert [each["channel_name"] for each in topic["channels"]] == ["one"]
