"""Messages that are found by a key, a unique key or a tag."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.formats import decode_all
from tests.waiting import SECONDS

import headrace
from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command

EVER = (1 << 63) - 1


def query(raw: Raw, topic: str, key: str, **more: Any) -> Command:
    fields: dict[str, Any] = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": EVER}
    return raw.ask(Request.QUERY_MESSAGE, {**fields, **more})


def bodies(answer: Command) -> list[bytes]:
    assert (answer.code, answer.remark) == (Code.SUCCESS, None)
    assert set(answer.fields) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    assert all(int(each) > 0 for each in answer.fields.values())
    return [each.body for each in decode_all(answer.body)]


@pytest.fixture
def sent(raw: Raw, topic: str) -> str:
    """A topic with messages that have keys, unique keys and tags."""
    for number in range(12):
        properties = {"UNIQ_KEY": f"U{number:03d}", "KEYS": f"k{number % 3} all", "TAGS": f"t{number % 2}"}
        assert raw.sent(topic, b"%d" % number, queue=number % 4, properties=properties).code == Code.SUCCESS
    return topic


def test_by_key_and_by_unique_key(raw: Raw, sent: str) -> None:
    assert set(bodies(query(raw, sent, "k1"))) == {b"1", b"4", b"7", b"10"}
    assert bodies(query(raw, sent, "U005")) == [b"5"]
    assert bodies(query(raw, sent, "U005", indexType="K")) == [b"5"], "they share a name space, as in RocketMQ"
    assert bodies(query(raw, sent, "U005", _UNIQUE_KEY_QUERY="true")) == [b"5"]
    assert set(bodies(query(raw, sent, "t1", indexType="T"))) == {b"%d" % each for each in range(1, 12, 2)}
    found = list(decode_all(query(raw, sent, "U005").body))
    (pulled,) = [each for each in raw.read(sent, 1) if each.body == b"5"]
    assert found == [pulled], "a message is the same, whichever way it is read"


def test_the_newest_are_answered(raw: Raw, sent: str) -> None:
    assert len(bodies(query(raw, sent, "all", maxNum=1_000))) == 12
    raw.sent(sent, b"one", properties={"KEYS": "one few"})
    raw.sent(sent, b"two", properties={"KEYS": "few two"})
    raw.sent(sent, b"three", properties={"KEYS": "few"})
    assert bodies(query(raw, sent, "few", maxNum=2)) == [b"two", b"three"]
    for number in range(70):
        raw.sent(sent, b"more", queue=number % 4, properties={"KEYS": "all"})
    assert len(bodies(query(raw, sent, "all", maxNum=1_000))) == 64


def test_a_range_of_time(raw: Raw, sent: str) -> None:
    times = {each.body: each.store_ms for queue in range(4) for each in raw.read(sent, queue)}
    last = times[b"11"]
    found = bodies(query(raw, sent, "k0", beginTimestamp=times[b"3"], endTimestamp=last))
    assert set(found) == {body for body in (b"0", b"3", b"6", b"9") if times[body] >= times[b"3"]}
    assert query(raw, sent, "k0", beginTimestamp=last + 1).code == Code.QUERY_NOT_FOUND
    assert query(raw, sent, "k0", endTimestamp=times[b"0"] - 1).code == Code.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "none"},
        {"key": ""},
        {"key": "k"},
        {"topic": "never-was"},
        {"topic": "__queues"},
        {"maxNum": 0},
        {"maxNum": -5},
        {"beginTimestamp": 5, "endTimestamp": 4},
        {"key": "t1"},
        {"key": "k1", "_UNIQUE_KEY_QUERY": "true"},
        {"key": "k1", "indexType": "T"},
    ],
)
def test_nothing_is_found(raw: Raw, sent: str, fields: dict[str, Any]) -> None:
    answer = query(raw, **{"topic": sent, "key": "k1", **fields})
    assert (answer.code, answer.body) == (Code.QUERY_NOT_FOUND, b"")
    assert answer.remark == "can not find message, maybe time range not correct"
    assert answer.fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


@pytest.mark.parametrize("field", ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"])
def test_what_makes_no_sense(raw: Raw, field: str) -> None:
    fields = {"topic": "t", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}
    del fields[field]
    assert raw.ask(Request.QUERY_MESSAGE, fields).code == Code.INVALID_PARAMETER
    assert raw.ask(Request.QUERY_MESSAGE, {**fields, field: "x" * 30}).code != Code.SUCCESS


def test_topics_of_rocketmq_have_an_index(broker: headrace.Broker, raw: Raw, topic: str, group: str) -> None:
    raw.sent(topic, b"x")
    made = f"{topic}-made"
    fields = {"topic": made, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "defaultTopic": "TBW102"}
    assert raw.ask(Request.UPDATE_AND_CREATE_TOPIC, fields).code == Code.SUCCESS
    raw.sent(f"%RETRY%{group}", b"again")
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for name in (topic, made, f".RETRY.{group}"):
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        assert admin.describe_configs([resource])[resource].result(SECONDS)["index"].value == "key,id"
