"""One message, one lag, one dead letter, whichever door shows it; and what was acknowledged, after kills."""

from __future__ import annotations

import random
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.clients.nsq.raw import Raw as Nsq
from tests.doors.rocketmq.client import Raw, load_tables
from tests.doors.rocketmq.test_other_doors import consumed
from tests.longer import LONGER
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, wait_until

import headrace
from headrace.doors.rocketmq.codes import Code, Request


def test_the_lag_is_the_same_everywhere(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    raw.ask(Request.UPDATE_AND_CREATE_TOPIC, {"topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6})
    for _ in range(3):
        raw.sent(topic, b"rocketmq")
    producer = Producer({"bootstrap.servers": broker.kafka})
    for _ in range(4):
        producer.produce(topic, b"kafka", headers=[("TAGS", b"red")])
    assert producer.flush(SECONDS) == 0
    with closing(Nsq(broker.nsq)) as nsq:
        nsq.ask("PUB", topic, body=b"nsq")
    raw.heartbeat("one", {group: {topic: "red"}})
    place = {"consumerGroup": group, "topic": topic, "queueId": 0}
    raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 2})

    stats = load_tables(raw.ask(Request.GET_CONSUME_STATS, {"consumerGroup": group}).body)["offsetTable"]
    of_rocketmq = [each["brokerOffset"] - each["consumerOffset"] for each in stats.values()]
    kafka = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    (committed,) = (each.offset for each in kafka.committed([TopicPartition(topic, 0)], SECONDS))
    _, end = kafka.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)
    kafka.close()
    assert of_rocketmq == [end - committed] == [6]
    # What the filter lets through of what is left, as a push consumer pulls it.
    answer, found = raw.pulled(topic, 2, consumerGroup=group, sysFlag=0, subVersion=1)
    assert (answer.code, [each.body for each in found]) == (Code.SUCCESS, [b"kafka"] * 4)


def test_a_delayed_message_is_the_same_everywhere(broker: headrace.Broker, raw: Raw, topic: str) -> None:
    raw.sent(topic, b"now")
    raw.sent(topic, b"later", properties={"TIMER_DELAY_MS": "300"})
    assert [each.body for each in raw.read(topic)] == [b"now"]
    wait_until(lambda: len(list(raw.read(topic))) == 2)
    assert [each.value() for each in consumed(broker.kafka, topic, 2)] == [b"now", b"later"]
    with closing(Nsq(broker.nsq)) as nsq:
        nsq.subscribe(topic, "c", 2)
        assert [nsq.delivery().body for _ in range(2)] == [b"now", b"later"]


def test_a_dead_message_is_the_same_everywhere(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"dead", properties={"KEYS": "k"})
    (message,) = raw.read(topic)
    back = {"offset": message.physical_offset, "group": group, "delayLevel": -1, "maxReconsumeTimes": 16}
    assert raw.ask(Request.CONSUMER_SEND_MSG_BACK, back).code == Code.SUCCESS
    (dead,) = raw.read(f"%DLQ%{group}")
    (seen,) = consumed(broker.kafka, f".DLQ.{group}", 1)
    headers = dict(seen.headers() or [])
    assert dead.body == seen.value() == b"dead"
    assert (headers["KEYS"], headers["RETRY_TOPIC"]) == (b"k", topic.encode())
    with closing(Nsq(broker.nsq)) as nsq:
        nsq.subscribe(f".DLQ.{group}", "c", 1)
        assert nsq.delivery().body == b"dead"


def attack(tmp_path: Path, rounds: int, seed: int) -> None:
    """Kill the broker while it is sent messages of every kind: what was acknowledged is there, once it is back."""
    dice = random.Random(seed)
    flags = ("--rocketmq", "127.0.0.1:0", "--durability", "sync", "--rocketmq-delay-levels", "1s")
    acknowledged: set[bytes] = set()
    positions: dict[str, int] = {}
    with ServeProcess(tmp_path / "data", *flags) as serving:
        for part in range(rounds):
            with Raw(serving.addresses["rocketmq"]) as raw, suppress(ConnectionError, OSError):
                raw.heartbeat("one", {"g": {"t": "*"}}, producers=["p"])
                waiting: dict[int, list[bytes]] = {}
                for number in range(dice.randrange(20, 120)):
                    body = b"%d-%d" % (part, number)
                    kind = dice.randrange(5)
                    if kind == 0:
                        opaque, bodies = raw.send_message("t", body, properties={"DELAY": "1"}), [body]
                    elif kind == 1:
                        opaque, bodies = raw.send_message("t", body, f=4, properties={"TRAN_MSG": "true"}), []
                    else:
                        opaque, bodies = raw.send_message("t", body, queue=number % 4), [body]
                    waiting[opaque] = bodies
                    if dice.random() < 0.3:
                        sent = dice.choice(list(waiting))
                        bodies = waiting.pop(sent)
                        if raw.answer(sent).code == Code.SUCCESS:
                            acknowledged.update(bodies)
                place = {"consumerGroup": "g", "topic": "t", "queueId": 0}
                if raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": part}).code == Code.SUCCESS:
                    positions["g"] = part
                for sent, bodies in list(waiting.items())[: dice.randrange(len(waiting) + 1)]:
                    if raw.answer(sent).code == Code.SUCCESS:
                        acknowledged.update(bodies)
            serving.kill()
            serving.start()
        with Raw(serving.addresses["rocketmq"]) as raw:

            def found() -> list[bytes]:
                return [each.body for queue in range(4) for each in raw.read("t", queue)]

            wait_until(lambda: acknowledged <= set(found()), lambda: str(acknowledged - set(found())))
            bodies = found()
            assert len(bodies) == len(set(bodies)), "none twice"
            asked = {"consumerGroup": "g", "topic": "t", "queueId": 0}
            assert raw.ask(Request.QUERY_CONSUMER_OFFSET, asked).fields == {"offset": str(positions["g"])}


def test_what_was_acknowledged_is_there_after_kills(tmp_path: Path) -> None:
    attack(tmp_path, 3, 7)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(3 * LONGER))
def test_a_campaign_of_kills(tmp_path: Path, seed: int) -> None:
    attack(tmp_path, 15, seed)
