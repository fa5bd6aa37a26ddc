"""What administrators ask: topics, groups and their progress, clients, the broker itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.doors.rocketmq.client import Raw, load_tables
from tests.waiting import SECONDS

import headrace
from headrace.doors.rocketmq.codes import Code, Request


def config_of(raw: Raw) -> dict[str, str]:
    lines = raw.ask(Request.GET_BROKER_CONFIG).body.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def positions(raw: Raw, group: str, **more: Any) -> Any:
    """What mqadmin consumerProgress shows, by topic and queue."""
    answer = raw.ask(Request.GET_CONSUME_STATS, {"consumerGroup": group, **more})
    assert answer.code == Code.SUCCESS
    return load_tables(answer.body)["offsetTable"]


def commit(raw: Raw, group: str, topic: str, queue: int, offset: int) -> int:
    place = {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": offset}
    return raw.ask(Request.UPDATE_CONSUMER_OFFSET, place).code


# --- topics -----------------------------------------------------------------------------------------------------------


def test_topics(raw: Raw, namesrv: Raw, topic: str, group: str) -> None:
    given = {"topicName": topic, "readQueueNums": 3, "writeQueueNums": 2, "perm": 4}
    listed = {"topicConfigList": [given, {**given, "topicName": f"{topic}-2"}]}
    assert raw.ask(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, json.dumps(listed).encode()).code == Code.SUCCESS
    for bad in ({**given, "topicName": "bad$name"}, {**given, "perm": 8}, {**given, "perm": "6"}):
        body = json.dumps({"topicConfigList": [bad]}).encode()
        assert raw.ask(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == Code.INVALID_PARAMETER
    found = raw.json(Request.GET_TOPIC_CONFIG, topic=topic)
    assert (found["readQueueNums"], found["writeQueueNums"], found["perm"]) == (3, 2, 4)
    assert raw.ask(Request.GET_TOPIC_CONFIG, {"topic": "nothing"}).code == Code.TOPIC_NOT_EXIST
    raw.heartbeat("one", {group: {topic: "*"}})
    table = raw.json(Request.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
    assert table[topic] == found
    assert table[f"%RETRY%{group}"]["readQueueNums"] == 1
    assert table["TBW102"]["perm"] == 7
    names = namesrv.json(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)["topicList"]
    assert set(table) == set(names), "the name server lists the same"
    paged = raw.ask(Request.GET_ALL_TOPIC_CONFIG, {"topicSeq": 1, "maxTopicNum": 2})
    assert list(json.loads(paged.body)["topicConfigTable"]) == sorted(table)[1:3]
    assert paged.fields == {"totalTopicNum": str(len(table))}
    assert "TBW102" in raw.json(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]


def test_statistics_of_a_topic(raw: Raw, topic: str) -> None:
    for _ in range(3):
        raw.sent(topic, b"x", queue=1)
    answer = raw.ask(Request.GET_TOPIC_STATS_INFO, {"topic": topic})
    found = load_tables(answer.body)["offsetTable"]
    (last,) = (each for each in raw.read(topic, 1) if each.queue_offset == 2)
    assert found[f"{topic}:1"] == {"lastUpdateTimestamp": last.store_ms, "maxOffset": 3, "minOffset": 0}
    assert found[f"{topic}:0"] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    assert raw.ask(Request.GET_TOPIC_STATS_INFO, {"topic": "nothing"}).code == Code.TOPIC_NOT_EXIST
    stats = raw.json(Request.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey=topic)
    assert [stats[part]["sum"] for part in ("statsMinute", "statsHour", "statsDay")] == [3, 3, 3]
    assert stats["statsMinute"]["tps"] == 3 / 60
    for name, key in (("TOPIC_PUT_NUMS", "nothing"), ("NOTHING", topic), ("GROUP_GET_NUMS", f"{topic}@nobody")):
        refused = raw.ask(Request.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        assert refused.code == Code.SYSTEM_ERROR


# --- bad input --------------------------------------------------------------------------------------------------------

ASKED = (
    *range(17, 29),
    *range(200, 230),
    *range(300, 330),
    *range(340, 355),
)
NAMES = ("topic", "group", "consumerGroup", "producerGroup", "groupName", "srcGroup", "destGroup", "statsName")
NAMES += ("statsKey", "clientId", "msgId", "offset", "queueId", "timestamp", "topicSeq", "maxTopicNum", "groupSeq")
NAMES += ("maxGroupNum", "compareGroup", "filterGroups", "topicList", "readQueueNums", "writeQueueNums", "perm")


@pytest.mark.parametrize("value", [None, "", "-1", "nothing", "%", "9" * 30, "x" * 300])
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"groupConfigList":1}', b"\xff"])
def test_requests_that_make_no_sense(raw: Raw, value: str | None, body: bytes) -> None:
    fields = {} if value is None else dict.fromkeys(NAMES, value)
    for code in ASKED:
        answer = raw.ask(code, fields, body)
        assert "broker's log" not in (answer.remark or ""), code


# --- progress ---------------------------------------------------------------------------------------------------------


def test_the_lag_is_kafkas(broker: headrace.Broker, raw: Raw, namesrv: Raw, topic: str, group: str) -> None:
    for number in range(5):
        raw.sent(topic, b"x", queue=number % 2)
    assert positions(raw, group) == {}
    assert commit(raw, group, topic, 0, 1) == Code.SUCCESS
    found = positions(raw, group)
    first = next(iter(raw.read(topic)))
    assert found[f"{topic}:0"] == {
        "brokerOffset": 3,
        "consumerOffset": 1,
        "lastTimestamp": first.store_ms,
        "pullOffset": 1,
    }
    assert found[f"{topic}:1"]["consumerOffset"] == 0, "it counts from the start"
    assert positions(raw, group, topic=topic) == found
    kafka = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    (committed,) = kafka.committed([TopicPartition(topic, 0)], SECONDS)
    end = kafka.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)[1]
    kafka.close()
    lag = found[f"{topic}:0"]["brokerOffset"] - found[f"{topic}:0"]["consumerOffset"]
    assert lag == end - committed.offset == 2
    everything = load_tables(raw.ask(Request.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body)
    (own,) = (each[group] for each in everything["consumeStatsList"] if group in each)
    assert own[0]["offsetTable"] == found
    # Tools find a group by the route of its retry topic.
    assert namesrv.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": f"%RETRY%{group}"}).code == Code.SUCCESS
    assert namesrv.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%nobody"}).code == Code.TOPIC_NOT_EXIST


def test_a_group_of_kafkas_has_a_lag_too(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"x")
    kafka = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    kafka.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    kafka.close()
    found = positions(raw, group)[f"{topic}:0"]
    assert (found["brokerOffset"], found["consumerOffset"]) == (1, 1)


def test_who_reads_what(raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"0")
    raw.sent(topic, b"1")
    raw.heartbeat("one", {group: {topic: "red"}})
    assert raw.json(Request.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic) == {"groupList": [group]}
    assert raw.json(Request.QUERY_TOPICS_BY_CONSUMER, group=group)["topicList"] == []
    commit(raw, group, topic, 0, 1)
    assert raw.json(Request.QUERY_TOPICS_BY_CONSUMER, group=group)["topicList"] == [topic]
    found = raw.json(Request.QUERY_SUBSCRIPTION_BY_CONSUMER, group=group, topic=topic)
    assert found["subscriptionData"]["tagsSet"] == ["red"]
    commit(raw, f"{group}-2", topic, 0, 2)
    assert raw.json(Request.QUERY_CORRECTION_OFFSET, topic=topic, compareGroup="", filterGroups="") == {
        "correctionOffsets": {"0": 1}
    }
    behind = raw.json(Request.QUERY_CORRECTION_OFFSET, topic=topic, compareGroup=group, filterGroups=group)
    assert behind["correctionOffsets"] == {"0": (1 << 63) - 1}
    times = [each.store_ms for each in raw.read(topic)]
    (span,) = (
        each
        for each in raw.json(Request.QUERY_CONSUME_TIME_SPAN, topic=topic, group=group)["consumeTimeSpanSet"]
        if each["messageQueue"]["queueId"] == 0
    )
    assert [span[name] for name in ("minTimeStamp", "consumeTimeStamp", "maxTimeStamp")] == [times[0], *times]
    assert span["delayTime"] >= 0
    assert raw.ask(Request.CLONE_GROUP_OFFSET, {"srcGroup": group, "destGroup": f"{group}-3"}).code == Code.SUCCESS
    assert positions(raw, f"{group}-3")[f"{topic}:0"]["consumerOffset"] == 1


# --- the broker -------------------------------------------------------------------------------------------------------


def test_figures_of_the_broker(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"x")
    before = raw.json(Request.GET_BROKER_RUNTIME_INFO)["table"]
    assert all(isinstance(value, str) for value in before.values())
    raw.sent(topic, b"x")
    after = raw.json(Request.GET_BROKER_RUNTIME_INFO)["table"]
    assert int(after["msgPutTotalTodayNow"]) == int(before["msgPutTotalTodayNow"]) + 1
    assert after["brokerVersionDesc"] == "V5_5_0"
    assert len(after["putTps"].split()) == 3


def test_configuration_of_the_broker(raw: Raw) -> None:
    found = config_of(raw)
    assert (found["brokerName"], found["brokerClusterName"], found["brokerId"]) == ("headrace", "DefaultCluster", "0")
    assert found["autoCreateSubscriptionGroup"] == "true"
    assert raw.ask(Request.UPDATE_BROKER_CONFIG, {}, b"# hours\nfileReservedTime=48\n").code == Code.SUCCESS
    assert config_of(raw)["fileReservedTime"] == "48"
    for body, code in (
        (b"brokerName=other", Code.NO_PERMISSION),
        (b"fileReservedTime=x", Code.INVALID_PARAMETER),
        (b"\xff", Code.INVALID_PARAMETER),
        (b"x" * 70_000, Code.INVALID_PARAMETER),
    ):
        assert raw.ask(Request.UPDATE_BROKER_CONFIG, {}, body).code == code
    assert config_of(raw)["fileReservedTime"] == "48"


def test_rates_between_two_looks() -> None:
    from headrace.doors.rocketmq.remoting.rates import COUNTERS_MAX, Rates

    now = 100.0
    rates = Rates(lambda: now)
    assert rates.look("a", 5) == 0
    now = 110.0
    assert rates.look("a", 25) == 2
    now = 165.0
    assert rates.look("a", 25) == pytest.approx(20 / 65)
    now = 300.0
    assert rates.look("a", 25) == 0
    assert rates.look("a", 1) == 0, "a topic was deleted"
    for number in range(COUNTERS_MAX):
        rates.look(str(number), 0)
    now = 310.0
    assert rates.look("a", 100) == 0, "it was forgotten"


def test_the_type_of_a_topics_messages(raw: Raw, topic: str) -> None:
    def update(attributes: str) -> int:
        asked = {"topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": attributes}
        return raw.ask(Request.UPDATE_AND_CREATE_TOPIC, asked).code

    def attributes() -> dict[str, str]:
        return raw.json(Request.GET_TOPIC_CONFIG, topic=topic)["attributes"]

    assert update("+message.type=FIFO") == Code.SUCCESS
    assert attributes() == {"message.type": "FIFO"}
    assert raw.sent(topic, b"x").code == Code.SUCCESS, "over remoting none is checked, as by RocketMQ's broker"
    for wrong in ("+message.type=RED", "message.type=FIFO", "+cleanup.policy=COMPACTION", "+"):
        assert update(wrong) == Code.INVALID_PARAMETER
    assert update("") == Code.SUCCESS
    assert attributes() == {"message.type": "FIFO"}
    assert update("-message.type") == Code.SUCCESS
    assert attributes() == {}
    listed = {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "attributes": {"+message.type": "DELAY"}}
    body = json.dumps({"topicConfigList": [listed]}).encode()
    assert raw.ask(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == Code.SUCCESS
    assert attributes() == {"message.type": "DELAY"}
