"""Clients in groups: heartbeats, lists of members, notices, locks, and Kafka's members beside them."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.doors.rocketmq.client import Raw
from tests.waiting import SECONDS, wait_until

import headrace
from headrace.doors.rocketmq.codes import Code, Request


def members(raw: Raw, group: str) -> list[str]:
    answer = raw.ask(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return json.loads(answer.body)["consumerIdList"] if answer.code == Code.SUCCESS else []


def test_members_are_those_whose_heartbeats_came(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    assert raw.ask(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}).code == Code.SYSTEM_ERROR
    raw.heartbeat("one", {group: {topic: "*"}})
    assert members(raw, group) == ["one"]
    assert raw.wait_until_asked().fields == {"consumerGroup": group}
    with Raw(broker.rocketmq) as other:
        other.heartbeat("two", {group: {topic: "*"}})
        for each in (raw, other):
            notice = each.wait_until_asked()
            assert (notice.code, notice.is_one_way) == (Request.NOTIFY_CONSUMER_IDS_CHANGED, True)
            assert notice.fields == {"consumerGroup": group}
        assert members(raw, group) == members(other, group) == ["one", "two"]
        # The same once more is no news.
        raw.heartbeat("one", {group: {topic: "*"}})
        assert not raw.asked
        assert not other.asked
    # The end of its connection takes a member out.
    assert raw.wait_until_asked().fields == {"consumerGroup": group}
    assert members(raw, group) == ["one"]
    assert raw.ask(Request.UNREGISTER_CLIENT, {"clientID": "one", "consumerGroup": group}).code == Code.SUCCESS
    assert members(raw, group) == []


def test_another_connection_of_a_client_takes_its_place(
    broker: headrace.Broker, raw: Raw, topic: str, group: str
) -> None:
    with Raw(broker.rocketmq) as old:
        old.heartbeat("one", {group: {topic: "*"}})
        raw.heartbeat("one", {group: {topic: "*"}})
    with Raw(broker.rocketmq) as watching:
        watching.heartbeat("two", {group: {topic: "*"}})
        assert members(watching, group) == ["one", "two"]


def test_a_client_without_heartbeats_is_closed() -> None:
    settings: dict[str, Any] = {"rocketmq": "127.0.0.1:0", "rocketmq_client_expiry_ms": 200}
    with headrace.Broker(**settings) as broker, Raw(broker.rocketmq) as silent, Raw(broker.rocketmq) as quiet:
        # One that never sent a heartbeat, as a tool, stays.
        assert members(quiet, "g") == []
        silent.heartbeat("one", {"g": {"t": "*"}})
        try:
            while silent.receive():
                pass
        except ConnectionError:
            pass
        wait_until(lambda: members(quiet, "g") == [])


def test_heartbeats_that_make_no_sense(raw: Raw, topic: str, group: str) -> None:
    for body in (b"", b"[]", b'{"clientID":""}', b'{"clientID":"c","consumerDataSet":[1]}', b'{"clientID":"\\ud800"}'):
        assert raw.ask(Request.HEART_BEAT, {}, body).code != Code.SUCCESS, body
    refused = raw.heartbeat("one", {group: {"bad$name": "*"}, f"{group}-2": {topic: "*"}})
    assert refused.code == Code.INVALID_PARAMETER
    assert members(raw, f"{group}-2") == ["one"], "the groups beside it have their member"


def test_locks(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    queues = [{"brokerName": "headrace", "topic": topic, "queueId": number} for number in range(3)]

    def lock(client: str, *numbers: int, code: int = Request.LOCK_BATCH_MQ) -> list[int]:
        asked = {"clientId": client, "consumerGroup": group, "mqSet": [queues[number] for number in numbers]}
        answer = raw.ask(code, {}, json.dumps(asked).encode())
        assert answer.code == Code.SUCCESS
        locked = json.loads(answer.body)["lockOKMQSet"] if answer.body else []
        assert all(each in queues for each in locked)
        return [each["queueId"] for each in locked]

    assert lock("one", 0) == [], "there is no such group"
    raw.heartbeat("one", {group: {topic: "*"}})
    assert lock("one", 0) == [], "there is no such queue"
    raw.sent(topic, b"x")
    assert lock("one", 0, 1) == [0, 1]
    assert lock("two", 0, 1, 2) == [2]
    assert lock("one", 0) == [0], "once more"
    lock("two", 0, code=Request.UNLOCK_BATCH_MQ)
    assert lock("two", 0) == [], "it was not its own"
    lock("one", 0, code=Request.UNLOCK_BATCH_MQ)
    assert lock("two", 0, 1) == [0]
    assert raw.ask(Request.LOCK_BATCH_MQ, {}, b'{"mqSet":[{"topic":"t"}]}').code == Code.INVALID_PARAMETER


def test_kafkas_tools_show_members_and_lag(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    for _ in range(3):
        raw.sent(topic, b"x")
    raw.heartbeat("one", {group: {topic: "*"}})
    raw.ask(Request.UPDATE_CONSUMER_OFFSET, {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 2})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    listed = {each.group_id for each in admin.list_consumer_groups().result(SECONDS).valid}
    assert group in listed
    described = admin.describe_consumer_groups([group])[group].result(SECONDS)
    assert [each.client_id for each in described.members] == ["one"]
    assert described.state == ConsumerGroupState.STABLE
    kafka = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    (committed,) = kafka.committed([TopicPartition(topic, 0)], SECONDS)
    kafka.close()
    assert committed.offset == 2


def test_kafkas_members_and_rocketmqs_are_kept_apart(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"x")
    kafka = {"bootstrap.servers": broker.kafka, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(kafka)
    consumer.subscribe([topic])
    assert wait_until(lambda: consumer.poll(0.1)).value() == b"x"
    refused = raw.heartbeat("one", {group: {topic: "*"}})
    assert refused.code == Code.SYSTEM_ERROR
    assert "members that speak Kafka's protocol" in (refused.remark or "")
    assert members(raw, group) == []
    place = {"consumerGroup": group, "topic": topic, "queueId": 0}
    assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 0}).code == Code.SYSTEM_ERROR
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    # Once it is empty the group is RocketMQ's, at the same position.
    wait_until(lambda: raw.heartbeat("one", {group: {topic: "*"}}).code == Code.SUCCESS)
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).fields == {"offset": "1"}
    failed: list[KafkaError] = []
    consumer = Consumer({**kafka, "error_cb": failed.append})
    consumer.subscribe([topic])

    def is_refused() -> bool:
        try:
            message = consumer.poll(0.1)
        except KafkaException as error:
            failed.append(error.args[0])
            return True
        return message is not None and message.error() is not None

    assert wait_until(lambda: is_refused() or bool(failed))
    consumer.close()
    assert members(raw, group) == ["one"]
