"""Messages with a priority over gRPC: sent, routed and received."""

from __future__ import annotations

import pytest
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.client import RawGrpc, Resource, message
from tests.doors.rocketmq.grpc.test_receive import Consumer
from tests.doors.rocketmq.grpc.test_send import in_seconds

import headrace
from headrace.doors.rocketmq.codes import Code as RemotingCode
from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.grpc.protocol import Code, definition
from headrace.doors.rocketmq.messages import read_properties
from headrace.doors.rocketmq.records import PRIORITY


@pytest.fixture
def topic(raw: Raw, topic: str) -> str:
    """One of four queues whose messages have priorities."""
    fields = {
        "topic": topic,
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "attributes": "+message.type=PRIORITY",
    }
    assert raw.ask(Request.UPDATE_AND_CREATE_TOPIC, fields).code == RemotingCode.SUCCESS
    return topic


def test_the_highest_priority_is_received_first(
    broker: headrace.Broker, grpc_client: RawGrpc, raw: Raw, group: str, topic: str
) -> None:
    for priority in (0, 2, 1, 9):
        made = message(topic, b"%d" % priority, definition.PRIORITY, priority=priority)
        assert grpc_client.send(topic, made).status.code == Code.OK
    assert [[each.body for each in raw.read(topic, queue=queue)] for queue in range(4)] == [
        [b"0"],
        [b"1"],
        [b"2"],
        [b"9"],
    ]
    consumer = Consumer(broker.rocketmq_grpc, group, topic)
    with consumer.raw:
        _, found = consumer.receive()
        known = [(each.body, each.system_properties.priority, each.system_properties.message_type) for each in found]
        assert known == [(b"%d" % each, each, definition.PRIORITY) for each in (9, 2, 1, 0)]
    route = grpc_client.ask("QueryRoute", topic=Resource(name=topic))
    assert {tuple(each.accept_message_types) for each in route.message_queues} == {(definition.PRIORITY,)}


def test_the_type_is_that_of_the_properties(grpc_client: RawGrpc, raw: Raw, topic: str) -> None:
    # As RocketMQ's proxy sees it, a normal message with a priority has a priority.
    assert grpc_client.send(topic, message(topic, b"3", priority=3)).status.code == Code.OK
    refused = grpc_client.send(topic, message(topic, b"none")).status
    assert refused.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "topic type is PRIORITY, message type is NORMAL" in refused.message
    assert [each.body for each in raw.read(topic, queue=3)] == [b"3"]


def test_messages_of_other_types_have_none(grpc_client: RawGrpc, raw: Raw, topic: str) -> None:
    name = f"{topic}-any"
    grouped = message(name, b"x", definition.FIFO, message_group="one", priority=3)
    later = message(name, b"x", definition.DELAY, delivery_timestamp=in_seconds(-1), priority=3)
    for made in (grouped, later):
        assert grpc_client.send(name, made).status.code == Code.OK
    found = [each for queue in range(4) for each in raw.read(name, queue=queue)]
    assert len(found) == 2
    assert not any(PRIORITY in read_properties(each.properties) for each in found)
