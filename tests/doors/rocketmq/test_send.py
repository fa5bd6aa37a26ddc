"""Sending: every form of request, what is stored of it, and what is refused."""

from __future__ import annotations

import zlib

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import given_properties, read_offset_id
from tests.waiting import SECONDS, wait_until

import headrace
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import BINARY, JSON
from headrace.doors.rocketmq.messages import Host, write_properties
from headrace.format.compression import LZ4, ZSTD, compress


@pytest.mark.parametrize("serialization", [JSON, BINARY])
def test_a_message_is_stored_with_all_that_it_had(broker: headrace.Broker, topic: str, serialization: int) -> None:
    with Raw(broker.rocketmq, serialization) as raw:
        properties = {"TAGS": "red", "KEYS": "k1 k2", "color": "blå", "WAIT": "true"}
        answer = raw.sent(topic, b"body", queue=2, flag=7, properties=properties)
        assert answer.code == Code.SUCCESS
        assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("2", "0")
        assert answer.fields["transactionId"] == "0A"
        (message,) = raw.read(topic, 2)
    assert (message.topic, message.queue_id, message.queue_offset) == (topic, 2, 0)
    assert (message.body, message.flag, message.sys_flag, message.reconsume_times) == (b"body", 7, 0, 0)
    assert message.born_ms == 1_700_000_000_000
    assert message.born_host.ip == bytes((127, 0, 0, 1))
    assert abs(message.store_ms - message.born_ms) > 1_000, "it is the broker's clock"
    assert given_properties(message) == {"UNIQ_KEY": "0A", **properties}
    host, _, port = broker.rocketmq.rpartition(":")
    assert message.store_host == Host.of(host, int(port))
    assert read_offset_id(answer.fields["msgId"]) == (message.store_host, message.physical_offset)


def test_the_first_form_of_the_request(raw: Raw, topic: str) -> None:
    fields = {"producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 3, "queueId": 1}
    fields |= {"sysFlag": 0, "bornTimestamp": 5, "flag": 1, "properties": write_properties({"TAGS": "t"})}
    assert raw.ask(Request.SEND_MESSAGE, fields, b"one").code == Code.SUCCESS
    (message,) = raw.read(topic, 1)
    assert (message.body, message.flag, message.born_ms) == (b"one", 1, 5)
    # As many queues as were asked for.
    assert raw.ask(Request.GET_MAX_OFFSET, {"topic": topic, "queueId": 2}).code == Code.SUCCESS
    assert raw.ask(Request.GET_MAX_OFFSET, {"topic": topic, "queueId": 3}).code == Code.INVALID_PARAMETER


def test_sends_of_one_turn_share_a_batch_and_are_answered_alone(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"first")
    many = [raw.send_message(topic, b"%d" % number) for number in range(100)]
    refused = raw.send_message(topic, b"x" * 2_000_000)
    last = raw.send_message(topic, b"last")
    assert [int(raw.answer(each).fields["queueOffset"]) for each in many] == list(range(1, 101))
    answer = raw.answer(refused)
    assert answer.code == Code.MESSAGE_ILLEGAL
    assert "max.message.bytes" in (answer.remark or "")
    assert raw.answer(last).fields["queueOffset"] == "101"
    assert [each.body for each in raw.read(topic)][1:] == [*(b"%d" % number for number in range(100)), b"last"]


def test_a_message_that_its_topic_refuses_is_refused_alone(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for made in admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})]).values():
        made.result(SECONDS)
    assert raw.sent(topic, b"first", properties={"__SHARDINGKEY": "0"}).code == Code.SUCCESS
    # All of one turn, and so of one batch.
    keys = [{"__SHARDINGKEY": str(number)} if number % 3 else {} for number in range(30)]
    opaques = [raw.send_message(topic, b"x", properties=key) for key in keys]
    for key, opaque in zip(keys, opaques, strict=True):
        assert raw.answer(opaque).code == (Code.SUCCESS if key else Code.MESSAGE_ILLEGAL)


def test_an_id_makes_a_topic_look_for_duplicates(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"before")
    for _ in range(2):
        answer = raw.sent(topic, b"once", properties={"headrace-dedup-id": "a"})
        assert (answer.code, answer.fields["queueOffset"]) == (Code.SUCCESS, "1")
    assert [each.body for each in raw.read(topic)] == [b"before", b"once"]


def test_one_way_sends_have_no_answer(raw: Raw, topic: str) -> None:
    for number in range(5):
        raw.send_message(topic, b"%d" % number, one_way=True)
    raw.sent(topic, b"end")
    bodies = [b"0", b"1", b"2", b"3", b"4", b"end"]
    wait_until(lambda: sorted(each.body for each in raw.read(topic)) == bodies)


def test_a_batch_has_an_id_for_each_message(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"before")
    answer = raw.send_batch(topic, [b"a", b"b", b"c"])
    assert answer.fields["queueOffset"] == "1"
    ids = [read_offset_id(each)[1] for each in answer.fields["msgId"].split(",")]
    found = list(raw.read(topic))
    assert [each.body for each in found] == [b"before", b"a", b"b", b"c"]
    assert [each.physical_offset for each in found][1:] == ids
    for body in (b"", b"garbage"):
        fields = {"a": "p", "b": topic, "e": 0, "m": "true"}
        assert raw.ask(Request.SEND_BATCH_MESSAGE, fields, body).code == Code.MESSAGE_ILLEGAL


