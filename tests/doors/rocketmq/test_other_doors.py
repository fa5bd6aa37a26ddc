"""One stored copy: what RocketMQ's clients send is read through Kafka and NSQ, and the other way round."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer
from tests.clients.nsq.raw import Raw as Nsq
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import given_properties
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, wait_until

import headrace
from headrace.doors.rocketmq.codes import Code, Request


def consumed(address: str, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "kafka", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Message] = []

    def poll() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
        return len(found) >= count

    wait_until(poll, turn=lambda: None)
    consumer.close()
    return found


def test_sent_by_rocketmq_and_read_by_others(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    raw.sent(topic, b"one", properties={"TAGS": "red", "KEYS": "k", "__SHARDINGKEY": "shard"})
    raw.send_batch(topic, [b"two", b"three"])
    found = consumed(broker.kafka, topic, 3)
    assert [each.value() for each in found] == [b"one", b"two", b"three"]
    assert [each.key() for each in found] == [b"shard", None, None]
    headers = dict(found[0].headers() or [])
    assert (headers["TAGS"], headers["KEYS"], headers["UNIQ_KEY"]) == (b"red", b"k", b"0A")
    assert headers["rocketmq-born-time"] == b"1700000000000"
    with closing(Nsq(broker.nsq)) as nsq:
        nsq.subscribe(topic, "c", 3)
        assert [nsq.delivery().body for _ in range(3)] == [b"one", b"two", b"three"]


def test_sent_by_others_and_read_by_rocketmq(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    raw.ask(Request.UPDATE_AND_CREATE_TOPIC, {"topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6})
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, b"kafka", key=b"k", headers=[("TAGS", b"red"), ("trace", b"\xff")])
    assert producer.flush(SECONDS) == 0
    with closing(Nsq(broker.nsq)) as nsq:
        nsq.ask("PUB", topic, body=b"nsq")
    kafka, nsq_message = raw.read(topic)
    assert (kafka.body, given_properties(kafka)) == (b"kafka", {"TAGS": "red", "trace-bin": "/w=="})
    assert (nsq_message.body, given_properties(nsq_message)) == (b"nsq", {})
    assert kafka.born_ms == kafka.store_ms
    assert raw.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": kafka.physical_offset}).code == Code.SUCCESS
    _, red = raw.pulled(topic, subscription="red")
    assert [each.body for each in red] == [b"kafka"]


def test_a_names_dots_and_percents(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    raw.sent(f"shop%{topic}", b"x")
    (message,) = consumed(broker.kafka, f"shop.{topic}", 1)
    assert message.value() == b"x"
    (stored,) = raw.read(f"shop%{topic}")
    assert stored.topic == f"shop%{topic}"


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    """Messages, their ids, members' positions, and messages that wait to come again."""
    flags = ("--rocketmq", "127.0.0.1:0", "--rocketmq-delay-levels", "1s")
    with ServeProcess(tmp_path / "data", *flags) as serving:
        with Raw(serving.addresses["rocketmq"]) as raw:
            for number in range(3):
                assert raw.sent("t", b"%d" % number).code == Code.SUCCESS
            before = list(raw.read("t"))
            place = {"consumerGroup": "g", "topic": "t", "queueId": 0}
            raw.heartbeat("one", {"g": {"t": "*"}})
            assert raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 2}).code == Code.SUCCESS
            back = {"offset": before[1].physical_offset, "group": "g", "delayLevel": 1, "maxReconsumeTimes": 16}
            assert raw.ask(Request.CONSUMER_SEND_MSG_BACK, back).code == Code.SUCCESS
        serving.kill()
        serving.start()
        with Raw(serving.addresses["rocketmq"]) as raw:
            after = list(raw.read("t"))
            assert [(each.body, each.physical_offset) for each in after] == [
                (each.body, each.physical_offset) for each in before
            ]
            assert raw.ask(Request.QUERY_CONSUMER_OFFSET, place).fields == {"offset": "2"}
            again = wait_until(lambda: list(raw.read("%RETRY%g")))
            assert [(each.body, each.reconsume_times) for each in again] == [(b"1", 1)]


def test_a_stop_answers_the_pulls_that_wait(tmp_path: Path) -> None:
    with (
        ServeProcess(tmp_path / "data", "--rocketmq", "127.0.0.1:0") as serving,
        Raw(serving.addresses["rocketmq"]) as raw,
    ):
        raw.sent("t", b"x")
        waiting = raw.pull("t", 1, wait_ms=60_000)
        # Handled after the pull, so that waits by now.
        raw.sent("t", b"y", queue=1)
        serving.stop()
        assert raw.answer(waiting).code == Code.PULL_NOT_FOUND
