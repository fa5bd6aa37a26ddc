"""ReceiveMessage and what settles: AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.client import RawGrpc, Resource, message
from tests.waiting import wait_until

import headrace
from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.grpc import renewals
from headrace.doors.rocketmq.grpc.protocol import Code, definition
from headrace.doors.rocketmq.messages import read_properties


class Consumer:
    """A consumer of one group and topic."""

    def __init__(self, address: str, group: str, topic: str, expression: str = "*") -> None:
        self.raw = RawGrpc(address)
        self.group, self.topic = Resource(name=group), Resource(name=topic)
        self.expression = definition.FilterExpression(type=definition.TAG, expression=expression)
        self.telemetry = self.raw.be_consumer(group, topic)

    def receive(self, count: int = 32, wait: float = 5, invisible: float = 20, **more: Any) -> tuple[int, list[Any]]:
        """The status, and the messages."""
        queue = definition.MessageQueue(topic=self.topic, id=-1)
        fields = {"group": self.group, "message_queue": queue, "filter_expression": self.expression} | more
        fields.setdefault("invisible_duration", Duration(seconds=int(invisible)))
        poll = Duration(nanos=int(wait % 1 * 1e9), seconds=int(wait))
        answers = self.raw.stream("ReceiveMessage", batch_size=count, long_polling_timeout=poll, **fields)
        kinds = [each.WhichOneof("content") for each in answers]
        assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"]
        return answers[0].status.code, [each.message for each in answers[1:-1]]

    def bodies(self, count: int = 32, wait: float = 5) -> list[bytes]:
        """What comes, which is acknowledged."""
        _, found = self.receive(count, wait)
        assert self.ack(found) == [Code.OK] * len(found)
        return [each.body for each in found]

    def ack(self, messages: Sequence[Any]) -> list[int]:
        """The status of each entry."""
        if not messages:
            return []
        entries = [
            {"message_id": each.system_properties.message_id, "receipt_handle": each.system_properties.receipt_handle}
            for each in messages
        ]
        answer = self.raw.ask("AckMessage", group=self.group, topic=self.topic, entries=entries)
        return [each.status.code for each in answer.entries]

    def change(self, handle: str, seconds: float) -> tuple[int, str]:
        """The status, and the new handle."""
        duration = Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
        asked = {"group": self.group, "topic": self.topic, "receipt_handle": handle, "invisible_duration": duration}
        answer = self.raw.ask("ChangeInvisibleDuration", **asked)
        return answer.status.code, answer.receipt_handle

    def forward(self, handle: str) -> int:
        asked = {"group": self.group, "topic": self.topic, "receipt_handle": handle, "delivery_attempt": 1}
        return int(self.raw.ask("ForwardMessageToDeadLetterQueue", **asked).status.code)


@pytest.fixture
def consumer(broker: headrace.Broker, group: str, topic: str) -> Iterator[Consumer]:
    made = Consumer(broker.rocketmq_grpc, group, topic)
    with made.raw:
        yield made


def handle_of(message: Any) -> str:
    return str(message.system_properties.receipt_handle)


def test_what_is_sent_is_received(consumer: Consumer, grpc_client: RawGrpc, topic: str) -> None:
    sent = message(topic, b"one", tag="red", keys=["a", "b"], user={"color": "blå"}, trace_context="00-1")
    grpc_client.send(topic, sent)
    code, (found,) = consumer.receive()
    assert code == Code.OK
    assert (found.body, dict(found.user_properties), found.topic.name) == (b"one", {"color": "blå"}, topic)
    was, now = sent.system_properties, found.system_properties
    assert (now.message_id, now.tag, list(now.keys), now.trace_context) == (was.message_id, "red", ["a", "b"], "00-1")
    assert (now.born_timestamp, now.delivery_attempt, now.queue_offset) == (was.born_timestamp, 1, 0)
    assert 0 < now.invisible_duration.seconds <= 20
    assert consumer.ack([found]) == [Code.OK]
    assert consumer.receive(wait=0) == (Code.MESSAGE_NOT_FOUND, [])
    assert consumer.ack([found]) == [Code.INVALID_RECEIPT_HANDLE]


def test_a_receive_that_waits_is_answered_by_a_send(
    broker: headrace.Broker, consumer: Consumer, grpc_client: RawGrpc, topic: str
) -> None:
    # The first is received before the topic is there.
    assert consumer.receive(wait=0.2)[0] == Code.MESSAGE_NOT_FOUND
    grpc_client.send(topic, b"zero")
    assert consumer.bodies() == [b"zero"]
    sending = threading.Timer(0.5, lambda: grpc_client.send(topic, b"one"))
    sending.start()
    begin = time.monotonic()
    assert consumer.bodies(wait=20) == [b"one"]
    assert time.monotonic() - begin < 15
    sending.join()


def test_each_message_goes_to_one_consumer(
    broker: headrace.Broker, consumer: Consumer, grpc_client: RawGrpc, group: str, topic: str
) -> None:
    for number in range(20):
        grpc_client.send(topic, b"%d" % number)
    other = Consumer(broker.rocketmq_grpc, group, topic)
    with other.raw:
        _, first = consumer.receive(7)
        _, second = other.receive()
        assert len(first) == 7
        assert len({each.body for each in (*first, *second)}) == 20
        # Settled by the other one.
        assert other.ack(first) == [Code.OK] * 7
        assert consumer.ack(second) == [Code.OK] * 13
        assert consumer.receive(wait=0)[1] == []
    # Another group has all of them.
    third = Consumer(broker.rocketmq_grpc, f"{group}-2", topic)
    with third.raw:
        assert len(third.bodies()) == 20


def test_what_is_not_settled_comes_again(consumer: Consumer, grpc_client: RawGrpc, topic: str) -> None:
    grpc_client.send(topic, b"one")
    _, (first,) = consumer.receive()
    code, handle = consumer.change(handle_of(first), 0.3)
    assert code == Code.OK
    assert consumer.ack([first]) == [Code.INVALID_RECEIPT_HANDLE], "the old handle is stale"
    assert consumer.receive(wait=0)[1] == []
    _, (second,) = consumer.receive()
    assert (second.body, second.system_properties.delivery_attempt) == (b"one", 2)
    assert consumer.change(handle, 1)[0] == Code.INVALID_RECEIPT_HANDLE
    # A lease that is lengthened is settled by its new handle.
    code, handle = consumer.change(handle_of(second), 1_000)
    second.system_properties.receipt_handle = handle
    assert consumer.ack([second]) == [Code.OK]
    assert consumer.receive(wait=0.5)[1] == []
    # At once.
    grpc_client.send(topic, b"two")
    _, (third,) = consumer.receive()
    assert consumer.change(handle_of(third), 0)[0] == Code.OK
    assert consumer.bodies() == [b"two"]


def test_tags(broker: headrace.Broker, grpc_client: RawGrpc, group: str, topic: str) -> None:
    # The hashes of Aa and BB are the same.
    for tag in ("Aa", "BB", "red"):
        grpc_client.send(topic, message(topic, tag.encode(), tag=tag))
    grpc_client.send(topic, b"none")
    for number, (expression, expected) in enumerate(
        (("Aa || red", {b"Aa", b"red"}), ("*", {b"Aa", b"BB", b"red", b"none"}))
    ):
        consumer = Consumer(broker.rocketmq_grpc, f"{group}-{number}", topic, expression)
        with consumer.raw:
            found: set[bytes] = set()
            wait_until(lambda: found.update(consumer.bodies(wait=0.2)) or found == expected)  # noqa: B023
            assert consumer.receive(wait=0)[1] == []


def test_dead_letters(consumer: Consumer, grpc_client: RawGrpc, raw: Raw, group: str, topic: str) -> None:
    sent = message(topic, b"dead", tag="red")
    grpc_client.send(topic, sent)
    _, (found,) = consumer.receive()
    assert consumer.forward(handle_of(found)) == Code.OK
    assert consumer.forward(handle_of(found)) == Code.INVALID_RECEIPT_HANDLE
    wait_until(lambda: list(raw.read(f"%DLQ%{group}")))
    (dead,) = raw.read(f"%DLQ%{group}")
    assert (dead.body, read_properties(dead.properties)["TAGS"]) == (b"dead", "red")


def test_a_message_that_fails_too_often_is_dead(
    consumer: Consumer, grpc_client: RawGrpc, raw: Raw, group: str, topic: str
) -> None:
    settings = {"groupName": group, "retryMaxTimes": 2}
    raw.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(settings).encode())
    grpc_client.send(topic, b"bad")
    for attempt in range(3):
        _, (found,) = consumer.receive()
        assert found.system_properties.delivery_attempt == attempt + 1
        consumer.change(handle_of(found), 0)
    wait_until(lambda: list(raw.read(f"%DLQ%{group}")))
    assert consumer.receive(wait=0)[1] == []


def test_sql92_and_long_names(broker: headrace.Broker, grpc_client: RawGrpc, topic: str) -> None:
    for number in range(6):
        grpc_client.send(topic, message(topic, b"%d" % number, user={"n": str(number)}))
    consumer = Consumer(broker.rocketmq_grpc, "g" * 200, topic)
    with consumer.raw:
        consumer.expression = definition.FilterExpression(type=definition.SQL, expression="n > 2 AND n <> 4")
        found = []

        def receive() -> bool:
            # They lie in several queues.
            found.extend(consumer.receive()[1])
            return len(found) >= 2

        wait_until(receive)
        assert sorted(each.body for each in found) == [b"3", b"5"]
        assert consumer.ack(found) == [Code.OK] * 2


def test_an_orderly_group_keeps_the_order_of_each_message_group(
    broker: headrace.Broker, grpc_client: RawGrpc, raw: Raw, group: str, topic: str
) -> None:
    settings = {"groupName": group, "consumeMessageOrderly": True}
    raw.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(settings).encode())
    for number in range(3):
        for name in ("a", "b"):
            grpc_client.send(topic, message(topic, f"{name}{number}".encode(), definition.FIFO, message_group=name))
    consumer = Consumer(broker.rocketmq_grpc, group, topic)
    with consumer.raw:
        # One of each group at a time; those behind it wait until it is settled.
        _, first = consumer.receive()
        assert sorted(each.body for each in first) == [b"a0", b"b0"]
        assert consumer.receive(wait=0)[1] == []
        (a0,) = (each for each in first if each.body == b"a0")
        consumer.ack([a0])
        _, (a1,) = consumer.receive()
        assert (a1.body, a1.system_properties.message_group) == (b"a1", "a")
        # One that comes again holds its group.
        consumer.change(handle_of(a1), 0)
        assert consumer.bodies() == [b"a1"]
        consumer.ack(first)
        found: list[bytes] = []
        wait_until(lambda: found.extend(consumer.bodies(wait=0.2)) or len(found) == 3)
        assert [each for each in found if each[:1] == b"b"] == [b"b1", b"b2"]


def test_the_leases_of_push_consumers_are_renewed(
    broker: headrace.Broker, grpc_client: RawGrpc, group: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "LOOK_MS", 100)
    monkeypatch.setattr("headrace.doors.rocketmq.grpc.receive.RENEWED_MS", 500)
    monkeypatch.setattr(renewals, "RENEWED_MS", 500)
    grpc_client.send(topic, b"slow")
    consumer = Consumer(broker.rocketmq_grpc, group, topic)
    with consumer.raw:
        _, (found,) = consumer.receive(auto_renew=True)
        assert consumer.receive(wait=1.5)[1] == []
        assert consumer.ack([found]) == [Code.OK]
        grpc_client.send(topic, b"left")
        consumer.receive(auto_renew=True)
        consumer.raw.ask("NotifyClientTermination", group=consumer.group)
    # Its client is gone: it is renewed no longer.
    other = Consumer(broker.rocketmq_grpc, group, topic)
    with other.raw:
        assert other.bodies(wait=10) == [b"left"]


def test_what_is_wrong_with_a_receive_is_refused(consumer: Consumer, grpc_client: RawGrpc, topic: str) -> None:
    grpc_client.send(topic, b"one")
    assert consumer.receive(invisible=9)[0] == Code.ILLEGAL_INVISIBLE_TIME
    assert consumer.receive(invisible=43_201)[0] == Code.ILLEGAL_INVISIBLE_TIME
    assert consumer.receive(group=Resource(name="a b"))[0] == Code.ILLEGAL_CONSUMER_GROUP
    assert consumer.receive(group=Resource(name="g" * 256))[0] == Code.ILLEGAL_CONSUMER_GROUP
    sql = definition.FilterExpression(type=definition.SQL, expression="a > ")
    assert consumer.receive(filter_expression=sql)[0] == Code.ILLEGAL_FILTER_EXPRESSION
    stranger = RawGrpc(consumer.raw.endpoints.addresses[0].host + ":" + str(consumer.raw.endpoints.addresses[0].port))
    with stranger:
        queue = definition.MessageQueue(topic=consumer.topic)
        answers = stranger.stream("ReceiveMessage", group=consumer.group, message_queue=queue)
        assert answers[0].status.code == Code.UNRECOGNIZED_CLIENT_TYPE
    _, (found,) = consumer.receive(0)
    for handle in ("", "xx", "AQ", handle_of(found)[:-4], handle_of(found).replace("A", "B"), "%"):
        assert consumer.change(handle, 10)[0] == Code.INVALID_RECEIPT_HANDLE, handle
        assert consumer.forward(handle) == Code.INVALID_RECEIPT_HANDLE
    assert consumer.change(handle_of(found), -1)[0] == Code.ILLEGAL_INVISIBLE_TIME
    other = consumer.raw.ask("AckMessage", group={"name": "other"}, topic=consumer.topic, entries=[{}])
    assert other.status.code == Code.INVALID_RECEIPT_HANDLE
    none = consumer.raw.ask("AckMessage", group=consumer.group, topic=consumer.topic)
    assert none.status.code == Code.BAD_REQUEST
    both = [{"receipt_handle": "xx"}, {"receipt_handle": handle_of(found)}]
    answer = consumer.raw.ask("AckMessage", group=consumer.group, topic=consumer.topic, entries=both)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [each.status.code for each in answer.entries] == [Code.INVALID_RECEIPT_HANDLE, Code.OK]


def test_a_receive_that_is_given_up_takes_nothing(consumer: Consumer, grpc_client: RawGrpc, topic: str) -> None:
    grpc_client.send(topic, b"zero")
    assert consumer.bodies() == [b"zero"]
    queue = definition.MessageQueue(topic=consumer.topic)
    call = consumer.raw.begin(
        "ReceiveMessage", group=consumer.group, batch_size=1, auto_renew=True, message_queue=queue
    )
    threading.Timer(0.5, call.cancel).start()
    with pytest.raises(grpc.RpcError):
        list(call)
    grpc_client.send(topic, b"one")
    assert consumer.bodies() == [b"one"]