@pytest.mark.parametrize("size", [10_000, 400_000], ids=["on the loop", "off the loop"])
def test_compressed_bodies_are_unpacked(raw: Raw, topic: str, size: int) -> None:
    body = b"compress me " * (size // 12)
    packed = {1: zlib.compress(body), 0x301: zlib.compress(body), 0x101: compress(LZ4, body)}
    packed[0x201] = compress(ZSTD, body)
    for sys_flag, each in packed.items():
        assert raw.sent(topic, each, f=sys_flag | 2).code == Code.SUCCESS
    found = list(raw.read(topic))
    assert [each.body for each in found] == [body] * 4
    assert [each.sys_flag for each in found] == [2] * 4, "only the compression is gone"


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [(zlib.compress(bytes(5_000_000)), 1), (b"no zlib", 1), (zlib.compress(b"x" * 99)[:-5], 1), (b"", 0x401)],
    ids=["bomb", "damaged", "cut", "unknown"],
)
def test_compressed_bodies_that_are_refused(raw: Raw, topic: str, body: bytes, sys_flag: int) -> None:
    for _ in range(2):
        assert raw.sent(topic, body, f=sys_flag).code == Code.MESSAGE_ILLEGAL
        raw.sent(topic, b"fine")
    assert [each.body for each in raw.read(topic)] == [b"fine", b"fine"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"b": "bad$name"}, Code.INVALID_PARAMETER),
        ({"b": "TBW102"}, Code.INVALID_PARAMETER),
        ({"b": "__queues"}, Code.INVALID_PARAMETER),
        ({"e": 4}, Code.INVALID_PARAMETER),
        ({"e": "x"}, Code.INVALID_PARAMETER),
        ({"e": "9" * 30}, Code.INVALID_PARAMETER),
        ({"i": "x" * 40_000}, Code.MESSAGE_ILLEGAL),
    ],
)
def test_what_is_refused(raw: Raw, topic: str, fields: dict[str, object], code: Code) -> None:
    raw.sent(topic, b"fine")
    given = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", **fields}
    answer = raw.ask(Request.SEND_MESSAGE_V2, given, b"x")
    assert answer.code == code
    assert answer.remark
    assert [each.body for each in raw.read(topic)] == [b"fine"]


def test_a_body_over_the_limit(raw: Raw, topic: str) -> None:
    answer = raw.sent(topic, b"x" * 4_194_305)
    assert (answer.code, "rocketmq_max_message_size" in (answer.remark or "")) == (Code.MESSAGE_ILLEGAL, True)


def test_a_negative_queue_is_the_brokers_choice(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"x", queue=0)
    assert 0 <= int(raw.sent(topic, b"y", queue=-1).fields["queueId"]) < 4


def test_a_delayed_message_has_no_offset_yet(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"now")
    answer = raw.sent(topic, b"in an hour", properties={"DELAY": "6"})
    assert answer.code == Code.SUCCESS
    assert answer.fields["msgId"].endswith("F" * 16)
    # A level above the highest is the highest; one whose time is nothing is for now.
    assert raw.sent(topic, b"in an hour, too", properties={"DELAY": "99"}).fields["msgId"].endswith("F" * 16)
    raw.sent(topic, b"soon", properties={"DELAY": "1", "a": "b"})
    now, soon = raw.read(topic)
    assert (now.body, soon.body) == (b"now", b"soon")
    assert given_properties(soon) == {"UNIQ_KEY": "0A", "DELAY": "1", "a": "b"}


def test_requests_that_are_not_known(raw: Raw) -> None:
    answer = raw.ask(200_070)
    assert answer.code == Code.REQUEST_CODE_NOT_SUPPORTED
    assert "200070" in (answer.remark or "")


def test_what_changes_about_a_topic_is_obeyed_by_the_next_send(raw: Raw, topic: str) -> None:
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    for perm, code in ((6, Code.SUCCESS), (4, Code.NO_PERMISSION), (6, Code.SUCCESS)):
        assert raw.ask(Request.UPDATE_AND_CREATE_TOPIC, fields | {"perm": perm}).code == Code.SUCCESS
        assert [raw.sent(topic, b"x").code for _ in range(2)] == [code] * 2
    assert raw.sent(topic, b"x", queue=1).code == Code.INVALID_PARAMETER
    grown = {"readQueueNums": 2, "writeQueueNums": 2}
    assert raw.ask(Request.UPDATE_AND_CREATE_TOPIC, fields | grown).code == Code.SUCCESS
    assert raw.sent(topic, b"x", queue=1).fields["queueOffset"] == "0"
    assert raw.sent(topic, b"x").fields["queueOffset"] == "4"
    assert raw.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == Code.SUCCESS
    answers = [raw.sent(topic, b"x") for _ in range(2)]
    assert [each.fields["queueOffset"] for each in answers] == ["0", "1"]
    assert raw.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": read_offset_id(answers[1].fields["msgId"])[1]}).code == 0


def test_sends_of_different_forms_keep_their_order(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"first")
    opaques = []
    for number in range(30):
        body = b"%d" % number
        # The compressed ones take another way than the others.
        packed = number % 3 == 0
        opaques.append(raw.send_message(topic, zlib.compress(body) if packed else body, f=int(packed)))
    opaques.append(raw.send_message(topic, b"last"))
    assert [int(raw.answer(each).fields["queueOffset"]) for each in opaques] == list(range(1, 32))
    bodies = [each.body for each in raw.read(topic)]
    assert bodies == [b"first", *(b"%d" % number for number in range(30)), b"last"]
