"""What is asked of clients through the broker, and resets of positions."""

from __future__ import annotations

import json
from typing import Any

from tests.doors.rocketmq.client import Raw, load_tables
from tests.doors.rocketmq.formats import decode

import headrace
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.messages import offset_id

POSITIONS = b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"headrace","queueId":0,"topic":"t"}:7}}'


def consumer(broker: headrace.Broker, group: str, topic: str, client_id: str = "one") -> Raw:
    member = Raw(broker.rocketmq)
    member.heartbeat(client_id, {group: {topic: "*"}}, producers=[f"{group}-p"])
    member.wait_until_asked()
    return member


def reset(raw: Raw, group: str, topic: str, **more: Any) -> Any:
    fields = {"topic": topic, "group": group, "timestamp": 0, "isForce": "true", **more}
    return raw.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, fields)


def position(raw: Raw, group: str, topic: str) -> str:
    place = {"consumerGroup": group, "topic": topic, "queueId": 0, "setZeroIfNotFound": "false"}
    return raw.ask(Request.QUERY_CONSUMER_OFFSET, place).fields["offset"]


def commit(raw: Raw, group: str, topic: str, offset: int) -> int:
    place = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    return raw.ask(Request.UPDATE_CONSUMER_OFFSET, place).code


def test_who_is_connected(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    with consumer(broker, group, topic) as member:
        found = raw.json(Request.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        (connection,) = found["connectionSet"]
        assert (connection["clientId"], connection["language"], connection["version"]) == ("one", "JAVA", 513)
        assert (found["messageModel"], found["consumeType"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
        assert list(found["subscriptionTable"]) == [topic]
        producers = raw.json(Request.GET_PRODUCER_CONNECTION_LIST, producerGroup=f"{group}-p")
        assert producers["connectionSet"] == [connection]
        assert raw.json(Request.GET_ALL_PRODUCER_INFO)["data"][f"{group}-p"][0]["clientId"] == "one"
        member.ask(
            Request.UNREGISTER_CLIENT, {"clientID": "one", "producerGroup": f"{group}-p", "consumerGroup": group}
        )
        gone = raw.ask(Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": f"{group}-p"})
        assert gone.code == Code.SYSTEM_ERROR
        gone = raw.ask(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        assert gone.code == Code.CONSUMER_NOT_ONLINE


def test_a_member_is_asked_and_its_answer_passed_on(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"work")
    (message,) = raw.read(topic)
    to = {"consumerGroup": group, "clientId": "one"}
    assert raw.ask(Request.GET_CONSUMER_RUNNING_INFO, to).code == Code.SYSTEM_ERROR
    with consumer(broker, group, topic) as member:
        waiting = raw.send(Request.GET_CONSUMER_RUNNING_INFO, {**to, "jstackEnable": "true"})
        asked = member.wait_until_asked()
        assert (asked.code, asked.is_one_way, asked.fields["jstackEnable"]) == (307, False, "true")
        member.reply(asked, body=b"how it is")
        assert raw.answer(waiting).body == b"how it is"

        found = {**to, "msgId": offset_id(message.store_host, message.physical_offset)}
        waiting = raw.send(Request.CONSUME_MESSAGE_DIRECTLY, found)
        asked = member.wait_until_asked()
        assert decode(asked.body)[0] == message
        assert asked.fields["brokerName"] == "headrace"
        member.reply(asked, body=b"consumed")
        assert raw.answer(waiting).body == b"consumed"
        for bad in ("00", "x" * 32, "0" * 32):
            assert raw.ask(Request.CONSUME_MESSAGE_DIRECTLY, {**to, "msgId": bad}).code != Code.SUCCESS

        waiting = raw.send(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": topic, "group": group})
        member.reply(member.wait_until_asked(), body=POSITIONS)
        assert load_tables(raw.answer(waiting).body)["consumerTable"] == {"one": {"t:0": 7}}


def test_a_member_that_goes_owes_nothing() -> None:
    day_ms = 86_400_000
    with (
        headrace.Broker(rocketmq="127.0.0.1:0", rocketmq_client_timeout_ms=day_ms) as broker,
        Raw(broker.rocketmq) as raw,
    ):
        with consumer(broker, "g", "t") as member:
            waiting = raw.send(Request.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "one"})
            member.wait_until_asked()
        answer = raw.answer(waiting)
        assert (answer.code, "has closed" in (answer.remark or "")) == (Code.CONSUME_MSG_TIMEOUT, True)


def test_a_member_that_does_not_answer() -> None:
    settings: dict[str, Any] = {"rocketmq_client_requests_max": 2, "rocketmq_client_timeout_ms": 300}
    with headrace.Broker(rocketmq="127.0.0.1:0", **settings) as broker, Raw(broker.rocketmq) as raw:
        to = {"consumerGroup": "g", "clientId": "one"}
        with consumer(broker, "g", "t") as member:
            waiting = [raw.send(Request.GET_CONSUMER_RUNNING_INFO, to) for _ in range(3)]
            answers = [raw.answer(each) for each in waiting]
            assert sorted(each.code for each in answers) == [Code.SYSTEM_BUSY] + [Code.CONSUME_MSG_TIMEOUT] * 2
            late = member.wait_until_asked()
            member.reply(late, body=b"too late")
            late.opaque = 12_345
            member.reply(late, body=b"for what?")
            waiting = [raw.send(Request.GET_CONSUMER_RUNNING_INFO, to)]
            member.wait_until_asked()
            member.reply(member.wait_until_asked(), body=b"in time")
            assert raw.answer(waiting[0]).body == b"in time"


# --- resets -----------------------------------------------------------------------------------------------------------


def test_a_reset_without_members(raw: Raw, topic: str, group: str) -> None:
    for _ in range(3):
        raw.sent(topic, b"x")
    assert reset(raw, group, topic).code == Code.SUBSCRIPTION_GROUP_NOT_EXIST
    commit(raw, group, topic, 1)
    assert reset(raw, group, "nothing").code == Code.TOPIC_NOT_EXIST
    moved = load_tables(reset(raw, group, topic, timestamp=-1).body)["offsetTable"]
    assert (moved[f"{topic}:0"], position(raw, group, topic)) == (3, "3")
    times = [each.store_ms for each in raw.read(topic)]
    reset(raw, group, topic, timestamp=times[0])
    assert position(raw, group, topic) == "0"
    reset(raw, group, topic, timestamp=-1, isForce="false")
    assert position(raw, group, topic) == "0", "only back"
    assert reset(raw, group, topic, queueId=0, offset=2).code == Code.SUCCESS
    assert position(raw, group, topic) == "2"
    for outside in (4, 200):
        assert reset(raw, group, topic, queueId=0, offset=outside).code == Code.SYSTEM_ERROR
    assert reset(raw, group, topic, queueId=99, offset=0).code == Code.INVALID_PARAMETER
    assert commit(raw, group, topic, 3) == Code.SUCCESS
    assert position(raw, group, topic) == "3"


def test_members_go_on_from_where_their_group_was_reset_to(
    broker: headrace.Broker, raw: Raw, topic: str, group: str
) -> None:
    for _ in range(3):
        raw.sent(topic, b"x")
    commit(raw, group, topic, 3)
    with consumer(broker, group, topic) as member:
        waiting = member.pull(topic, 3, wait_ms=60_000, consumerGroup=group)
        elsewhere = member.pull(topic, 0, queue=1, wait_ms=200, consumerGroup="readers")
        assert reset(raw, group, topic, timestamp=0).code == Code.SUCCESS
        woken = member.answer(waiting)
        assert (woken.code, woken.fields["nextBeginOffset"]) == (Code.PULL_OFFSET_MOVED, "0")
        assert member.answer(elsewhere).code == Code.PULL_NOT_FOUND
        # It commits what it had read before, as clients do every few seconds.
        assert commit(member, group, topic, 3) == Code.SUCCESS
        assert position(raw, group, topic) == "0"
        pulled, found = member.pulled(topic, 0, consumerGroup=group)
        assert (pulled.code, len(found)) == (Code.SUCCESS, 3)
        assert commit(member, group, topic, 2) == Code.SUCCESS
        assert position(raw, group, topic) == "2"


def test_members_that_are_sent_their_positions() -> None:
    with (
        headrace.Broker(rocketmq="127.0.0.1:0", rocketmq_server_side_reset=False) as broker,
        Raw(broker.rocketmq) as raw,
    ):
        raw.sent("t", b"x")
        commit(raw, "g", "t", 1)
        assert reset(raw, "g", "t").code == Code.CONSUMER_NOT_ONLINE
        with consumer(broker, "g", "t") as member:
            assert reset(raw, "g", "t").code == Code.SUCCESS
            asked = member.wait_until_asked()
            assert (asked.code, asked.is_one_way) == (Request.RESET_CONSUMER_CLIENT_OFFSET, True)
            assert load_tables(asked.body)["offsetTable"]["t:0"] == 0
            assert json.loads(asked.fields["isForce"]) is True
        assert position(raw, "g", "t") == "1", "the members commit"
