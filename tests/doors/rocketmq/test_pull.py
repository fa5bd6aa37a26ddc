"""Pulling: what is found, waiting for more, tags, and positions."""

from __future__ import annotations

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import decode_all
from tests.waiting import SECONDS

import headrace
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command


def positions(answer: Command) -> tuple[int, ...]:
    return tuple(int(answer.fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))


def test_what_a_pull_finds(raw: Raw, topic: str) -> None:
    for number in range(5):
        raw.sent(topic, b"%d" % number)
    answer, found = raw.pulled(topic, 1, maxMsgNums=2)
    assert answer.code == Code.SUCCESS
    assert [each.body for each in found] == [b"1", b"2"]
    assert positions(answer) == (3, 0, 5)
    assert answer.fields["suggestWhichBrokerId"] == "0"
    answer, found = raw.pulled(topic, 3, maxMsgBytes=1)
    assert [each.body for each in found] == [b"3"], "one at least"
    assert (raw.pulled(topic, 5)[0].code, positions(raw.pulled(topic, 5)[0])) == (Code.PULL_NOT_FOUND, (5, 0, 5))
    assert (raw.pulled(topic, 9)[0].code, positions(raw.pulled(topic, 9)[0])) == (Code.PULL_OFFSET_MOVED, (5, 0, 5))
    assert raw.pulled(topic, -1)[0].code == Code.PULL_OFFSET_MOVED
    assert raw.pulled(topic, 0, queue=1)[0].code == Code.PULL_NOT_FOUND
    assert raw.pulled(topic, 0, queue=9)[0].code == Code.INVALID_PARAMETER
    assert raw.pulled("nowhere")[0].code == Code.TOPIC_NOT_EXIST


def test_a_pull_waits_for_a_message_and_holds_back_no_other_request(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"first")
    waiting = raw.pull(topic, 1, wait_ms=60_000)
    other = raw.pull(topic, 0, queue=1, wait_ms=60_000)
    # Answered on the same connection while both wait.
    assert raw.sent(topic, b"second").code == Code.SUCCESS
    answer = raw.answer(waiting)
    assert (answer.code, [each.body for each in decode_all(answer.body)]) == (Code.SUCCESS, [b"second"])
    raw.sent(topic, b"elsewhere", queue=1)
    assert raw.answer(other).code == Code.SUCCESS


def test_a_pull_that_waited_in_vain(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"first")
    answer = raw.answer(raw.pull(topic, 1, wait_ms=10))
    assert (answer.code, positions(answer)) == (Code.PULL_NOT_FOUND, (1, 0, 1))


def test_tags_are_left_out_by_their_hash(raw: Raw, topic: str) -> None:
    for number, tag in enumerate(("Aa", "red", "BB", "", "red")):
        raw.sent(topic, b"%d" % number, properties={"TAGS": tag} if tag else {})
    _, found = raw.pulled(topic, subscription="Aa")
    assert [each.body for each in found] == [b"0", b"2"], "tags of the same hash pass: the client looks at the text"
    _, found = raw.pulled(topic, subscription="blue || red")
    assert [each.body for each in found] == [b"1", b"4"]
    answer, found = raw.pulled(topic, subscription="none")
    assert (answer.code, found, positions(answer)) == (Code.PULL_RETRY_IMMEDIATELY, [], (5, 0, 5))
    assert raw.pulled(topic, subscription=" || ")[0].code == Code.SUBSCRIPTION_PARSE_FAILED


def test_the_subscription_of_a_heartbeat(raw: Raw, topic: str, group: str) -> None:
    for tag in ("a", "b"):
        raw.sent(topic, tag.encode(), properties={"TAGS": tag})
    own = {"consumerGroup": group, "sysFlag": 0}
    assert raw.pulled(topic, **own)[0].code == Code.SUBSCRIPTION_NOT_EXIST
    assert raw.heartbeat("c1", {group: {topic: "b"}}).code == Code.SUCCESS
    assert [each.body for each in raw.pulled(topic, **own)[1]] == [b"b"]
    assert raw.pulled(topic, **own, subVersion=9)[0].code == Code.SUBSCRIPTION_NOT_LATEST
    raw.sent(f"{topic}-other", b"x")
    assert raw.pulled(f"{topic}-other", **own)[0].code == Code.SUBSCRIPTION_NOT_EXIST


