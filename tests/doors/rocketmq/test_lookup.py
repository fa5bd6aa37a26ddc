"""Messages that are found again: shown, sent back, dead, and gone with their topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import decode, decode_all
from tests.waiting import wait_until

import headrace
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command
from headrace.doors.rocketmq.messages import StoredMessage, offset_id, read_properties


def send_back(raw: Raw, message: StoredMessage, group: str, **more: Any) -> Command:
    fields = {"offset": message.physical_offset, "group": group, "delayLevel": 0, "originTopic": message.topic}
    return raw.ask(Request.CONSUMER_SEND_MSG_BACK, {**fields, "maxReconsumeTimes": 2, **more})


def only(raw: Raw, topic: str, offset: int = 0) -> StoredMessage:
    """The message at the offset of a retry topic, once it has come."""

    def pulled() -> list[StoredMessage]:
        return list(decode_all(raw.answer(raw.pull(topic, offset)).body))

    (message,) = wait_until(pulled)
    return message


def test_a_message_by_its_id(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"first", queue=1)
    raw.sent(topic, b"second", queue=1, properties={"TAGS": "t"})
    found = list(raw.read(topic, 1))
    for each in found:
        answer = raw.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": each.physical_offset})
        assert answer.code == Code.SUCCESS
        assert decode(answer.body)[0] == each
    for nothing in (0, -1, found[-1].physical_offset + 1, 1 << 62):
        answer = raw.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": nothing})
        assert (answer.code, answer.body) == (Code.SYSTEM_ERROR, b"")


def test_a_message_of_a_deleted_topic_is_gone_for_good(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"old")
    (old,) = raw.read(topic)
    assert raw.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == Code.SUCCESS
    raw.sent(topic, b"new")
    (new,) = raw.read(topic)
    assert (old.queue_offset, new.queue_offset) == (0, 0)
    assert old.physical_offset != new.physical_offset
    assert raw.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": old.physical_offset}).code == Code.SYSTEM_ERROR
    assert raw.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": "never-was"}).code == Code.SUCCESS


def test_a_message_that_is_sent_back_comes_again_and_then_is_dead(raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"work", flag=3, properties={"TAGS": "t", "KEYS": "k", "__SHARDINGKEY": "s"})
    (first,) = raw.read(topic)
    assert send_back(raw, first, group).code == Code.SUCCESS
    second = only(raw, f"%RETRY%{group}")
    assert (second.body, second.flag, second.reconsume_times) == (b"work", 3, 1)
    assert (second.born_ms, second.born_host) == (first.born_ms, first.born_host)
    properties = read_properties(second.properties)
    origin = offset_id(first.store_host, first.physical_offset)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == (topic, origin)
    assert (properties["TAGS"], properties["KEYS"], properties["DELAY"]) == ("t", "k", "3")
    assert send_back(raw, second, group).code == Code.SUCCESS
    third = only(raw, f"%RETRY%{group}", 1)
    assert third.reconsume_times == 2
    assert read_properties(third.properties)["ORIGIN_MESSAGE_ID"] == origin, "it stays that of the first"
    assert send_back(raw, third, group).code == Code.SUCCESS
    dead = only(raw, f"%DLQ%{group}")
    assert (dead.body, read_properties(dead.properties)["RETRY_TOPIC"]) == (b"work", topic)
    # A consumer may say that it wants a message no more.
    assert send_back(raw, first, group, delayLevel=-1).code == Code.SUCCESS
    assert only(raw, f"%DLQ%{group}", 1).body == b"work"


def test_what_cannot_be_sent_back(raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"x")
    (message,) = raw.read(topic)
    fields = {"offset": 12345, "group": group, "delayLevel": 0}
    assert raw.ask(Request.CONSUMER_SEND_MSG_BACK, fields).code == Code.SYSTEM_ERROR
    assert send_back(raw, message, "bad group").code == Code.INVALID_PARAMETER


def test_a_client_may_send_to_the_retry_topic_itself(raw: Raw, topic: str, group: str) -> None:
    retry = f"%RETRY%{group}"
    assert raw.sent(retry, b"again", properties={"RETRY_TOPIC": topic, "DELAY": "3"}, j=2, l=2).code == Code.SUCCESS
    again = only(raw, retry)
    assert (again.body, again.reconsume_times) == (b"again", 2)
    assert read_properties(again.properties)["RETRY_TOPIC"] == topic
    assert raw.sent(retry, b"too often", properties={"DELAY": "3"}, j=3, l=2).code == Code.SUCCESS
    assert only(raw, f"%DLQ%{group}").body == b"too often"


def test_a_retry_topic_is_waited_for_before_it_is_stored(
    broker: headrace.Broker, raw: Raw, namesrv: Raw, topic: str, group: str
) -> None:
    retry = f"%RETRY%{group}"
    route = {"topic": retry}
    assert namesrv.ask(Request.GET_ROUTEINFO_BY_TOPIC, route).code == Code.TOPIC_NOT_EXIST
    raw.heartbeat("one", {group: {topic: "*", retry: "*"}})
    assert namesrv.ask(Request.GET_ROUTEINFO_BY_TOPIC, route).code == Code.SUCCESS
    place = {"consumerGroup": group, "topic": retry, "queueId": 0}
    assert raw.ask(Request.GET_MAX_OFFSET, place).fields == {"offset": "0"}
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).code == Code.QUERY_NOT_FOUND
    assert raw.answer(raw.pull(retry, consumerGroup=group, sysFlag=0)).code == Code.PULL_NOT_FOUND
    waiting = raw.pull(retry, consumerGroup=group, sysFlag=2, suspendTimeoutMillis=60_000)
    raw.sent(topic, b"work")
    (message,) = raw.read(topic)
    assert send_back(raw, message, group).code == Code.SUCCESS
    answer = raw.answer(waiting)
    assert [each.body for each in decode_all(answer.body)] == [b"work"]


def test_what_an_orderly_consumer_sends_back_is_dead(raw: Raw, topic: str, group: str) -> None:
    """It tries again by itself, holding its locks, and sends back what it has given up."""
    raw.sent(topic, b"x")
    raw.heartbeat(group, {group: {topic: "*"}})
    again = {"properties": {"DELAY": "1", "RETRY_TOPIC": topic}, "j": 3, "l": 3}
    raw.sent(f"%RETRY%{group}", b"first", **again)
    queue = {"brokerName": "headrace", "topic": topic, "queueId": 0}
    asked = json.dumps({"clientId": group, "consumerGroup": group, "mqSet": [queue]}).encode()
    raw.ask(Request.LOCK_BATCH_MQ, {}, asked)
    raw.sent(f"%RETRY%{group}", b"locked", **again)
    raw.ask(Request.UNLOCK_BATCH_MQ, {}, asked)
    raw.sent(f"%RETRY%{group}", b"last", **again)
    raw.sent(f"%RETRY%{group}", b"beyond", **again | {"j": 4})
    assert [each.body for each in raw.read(f"%RETRY%{group}")] == [b"first", b"last"]
    dead = list(raw.read(f"%DLQ%{group}"))
    assert [each.body for each in dead] == [b"locked", b"beyond"]
    assert {read_properties(each.properties)["RETRY_TOPIC"] for each in dead} == {topic}


def test_how_often_a_group_tries_is_known_after_a_restart(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rocketmq": "127.0.0.1:0", "rocketmq_delay_levels": "0s"}
    again = {"properties": {"DELAY": "1"}, "j": 1}
    with headrace.Broker(tmp_path, **settings) as broker, Raw(broker.rocketmq) as raw:
        group = json.dumps({"groupName": "g", "retryMaxTimes": 0}).encode()
        assert raw.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group).code == Code.SUCCESS
    with headrace.Broker(tmp_path, **settings) as broker, Raw(broker.rocketmq) as raw:
        assert raw.sent("%RETRY%g", b"x", **again).code == Code.SUCCESS
        assert [each.body for each in raw.read("%DLQ%g")] == [b"x"]
