"""Messages with a priority over remoting: which queue they go to, and which are popped first."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.test_pop import Popper

from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.messages import read_properties
from headrace.doors.rocketmq.records import PRIORITY, priority_of


@pytest.fixture
def topic(raw: Raw, topic: str) -> str:
    """One of four queues whose messages have priorities."""
    fields = {"topic": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "defaultTopic": "TBW102"}
    asked = raw.ask(Request.UPDATE_AND_CREATE_TOPIC, {**fields, "attributes": "+message.type=PRIORITY"})
    assert asked.code == Code.SUCCESS
    return topic


def send(raw: Raw, topic: str, body: bytes, priority: object, **more: Any) -> int:
    """Send to the first queue; the queue that it went to."""
    properties = {PRIORITY: str(priority), **more.pop("properties", {})}
    answer = raw.sent(topic, body, properties=properties, **more)
    assert answer.code == Code.SUCCESS, answer
    return int(answer.fields["queueId"])


def test_a_priority_is_the_number_of_a_queue_and_the_highest_is_popped_first(raw: Raw, topic: str) -> None:
    assert [send(raw, topic, b"%d" % each, each) for each in (0, 2, 1, 3, 2, 9)] == [0, 2, 1, 3, 2, 3]
    popper = Popper(raw, topic, f"g-{topic}")
    first, *rest = popper.pop(maxMsgNums=4)[1]
    assert [each.body for each in (first, *rest)] == [b"3", b"9", b"2", b"2"]
    # What comes back and what is new comes before what has a lower priority.
    assert popper.change(first, 0).code == Code.SUCCESS
    assert send(raw, topic, b"new", 2) == 2
    assert popper.bodies() == [b"3", b"new", b"1", b"0"]


def test_a_message_of_another_type_has_no_priority(raw: Raw, topic: str) -> None:
    assert send(raw, topic, b"keyed", 3, properties={"__SHARDINGKEY": "k"}) == 0
    assert send(raw, topic, b"later", 3, properties={"TIMER_DELAY_MS": "1"}) == 0
    for text in ("-1", "", "x", "1.5", "²", str(1 << 31)):
        assert send(raw, topic, b"none", text) == 0, text
    properties = {"TRAN_MSG": "true", PRIORITY: "3", "PGROUP": "p"}
    assert raw.sent(topic, b"half", properties=properties).fields["queueId"] == "0"
    for message in raw.read(topic):
        assert PRIORITY not in read_properties(message.properties)
    assert raw.send_batch(topic, [b"1", b"2"], queue=1).fields["queueId"] == "1"


def test_priorities_end_where_numbers_do() -> None:
    assert priority_of({PRIORITY: str((1 << 31) - 1)}) == (1 << 31) - 1
    assert priority_of({PRIORITY: str(1 << 31)}) == -1


def test_topics_without_priorities_take_turns(raw: Raw, topic: str) -> None:
    assert raw.ask(Request.UPDATE_AND_CREATE_TOPIC, {**PLAIN, "topic": topic}).code == Code.SUCCESS
    for each in range(4):
        assert send(raw, topic, b"%d" % each, each) == each
    popper = Popper(raw, topic, f"g-{topic}")
    assert popper.bodies(maxMsgNums=2) != [b"3", b"2"], "one queue behind the other, and round about"


PLAIN = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "defaultTopic": "TBW102", "attributes": "-message.type"}


@pytest.mark.parametrize(("factor", "first"), [("100", {b"3"}), ("0", {b"0", b"1", b"2", b"3"})])
def test_a_group_goes_by_priorities_as_often_as_its_factor_says(
    raw: Raw, topic: str, factor: str, first: set[bytes]
) -> None:
    group = f"g-{topic}"
    body = json.dumps({"groupName": group, "attributes": {"+priority.factor": factor, "-other": ""}}).encode()
    assert raw.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == Code.SUCCESS
    for each in range(4):
        send(raw, topic, b"%d" % each, each)
    popper = Popper(raw, topic, group)
    found = set()
    for _ in range(8):
        (message,) = popper.pop(maxMsgNums=1)[1]
        found.add(message.body)
        assert popper.change(message, 0).code == Code.SUCCESS
    assert found == first
