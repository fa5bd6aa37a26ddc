"""Messages for a time, and their recall."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from tests.doors.rocketmq.client import Raw
from tests.waiting import wait_until

from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.frames import Command
from headrace.doors.rocketmq.messages import read_properties


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_message_appears_when_it_is_due(raw: Raw, topic: str, name: str) -> None:
    begin = now_ms()
    value = {"TIMER_DELAY_SEC": 1, "TIMER_DELAY_MS": 300, "TIMER_DELIVER_MS": begin + 300}[name]
    assert raw.sent(topic, b"timed", properties={name: str(value)}).code == Code.SUCCESS
    answer, (message,) = raw.pulled(topic, wait_ms=20_000)
    assert answer.code == Code.SUCCESS
    assert message.store_ms >= begin + (1_000 if name == "TIMER_DELAY_SEC" else 300)
    assert message.body == b"timed"
    assert read_properties(message.properties)[name] == str(value)


def test_a_time_that_has_passed_is_now(raw: Raw, topic: str) -> None:
    for number, properties in enumerate(({"TIMER_DELIVER_MS": "1000"}, {"TIMER_DELAY_SEC": "-1"})):
        answer = raw.sent(topic, b"x", properties=properties)
        assert (answer.code, answer.fields["queueOffset"]) == (Code.SUCCESS, str(number))
        assert "recallHandle" not in answer.fields


def test_a_delay_level_goes_before_a_time(raw: Raw, topic: str) -> None:
    # The levels of these tests are nothing at all but for the last.
    assert raw.sent(topic, b"x", properties={"DELAY": "1", "TIMER_DELAY_SEC": "0"}).code == Code.SUCCESS
    answer = raw.sent(topic, b"y", properties={"DELAY": "6", "TIMER_DELAY_MS": "1"})
    assert answer.code == Code.SUCCESS
    assert "recallHandle" not in answer.fields
    assert [each.body for each in raw.read(topic)] == [b"x"]


@pytest.mark.parametrize("value", ["soon", "", "1e3", "9" * 30, "9" * 18])
def test_times_that_make_no_sense(raw: Raw, topic: str, value: str) -> None:
    assert raw.sent(topic, b"x", properties={"TIMER_DELAY_SEC": value}).code == Code.MESSAGE_ILLEGAL
    assert raw.sent(topic, b"y").fields["queueOffset"] == "0"


def recall(raw: Raw, topic: str, handle: str) -> Command:
    return raw.ask(Request.RECALL_MESSAGE, {"producerGroup": "p", "topic": topic, "recallHandle": handle})


def test_a_recalled_message_is_never_delivered(raw: Raw, topic: str) -> None:
    due = now_ms() + 2_000
    first, second = (
        raw.sent(topic, body, properties={"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due)})
        for body, key in ((b"recalled", "A1"), (b"kept", "A2"))
    )
    handle = first.fields["recallHandle"]
    version, of, broker, at, unique_key, _ = urlsafe_b64decode(handle).decode().split(" ")
    assert (version, of, broker, int(at), unique_key) == ("v1", topic, "headrace", due, "A1")
    answer = recall(raw, topic, handle)
    assert (answer.code, answer.fields) == (Code.SUCCESS, {"msgId": "A1"})
    # Again, as after an answer that was lost.
    assert recall(raw, topic, handle).code == Code.SUCCESS
    wait_until(lambda: [each.body for each in raw.read(topic)] == [b"kept"])
    # Too late.
    assert recall(raw, topic, second.fields["recallHandle"]).code == Code.ILLEGAL_OPERATION
    assert [each.body for each in raw.read(topic)] == [b"kept"]


def test_handles_that_are_none(raw: Raw, topic: str) -> None:
    answer = raw.sent(topic, b"x", properties={"TIMER_DELAY_SEC": "3600"})
    handle = answer.fields["recallHandle"]
    assert recall(raw, f"{topic}-other", handle).code == Code.TOPIC_NOT_EXIST
    raw.sent(f"{topic}-other", b"x")
    for text in ("", "?", "v1", handle[:-8], handle * 100, urlsafe_b64encode(b"v1 a b c d e").decode()):
        assert recall(raw, topic, text).code == Code.ILLEGAL_OPERATION
    assert recall(raw, f"{topic}-other", handle).code == Code.ILLEGAL_OPERATION
    assert recall(raw, topic, handle).code == Code.SUCCESS
