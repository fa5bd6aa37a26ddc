"""SendMessage, RecallMessage and EndTransaction, request by request."""

from __future__ import annotations

import gzip
import time
import zlib
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import given_properties
from tests.doors.rocketmq.grpc.client import RawGrpc, Resource, message
from tests.waiting import wait_until

import headrace
from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.grpc.protocol import Code, definition


def in_seconds(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(int((time.time() + seconds) * 1_000))
    return stamp


def read_all(raw: Raw, topic: str) -> list[Any]:
    return [each for queue in range(4) for each in raw.read(topic, queue=queue)]


def test_what_is_sent_is_read_over_remoting(grpc_client: RawGrpc, raw: Raw, topic: str) -> None:
    sent = message(topic, b"one", tag="red", keys=["a", "b"], user={"color": "blå"}, trace_context="00-1")
    answer = grpc_client.send(topic, sent)
    (entry,) = answer.entries
    assert (answer.status.code, entry.status.code, entry.offset) == (Code.OK, Code.OK, 0)
    assert entry.message_id == entry.transaction_id == sent.system_properties.message_id
    (found,) = read_all(raw, topic)
    properties = given_properties(found)
    expected = {"TAGS": "red", "KEYS": "a b", "color": "blå", "UNIQ_KEY": entry.message_id, "TRACE_CONTEXT": "00-1"}
    assert (found.body, properties) == (b"one", expected)
    assert found.born_ms == sent.system_properties.born_timestamp.seconds * 1_000


def test_messages_of_a_group_go_to_one_queue(grpc_client: RawGrpc, raw: Raw, topic: str) -> None:
    for number in range(8):
        body = b"%d" % number
        answer = grpc_client.send(topic, message(topic, body, definition.FIFO, message_group="one"))
        assert answer.entries[0].offset == number
    found = [[each.body for each in raw.read(topic, queue=queue)] for queue in range(4)]
    assert sorted(found) == [[], [], [], [b"%d" % number for number in range(8)]]


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_compressed_bodies_are_unpacked(grpc_client: RawGrpc, raw: Raw, topic: str, pack: Any) -> None:
    for body in (b"a" * 1_000, b"b" * 1_000_000):
        sent = message(topic, pack(body), body_encoding=definition.GZIP)
        assert grpc_client.send(topic, sent).status.code == Code.OK
    assert sorted(each.body for each in read_all(raw, topic)) == [b"a" * 1_000, b"b" * 1_000_000]
    bomb = message(topic, pack(bytes(4_194_305)), body_encoding=definition.GZIP)
    assert grpc_client.send(topic, bomb).status.code == Code.MESSAGE_BODY_TOO_LARGE
    damaged = message(topic, b"none", body_encoding=definition.GZIP)
    assert grpc_client.send(topic, damaged).status.code == Code.MESSAGE_CORRUPTED


def test_a_message_for_later_comes_then_or_is_recalled(grpc_client: RawGrpc, raw: Raw, topic: str) -> None:
    later = message(topic, b"later", definition.DELAY, delivery_timestamp=in_seconds(1))
    never = message(topic, b"never", definition.DELAY, delivery_timestamp=in_seconds(1))
    sent = grpc_client.send(topic, later)
    (entry,) = grpc_client.send(topic, never).entries
    assert sent.entries[0].recall_handle
    recalled = grpc_client.ask("RecallMessage", topic=Resource(name=topic), recall_handle=entry.recall_handle)
    assert (recalled.status.code, recalled.message_id) == (Code.OK, never.system_properties.message_id)
    again = grpc_client.ask("RecallMessage", topic=Resource(name=topic), recall_handle=entry.recall_handle)
    assert again.status.code == Code.MESSAGE_NOT_FOUND
    for handle in ("", "%", "xx", entry.recall_handle[:-9], "x" * 2_000):
        refused = grpc_client.ask("RecallMessage", topic=Resource(name=topic), recall_handle=handle)
        assert refused.status.code == Code.BAD_REQUEST, handle
    other = grpc_client.ask("RecallMessage", topic=Resource(name="other"), recall_handle=entry.recall_handle)
    assert other.status.code == Code.BAD_REQUEST
    wait_until(lambda: read_all(raw, topic))
    assert [each.body for each in read_all(raw, topic)] == [b"later"]


def end(client: RawGrpc, topic: str, id: str, resolution: int) -> int:
    asked = {"topic": Resource(name=topic), "message_id": "m", "transaction_id": id, "resolution": resolution}
    return int(client.ask("EndTransaction", **asked).status.code)


def test_transactions(grpc_client: RawGrpc, raw: Raw, topic: str) -> None:
    kept, dropped = (
        grpc_client.send(topic, message(topic, body, definition.TRANSACTION)).entries[0].transaction_id
        for body in (b"kept", b"dropped")
    )
    assert read_all(raw, topic) == []
    assert end(grpc_client, topic, kept, definition.COMMIT) == Code.OK
    assert end(grpc_client, topic, kept, definition.COMMIT) == Code.OK
    assert end(grpc_client, topic, dropped, definition.ROLLBACK) == Code.OK
    assert end(grpc_client, topic, dropped, definition.COMMIT) == Code.INVALID_TRANSACTION_ID
    assert [each.body for each in read_all(raw, topic)] == [b"kept"]
    assert end(grpc_client, topic, "", definition.COMMIT) == Code.INVALID_TRANSACTION_ID
    assert end(grpc_client, topic, "0" * 24, definition.COMMIT) == Code.INVALID_TRANSACTION_ID


def test_another_producer_of_the_topic_is_asked(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    with RawGrpc(broker.rocketmq_grpc) as gone:
        gone.be_producer(topic)
        sent = message(topic, b"orphan", definition.TRANSACTION, tag="red", keys=["k"])
        (entry,) = gone.send(topic, sent).entries
        gone.ask("NotifyClientTermination")
    with RawGrpc(broker.rocketmq_grpc) as other:
        asked = other.be_producer(topic).next().recover_orphaned_transaction_command
        assert (asked.transaction_id, asked.message.body) == (entry.transaction_id, b"orphan")
        system = asked.message.system_properties
        assert (system.message_id, system.tag, list(system.keys)) == (entry.message_id, "red", ["k"])
        assert end(other, topic, asked.transaction_id, definition.COMMIT) == Code.OK
    assert [each.body for each in read_all(raw, topic)] == [b"orphan"]


WRONG: dict[str, tuple[dict[str, Any], int]] = {
    "no body": ({"body": b""}, Code.MESSAGE_BODY_EMPTY),
    "large body": ({"body": bytes(4_194_305)}, Code.MESSAGE_BODY_TOO_LARGE),
    "blank tag": ({"tag": " "}, Code.ILLEGAL_MESSAGE_TAG),
    "two tags": ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
    "control in tag": ({"tag": "a\2"}, Code.ILLEGAL_MESSAGE_TAG),
    "blank key": ({"keys": [""]}, Code.ILLEGAL_MESSAGE_KEY),
    "control in key": ({"keys": ["\1"]}, Code.ILLEGAL_MESSAGE_KEY),
    "blank group": ({"message_group": " ", "kind": definition.FIFO}, Code.ILLEGAL_MESSAGE_GROUP),
    "long group": ({"message_group": "x" * 65, "kind": definition.FIFO}, Code.ILLEGAL_MESSAGE_GROUP),
    "reserved property": ({"user": {"TAGS": "x"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "control in property": ({"user": {"a": "\1"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "many properties": ({"user": {f"{n}": "" for n in range(129)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    "large properties": ({"user": {"a": "x" * 16_384}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    "no group": ({"kind": definition.FIFO}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "no time": ({"kind": definition.DELAY}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "a group too many": ({"message_group": "x"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "no priority": ({"kind": definition.PRIORITY}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "negative priority": ({"kind": definition.PRIORITY, "priority": -1}, Code.BAD_REQUEST),
    "a priority and a group": (
        {"kind": definition.PRIORITY, "priority": 1, "message_group": "x"},
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "lite topic": ({"kind": definition.LITE, "lite_topic": "x"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "unknown type": ({"kind": 77}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "far ahead": (
        {"kind": definition.DELAY, "delivery_timestamp": Timestamp(seconds=1 << 60)},
        Code.ILLEGAL_DELIVERY_TIME,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_message_is_refused(grpc_client: RawGrpc, raw: Raw, topic: str, name: str) -> None:
    fields, code = WRONG[name]
    assert Code.Name(grpc_client.send(topic, message(topic, **fields)).status.code) == Code.Name(code)
    # The right one beside it is not stored either.
    grpc_client.send(topic, message(topic, b"right"), message(topic, **fields))
    assert read_all(raw, topic) == []


def test_what_is_wrong_with_a_request_is_refused(grpc_client: RawGrpc, topic: str) -> None:
    no_id = message(topic)
    no_id.system_properties.message_id = ""
    assert grpc_client.send(topic).status.code == Code.MESSAGE_CORRUPTED
    assert grpc_client.send(topic, no_id).status.code == Code.ILLEGAL_MESSAGE_ID
    assert grpc_client.send(topic, message(topic), message("other")).status.code == Code.MESSAGE_CORRUPTED
    assert grpc_client.send(topic, *[message(topic)] * 1_025).status.code == Code.MESSAGE_CORRUPTED
    for name in ("", "a b", "TBW102", "x" * 128, "__half"):
        assert grpc_client.send(name, message(name)).status.code == Code.ILLEGAL_TOPIC, name
    odd = message(topic)
    odd.system_properties.born_timestamp.seconds = -(1 << 62)
    assert grpc_client.send(topic, odd).status.code == Code.OK


def test_a_topic_takes_messages_of_its_type(grpc_client: RawGrpc, raw: Raw, topic: str) -> None:
    asked = {"topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": "+message.type=FIFO"}
    raw.ask(Request.UPDATE_AND_CREATE_TOPIC, asked)
    refused = grpc_client.send(topic, message(topic, b"x")).status
    assert refused.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "topic type is FIFO, message type is NORMAL" in refused.message
    ordered = message(topic, b"y", definition.FIFO, message_group="one")
    assert grpc_client.send(topic, ordered).status.code == Code.OK
    route = grpc_client.ask("QueryRoute", topic=Resource(name=topic))
    assert [list(each.accept_message_types) for each in route.message_queues] == [[definition.FIFO]]
