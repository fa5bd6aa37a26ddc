"""Quotas at the RocketMQ door: sends and pops are refused as SYSTEM_BUSY, pulls wait."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator

import pytest
from tests.doors.rocketmq.client import Raw

import headrace
from headrace.doors.rocketmq.codes import Code, Request


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    any_port = "127.0.0.1:0"
    with headrace.Broker(durability="async", rocketmq=any_port, rocketmq_namesrv=any_port, http=any_port) as broker:
        yield broker


def set_quota(broker: headrace.Broker, **quotas: float | None) -> None:
    body = json.dumps({"entity": {"user": "ANONYMOUS"}, "quotas": quotas}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{broker.http}/v1/quotas", body, headers, method="PUT")
    ) as answer:
        assert answer.status == 200


def test_sends_are_refused_until_there_is_room(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    for _ in range(3):
        raw.sent(topic, b"before")
    set_quota(broker, producer_byte_rate=100)
    assert raw.sent(topic, bytes(1_000)).code == Code.SUCCESS
    for properties in ({}, {"DELAY": "1"}):
        answer = raw.sent(topic, b"more", properties=properties)
        assert answer.code == Code.SYSTEM_BUSY
        assert "producer_byte_rate" in (answer.remark or "")
    set_quota(broker, producer_byte_rate=None)
    assert raw.sent(topic, b"again").code == Code.SUCCESS
    assert len(list(raw.read(topic, 0))) == 5


def test_pulls_wait_for_what_was_sent(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, bytes(3_000))
    raw.sent(topic, b"next")
    set_quota(broker, consumer_byte_rate=2_000)
    began = time.monotonic()
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "maxMsgNums": "1", "sysFlag": "4"}
    fields |= {"commitOffset": "0", "subscription": "*", "subVersion": "0", "suspendTimeoutMillis": "0"}
    for offset in range(2):
        answer = raw.ask(Request.PULL_MESSAGE, fields | {"queueOffset": str(offset)})
        assert answer.code == Code.SUCCESS
    assert time.monotonic() - began >= 0.4
    set_quota(broker, consumer_byte_rate=1)
    raw.ask(Request.PULL_MESSAGE, fields | {"queueOffset": "0"})
    waiting = raw.send(Request.PULL_MESSAGE, fields | {"queueOffset": "1"})
    set_quota(broker, consumer_byte_rate=None)
    assert raw.answer(waiting).code == Code.SUCCESS


def test_loop_time_refuses_what_is_asked_and_keeps_what_a_client_has(
    broker: headrace.Broker, raw: Raw, topic: str, group: str
) -> None:
    """So little that any request is more than the burst; the waits are short, because so is what a request takes."""
    raw.sent(topic, bytes(100))
    offsets = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"}
    of_topic = {"topic": topic, "queueId": "0"}
    assert raw.ask(Request.GET_MAX_OFFSET, of_topic).code == Code.SUCCESS
    set_quota(broker, request_percentage=0.001)
    for _ in range(20):
        raw.ask(Request.GET_MAX_OFFSET, of_topic)
    for answer in (raw.ask(Request.GET_MAX_OFFSET, of_topic), raw.sent(topic, b"more")):
        assert answer.code == Code.SYSTEM_BUSY
        assert "request_percentage" in (answer.remark or "")
    # Done and answered, before the connection is not read for a while.
    assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, offsets).code == Code.SUCCESS
    pull = {"consumerGroup": group, "topic": topic, "queueId": "0", "maxMsgNums": "1", "sysFlag": "4"}
    pull |= {"commitOffset": "0", "subscription": "*", "subVersion": "0", "suspendTimeoutMillis": "0"}
    waiting = raw.send(Request.PULL_MESSAGE, pull | {"queueOffset": "0"})
    set_quota(broker, request_percentage=None)
    assert raw.answer(waiting).code == Code.SUCCESS
    assert raw.ask(Request.GET_MAX_OFFSET, of_topic).code == Code.SUCCESS
    assert raw.sent(topic, b"after").code == Code.SUCCESS


def test_a_client_over_its_loop_time_is_not_read(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    offsets = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"}
    raw.sent(topic, b"one")
    assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, offsets).code == Code.SUCCESS
    # 0.1 ms of the loop a second, of which the first is the burst.
    set_quota(broker, request_percentage=0.01)
    began = time.monotonic()
    for _ in range(20):
        assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, offsets).code == Code.SUCCESS
    assert time.monotonic() - began >= 0.5