def test_positions_of_a_group(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    place = {"consumerGroup": group, "topic": topic, "queueId": 0}
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).code == Code.TOPIC_NOT_EXIST
    raw.sent(topic, b"x", queue=0)
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).fields == {"offset": "0"}, "the queue has its first message"
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, {**place, "queueId": 1}).code == Code.QUERY_NOT_FOUND
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, {**place, "setZeroIfNotFound": "false"}).code == Code.QUERY_NOT_FOUND
    assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 1}).code == Code.SUCCESS
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).fields == {"offset": "1"}
    assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": -1}).code == Code.INVALID_PARAMETER
    # One-way, as clients send it, and with a pull: the next question sees it.
    written = {name: str(value) for name, value in {**place, "commitOffset": 7}.items()}
    raw.send(Request.UPDATE_CONSUMER_OFFSET, written, flag=2)
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).fields == {"offset": "7"}
    raw.answer(raw.pull(topic, 1, consumerGroup=group, sysFlag=1 | 4, commitOffset=1))
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).fields == {"offset": "1"}


def test_offsets_of_a_queue(raw: Raw, topic: str) -> None:
    place = {"topic": topic, "queueId": 0}
    raw.sent(topic, b"x", queue=1)
    assert raw.ask(Request.GET_EARLIEST_MSG_STORETIME, place).fields == {"timestamp": "-1"}
    raw.sent(topic, b"0")
    raw.sent(topic, b"1")
    first, second = raw.read(topic)
    assert raw.ask(Request.GET_MAX_OFFSET, place).fields == {"offset": "2"}
    assert raw.ask(Request.GET_MIN_OFFSET, place).fields == {"offset": "0"}
    assert raw.ask(Request.GET_EARLIEST_MSG_STORETIME, place).fields == {"timestamp": str(first.store_ms)}
    for timestamp, offset in ((0, "0"), (first.store_ms, "0"), (second.store_ms + 1, "2")):
        found = raw.ask(Request.SEARCH_OFFSET_BY_TIMESTAMP, {**place, "timestamp": timestamp})
        assert found.fields == {"offset": offset}


def test_what_kafka_produced_is_pulled(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    raw.sent(topic, b"first")
    producer = Producer({"bootstrap.servers": broker.kafka, "compression.type": "lz4"})
    for number in range(1, 300):
        producer.produce(topic, b"%d" % number, headers=[("TAGS", b"red" if number % 2 else b"x")], partition=0)
    assert producer.flush(SECONDS) == 0
    assert [each.body for each in raw.read(topic)][1:] == [b"%d" % number for number in range(1, 300)]
    answer, red = raw.pulled(topic, 100, subscription="red", maxMsgNums=3)
    assert [each.body for each in red] == [b"101", b"103", b"105"]
    assert positions(answer)[0] == 106


def test_a_start_that_has_moved(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    for number in range(5):
        raw.sent(topic, b"%d" % number)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for trimmed in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        trimmed.result(SECONDS)
    answer, found = raw.pulled(topic, 1)
    assert (answer.code, found, positions(answer)) == (Code.PULL_OFFSET_MOVED, [], (3, 3, 5))
    assert raw.ask(Request.GET_MIN_OFFSET, {"topic": topic, "queueId": 0}).fields == {"offset": "3"}
    # A group without a position decides for itself where to begin.
    place = {"consumerGroup": "new", "topic": topic, "queueId": 0}
    assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).code == Code.QUERY_NOT_FOUND


def test_a_pull_whose_topic_is_deleted_is_answered(raw: Raw, topic: str) -> None:
    raw.sent(topic, b"x")
    waiting = raw.pull(topic, 1, wait_ms=60_000)
    assert raw.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == Code.SUCCESS
    # The pull is answered when its topic goes, one way or another.
    assert raw.answer(waiting).code in (Code.PULL_NOT_FOUND, Code.TOPIC_NOT_EXIST, Code.PULL_OFFSET_MOVED)
