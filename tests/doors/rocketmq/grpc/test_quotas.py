"""Quotas over gRPC: TOO_MANY_REQUESTS, by the user or by the client id."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator

import pytest
from tests.doors.rocketmq.grpc.client import RawGrpc, message
from tests.doors.rocketmq.grpc.test_receive import Consumer

import headrace
from headrace.doors.rocketmq.grpc.protocol import Code


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    any_port = "127.0.0.1:0"
    with headrace.Broker(durability="async", rocketmq_grpc=any_port, http=any_port) as broker:
        yield broker


def set_quotas(broker: headrace.Broker, **quotas: float | None) -> None:
    body = json.dumps({"entity": {"client_id": "<default>"}, "quotas": quotas}).encode()
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"http://{broker.http}/v1/quotas", body, headers, method="PUT")
    urllib.request.urlopen(asked).close()


def test_sends_and_receives_are_refused(broker: headrace.Broker, grpc_client: RawGrpc, topic: str, group: str) -> None:
    assert grpc_client.send(topic, message(topic, b"before")).status.code == Code.OK
    set_quotas(broker, producer_byte_rate=100, consumer_byte_rate=100)
    assert grpc_client.send(topic, message(topic, bytes(2_000))).status.code == Code.OK
    for messages in ([message(topic, b"one")], [message(topic, b"one"), message(topic, b"two")]):
        answer = grpc_client.send(topic, *messages)
        assert answer.status.code == Code.TOO_MANY_REQUESTS
        assert "producer_byte_rate" in answer.status.message
    consumer = Consumer(broker.rocketmq_grpc, group, topic)
    with consumer.raw:
        # The large one may come alone: what is sent is counted behind it.
        statuses = [consumer.receive(wait=0)[0] for _ in range(4)]
        assert statuses[0] == Code.OK
        assert statuses[-1] == Code.TOO_MANY_REQUESTS
    set_quotas(broker, producer_byte_rate=None, consumer_byte_rate=None)
    assert grpc_client.send(topic, message(topic, b"after")).status.code == Code.OK


def test_loop_time_refuses_calls_and_answers_later(
    broker: headrace.Broker, grpc_client: RawGrpc, topic: str, group: str
) -> None:
    assert grpc_client.send(topic, message(topic, b"before")).status.code == Code.OK
    consumer = Consumer(broker.rocketmq_grpc, group, topic)
    with consumer.raw:
        status, found = consumer.receive(wait=5)
        assert status == Code.OK
        set_quotas(broker, request_percentage=0.001)
        refused = [grpc_client.send(topic, message(topic, b"more")).status for _ in range(20)][-1]
        assert refused.code == Code.TOO_MANY_REQUESTS
        assert "request_percentage" in refused.message
        assert [consumer.receive(wait=0)[0] for _ in range(4)][-1] == Code.TOO_MANY_REQUESTS
        # What a client has it keeps: that is done, and answered later.
        set_quotas(broker, request_percentage=0.01)
        began = time.monotonic()
        assert consumer.ack(found) == [Code.OK]
        for _ in range(10):
            assert consumer.raw.ask("Heartbeat", group=consumer.group).status.code == Code.OK
        assert time.monotonic() - began >= 0.5
        set_quotas(broker, request_percentage=None)
        assert grpc_client.send(topic, message(topic, b"after")).status.code == Code.OK
